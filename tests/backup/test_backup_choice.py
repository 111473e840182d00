"""Which backup a restore takes: in a shared folder, none that another user can have put there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from backup_labs import NEEDS_ROOT, PROJECT, Lab, as_second_user
from second_user import UID, open_to_others

from rocmlab.backup import choice, create
from rocmlab.backup.model import SUMS
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import homes, project_folder

FIND = (
    "import sys, pathlib; from rocmlab.backup import choice\n"
    "print(choice.find(pathlib.Path(sys.argv[1]), sys.argv[2], print))"
)
PLANTED = "rocmlab-20990101T000000Z"


@pytest.fixture
def mine(lab: Lab) -> Path:
    """A backup of this user's, of this clone."""
    (lab.share / "x").write_text("mine")
    return lab.back_up()


@pytest.fixture
def planted(lab: Lab, mine: Path) -> Path:
    """Another one with a newer name, next to it, which is as correct."""
    return Path(shutil.copytree(mine, lab.backups / PLANTED))


@pytest.fixture
def no_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every disk of this machine counts as one that keeps no modes."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in lines}
    monkeypatch.setattr(project_folder, "NO_MODES", kinds)


def give_away(folder: Path) -> None:
    """Make everything in a folder another user's."""
    for path in (folder, *folder.iterdir()):
        os.chown(path, UID, UID)


def skipped(lab: Lab) -> Iterator[str]:
    """Yield what was said about backups that are not taken."""
    return (line for line in lab.said if line.startswith("skipped"))


@NEEDS_ROOT
def test_a_backup_that_another_user_planted_is_skipped(lab: Lab, mine: Path, planted: Path) -> None:
    """The newest one is a real second user's: this user's own is taken, and the line names the owner of the other."""
    give_away(planted)

    assert mine == lab.find()
    assert [f"skipped {planted}: it belongs to uid {UID}"] == list(skipped(lab))


@NEEDS_ROOT
def test_a_file_of_another_user_in_a_backup_is_enough(lab: Lab, mine: Path, planted: Path) -> None:
    """The line names it."""
    os.chown(planted / "files-0001.tar", UID, UID)

    assert mine == lab.find()
    assert [f"skipped {planted}: files-0001.tar in it belongs to uid {UID}"] == list(skipped(lab))


@pytest.mark.parametrize(("name", "mode"), [(".", 0o770), (".", 0o1777), ("manifest.jsonl", 0o620), (SUMS, 0o602)])
def test_a_backup_that_others_can_change_is_skipped(lab: Lab, mine: Path, planted: Path, name: str, mode: int) -> None:
    """Its folder or a file in it; the line has the mode."""
    (planted / name).chmod(mode)

    assert mine == lab.find()
    (line,) = skipped(lab)
    assert re.match(rf"skipped {planted}: others can write to .*it \(mode {mode:04o}\)", line)


def test_a_link_between_backups_is_skipped(lab: Lab, mine: Path) -> None:
    """It could lead to any backup that this user has elsewhere."""
    shutil.move(mine, lab.folder / "elsewhere")
    (lab.backups / PLANTED).symlink_to(lab.folder / "elsewhere")

    with pytest.raises(RocmlabError, match="is yours alone"):
        lab.find()

    assert [f"skipped {lab.backups / PLANTED}: it is a link"] == list(skipped(lab))


@NEEDS_ROOT
def test_only_backups_of_others_are_an_error(lab: Lab, mine: Path) -> None:
    """The fix is to look whose they are: a command that restores one of them is not offered."""
    give_away(mine)

    with pytest.raises(RocmlabError) as refused:
        lab.find()

    assert refused.value.exit_code == 2
    assert refused.value.problem.fix.startswith(f"ls -l {lab.backups} ")
    assert str(mine) not in refused.value.problem.fix


@NEEDS_ROOT
def test_a_backup_that_is_named_is_taken_and_its_owner_is_said(lab: Lab, mine: Path) -> None:
    """Someone else's, which the user trusts."""
    give_away(mine)

    assert mine == lab.find(mine)
    assert any("WARNING" in line and f"it belongs to uid {UID}" in line for line in lab.said)


def test_ones_own_backup_is_taken_without_a_warning(lab: Lab, mine: Path) -> None:
    """Named, or the newest in its folder."""
    lab.said.clear()

    assert mine == lab.find(mine) == lab.find()
    assert lab.said == []


@NEEDS_ROOT
def test_a_backup_that_lies_openly_in_the_shared_folder_is_not_the_folder_itself(lab: Lab, mine: Path) -> None:
    """Another user adds checksums, manifest and parts to the folder of backups: it was not named as a backup."""
    for path in mine.iterdir():
        os.chown(shutil.copy(path, lab.backups), UID, UID)

    assert mine == lab.find()
    assert any(f"{SUMS} in it belongs to uid {UID}" in line for line in skipped(lab))


@NEEDS_ROOT
def test_a_backup_that_this_user_cannot_list_is_skipped(lab: Lab, mine: Path, planted: Path) -> None:
    """A real second user has a folder that can be entered and not listed next to his own; it is no obstacle."""
    give_away(mine)
    planted.chmod(0o711)
    (planted / SUMS).chmod(0o644)
    open_to_others(lab.folder)
    lab.backups.chmod(0o755)

    done = as_second_user(FIND, str(lab.backups), PROJECT)

    assert done.stdout.splitlines() == [f"skipped {planted}: it cannot be read: Permission denied", str(mine)]


class TestClones:
    """Several clones of one user may keep their backups in one folder."""

    @pytest.fixture
    def later(self, lab: Lab, mine: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A newer backup, of another clone."""
        monkeypatch.setattr(homes, "stamp", lambda: "20990101T000000Z")
        create.create(lab.task("create", lab.backups, project="/another/clone"), lab.said.append)
        return lab.backups / PLANTED

    def test_a_backup_of_this_clone_comes_first(self, lab: Lab, mine: Path, later: Path) -> None:
        """Even where the other clone's is newer, which a line says."""
        assert mine == lab.find()
        assert [f"skipped {later}: it is another clone's; name it to restore it"] == list(skipped(lab))

    @pytest.mark.parametrize("is_named", [False, True])
    def test_a_backup_of_another_clone_is_taken_and_said(
        self, lab: Lab, mine: Path, later: Path, is_named: bool
    ) -> None:
        """Where there is no other, as on a new machine; or where it is named."""
        shutil.rmtree(mine)

        assert later == lab.find(later if is_named else None)
        assert f"{later} is not a backup of this clone, but of the one in /another/clone" in lab.said


class TestDisksWithoutModes:
    """NTFS, or a disk of Windows: every file has one mode, 0777, and one owner, whoever wrote it."""

    @pytest.mark.usefixtures("no_modes")
    def test_the_newest_backup_is_taken_with_a_warning(self, lab: Lab, mine: Path, planted: Path) -> None:
        """Who wrote it cannot be known there."""
        for path in (planted, *planted.iterdir()):
            path.chmod(0o777)

        assert planted == lab.find()
        assert any("WARNING" in line and "keeps no owners" in line for line in lab.said)

    @NEEDS_ROOT
    @pytest.mark.usefixtures("no_modes")
    def test_a_disk_that_shows_every_file_as_roots_is_usable(self, mine: Path) -> None:
        """Root is the owner of a mount without a uid; one that is mounted for another user is that user's."""
        assert choice.doubt(mine, {UID}) == ""

        give_away(mine)

        assert choice.doubt(mine, {os.getuid()}) == f"it belongs to uid {UID}"

    @NEEDS_ROOT
    def test_on_other_disks_roots_files_are_not_ours(self, mine: Path) -> None:
        """A backup that root made for itself."""
        assert choice.doubt(mine, {UID}).startswith("it belongs to user root")

    @pytest.mark.usefixtures("no_modes")
    def test_an_interrupted_backup_is_continued(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        """No attempt leaves one more incomplete backup of full size."""
        (lab.share / "x").write_text("mine")
        begin(lab, monkeypatch)
        (partial,) = lab.backups.iterdir()
        for path in (partial, *partial.iterdir()):
            path.chmod(0o777)

        backup = lab.back_up()

        assert [backup] == list(lab.backups.iterdir())


def begin(lab: Lab, monkeypatch: pytest.MonkeyPatch, **more: object) -> None:
    """Begin a backup that Ctrl-C ends while the first file is read."""

    def interrupt(source: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(create, "status_of", interrupt)
        with pytest.raises(RocmlabError, match="the backup was interrupted"):
            create.create(lab.task("create", lab.backups, **more), lab.said.append)


def test_the_newest_backup_is_the_one_that_was_completed_last(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was interrupted on day 1 and completed on day 9 is newer than one of day 2, and has day 9's files."""
    (lab.share / "x").write_text("day 1")
    monkeypatch.setattr(homes, "stamp", lambda: "20261101T000000Z")
    begin(lab, monkeypatch, is_all=True)
    monkeypatch.setattr(homes, "stamp", lambda: "20261102T000000Z")
    lab.back_up()
    (lab.share / "x").write_text("day 9")
    monkeypatch.setattr(homes, "stamp", lambda: "20261109T000000Z")

    backup = lab.back_up(is_all=True)
    lab.lose()
    lab.restore(backup)

    assert (lab.share / "x").read_text() == "day 9"
    assert sorted(path.name for path in lab.backups.iterdir()) == [
        "rocmlab-20261102T000000Z",
        "rocmlab-20261109T000000Z",
    ]


def test_two_backups_that_are_completed_in_one_second_have_two_names(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one is the newer one."""
    monkeypatch.setattr(homes, "stamp", lambda: "20261101T000000Z")

    names = [lab.back_up().name for _ in range(3)]

    assert names == ["rocmlab-20261101T000000Z", "rocmlab-20261101T000000Z-2", "rocmlab-20261101T000000Z-3"]


def test_a_damaged_newest_backup_is_an_error_and_no_older_one_is_taken(lab: Lab, mine: Path, planted: Path) -> None:
    """The user decides."""
    (planted / "manifest.jsonl").write_text("{")

    with pytest.raises(RocmlabError, match="damaged"):
        choice.find(lab.backups, PROJECT, lab.said.append)
