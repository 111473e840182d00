"""What an engine has shown, remembered for two seconds, for all labs of this process.

Each call of an engine's client takes about 100 ms, and one `make up` asks for its container a dozen times. What this
process changes makes it ask again at once.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rocmlab.stack import process

SECONDS = 2.0
WHICH_ENGINE = ("PATH", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST")  # variables of the client
# By command, engine, and what it depends on: until when it counts, and what was printed.
_shown: dict[tuple[tuple[str, ...], tuple[str, ...], Hashable], tuple[float, str]] = {}


def ask(
    command: Sequence[str], environment: Mapping[str, str], *, timeout_seconds: float = 60, depends_on: Hashable = ()
) -> tuple[int, str]:
    """Run a command of an engine that changes nothing, unless it succeeded less than `SECONDS` ago.

    It is also run again where `depends_on` is another value. See `process.capture` for what is returned.
    """
    engine = tuple(environment.get(name, "") for name in WHICH_ENGINE)
    question = (tuple(command), engine, depends_on)
    until, output = _shown.get(question, (0.0, ""))
    if time.monotonic() < until:
        return 0, output
    code, output = process.capture(command, env=environment, timeout_seconds=timeout_seconds)
    if code == 0:
        _shown[question] = time.monotonic() + SECONDS, output
    return code, output


@contextmanager
def changing() -> Iterator[None]:
    """Forget what was shown after a block that may make, remove or rename containers or images."""
    try:
        yield
    finally:
        forget()


def forget(word: str = "") -> None:
    """Ask again, by all commands or by one such as `ps`: something has changed, or two seconds ago is too old."""
    for question in [each for each in _shown if word in ("", each[0][1])]:
        del _shown[question]
