"""What the locked requirements must not contain, whoever renews them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

LOCKS = sorted((Path(__file__).parents[1] / "requirements").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_no_kernel_loses_a_request(lock: Path) -> None:
    """Versions 7.0 to 7.3 of ipykernel can miss a request that arrives while they reply: that cell would never end."""
    locked = re.findall(r"^ipykernel==([^ ;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)

    assert [each for each in locked if Version("7") <= Version(each) < Version("7.4")] == []
