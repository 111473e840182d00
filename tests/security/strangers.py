"""A second user of this host: a uid of its own without a name, a group or a home, and what it can do."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("stranger_program.py").read_text(encoding="utf-8")
LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Did:
    """What came of one action."""

    text: str | None  # what it got; None: it was kept out
    error: str | None


def missing() -> str:
    """Return why there can be no second user here, or nothing."""
    if os.geteuid() != 0:
        return "attacks by a second user need root: run .ci/run"
    return "" if interpreter() else "no python3 that every user of this host may execute"


def interpreter() -> str | None:
    """Return a Python that another user can execute, which one below /root is not."""
    return shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin")


def uid() -> int:
    """Return a user id that no one has."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(number for number in range(61_234, 65_000) if number not in taken)


def act(actions: Iterable[Sequence[str]], user: int | None = None) -> list[Did]:
    """Try actions of `stranger_program` as the second user, or as another one.

    Raises:
        RuntimeError: the program failed as such.
    """
    number = uid() if user is None else user
    done = subprocess.run(
        [str(interpreter()), "-I", "-c", PROGRAM],
        input=json.dumps([list(action) for action in actions]),
        user=number,
        group=number,
        extra_groups=[],
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [Did(each["did"], each["error"]) for each in json.loads(done.stdout)]
