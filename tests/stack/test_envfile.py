"""The `.env` file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from second_user import UID, open_to_others

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile

READ = f"""
import os, sys
from pathlib import Path
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile
os.setgroups([]); os.setresgid({UID}, {UID}, {UID}); os.setresuid({UID}, {UID}, {UID})
try:
    envfile.read(Path(sys.argv[1]))
except RocmlabError as err:
    print(err.problem.fix)
"""
WRITTEN = """\
# my lab
PORT=9000   # the office's firewall wants this
export SHARE='/data/my share'
UNKNOWN=kept

JUPYTER_TOKEN="abc"
"""


class TestParse:
    """Reading, as Compose reads."""

    def test_quotes_comments_and_export_are_understood(self) -> None:
        """The value is what is between quotes, or before a comment."""
        expected = {"PORT": "9000", "SHARE": "/data/my share", "UNKNOWN": "kept", "JUPYTER_TOKEN": "abc"}

        assert expected == envfile.parse(WRITTEN)

    def test_a_value_that_is_only_a_comment_is_empty(self) -> None:
        """Nothing stands before the sign."""
        assert envfile.parse("A= # none yet\n") == {"A": ""}

    def test_the_last_line_of_a_name_counts(self) -> None:
        """A name that stands twice has its last value, as for Compose."""
        assert envfile.parse("A=1\nA=2\n") == {"A": "2"}


class TestUpdate:
    """Changing, and keeping the rest."""

    def test_a_change_touches_its_own_line_only(self) -> None:
        """Comments, order, blank lines and unknown names stay."""
        updated = envfile.update(WRITTEN, {"JUPYTER_TOKEN": "xyz"}, {})

        assert updated == WRITTEN.replace('JUPYTER_TOKEN="abc"', "JUPYTER_TOKEN=xyz")

    def test_an_equal_value_keeps_its_spelling(self) -> None:
        """A line whose value does not change keeps quotes and trailing comment."""
        assert envfile.update(WRITTEN, {"PORT": "9000", "SHARE": "/data/my share"}, {}) == WRITTEN

    def test_none_removes_and_a_new_name_is_added_with_its_comment(self) -> None:
        """What is no longer needed goes; what is new comes last and explains itself."""
        updated = envfile.update("A=1\nB=2\n", {"A": None, "C": "3"}, {"C": "why C"})

        assert updated == "B=2\n# why C\nC=3\n"

    @given(
        st.text(st.characters(codec="utf-8", exclude_characters="'\n\r\0", exclude_categories=("Cc", "Zl", "Zp", "Cs")))
    )
    def test_what_is_written_is_what_is_read(self, value: str) -> None:
        """Any one-line value survives the round trip, quotes, dollars and backslashes included."""
        if value != value.strip() or "\x85" in value:
            return
        text = envfile.update("", {"NAME": value}, {})

        assert envfile.parse(text) == {"NAME": value}


class TestFile:
    """Reading and writing the file itself."""

    def test_it_is_private(self, tmp_path: Path) -> None:
        """The file holds the token, so its mode is 0600."""
        envfile.write(tmp_path / ".env", "A=1\n")

        assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600

    def test_an_unreadable_file_is_a_problem(self, tmp_path: Path) -> None:
        """Bytes that are no text are reported with the file's name."""
        (tmp_path / ".env").write_bytes(b"\xff\xfe")

        with pytest.raises(RocmlabError, match=r"\.env cannot be read"):
            envfile.read(tmp_path / ".env")

    @pytest.mark.skipif(os.getuid() != 0, reason="a second user id needs root: run .ci/run")
    def test_a_file_of_another_user_is_not_to_be_removed(self, tmp_path: Path) -> None:
        """It has the settings, so the fix makes it this user's."""
        envfile.write(tmp_path / ".env", "A=1\n")
        open_to_others(tmp_path)

        command = [sys.executable, "-c", READ, tmp_path / ".env"]
        fix = subprocess.run(command, capture_output=True, text=True, check=True).stdout

        assert fix == f'sudo chown "$USER" {tmp_path}/.env && chmod u+r {tmp_path}/.env\n'

    @pytest.mark.skipif(os.getuid() != 0, reason="a second user id needs root: run .ci/run")
    @pytest.mark.parametrize(("what", "owner"), [("folder", UID), ("link", 0), ("root's folder", 0)])
    def test_under_sudo_a_file_belongs_to_the_caller_in_a_folder_of_theirs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, owner: int
    ) -> None:
        """`sudo make up` in one's own clone; elsewhere, and behind a link, what root writes stays root's."""
        folder = tmp_path / "project"
        folder.mkdir()
        if what == "link":
            folder = tmp_path / "link"
            folder.symlink_to("project")
        if what != "root's folder":
            os.chown(folder, UID, UID)
        monkeypatch.setenv("SUDO_UID", str(UID))

        envfile.write(folder / ".env", "A=1\n")
        identity.make_folder(folder / ".rocmlab")

        assert [(folder / name).stat().st_uid for name in (".env", ".rocmlab")] == [owner, owner]

    @pytest.mark.skipif(os.getuid() != 0, reason="a second user id needs root: run .ci/run")
    def test_under_sudo_what_a_link_leads_to_stays_whose_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A clone may have come with a link to a folder of root's."""
        project, target = tmp_path / "project", tmp_path / "target"
        project.mkdir()
        target.mkdir()
        (project / ".rocmlab").symlink_to(target)
        os.chown(project, UID, UID)
        monkeypatch.setenv("SUDO_UID", str(UID))

        identity.make_folder(project / ".rocmlab")

        assert target.stat().st_uid == 0

    def test_a_folder_that_cannot_be_written_is_a_problem(self, tmp_path: Path) -> None:
        """A file where a folder is needed stops with what, why and fix, and leaves nothing behind."""
        (tmp_path / "file").write_text("")

        with pytest.raises(RocmlabError, match="cannot be written"):
            envfile.write(tmp_path / "file/.env", "A=1\n")

    def test_a_value_that_is_not_utf_8_is_an_error(self, tmp_path: Path) -> None:
        """Its path could not be found again; the file stays as it was."""
        path = tmp_path / ".env"
        path.write_text("PORT=1\n")

        with pytest.raises(RocmlabError, match="not UTF-8"):
            envfile.write(path, "NOTEBOOKS_DIR=/data/\udce9\n")

        assert path.read_text() == "PORT=1\n"
        assert list(tmp_path.iterdir()) == [path]
