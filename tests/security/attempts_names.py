"""Names, parameters and settings that a shell, make, YAML or Compose would take for something else than a name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import yaml
from attempts import Attempt, Group
from targets import Target

RUN = "touch attack-ran"
HOSTILE = (  # each creates a file where its text is executed instead of read
    f"$({RUN})",
    f"`{RUN}`",
    f";{RUN};",
    f"'; {RUN}; '",
    f'"; {RUN}; "',
    f"|{RUN}",
    f"&{RUN}&",
    f"\n{RUN}\n",
    f"\\$({RUN})",
    f"'$({RUN})'",
    f"${{IFS}}$({RUN})",
    f"-c {RUN}",
    f"#\n{RUN}",
    "-rf",
    "--help",
    "-",
    "\u202egnp.txt",
    "nbb\u0430se\u0301",
    "a" * 200,
    "{{7*7}}",
    "%s%n",
    "[x]: !!python/object/apply:os.system ['touch attack-ran']",
    "x: &a [*a]",
    "\x1b]0;attack\x07",
)
YAML_KEYS = ("privileged", "hostNetwork", "hostPID", "hostPath", "attack")
SETTINGS = ("PORT", "SHARE", "NOTEBOOKS_DIR", "JUPYTER_TOKEN", "COMPOSE_PROJECT_NAME", "BASE_IMAGE", "GPUS", "PYTHON")
VARIABLES = ("NOTEBOOKS", "PARAMS", "RUN", "BENCH", "ENGINE", "HEAD")
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
NOTEBOOK = {"cells": [], "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5}
SCHEDULER = """#!/bin/sh
# sbatch, scontrol, scancel: run the script that is handed over, as a node would, and name a job
export SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_JOB_ID=1
for word in "$@"; do case $word in *.sh) bash "$word" >/dev/null 2>&1 ;; esac; done
echo 1
"""
LIMIT_SECONDS = 60
SOURCE = str(Path(__file__).parents[2] / "src")


def workshop(target: Target) -> Path:
    """Return an empty folder next to the project, where what is executed would leave its file."""
    folder = target.lab.folder.parent / "attack-names"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "share").mkdir(parents=True)
    return folder


def rocmlab(words: Sequence[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line of this source tree somewhere."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_CONFIG") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "rocmlab", *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": SOURCE, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_SECONDS,
        check=False,
    )


def has_run(*folders: Path) -> str | None:
    """Return whether an attacker's command was executed."""
    found = [str(path) for folder in folders for path in folder.rglob("attack-ran")]
    for path in found:
        Path(path).unlink()
    return f"it was executed: {' '.join(found)}" if found else None


def _control(target: Target) -> str | None:
    folder = workshop(target)
    subprocess.run(["sh", "-c", f"echo {HOSTILE[0]}"], cwd=folder, check=True, capture_output=True)
    return None if has_run(folder) else "a command that is executed is not seen"


# -- exports for schedulers --------------------------------------------------------------------------------------------


def _exports(target: Target) -> Iterator[Attempt]:
    folder = workshop(target)
    tools = folder / "tools"
    tools.mkdir()
    for name in ("sbatch", "scontrol", "scancel", "srun"):
        (tools / name).write_text(SCHEDULER, encoding="utf-8")
        (tools / name).chmod(0o755)
    where = folder / "notebooks"
    where.mkdir()
    (where / "plain.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    tries: list[tuple[str, str, list[str]]] = []
    for text in HOSTILE:
        notebook = where / f"{text.replace('/', '_')}.ipynb"
        notebook.write_text(json.dumps(NOTEBOOK), encoding="utf-8")
        for kind in ("slurm", "k8s"):
            tries.append((f"a notebook {text!a}", kind, [f"./{notebook.name}"]))
            tries.append((f"a run {text!a}", kind, ["plain.ipynb", f"--name={text}"]))
    for option in ("--partition", "--account", "--sbatch=--comment", "--sbatch", "--gpu-type"):
        for text in (HOSTILE[0], HOSTILE[4], f"x\n#SBATCH --uid=0\n{RUN}"):
            tries.append((f"{option} {text!a}", "slurm", ["plain.ipynb", f"{option}={text}"]))
    for option in ("--image", "--namespace", "--claim"):
        for text in ("x\nprivileged: true", "x: {hostNetwork: true}", "'; --- '", "x\n---\nattack: 1"):
            tries.append((f"{option} {text!a}", "k8s", ["plain.ipynb", f"{option}={text}"]))
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": SOURCE, "HOME": str(folder)}
    environment |= {"ROCMLAB_NOTEBOOKS": str(where), "ROCMLAB_SHARE": str(folder / "share")}
    words = [[kind, *given, *_usual(kind, given)] for _, kind, given in tries]
    command = [sys.executable, "-c", EXPORT, json.dumps(words)]
    made = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=240, check=True)
    written = [Path(path) if path else None for path in json.loads(made.stdout.splitlines()[-1])]
    assert sum(path is not None for path in written) > len(HOSTILE), made.stderr
    for (name, kind, _), path in zip(tries, written, strict=True):
        yield Attempt(f"{kind}: {name}", partial(_exported, folder, path, environment))


EXPORT = """
import contextlib, io, json, os, pathlib, sys
sys.executable = "/bin/true"  # what the scripts would run; it does nothing
from rocmlab.batch.command import main
runs, made = pathlib.Path(os.environ["ROCMLAB_SHARE"], "runs"), []
for words in json.loads(sys.argv[1]):
    before = set(runs.glob("*"))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception, SystemExit):
        main(words)
    made.append(next((str(path) for path in set(runs.glob("*")) - before), None))
print(json.dumps(made))
"""


def _exported(folder: Path, run: Path | None, environment: dict[str, str]) -> str | None:
    """Run what was written as a site would, and look at what Kubernetes would be given."""
    if run and (run / "slurm/submit.sh").exists():
        command = ["bash", str(run / "slurm/submit.sh")]
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=LIMIT_SECONDS, check=False)
    if run and (run / "kubernetes.yaml").exists():
        return _in_yaml((run / "kubernetes.yaml").read_text(encoding="utf-8"))
    return has_run(folder)


def _usual(kind: str, words: Sequence[str]) -> list[str]:
    if kind == "slurm":
        return ["--gpus", "none", "--timeout", "60"]
    named = {word.partition("=")[0] for word in words}
    return [f"{name}=x" for name in ("--image", "--claim") if name not in named]


def _in_yaml(text: str) -> str | None:
    """Tell what a manifest has that we never write."""
    for document in yaml.safe_load_all(text):
        if document.get("kind") != "Job":
            return f"a document of another kind: {document}"
        spec = document["spec"]["template"]["spec"]
        container = spec["containers"][0]
        if any(key in part for key in YAML_KEYS for part in (spec, container, document)):
            return f"a key of the attacker: {spec}"
        if container["securityContext"]["privileged"] or len(spec["containers"]) != 1:
            return f"more rights: {container}"
    return None


# -- settings and variables of make ------------------------------------------------------------------------------------


def _settings(target: Target) -> Iterator[Attempt]:
    folder = workshop(target)
    project = folder / "project"
    skipped = shutil.ignore_patterns(".venv", "share", ".git", "tests", "frontend", ".rocmlab")
    shutil.copytree(target.lab.folder, project, ignore=skipped, symlinks=True)
    for name in SETTINGS:
        for text in (HOSTILE[0], f'"{HOSTILE[1]}"', HOSTILE[3], f'"${{X:-$({RUN})}}"'):
            yield Attempt(f".env with {name}={text!a}", partial(_with_env, folder, project, f"{name}={text}\n"))
    for line in (f"BASH_ENV=./x\n{RUN}\n", f"export X=$({RUN})\n", f"LD_PRELOAD=/tmp/x.so\n{RUN}\n", f"$({RUN})\n"):
        yield Attempt(f".env with a line {line!a}", partial(_with_env, folder, project, line))
    for variable in VARIABLES:
        for text in (HOSTILE[0], HOSTILE[3], HOSTILE[4]):
            yield Attempt(f"{variable}={text!a} make", partial(_with_make, folder, project, variable, text))


def _with_env(folder: Path, project: Path, text: str) -> str | None:
    (project / ".env").write_text(text, encoding="utf-8")
    (project / ".env").chmod(0o600)
    rocmlab(["status"], project, RUNTIME="native")
    return has_run(folder)


def _with_make(folder: Path, project: Path, variable: str, text: str) -> str | None:
    (project / ".env").unlink(missing_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), variable: text, "RUNTIME": "native"}
    # The interpreter says what it was given: nothing is installed or started.
    command = ["make", "run-notebooks", "bench", f"PYTHON={sys.executable} -c 0 #"]
    subprocess.run(command, cwd=project, env=environment, capture_output=True, timeout=LIMIT_SECONDS, check=False)
    return has_run(folder)


GROUPS = (
    Group("names in exported scripts", "a name is executed", _control, _exports, ("native",)),
    Group("names in settings", "a setting is executed", _control, _settings, ("native",)),
)
