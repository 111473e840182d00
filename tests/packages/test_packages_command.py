"""`rocmlab packages`, as the lab runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_packages import has, rocmlab

from rocmlab.cli import packages
from rocmlab.packages import installing, requested
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", ["uv"], indirect=True)]


def test_packages_are_added_listed_and_removed(place: Place, wheels: Path) -> None:
    """The list shows versions, what is hidden, and nothing of the kernel that the image lacks."""
    assert "harmless 2.0" in rocmlab(place, "add", "harmless", "numpy==1.26.4")

    (listed,) = json.loads(rocmlab(place, "list", "--json"))["kernels"]
    assert listed == {
        "kernel": "torch",
        "packages": [
            {"name": "harmless", "requirement": "harmless", "version": "2.0", "declared_in": None},
            {"name": "numpy", "requirement": "numpy==1.26.4", "version": "1.26.4", "declared_in": None},
        ],
        "missing": [],
        "hides": ["numpy 1.26.4 hides the lab's 2.4.0"],
        "reasons": [],
        "is_synchronised": True,
        "fix": "",
    }
    assert "harmless" in rocmlab(place, "list")

    rocmlab(place, "remove", "harmless")
    assert has(place) == {"numpy": "1.26.4"}


@pytest.mark.long
def test_a_wheel_by_its_path_is_listed_and_removed_by_name(place: Place, wheels: Path) -> None:
    """The path is next to it; a file of requirements, which has no name, is removed as it is listed."""
    wheel = wheels / "harmless-1.0-py3-none-any.whl"
    (wheels / "all.txt").write_text("--pre\nhelper\n")
    rocmlab(place, "add", str(wheel))

    assert f"torch       harmless: {wheel} 1.0" in rocmlab(place, "list").splitlines()
    installing.add(place, [Requirement(f"-r {wheels}/all.txt")], print)
    assert f"            -r {wheels}/all.txt" in rocmlab(place, "list").splitlines()
    rocmlab(place, "remove", "harmless")
    rocmlab(place, "remove", "--", f"-r {wheels}/all.txt")

    assert has(place) == {}


@pytest.mark.long
def test_a_list_from_a_backup_is_installed_by_sync(place: Place) -> None:
    """Before, the list says what is missing and the command."""
    rocmlab(place, "add", "trains")
    import shutil

    shutil.rmtree(place.share / "cache")

    assert "rocmlab packages sync --kernel torch" in rocmlab(place, "list")
    assert "trains 1.0" in rocmlab(place, "sync")
    assert has(place) == {"trains": "1.0", "helper": "1.0"}


@pytest.mark.long
def test_what_cannot_be_installed_is_an_error(place: Place) -> None:
    """With the reason; exit code 1: the work failed."""
    assert "wants-torch" in rocmlab(place, "add", "wants-torch", code=1)
    assert "this image has no TensorFlow" in rocmlab(place, "add", "--kernel", "tensorflow", "harmless", code=2)


def test_a_list_that_cannot_be_read_is_named(place: Place) -> None:
    """By `list`, as by `make status`, which asks for the same; nothing replaces it."""
    path = requested.path_of(place.share, place.kernel)
    path.parent.mkdir(parents=True)
    path.write_text("[")
    assert f"cannot be read: {path} (correct or remove this file)" in rocmlab(place, "list")
    assert "torch.json" in rocmlab(place, "sync", code=2)
    assert path.read_text() == "["


class Answering:
    """A lab as `missing` needs it."""

    def __init__(self, status: int, body: object) -> None:
        self.answer = (status, body)

    def ask(self, path: str) -> tuple[int, object]:
        """Answer for one path."""
        assert path == "/rocmlab/api/packages"
        return self.answer


def test_status_names_what_is_missing_and_the_command(place: Place) -> None:
    """A lab of an earlier version, which does not know the question, is no error."""
    state = {"kernel": "torch", "reasons": ["a, b>=1 not installed"], "fix": "rocmlab fix"}
    fine = {**state, "reasons": [], "fix": ""}

    assert packages.missing(Answering(200, {"kernels": [state, fine]})) == [
        "kernel torch: a, b>=1 not installed; scripts/rocmlab fix"
    ]
    assert packages.missing(Answering(404, None)) == []
