"""A program that may crash or hang, in a session of its own and with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

END_SECONDS = 2.0
STUCK = "it hangs in the kernel, where not even SIGKILL ends it"


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a Python finds this package."""
    folders = (str(Path(__file__).parents[2]), environment.get("PYTHONPATH", ""))
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    limit_seconds: float,
    *,
    errors: int = subprocess.STDOUT,
    own_session: bool = True,
) -> tuple[int | None, str]:
    """Return a program's exit code and output; the code is None where the limit was reached and all was killed.

    With `own_session` all that the program starts is also killed; without, Ctrl-C in the terminal reaches it: a thread
    is not notified. It starts in `/`: `python -m` imports from the current folder first, whose files may be anybody's.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(env),
            cwd="/",
            text=True,
            errors="replace",
            start_new_session=own_session,
        )
    except OSError as err:
        return 127, f"{command[0]}: {err.strerror}"
    try:
        output = child.communicate(timeout=limit_seconds)[0]
        return child.returncode, output
    except subprocess.TimeoutExpired:
        pass
    except BaseException:
        _kill(child, own_session)
        raise
    _kill(child, own_session)
    try:
        return None, child.communicate(timeout=END_SECONDS)[0]
    except subprocess.TimeoutExpired as err:
        if child.stdout:
            child.stdout.close()
        child.returncode = -signal.SIGKILL  # left to init; waiting for it would be waiting for the kernel
        output = (err.output or b"").decode(errors="replace") if isinstance(err.output, bytes) else err.output or ""
        return None, f"{output}\n{STUCK}"


def _kill(child: subprocess.Popen[str], has_session: bool) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL) if has_session else child.kill()
    except (ProcessLookupError, PermissionError):
        child.kill()
