"""Moving what earlier versions kept elsewhere to the home on the share: every byte stays, nothing is overwritten."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from rocmlab.stack import homes, rescue, settings, shipped


def write(folder: Path, **files: str) -> None:
    """Write files; in their names `__` stands for a slash, and a leading `dot_` for a dot."""
    for name, text in files.items():
        path = folder / name.replace("dot_", ".").replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    """An empty folder of notebooks."""
    (tmp_path / "notebooks").mkdir()
    return tmp_path / "notebooks"


def test_hidden_files_go_home_and_others_to_the_notebooks(tmp_path: Path, home: Path, notebooks: Path) -> None:
    """A notebook is seen in the file browser, a key is not; both are there, once."""
    state = tmp_path / ".rocmlab"
    write(state, config__a="settings", data__b="trusted", home__c="notebook")
    write(state / homes.OLD / "1234", dot_ssh__id="key", Untitled="first")
    write(state / homes.OLD / "5678", Untitled="second")

    lines = list(homes.adopt(homes.pending(state), home, notebooks))

    recovered = next(notebooks.iterdir())
    assert (home / ".jupyter/a").read_text() == "settings"
    assert (home / ".local/share/jupyter/b").read_text() == "trusted"
    assert (home / ".ssh/id").read_text() == "key"
    assert (recovered / "c").read_text() == "notebook"
    assert (recovered / "Untitled").read_text() == "first"
    assert next(home.glob("recovered-*/Untitled")).read_text() == "second"
    assert len(lines) == 6
    assert homes.pending(state) == []


def test_what_is_there_already_stays(tmp_path: Path, home: Path, notebooks: Path) -> None:
    """A newer file is not overwritten, an equal one is not doubled, and folders are merged."""
    write(tmp_path, old__deep__other="old", old__deep__same="same", old__deep__free="free")
    write(home, dot_deep__other="new", dot_deep__same="same")

    list(homes.adopt([(tmp_path / "old/deep", ".deep")], home, notebooks))

    assert (home / ".deep/other").read_text() == "new"
    assert (home / ".deep/free").read_text() == "free"
    assert [path.read_text() for path in home.glob("recovered-*/.deep/*")] == ["old"]
    assert not (tmp_path / "old/deep").exists()


def test_a_file_is_not_merged_with_itself(tmp_path: Path) -> None:
    """View and home are one folder, by name or by a link: nothing moves, and nothing is lost; hard links are merged."""
    home = tmp_path / "home"
    write(home, dot_ssh__id="key", dot_bashrc="mine")
    (tmp_path / "view").symlink_to(home)
    os.link(home / ".bashrc", tmp_path / ".bashrc")

    for view in (home, tmp_path / "view"):
        assert list(homes.adopt(homes.strays(view), home, tmp_path)) == []
        assert homes._merge(view / ".bashrc", home / ".bashrc", home / "aside")
        assert homes._merge(view / ".ssh", home / ".ssh", home / "aside")
    list(homes.adopt([(tmp_path / ".bashrc", ".bashrc")], home, tmp_path))

    assert (home / ".bashrc").read_text() == "mine"
    assert (home / ".ssh/id").read_text() == "key"
    assert not (tmp_path / ".bashrc").exists()


def test_a_stream_carries_modes_links_and_bytes(tmp_path: Path, home: Path, notebooks: Path) -> None:
    """What the host packs is unpacked in the container as it was; links are not followed."""
    write(tmp_path, dot_ssh__id="key", book="x" * 100_000)
    (tmp_path / ".ssh/id").chmod(0o600)
    (tmp_path / ".link").symlink_to("/etc/shadow")
    stream = io.BytesIO()

    homes.pack([(tmp_path / name, name) for name in (".ssh", ".link", "book")], stream)
    stream.seek(0)
    lines = list(homes.unpack(stream, home, notebooks))

    assert (home / ".ssh/id").read_text() == "key"
    assert (home / ".ssh/id").stat().st_mode & 0o777 == 0o600
    assert os.readlink(home / ".link") == "/etc/shadow"
    assert next(notebooks.glob("recovered-*/book")).stat().st_size == 100_000
    assert sorted(path.name for path in home.iterdir()) == [".link", ".ssh"]
    assert lines[0].startswith("moved .ssh to ")


def test_what_is_unpacked_is_in_one_folder_however_long_it_takes(
    tmp_path: Path, home: Path, notebooks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of one earlier container are found in one place, also when a second passes between two of them."""
    write(tmp_path, old__deep__book="a", old__note="b")
    times = map(str, range(10))
    monkeypatch.setattr(homes, "stamp", lambda: next(times))
    stream = io.BytesIO()
    homes.pack([(tmp_path / "old" / name, name) for name in ("deep", "note")], stream)
    stream.seek(0)

    list(homes.unpack(stream, home, notebooks))

    (recovered,) = notebooks.iterdir()
    assert sorted(path.name for path in recovered.iterdir()) == ["deep", "note"]


def test_a_move_to_another_file_system_keeps_all(home: Path, notebooks: Path) -> None:
    """/dev/shm is another file system than the share."""
    source = Path("/dev/shm") / f"rocmlab-test-{os.getpid()}"
    if not source.parent.is_dir() or source.parent.stat().st_dev == home.stat().st_dev:
        pytest.skip("there is no second file system in /dev/shm")
    write(source, a="first", b__c="second")

    list(homes.adopt([(source, ".moved")], home, notebooks))

    assert (home / ".moved/a").read_text() == "first"
    assert (home / ".moved/b/c").read_text() == "second"
    assert not source.exists()


def test_only_what_is_beside_work_and_share_is_taken_from_a_container() -> None:
    """The engine lists what a container's own layer has: names at the top, once; no mount, and nothing removed."""
    listed = "C /home\nC /home/jovyan\nA /home/jovyan/.ssh\nA /home/jovyan/.ssh/id\nD /home/jovyan/gone\n"
    listed += "A /home/jovyan/my notes.txt\nC /home/jovyan/work\nA /home/jovyan/share\nA /tmp/x\n"

    assert rescue.changed(listed) == [".ssh", "my notes.txt"]


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
