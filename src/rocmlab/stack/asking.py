"""Commands of an engine that decide about a user's files or kernels: no answer is an error, and never a "no"."""

from __future__ import annotations

from collections.abc import Callable

from rocmlab.base.errors import RocmlabError

Engine = Callable[..., tuple[int, str]]


class EngineSilent(RocmlabError):
    """The engine fails, or does not answer in time."""


def asked(engine: Engine, program: str, *arguments: str, timeout_seconds: float = 60) -> str:
    """Return what the engine answers.

    Args:
        engine: runs the engine's command and returns exit code and output.
        program: the engine's command, for the message.
        arguments: of the command.
        timeout_seconds: the longest wait.

    Raises:
        EngineSilent: the exit code is not 0, or the time is over.
    """
    code, output = engine(*arguments, timeout_seconds=timeout_seconds)
    if code:
        raise EngineSilent(
            f"the engine does not answer `{program} {arguments[0]}`",
            output.strip()[-400:] or f"exit code {code}",
            f"check that `{program} ps` answers, then retry",
        )
    return output
