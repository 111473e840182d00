"""The folder that JupyterLab shows, and who owns the notebooks that come with the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocmlab.stack import homes, settings, shipped


def write(folder: Path, **files: str) -> None:
    """Write files; in their names `__` stands for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class TestRecover:
    """Files in the folder that JupyterLab shows, which only root can write to."""

    def test_they_are_moved_to_the_notebooks(self, tmp_path: Path) -> None:
        """Hidden ones also, whatever of the same name is there; our links stay, and an empty folder moves nothing."""
        view, notebooks = tmp_path / "view", tmp_path / "notebooks"
        write(tmp_path, view__saved="new", view__deep__note="a", notebooks__saved="old")
        (tmp_path / "view/.ssh").mkdir()
        (tmp_path / "view/.ssh/id").write_text("key")
        homes.show(view, {"work": notebooks})

        lines = list(homes.recover(view, notebooks))
        again = list(homes.recover(view, notebooks))

        (recovered,) = notebooks.glob("recovered-*")
        assert [(recovered / name).read_text() for name in ("saved", "deep/note", ".ssh/id")] == ["new", "a", "key"]
        assert (notebooks / "saved").read_text() == "old"
        assert [path.name for path in view.iterdir()] == ["work"]
        assert len(lines) == 3
        assert again == []


class TestShipped:
    """A clone of root's."""

    def test_the_list_is_that_of_the_repository(self, repository: Path) -> None:
        """Every notebook that we ship is handed over, and no other."""
        assert {path.stem for path in (repository / "notebooks").glob("*_*.ipynb")} == shipped.NAMES

    def test_only_our_own_notebooks_change_hands(self, tmp_path: Path) -> None:
        """A file of root's own, a link and a second name of another file stay root's."""
        if os.geteuid() != 0:
            pytest.skip("a clone of root's needs root")
        notebooks = tmp_path / "notebooks"
        write(notebooks, **{"01_mnist_fc.ipynb": "{}", "mine.ipynb": "{}"})
        (tmp_path / "secret").write_text("key")
        (notebooks / "00_hello_gpu.ipynb").symlink_to(tmp_path / "secret")
        os.link(tmp_path / "secret", notebooks / "02_mnist_cnn.ipynb")
        lines: list[str] = []

        for _ in range(2):
            shipped.hand_over(settings.load(tmp_path, {}), notebooks, 1000, 100, lines.append)

        owners = {path.name: path.lstat().st_uid for path in (notebooks, *notebooks.iterdir(), tmp_path / "secret")}
        assert {name for name, uid in owners.items() if uid == 1000} == {"notebooks", "01_mnist_fc.ipynb"}
        assert len(lines) == 1

    def test_another_folder_is_left_alone(self, tmp_path: Path) -> None:
        """NOTEBOOKS_DIR=/folder is a user's own."""
        if os.geteuid() != 0:
            pytest.skip("a folder of root's needs root")
        write(tmp_path, **{"notebooks__x": "", "elsewhere__01_mnist_fc.ipynb": "{}"})

        shipped.hand_over(settings.load(tmp_path, {}), tmp_path / "elsewhere", 1000, 100, print)

        assert (tmp_path / "elsewhere/01_mnist_fc.ipynb").stat().st_uid == 0
