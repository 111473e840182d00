"""What an engine has shown, remembered for two seconds, for all labs of this process.

Each call of an engine's client takes about 100 ms, and one `make up` asks for its container a dozen times. What this
process changes makes it ask again at once. Several questions can be begun at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from rocmlab.base import background
from rocmlab.stack import process

SECONDS = 2.0
WHICH_ENGINE = ("PATH", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST")  # variables of the client
Question = tuple[tuple[str, ...], tuple[str, ...], Hashable]  # command, engine, and what the answer depends on
_shown: dict[Question, tuple[float, str]] = {}  # until when it counts, and what was printed
_begun: dict[Question, tuple[float, Future[tuple[int, str]]]] = {}  # until when it counts, and the answer


def begin(command: Sequence[str], environment: Mapping[str, str], *, timeout_seconds: float = 60) -> None:
    """Start a command of an engine that will be asked for soon, and continue."""
    question = _question(command, environment)
    if question not in _begun and time.monotonic() >= _shown.get(question, (0.0, ""))[0]:
        answer = background.start(lambda: process.capture(command, env=environment, timeout_seconds=timeout_seconds))
        _begun[question] = time.monotonic() + SECONDS, answer


def ask(
    command: Sequence[str], environment: Mapping[str, str], *, timeout_seconds: float = 60, depends_on: Hashable = ()
) -> tuple[int, str]:
    """Run a command of an engine that changes nothing, unless it succeeded less than `SECONDS` ago.

    It is also run again where `depends_on` is another value. See `process.capture` for what is returned.
    """
    question = _question(command, environment, depends_on)
    if question in _begun:
        until, answer = _begun.pop(question)
        code, output = answer.result()
        if code == 0:
            _shown[question] = until, output
    until, output = _shown.get(question, (0.0, ""))
    if time.monotonic() < until:
        return 0, output
    code, output = process.capture(command, env=environment, timeout_seconds=timeout_seconds)
    if code == 0:
        _shown[question] = time.monotonic() + SECONDS, output
    return code, output


def _question(command: Sequence[str], environment: Mapping[str, str], depends_on: Hashable = ()) -> Question:
    return tuple(command), tuple(environment.get(name, "") for name in WHICH_ENGINE), depends_on


@contextmanager
def changing() -> Iterator[None]:
    """Forget what was shown after a block that may make, remove or rename containers or images."""
    try:
        yield
    finally:
        forget()


def forget(word: str = "") -> None:
    """Ask again, by all commands or by one such as `ps`: something has changed, or two seconds ago is too old."""
    for known in (_shown, _begun):
        for question in [each for each in known if word in ("", each[0][1])]:
            del known[question]
