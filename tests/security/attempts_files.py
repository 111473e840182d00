"""A second user of the host: files of the lab, its processes, and what notebooks and terminals are given."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil
import strangers
import websocket
from attempts import Attempt, Group
from strangers import Did
from targets import Target

PRIVATE = (".env", ".rocmlab/jupyter.json", ".rocmlab/written.json")
PRIVATE_FOLDERS = (".rocmlab/config", ".rocmlab/data", ".rocmlab/runtime", "share/home")
TO_CHANGE = (
    ".env",
    ".rocmlab",
    ".rocmlab/jupyter.json",
    ".rocmlab/jupyter.log",
    ".rocmlab/lock",
    ".rocmlab/home",
    ".rocmlab/config",
    ".rocmlab/runtime",
    ".venv/bin/python",
    ".venv/bin/jupyter-lab",
    ".venv/pyvenv.cfg",
    ".venv/share/jupyter/kernels/torch/kernel.json",
    ".venv/etc/jupyter",
    "Makefile",
    "compose.yaml",
    "docker/start.sh",
    "scripts/rocmlab",
    "src/rocmlab/__init__.py",
    "notebooks",
    "share",
    "share/runs",
    "share/cache",
    "share/data",
    "share/models",
    "share/home",
)
OF_A_PROCESS = (
    "environ",
    "maps",
    "mem",
    "stack",
    "auxv",
    "io",
    "syscall",
    "pagemap",
    "numa_maps",
    "smaps",
    "personality",
)
LINKS_OF_A_PROCESS = ("cwd", "exe", "root", "fd/0", "fd/1", "ns/pid", "ns/net")
ON_A_PROCESS = ("send_signal", "trace", "limit", "nice", "memory")
LIMIT_FILES = 4000


# -- files -------------------------------------------------------------------------------------------------------------


def below(folder: Path) -> Iterator[Path]:
    """Yield all in a folder; what other labs of this host remove meanwhile is omitted, where `rglob` would raise."""
    for top, folders, names in os.walk(folder):
        yield from (Path(top, name) for name in (*folders, *names))


def private_files(target: Target) -> list[Path]:
    """Return every file that holds a secret, or that lies where only the owner may look."""
    folder = target.lab.folder
    found = [folder / name for name in PRIVATE]
    for name in PRIVATE_FOLDERS:
        found += [path for path in below(folder / name) if not path.is_symlink()]
    runtime = Path(target.processes()[0].environ()["JUPYTER_RUNTIME_DIR"])
    for root in (runtime, *(folder / "share/runs").glob("*attack*")):
        found += [root, *below(root)]
    return [path for path in found if path.exists()]


def visible_files(target: Target) -> list[Path]:
    """Return the files of the project, the environment's installed packages excepted."""
    found: list[Path] = []
    for top, folders, names in os.walk(target.lab.folder):
        folders[:] = [name for name in folders if name not in (".venv", ".git", "frontend", "cache")]
        found += [Path(top, name) for name in names]
    return found[:LIMIT_FILES]


def run_folder(target: Target) -> Path:
    """Leave a run behind, whose notebook prints the user's secret, as a user would."""
    work = target.lab.folder / "notebooks"
    for path in (target.lab.folder / "share/runs").glob("*attack*"):
        return path
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": "", "id": "a"}
    cell["source"] = f"import os; print(dict(os.environ)); print({target.canary!r})"
    kernel = {"kernelspec": {"name": "torch", "display_name": "x", "language": "python"}}
    text = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (work / "attack-run.ipynb").write_text(json.dumps(text), encoding="utf-8")
    target.lab.make("run-notebooks", NOTEBOOKS="attack-run", RUN="--name attack")
    (work / "attack-run.ipynb").unlink()
    return next((target.lab.folder / "share/runs").glob("*attack*"))


def _control_files(target: Target) -> str | None:
    run_folder(target)
    plain = [("read", str(target.lab.folder / "README.md")), ("listing", str(target.lab.folder / "docs"))]
    for did in strangers.act(plain):
        if did.text is None:
            return f"the second user does not even reach the project: {did.error}"
    secrets = [("read", str(target.lab.folder / ".env")), ("overwrite", str(target.lab.folder / ".env"))]
    for did in strangers.act(secrets, os.getuid()):
        if did.text is None:
            return f"the owner is kept out as well: {did.error}"
    return None


def _reading(target: Target) -> Iterator[Attempt]:
    private = private_files(target)
    actions = [("listing" if path.is_dir() else "read", str(path)) for path in private]
    for (kind, path), did in zip(actions, strangers.act(actions), strict=True):
        name = path.replace(str(target.lab.folder), "the project")
        yield Attempt(f"{kind} {name}", partial(_got, did))
    visible = visible_files(target)
    for path, did in zip(visible, strangers.act([("read", str(path)) for path in visible]), strict=True):
        if did.text is not None and (path.suffix in (".log", ".json", ".yaml", "") or "share" in path.parts):
            name = str(path).replace(str(target.lab.folder), "the project")
            yield Attempt(f"find a secret in {name}", partial(_found, target, did))
    texts = [did.text for did in strangers.act([("read", str(path)) for path in visible])]
    yield Attempt(
        "find a secret in any file", lambda: next(filter(None, (_secret(target, text) for text in texts)), None)
    )


def _secret(target: Target, text: str | None) -> str | None:
    """Tell which secret a text has; the user's own notebooks may hold the user's text."""
    return next((name for name, value in target.secrets.items() if value in (text or "") and "TOKEN" in name), None)


def _got(did: Did) -> str | None:
    return None if did.text is None else f"got {did.text[:80]!r}"


def _found(target: Target, did: Did) -> str | None:
    found = _secret(target, did.text)
    return f"it has {found} in it" if found else None


def _changing(target: Target) -> Iterator[Attempt]:
    actions: list[tuple[str, str]] = []
    for name in TO_CHANGE:
        path = target.lab.folder / name
        if not path.exists():
            continue
        folder = path if path.is_dir() else path.parent
        kinds = ("create", "link") if path.is_dir() else ("overwrite", "lock")
        actions += [(kind, str(path / "attack" if path.is_dir() else path)) for kind in kinds]
        actions += [("mode", str(path))]
        actions += [] if folder == target.lab.folder else [("rename", str(path))]
    for (kind, path), did in zip(actions, strangers.act(actions), strict=True):
        yield Attempt(f"{kind} {path.replace(str(target.lab.folder), 'the project')}", partial(_got, did))


# -- processes ---------------------------------------------------------------------------------------------------------


def _control_processes(target: Target) -> str | None:
    assert target.kernel
    pid = str(target.processes()[0].pid)
    own = strangers.act([("read", f"/proc/{pid}/environ"), ("send_signal", pid), ("memory", pid)], 0)
    if failed := [did.error for did in own if did.text is None]:
        return f"root is kept out as well: {failed}"
    seen = strangers.act([("read", f"/proc/{pid}/cmdline")])[0]
    return None if seen.text else "command lines are hidden here from everybody"


def _processes(target: Target) -> Iterator[Attempt]:
    for process in target.processes()[:6]:
        pid = process.pid
        actions: list[Sequence[str]] = [("read", f"/proc/{pid}/{name}") for name in OF_A_PROCESS]
        actions += [("target", f"/proc/{pid}/{name}") for name in LINKS_OF_A_PROCESS]
        actions += [(name, str(pid)) for name in ON_A_PROCESS]
        for (kind, argument), did in zip(actions, strangers.act(actions), strict=True):
            yield Attempt(f"{kind} {argument} ({process.name()})", partial(_got, did))
        line = strangers.act([("read", f"/proc/{pid}/cmdline")])[0]
        yield Attempt(f"a secret in the command line of {process.name()}", partial(_found, target, line))


# -- what notebooks and terminals get ----------------------------------------------------------------------------------

CODE = "import os; print(dict(os.environ))"


def _control_environment(target: Target) -> str | None:
    code = f"import os; os.environ['X'] = {target.token!r}; {CODE}"
    return None if target.token in target.server.execute("torch", code) else "a kernel's environment is not seen"


def _environment(target: Target) -> Iterator[Attempt]:
    shown = {
        "a notebook's environment": target.server.execute("torch", CODE),
        "the environment of what it starts": target.server.execute("torch", "!env; cat /proc/self/environ"),
        "a TensorFlow notebook's environment": target.server.execute("tensorflow", CODE),
        "a notebook's command line": target.server.execute("torch", "print(open('/proc/self/cmdline').read())"),
        "a terminal's environment": _terminal(target),
        "the server's environment": "\n".join(target.processes()[-1].parents()[0].environ().values()),
    }
    for process in target.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            shown[f"the environment of {process.name()} {process.pid}"] = json.dumps(process.environ())
    for where, text in shown.items():
        for name, value in target.secrets.items():
            yield Attempt(f"{name} in {where}", partial(_holds, text, value))


def _holds(text: str, value: str) -> str | None:
    return "there it is" if value in text else None


def _terminal(target: Target) -> str:
    """Return what `env` prints in a terminal of JupyterLab."""
    url = f"ws://{target.address}/terminals/websocket/{target.terminal}?token={target.token}"
    channel = websocket.create_connection(url, timeout=60)
    try:
        channel.send(json.dumps(["stdin", "env; echo end-$((6*7))\r"]))
        text = ""
        while "end-42" not in text:
            kind, *rest = json.loads(channel.recv())
            text += str(rest[0]) if kind == "stdout" else ""
        return text
    finally:
        channel.close()


GROUPS = (
    Group("a second user reads files", "a secret or a run's output is read", _control_files, _reading, ("native",)),
    Group("a second user changes files", "a file of the lab is changed", _control_files, _changing, ("native",)),
    Group("a second user at the processes", "memory or environment is read", _control_processes, _processes),
    Group(
        "secrets given to notebooks",
        "a notebook that prints its environment has one",
        _control_environment,
        _environment,
    ),
)
