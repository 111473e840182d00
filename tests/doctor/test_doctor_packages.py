"""Packages of the user's own, after the lab's have changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from situations import Looker, fires, silent, skipped

from rocmlab.doctor.model import WARNS
from rocmlab.packages import building, requested
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement


@pytest.fixture
def place(inside: Looker, tmp_path: Path) -> Place:
    """Where the packages of a kernel `torch` are whose interpreter is this one."""
    path = tmp_path / "jupyter/kernels/torch/kernel.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"argv": [sys.executable], "metadata": {"rocmlab": {"framework": "torch"}}}))
    share = tmp_path / "share"
    jupyter = {"JUPYTER_PATH": str(tmp_path / "jupyter"), "JUPYTER_DATA_DIR": str(tmp_path / "none")}
    inside.environment = {**jupyter, "ROCMLAB_SHARE": str(share)}
    return Place(share, "torch", sys.executable)


def test_without_packages_there_is_nothing_to_check(inside: Looker, place: Place) -> None:
    """Nor without a share."""
    skipped(inside(), "lab.packages")


def test_a_list_that_is_not_installed_for_this_image_is_a_warning(inside: Looker, place: Place) -> None:
    """It names the packages and the command; once there is an overlay for the list, it is silent."""
    requested.write(place.share, "torch", [Requirement("accelerate>=1")])

    problem = fires(inside(), "lab.packages", WARNS).problem
    assert "accelerate>=1" in problem.why
    assert problem.fix == "rocmlab packages sync --kernel torch"

    prefix = place.own / "2026-11-25T042801.281224Z"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python").symlink_to(sys.executable)
    building.switch(place, prefix, [Requirement("accelerate>=1")])
    silent(inside(), "lab.packages")


def test_a_list_that_cannot_be_read_is_a_warning(inside: Looker, place: Place) -> None:
    """It names the file; the other checks go on."""
    requested.write(place.share, "torch", [])
    requested.path_of(place.share, "torch").write_text("[")
    assert "torch.json" in fires(inside(), "lab.packages", WARNS).problem.what
