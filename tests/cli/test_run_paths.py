"""Paths of notebooks and lists as the container sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.run import _absolute, _inside
from rocmlab.stack import settings
from rocmlab.stack.choice import Choice
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.engine import Engine
from rocmlab.stack.project import Project

WORK = "/home/jovyan/work"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose lab is a container, with a list among its notebooks and one next to them; its folder is here."""
    for name in ("notebooks/tonight.yaml", "notebooks/a.ipynb", "other.csv", "both.yaml", "notebooks/both.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path)
    found = settings.load(tmp_path, {})
    values = {"NOTEBOOKS_DIR": "notebooks", "ROCMLAB_BACKEND": "cpu", "ROCMLAB_IMAGE": "x", "PORT": "1"}
    lab = DockerLab(found, {**values, "JUPYTER_TOKEN": "x"}, Engine(is_usable=True))  # it is never started
    return Project(found, Choice("cpu", "docker", "test"), values, lab)


@pytest.mark.parametrize(
    ("word", "inside"),
    [
        ("{here}/notebooks/a.ipynb", f"{WORK}/a.ipynb"),
        ("{here}/notebooks/tonight.yaml", f"{WORK}/tonight.yaml"),
        ("notebooks/tonight.yaml", f"{WORK}/tonight.yaml"),
        ("tonight.yaml", "tonight.yaml"),  # the container looks among the lab's notebooks
        ("a.ipynb", "a.ipynb"),
        ("--retries", "--retries"),
        ("lr=0.1,0.01", "lr=0.1,0.01"),
    ],
)
def test_a_path_is_told_as_the_container_sees_it(word: str, inside: str, project: Project, tmp_path: Path) -> None:
    """Lists are treated as notebooks are; names are left for the container to find."""
    assert _inside(project, word.format(here=tmp_path)) == inside


@pytest.mark.parametrize("word", ["other.csv", "both.yaml", "{here}/other.csv"])
def test_what_the_container_cannot_see_is_an_error(word: str, project: Project, tmp_path: Path) -> None:
    """Never another file of the same name."""
    with pytest.raises(RocmlabError, match="cannot be seen by the lab") as caught:
        _inside(project, word.format(here=tmp_path))

    assert "copy it there" in caught.value.problem.fix


def test_a_file_that_is_here_is_the_one_that_runs(tmp_path: Path) -> None:
    """From another folder than the project's a relative path is made absolute; names and options stay as they are."""
    here = tmp_path / "elsewhere"
    here.mkdir()
    (here / "a.ipynb").touch()
    (here / "tonight.yaml").touch()
    words = ["a.ipynb", "b.ipynb", "01_mnist_fc", "tonight.yaml", "--name", "x.ipynb", "-p", "lr=0.1"]

    found = _absolute(words, ["a.ipynb", "b.ipynb", "01_mnist_fc", "tonight.yaml"], here, tmp_path)

    assert found == [str(here / "a.ipynb"), "b.ipynb", "01_mnist_fc", str(here / "tonight.yaml"), *words[4:]]
    assert _absolute(words, words, tmp_path, tmp_path) == words
