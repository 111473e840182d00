"""Whether our faster replacements of a framework's parts fit its version: each is tried once, on a small example.

One that does not fit is not used, and one warning reports it: the results stay those of the framework, it may only
take longer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rocmlab.training.resident.engine import fell_back, summary

reasons: dict[str, str] = {}  # why a replacement is not used, empty where it is, by what is replaced


def usable(name: str, trial: Callable[[], str]) -> bool:
    """Return whether the replacement of what `name` says can be used with this version of its framework.

    `trial` tries it, once in a process: it returns what is not as expected, or raises; empty if all is.
    """
    if name not in reasons:
        try:
            reasons[name] = trial()
        except Exception as err:  # whatever another version of a framework does
            reasons[name] = summary(err)
        if reasons[name]:
            fell_back(f"{_sentence(name)}; the framework's own is used, which may be slower")
    return not reasons[name]


def reports() -> list[str]:
    """Return a sentence for each replacement that is not used, for `how`."""
    return [_sentence(name) for name, reason in reasons.items() if reason]


@contextlib.contextmanager
def replacing(replaced: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Put something else in place of attributes meanwhile: each an owner, a name, what it is inside the block."""
    usual = [getattr(owner, name) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(replaced, usual, strict=True):
            setattr(owner, name, value)


def _sentence(name: str) -> str:
    return f"our {name} does not fit this version of the framework ({reasons[name]})"
