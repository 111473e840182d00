"""Keep what a container of an earlier version holds in its own layer, before that container is removed.

In such a container the home of the lab's user was not on the share: JupyterLab's settings, ssh keys and notebooks saved
at the top level end with it. They are copied to `.rocmlab` first, and unpacked into the share with the new image.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import homes
from rocmlab.stack.lab import Say

Engine = Callable[..., tuple[int, str]]  # runs the engine's command; exit code and output
Query = Callable[..., str]  # the same, with an error instead of an exit code
TOP = "/home/jovyan"
DIFF_SECONDS = 600.0  # it looks at every file of the layer
MOUNTED = ("work", "share")
MARK = "ROCMLAB_HOME=/"  # in the environment of an image whose home is on the share
ASKED = "{{.State.StartedAt}}{{range .Config.Env}}\n{{.}}{{end}}"


def take(engine: Engine, query: Query, program: str, container: str, state: Path, say: Say) -> None:
    """Stop a container of an earlier version and copy its user's files to `.rocmlab`; do nothing for any other.

    What was taken, and could not be moved on to the share, is not taken again until the container was started again.
    Where it fails the container is still there.
    """
    started, *variables = query("inspect", "--format", ASKED, container).strip().split("\n")
    if any(line.startswith(MARK) for line in variables):
        return
    digits = "".join(letter for letter in started if letter.isdigit())
    kept = state / homes.OLD / f"{container[:12]}-{digits}"
    if kept.exists() or not changed(query("diff", container, timeout_seconds=DIFF_SECONDS)):
        return
    query("stop", "--time", "10", container)
    names = changed(query("diff", container, timeout_seconds=DIFF_SECONDS))
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = Path(tempfile.mkdtemp(prefix="old-home.", dir=state))
    try:
        _copy(engine, program, container, names, draft)
        draft.rename(kept)  # only now does it count: nothing is half copied
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    say("the earlier lab's files next to work/ and share/ are kept; the next start moves them to the share")


def _copy(engine: Engine, program: str, container: str, names: Sequence[str], draft: Path) -> None:
    for name in names:
        code, output = engine("cp", f"{container}:{TOP}/{name}", str(draft / name), timeout_seconds=3600)
        if code:
            raise RocmlabError(
                f"{TOP}/{name} of the earlier lab could not be copied",
                output.strip()[-400:],
                f"{program} cp {container[:12]}:{TOP}/{name} . ; then {program} rm {container[:12]}, and make up",
            )


def changed(diff: str) -> list[str]:
    """Return the names at the top level that a container's own layer has. Source: `docker diff`, `podman diff`."""
    found = set()
    for line in diff.splitlines():
        kind, _, path = line.partition(" ")
        parts = path.split("/")
        if kind in ("A", "C") and path.startswith(f"{TOP}/") and parts[3] not in MOUNTED:
            found.add(parts[3])
    return sorted(found)


def give(command: Sequence[str], environment: Mapping[str, str], state: Path, say: Say) -> None:
    """Unpack everything of earlier versions into the home on the share, and only then remove it from `.rocmlab`.

    `command` runs `python -m rocmlab.stack.homes` in a container of the new image, as the lab's user.
    """
    found = homes.pending(state)
    if not found:
        return
    with tempfile.TemporaryFile(dir=state) as stream:
        homes.pack(found, stream)
        stream.seek(0)
        done = subprocess.run(
            command, stdin=stream, capture_output=True, text=True, env=dict(environment), cwd=state.parent, check=False
        )
    if done.returncode:
        raise RocmlabError(
            "the files of the earlier lab could not be moved to the share",
            (done.stdout + done.stderr).strip()[-600:],
            f"fix the error above, then `make up`; nothing is lost: the files are in {state / homes.OLD}",
        )
    for line in done.stdout.splitlines():
        if line.startswith("moved "):
            say(line)
    homes.unlock(state / "home")
    for path, _ in found:
        homes.remove(path)
    shutil.rmtree(state / homes.OLD, ignore_errors=True)
