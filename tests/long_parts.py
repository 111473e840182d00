"""Tests marked `long`: each run takes a part of them, `make test-long` all.

LONG_PART names the part; `scripts/test` chooses it by the commit. Without it all are run. Tests whose mark has a text,
`long("…")`, are together in one part: they share what takes long to make.
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest

PARTS = 4  # as in scripts/test


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
    elsewhere = {
        item
        for (together, name), group in groups.items()
        for index, item in enumerate(group)
        if not (in_part(part, name, 0, 1) if together else in_part(part, name, index, len(group)))
    }
    config.hook.pytest_deselected(items=[*elsewhere])
    items[:] = [item for item in items if item not in elsewhere]


def in_this_part(index: int, count: int) -> bool:
    """Return whether this run has the `index`-th of `count` things that take long."""
    part, divided = chosen(), min(count, PARTS)
    return part is None or index % divided == part % divided


def in_part(part: int, name: str, index: int, count: int) -> bool:
    """Return whether a part has a test: the one with the `index`-th of `count` sets of parameters.

    Each test is in one part or more. Of a test with several sets of parameters each part has one or more, and of all
    the others a part has about one in `PARTS`.
    """
    divided = min(count, PARTS) if count > 1 else PARTS
    return (index + crc32(name.encode())) % divided == part % divided
