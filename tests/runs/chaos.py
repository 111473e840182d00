"""Kills the processes of real runs at random moments, resumes them, and keeps account of what happened.

Every process of a run inherits a token in its environment, by which it is found whatever its parent or group is.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import notebook_files

from rocmlab.devices import discover
from rocmlab.kernels.leases import Leases

TOKEN = "ROCMLAB_TEST_TOKEN"
CLEAN_WITHIN_SECONDS = float(os.environ.get("CHAOS_CLEAN_SECONDS", 20))  # others may use this machine
MAX_RUN_SECONDS = 120.0
KINDS = {"runner": 2, "worker": 3, "kernel": 4, "fork server": 2, "converter": 1}  # how often, in proportion
WARM = "test-warm"

START = """
import os, pathlib
def note(word):
    with open(os.environ["NOTES"], "ab", buffering=0) as notes:
        notes.write(f"{name} {word}\\n".encode())
note("start")
"""
# What makes it hard: a loop that never lets go of the GIL for long, children of several kinds, output, plain waiting.
WORKS = (
    "import time\ntime.sleep({seconds})",
    "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: sum(range(100_000))",
    "import subprocess, time\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\ntime.sleep({seconds})",
    "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    time.sleep(600)\n"
    "time.sleep({seconds})",
    "import time\nfor _ in range(20):\n    print('x' * 10_000)\n    time.sleep({seconds} / 20)",
)


@dataclass
class Account:
    """What has been done and seen."""

    kills: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    clean_seconds: list[float] = field(default_factory=list)  # from the death of a runner until nothing was left
    starts_when_done: dict[str, int] = field(default_factory=dict)  # of a job, when the journal first called it ok


class Chaos:
    """Runs notebooks on a simulated host while it kills what runs them."""

    def __init__(self, folder: Path, root: Path, jobs: int, seed: int, kernel: str) -> None:
        folder.mkdir()
        self.random = random.Random(seed)
        self.share = folder / "share"
        self.notes = folder / "notes"
        self.notes.touch()
        self.token = secrets.token_hex(8)
        self.account = Account()
        self.names = [f"job{number}" for number in range(jobs)]
        kernels = (kernel, write_warm_kernel(folder))
        self.notebooks = [
            self._write(folder / f"{name}.ipynb", name, kernels[number % 2]) for number, name in enumerate(self.names)
        ]
        self.environment = {
            **os.environ,
            "JUPYTER_PATH": os.pathsep.join((str(folder), os.environ["JUPYTER_PATH"])),
            TOKEN: self.token,
            "NOTES": str(self.notes),
            "ROCMLAB_ROOT": str(root),
            "ROCMLAB_RUNTIME": "native",
            "ROCMLAB_BACKEND": "rocm",
        }
        self.gpus = [device for device in discover(root) if device.backend == "rocm"]
        self.log = folder / "log"

    def _write(self, path: Path, name: str, kernel: str) -> Path:
        work = self.random.choice(WORKS).format(seconds=round(self.random.uniform(0.1, 0.6), 2))
        return notebook_files.write(path, f"name = {name!r}\n{START}", work, "note('done')", kernel=kernel)

    def run(self, kills: int) -> Path:
        """Start a run, kill so many processes, resume it whenever its runner died, and return its folder."""
        runner = self._start([*map(str, self.notebooks), "--name", "chaos"])
        end = time.monotonic() + MAX_RUN_SECONDS
        while runner.poll() is None:
            assert time.monotonic() < end, f"the run does not end:\n{self.log.read_text()[-3000:]}"
            time.sleep(self.random.uniform(0.02, 0.6))
            if kills > 0 and self._kill(runner):
                kills -= 1
            if runner.poll() == -signal.SIGKILL:
                self._await_nothing_left()
                self.check()
                self.account.resumes += 1
                runner = self._start(["--resume", "last"])
        assert runner.returncode == 0, self.log.read_text()[-3000:]
        self._await_nothing_left()
        self.check()
        assert not list(self.folder().glob(".*")), "drafts of saves that were killed"
        return self.folder()

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        retries = [] if "--resume" in arguments else ["--retries", "1000"]
        command = [sys.executable, "-m", "rocmlab", "run", *arguments, *retries, "--share", str(self.share)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        while process.poll() is None and not (self.share / "runs").exists():
            time.sleep(0.01)  # until there is something to resume
        return process

    def folder(self) -> Path:
        """Return the run folder; there is one, however often it was resumed."""
        (found,) = (self.share / "runs").iterdir()
        return found

    def _kill(self, runner: subprocess.Popen[bytes]) -> bool:
        """Kill one process of a random kind; False if there is none of that kind."""
        if not (self.share / "runs").exists() or not any((self.share / "runs").glob("*/journal.jsonl")):
            return False
        (kind,) = self.random.choices(list(KINDS), weights=list(KINDS.values()))
        found = [pid for pid, each in self.processes(runner.pid) if each == kind]
        if not found:
            return False
        try:
            os.kill(self.random.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.account.kills[kind] += 1
        if kind == "runner":
            runner.wait()
        return True

    def processes(self, runner: int | None = None) -> Iterator[tuple[int, str]]:
        """Yield the processes that carry the token, with what they are; zombies are not counted."""
        mark = f"{TOKEN}={self.token}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (folder / "environ").read_bytes().split(b"\0"):
                    continue
                command = (folder / "cmdline").read_bytes().split(b"\0")
                state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                yield int(folder.name), _kind(command, int(folder.name), int(parent), runner)

    def _await_nothing_left(self) -> None:
        begin = time.monotonic()
        while True:
            took = time.monotonic() - begin
            left = list(self.processes())
            held = [gpu.index for gpu in self.gpus if not Leases.of_host().is_free(gpu)]
            if not left and not held:
                self.account.clean_seconds.append(took)
                return
            words = [(pid, kind, Path(f"/proc/{pid}/stat").read_text()) for pid, kind in left] if took > 2 else ""
            assert took < CLEAN_WITHIN_SECONDS, f"left: {words}, leases held: {held}"
            time.sleep(0.02)

    def check(self) -> None:
        """Read the journal and the notebooks, and see that no job that was ok has been started again."""
        folder = self.folder()
        lines = (folder / "journal.jsonl").read_bytes().split(b"\n")
        events, torn = [], []
        for line in filter(None, lines):
            try:
                events.append(json.loads(line))
            except ValueError:
                torn.append(line[:200])
        assert len(torn) <= self.account.kills["runner"], f"only a killed runner may leave half a line: {torn}"
        starts = Counter(line.split()[0] for line in self.notes.read_text().splitlines() if line.endswith("start"))
        for event in events:
            if event["event"] == "job finished" and event["result"]["status"] == "ok":
                before = self.account.starts_when_done.setdefault(event["job"], starts[event["job"]])
                assert starts[event["job"]] == before, f"{event['job']} was ok and ran again"
        for notebook in folder.glob("*.ipynb"):
            json.loads(notebook.read_text(encoding="utf-8"))


def write_warm_kernel(folder: Path) -> str:
    """Write a kernelspec whose kernels are forked, and return its name."""
    notebook_files.write_kernel(folder / "kernels" / WARM, sys.executable)
    path = folder / "kernels" / WARM / "kernel.json"
    specification = json.loads(path.read_text(encoding="utf-8")) | {"metadata": {"rocmlab": {"preload": ["decimal"]}}}
    path.write_text(json.dumps(specification), encoding="utf-8")
    return WARM


def _kind(command: list[bytes], pid: int, parent: int, runner: int | None) -> str:
    words = b" ".join(command)
    if pid == runner:
        return "runner"
    if b"rocmlab.runs.workers.serving" in words:
        return "worker"
    if b"rocmlab.runs.workers.converting" in words:
        return "converter"
    if b"forkserver/server.py" in words:
        return "fork server" if parent == runner else "kernel"
    return "kernel" if b"ipykernel_launcher" in words else "other"
