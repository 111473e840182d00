"""A `.venv` that is a link: to another clone's environment, or to one of one's own on another disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocmlab.base import installation
from rocmlab.stack import environments


def environment(folder: Path, project: Path) -> Path:
    """Write an environment that was made for a project, with a package of the user's."""
    folder.mkdir(parents=True)
    (folder / "mine").touch()
    (folder / installation.WHOLE).write_text(json.dumps({"project": str(project)}))
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project whose `.venv` is a link."""
    found = tmp_path / "project"
    found.mkdir()
    return found


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_new_environment_leaves_another_clones_alone(tmp_path: Path, project: Path, is_whole: bool) -> None:
    """`make up` in a worktree that borrows `.venv` by a link makes its own, and removes only the link."""
    other = environment(tmp_path / "other/.venv", tmp_path / "other")
    link = project / environments.LINK
    link.symlink_to(other)

    environments.put_aside(project, link, is_whole=is_whole)
    environments.remove(project, project / environments.FOLDER / environments.ASIDE)

    assert not link.is_symlink()
    assert (other / "mine").exists()


def test_clean_leaves_another_clones_alone(tmp_path: Path, project: Path) -> None:
    """It removes the link, and what is this project's."""
    other = environment(tmp_path / "other/.venv", tmp_path / "other")
    (project / environments.LINK).symlink_to(other)

    assert environments.remove_all(project)

    assert [*project.iterdir()] == []
    assert (other / "mine").exists()


def test_ones_own_on_another_disk_is_removed_with_the_link(tmp_path: Path, project: Path) -> None:
    """Else `make clean` would leave gigabytes that no command names."""
    own = environment(tmp_path / "disk/venv", project)
    (project / environments.LINK).symlink_to(own)

    environments.remove_all(project)

    assert not own.exists()
