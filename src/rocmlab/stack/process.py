"""Running the programs the stack is made of, and showing what they print."""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError


def capture(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 60,
    keep: Sequence[int] = (),
) -> tuple[int, str]:
    """Run a short program; return its exit code and standard output, and its errors behind that if it fails."""
    code, output, errors = outputs(command, env=env, timeout_seconds=timeout_seconds, keep=keep)
    return code, output + errors if code else output


def outputs(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float = 60,
    keep: Sequence[int] = (),
) -> tuple[int, str, str]:
    """Run a short program with the descriptors `keep`; return exit code, output, errors; 1 and why if it cannot run."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            env=dict(env) if env is not None else None,
            timeout=timeout_seconds,
            check=False,
            pass_fds=keep,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"{command[0]} did not answer within {timeout_seconds:g} s"
    except OSError as err:
        return 1, "", str(err)
    return done.returncode, done.stdout, done.stderr


class EngineSilent(RocmlabError):
    """An engine does not answer where that decides about a user's files or kernels: an error, and never a "no"."""


def attach(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    interrupt: Callable[[], None] | None = None,
) -> int:
    """Run a program on this terminal and return its exit code; Ctrl-C and SIGTERM are the program's to answer.

    `interrupt` passes a signal on where the program itself would not, as `docker exec` without a terminal.
    """
    sys.stdout.flush()
    try:
        process = subprocess.Popen(
            command, env=dict(env) if env is not None else None, cwd=cwd, start_new_session=interrupt is not None
        )
    except OSError as err:
        raise RocmlabError(f"{command[0]} cannot be started", str(err), f"install {command[0]}") from err

    def answer(number: int, _: object) -> None:
        if interrupt:
            interrupt()
        elif number != signal.SIGINT:
            process.send_signal(number)  # Ctrl-C it got from the terminal, as we did

    before = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def follow(
    command: Sequence[str],
    *,
    log: Path,
    show: Callable[[str], str | None],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    keep: Sequence[int] = (),
) -> tuple[int, list[str]]:
    """Run a long program, log all it prints, show what `show` makes of each line; return exit code and last lines.

    If this process is interrupted meanwhile, the program is ended, which only a terminal's Ctrl-C does on its own.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # it may be root's, of an earlier `sudo make up`, or a link
    last: collections.deque[str] = collections.deque(maxlen=40)
    with (
        open(log, "w", encoding="utf-8") as file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env={**(os.environ if env is None else env), "PYTHONUNBUFFERED": "1"},
            cwd=cwd,
            pass_fds=keep,
        ) as process,
    ):
        identity.give_to_caller(file.fileno(), log.parent)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                last.append(line.rstrip())
                shown = show(line.rstrip())
                if shown is not None:
                    print(shown, flush=True)  # noqa: T201  # progress of a build belongs on the screen as it happens
            code = process.wait()
        except BaseException:
            process.terminate()
            raise
    return code, list(last)
