"""What the locked requirements must not contain, whoever renews them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from rocmlab.stack.settings import BASE_IMAGES

LOCKS = sorted((Path(__file__).parents[1] / "requirements").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_no_kernel_loses_a_request(lock: Path) -> None:
    """Versions 7.0 to 7.3 of ipykernel can miss a request that arrives while they reply: that cell would never end."""
    locked = re.findall(r"^ipykernel==([^ ;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)

    assert [each for each in locked if Version("7") <= Version(each) < Version("7.4")] == []


def test_each_base_image_can_be_pinned() -> None:
    """docker/bases.txt has every default base image once, and nothing else; a digest is one of SHA-256."""
    text = (Path(__file__).parents[1] / "docker/bases.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]

    assert sorted(image for image, *_ in lines) == sorted(set(BASE_IMAGES.values()))
    assert [digest for _, *more in lines for digest in more if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest)] == []
