"""A clean clone of this project in a folder of its own, driven as a newcomer would: by `make`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import clients
import pytest

from rocmlab.stack import envfile

REPOSITORY = Path(__file__).parents[1]
ENGINES = ("docker", "podman")
NEEDS_NATIVE_PYTHON = pytest.mark.skipif(sys.version_info < (3, 11), reason="the native lab needs Python 3.11")
# In the environment of pip: it compiles nothing, which is half of its time; Python does so with what is imported, the
# first time. For options that begin with `--no-` pip wants a false value.
UNCOMPILED = {"PIP_NO_COMPILE": "0"}
# Where other tests keep the CPUs busy, threads that wait for each other take several times as long as one.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# Of requirements/native.txt: most of what it takes to install. Nothing that starts a lab or a kernel needs any of it.
UNUSED_TO_START = (
    *("accelerate", "datasets", "hf-xet", "huggingface-hub", "pandas", "peft", "pocl-binary-distribution", "pyarrow"),
    *("pyopencl", "regex", "scikit-learn", "tensorboard", "tensorboard-data-server", "tokenizers", "transformers"),
)


@dataclass
class Clone:
    """The tracked files of this project, and nothing that an earlier run left."""

    folder: Path
    settings: dict[str, str]  # given behind every `make up`
    environment: dict[str, str]

    def make(
        self, *words: str, timeout_seconds: float = 1200, succeeds: bool = True, **settings: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `make` with settings behind the target; what it printed is shown where it fails unexpectedly."""
        flags = [f"{name}={value}" for name, value in {**self.settings, **settings}.items()]
        done = subprocess.run(
            ["make", *words, *flags],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        assert not succeeds or done.returncode == 0, done.stdout
        return done

    @property
    def env(self) -> dict[str, str]:
        """What `.env` says."""
        return envfile.parse((self.folder / ".env").read_text(encoding="utf-8"))

    @property
    def port(self) -> int:
        """The lab's port."""
        return int(self.env["PORT"])

    def answers(self) -> bool:
        """Return whether JupyterLab answers with the token."""
        return clients.answers(self.port, self.env["JUPYTER_TOKEN"])


FURNISH = """
import json, os, shutil, sys, sysconfig
from pathlib import Path
from rocmlab.lab import install
from rocmlab.stack import environment, project as projects
project = projects.plan(Path.cwd())
venv = project.lab.venv
version = environment.check_python(venv.python)
site = next(venv.folder.glob("lib/python*/site-packages"))
(site / "tests.pth").write_text(f"{venv.project}/src\\n{sysconfig.get_path('purelib')}\\n")
shutil.copytree(Path(sys.prefix, "etc/jupyter"), venv.folder / "etc/jupyter", dirs_exist_ok=True)
shutil.copytree(Path(sys.prefix, "share/jupyter"), venv.folder / "share/jupyter", dirs_exist_ok=True)
kernel = str(venv.interpreter)
install.main(["--prefix", str(venv.folder), "--tensorflow", kernel, "--torch", kernel])
record = {"backend": venv.backend, "python": version, "project": str(venv.project)}
venv.marker.write_text(json.dumps({**record, "fingerprint": venv.fingerprint()}))
"""


def furnish(found: Clone) -> None:
    """Give a clone an environment in seconds: one that sees the packages of these tests, frameworks omitted."""
    if sys.version_info < (3, 11):
        pytest.skip(NEEDS_NATIVE_PYTHON.kwargs["reason"])
    environment = {**found.environment, **found.settings, "PYTHONPATH": str(found.folder / "src")}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", found.folder / ".venv"], check=True)
    subprocess.run([sys.executable, "-c", FURNISH], cwd=found.folder, env=environment, check=True)


def free_port() -> int:
    """Return a port that is free now, above those of Ray's workers and below those that systems give to connections."""
    chance = random.SystemRandom()
    while True:
        number = chance.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", number))
            return number


def clone(folder: Path, **settings: str) -> Clone:
    """Copy the tracked files (and new ones that git does not ignore) into a folder."""
    listed = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in listed:
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    for compiled in (REPOSITORY / "src").glob("**/__pycache__"):  # they hold for files of the same time and size
        unfinished = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(compiled, folder / compiled.relative_to(REPOSITORY), ignore=unfinished)
    dropped = ("ROCMLAB_", "LEASES_DIR", "PYTHONPATH", "VIRTUAL_ENV", "MAKE", "MFLAGS", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environment |= ONE_THREAD
    return Clone(folder, {"PORT": str(free_port()), **settings}, environment)


def lighten(lock: Path, *names: str) -> None:
    """Take packages out of a locked requirements file: those that nothing in the test at hand looks at."""
    text = lock.read_text()
    for name in names:
        shorter = re.sub(rf"^{re.escape(name)}==.*(?:\n[ \t].*)*\n", "", text, flags=re.MULTILINE)
        assert shorter != text, f"{lock} has no {name}"
        text = shorter
    lock.write_text(text)


def without_docker(path: str) -> str:
    """Return a PATH on which neither `docker` nor `podman` is found: a machine without container engines.

    A folder that holds either is replaced by one of links to everything else in it.
    """
    return os.pathsep.join(_without_engines(folder) for folder in path.split(os.pathsep))


@functools.cache
def _without_engines(folder: str) -> str:
    if not any((Path(folder) / name).exists() for name in ENGINES):
        return folder
    links = Path(tempfile.mkdtemp(prefix="rocmlab-path"))
    atexit.register(shutil.rmtree, links, ignore_errors=True)
    for entry in Path(folder).iterdir():
        if entry.name not in ENGINES:
            (links / entry.name).symlink_to(entry)
    return str(links)


def printed_url(text: str) -> str:
    """Return the URL that `make up` printed."""
    found = re.search(r"http://127\.0\.0\.1:\d+/lab\?token=[0-9a-f]{64}", text)
    assert found, text
    return found[0]
