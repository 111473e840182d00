"""Which notebooks the words of a command line mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmlab.runs.spec import selection


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with three notebooks, seen from the project's folder."""
    notebooks = tmp_path / "notebooks"
    for name in ("01_b.ipynb", "00_a.ipynb", "02 c.ipynb", ".ipynb_checkpoints/00_a-checkpoint.ipynb", ".hidden.ipynb"):
        path = notebooks / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("{}")
    (notebooks / "data.csv").write_text("")
    monkeypatch.chdir(tmp_path)
    return notebooks


def names(words: list[str], folder: Path) -> list[str]:
    """Return the names of the notebooks found."""
    return [each.notebook.name for each in selection.find(words, folder) if each.notebook]


def test_no_word_means_every_notebook_in_name_order(folder: Path) -> None:
    """Checkpoints, hidden files and data are no notebooks."""
    assert names([], folder) == ["00_a.ipynb", "01_b.ipynb", "02 c.ipynb"]


@pytest.mark.parametrize("word", ["notebooks/01_b.ipynb", "work/01_b.ipynb", "01_b.ipynb", "01_b", "notebooks/01_b"])
@pytest.mark.parametrize("place", ["notebooks", "work"])
def test_a_notebook_is_found_by_any_of_its_names(
    word: str, place: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The project calls the folder `notebooks`, the container calls it `work`; both names work in both."""
    folder = folder.rename(folder.with_name(place)) if place != folder.name else folder
    monkeypatch.chdir(tmp_path.parent)  # neither the project nor the folder

    assert names([word], folder) == ["01_b.ipynb"]
    assert names([str(folder / "01_b.ipynb")], folder) == ["01_b.ipynb"]


def test_a_path_from_here_comes_first(folder: Path, tmp_path: Path) -> None:
    """A notebook in the current folder hides one of the same name among the lab's."""
    (tmp_path / "01_b.ipynb").write_text("{}")

    assert [each.notebook for each in selection.find(["01_b.ipynb"], folder)] == [tmp_path / "01_b.ipynb"]


@pytest.mark.parametrize("word", ["notebooks/0[01]*", "0[01]_?.ipynb", "**/0[01]*.ipynb"])
def test_a_glob_means_all_it_matches(word: str, folder: Path) -> None:
    """Globs work from here and from the folder, and never match a checkpoint."""
    assert names([word], folder) == ["00_a.ipynb", "01_b.ipynb"]


def test_a_folder_means_its_notebooks(folder: Path) -> None:
    """A folder stands for every notebook in it."""
    assert names(["notebooks"], folder) == ["00_a.ipynb", "01_b.ipynb", "02 c.ipynb"]
    assert names([str(folder)], folder) == ["00_a.ipynb", "01_b.ipynb", "02 c.ipynb"]


@pytest.mark.parametrize("word", ["old/01_b.ipynb", "03_d", "*.txt", "notebooks/nothing/*"])
def test_a_missing_notebook_says_which_exist(word: str, folder: Path) -> None:
    """What has no match is reported alone, and a folder that is not there is not guessed away."""
    missing, there = selection.find([word, "00_a"], folder)

    assert missing.notebook is None
    assert missing.problem is not None
    assert word in missing.problem.what
    assert "00_a.ipynb, 01_b.ipynb, 02 c.ipynb" in missing.problem.why
    assert there.notebook == folder / "00_a.ipynb"


def test_the_lab_says_where_the_notebooks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lab it is ./notebooks."""
    monkeypatch.chdir(tmp_path)

    assert selection.notebooks_folder({"ROCMLAB_NOTEBOOKS": "/home/jovyan/work"}) == Path("/home/jovyan/work")
    assert selection.notebooks_folder({}) == tmp_path / "notebooks"
