"""`make demo` as a test runs it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clients
from clones import Clone

START_SECONDS = 900.0  # the environment is made first
WAIT_SECONDS = 120.0


class Demo:
    """A demonstration that runs."""

    def __init__(self, lab: Clone, log: Path) -> None:
        lab.make("down", succeeds=False)  # of an earlier test
        self.folder, self.environment, self.log = lab.folder, lab.environment, log
        self.before = self.own()
        with log.open("w") as output:
            command = ["python3", "-m", "rocmlab", "demo"]
            own = {name: lab.settings[name] for name in ("EXTRAS",) if name in lab.settings}  # whose `.venv` it uses
            environment = {**lab.environment, **own, "PYTHONPATH": "src"}
            self.process = subprocess.Popen(command, cwd=lab.folder, env=environment, stdout=output, stderr=output)
        until(lambda: "Ctrl-C ends it" in self.said or self.process.poll() is not None, START_SECONDS)
        found = re.search(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)", self.said)
        assert found, self.said
        self.port, self.token = int(found[1]), found[2]

    def own(self) -> list[str]:
        """What belongs to the lab next to which it runs."""
        env = self.folder / ".env"
        return [env.read_text() if env.exists() else "", *map(str, sorted(self.folder.glob("share/*")))]

    def end(self) -> None:
        """End it as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(WAIT_SECONDS)

    @property
    def said(self) -> str:
        """What it printed."""
        return self.log.read_text()

    def ask(self, path: str) -> Any:
        """Ask its server."""
        return clients.ask(self.port, self.token, path, timeout_seconds=60)[1]

    def smi(self) -> dict[str, Any]:
        """Run the command that it prints, for JSON."""
        (line,) = re.findall(r"ROCMLAB_ROOT=(\S+) scripts/rocmlab smi", self.said)
        command = ["scripts/rocmlab", "smi", "--json"]
        return json.loads(
            subprocess.check_output(command, cwd=self.folder, env={**self.environment, "ROCMLAB_ROOT": line})
        )

    def nvitop(self) -> str:
        """Run the command for nvitop that it prints, for one look, and return what it shows; there is no terminal."""
        (line,) = re.findall(r"^    (\S.*[ /]rocmlab nvitop)$", self.said, re.MULTILINE)
        command = line.replace(" -it ", " ") + " -1"
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def until(is_true: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.2)


def notebooks(found: dict[str, Any]) -> set[str]:
    """Return the names of the notebooks that have processes."""
    owners = [process["owner"] or {} for process in found["processes"]]
    return {Path(owner["notebook"]).name for owner in owners if owner.get("notebook")}
