"""Tests marked `long`: each run takes a part of them, `make test-long` all.

LONG_PART names the part; `scripts/test` chooses it by the commit. Without it all are run. A part has an eighth of the
tests that share the machine, and a fourth of the others: so GitHub's four Pythons have all that need no engine. Tests
whose mark has a text, `long("…")`, are together in one part: they share what takes long to make.
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest
from leftovers import ELSEWHERE

PARTS = 8  # as in scripts/test
FEWER = 4  # of tests that need no engine, browser or lab


def pytest_report_header() -> str:
    """Show which of them run."""
    part = chosen()
    return "tests marked long: all" if part is None else f"tests marked long: part {part} (LONG_PART=0 to {PARTS - 1})"


def chosen() -> int | None:
    """Return the part of this run; None is all."""
    part = os.environ.get("LONG_PART", "all")
    return None if part == "all" else int(part)


def keep_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect those that are not of the part that LONG_PART names."""
    if (part := chosen()) is None:
        return
    groups: dict[tuple[str | None, str], list[pytest.Item]] = {}
    for item in items:
        if mark := item.get_closest_marker("long"):
            together = mark.args[0] if mark.args else None
            groups.setdefault((together, together or item.nodeid.split("[")[0]), []).append(item)
    elsewhere = set()
    for (together, name), group in groups.items():
        for index, item in enumerate(group):
            place = (0, 1) if together else (index, len(group))
            if not in_part(*_division(item, part), name, *place):
                elsewhere.add(item)
    config.hook.pytest_deselected(items=[*elsewhere])
    items[:] = [item for item in items if item not in elsewhere]


def _division(item: pytest.Item, part: int) -> tuple[int, int]:
    """Return which of how many parts this run has of such tests."""
    if item.get_closest_marker("frameworks"):  # each third part has JAX, and of its tests marked so half
        return part // 3 % 2, 2
    return (part, PARTS) if any(map(item.get_closest_marker, ELSEWHERE)) else (part % FEWER, FEWER)


def in_this_part(index: int, count: int) -> bool:
    """Return whether this run has the `index`-th of `count` things that take long."""
    part, divided = chosen(), min(count, PARTS)
    return part is None or index % divided == part % divided


def in_part(part: int, parts: int, name: str, index: int, count: int) -> bool:
    """Return whether one of `parts` has a test: the one with the `index`-th of `count` sets of parameters.

    Each test is in one part or more. Of a test with several sets of parameters each part has one or more, and of all
    the others a part has about one in `parts`.
    """
    divided = min(count, parts) if count > 1 else parts
    return (index + crc32(name.encode())) % divided == part % divided
