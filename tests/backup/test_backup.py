"""Backups of a share: complete, consistent, resumable, readable with tar, and safe to restore whoever made them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from backup_labs import CREATE, NEEDS_ROOT, Lab, as_second_user, tree
from second_user import UID, open_to_others

from rocmlab.backup import create, model, restore, verify, working
from rocmlab.backup.model import MANIFEST, SUMS
from rocmlab.base.errors import RocmlabError

FILE = {"path": "share/x", "type": "file"}


def fill(lab: Lab) -> None:
    """Put into the lab what a user has: odd names, modes, links, empty folders, old times."""
    (lab.share / "runs/a").mkdir(parents=True)
    (lab.share / "runs/a/results.json").write_text("{}")
    (lab.share / "empty").mkdir(mode=0o750)
    (lab.share / "home").mkdir(mode=0o700)
    (lab.share / "home/.ssh_key").write_text("secret")
    (lab.share / "home/.ssh_key").chmod(0o600)
    (lab.share / "tool.sh").write_text("#!/bin/sh\n")
    (lab.share / "tool.sh").chmod(0o755)
    (lab.share / os.fsdecode(b"caf\xe9 \n name")).write_bytes(b"\x00\xff")
    (lab.share / ("long-" * 40)).write_text("a name of 200 letters")
    (lab.share / "link").symlink_to("runs/a/results.json")
    (lab.share / "inside").symlink_to("/home/jovyan/share/runs")
    (lab.notebooks / "mine.ipynb").write_text('{"cells": []}')
    os.utime(lab.notebooks / "mine.ipynb", ns=(10**18 + 123, 10**18 + 123))
    (lab.notebooks / "large.bin").write_bytes(os.urandom(3_000_001))


def test_everything_comes_back_as_it_was(lab: Lab) -> None:
    """Names, contents, modes, times to the nanosecond, links and empty folders."""
    fill(lab)
    before = tree(lab.share), tree(lab.notebooks)

    backup = lab.back_up()
    lab.lose()
    lab.restore(backup)

    assert before == (tree(lab.share), tree(lab.notebooks))


def test_tar_and_sha256sum_are_enough_to_read_a_backup(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented line extracts every part, and the checksums are in coreutils' format."""
    monkeypatch.setattr(create, "PART_BYTES", 1_000_000)
    fill(lab)
    backup = lab.back_up()
    out = tmp_path / "out"
    out.mkdir()

    program = f'for part in {backup}/files-*.tar; do tar -xpf "$part" -C {out} || exit 1; done'
    subprocess.run(["sh", "-c", program], check=True)
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", SUMS], cwd=backup, check=True)

    assert len(list(backup.glob("files-*.tar"))) > 1
    assert {name: what for name, (what, _) in tree(lab.share).items()} == {
        name: what for name, (what, _) in tree(out / "share").items()
    }


def test_secrets_in_a_backup_are_for_its_owner_alone(lab: Lab) -> None:
    """It holds `.env`: its folder has the mode 0700 and its files 0600, whatever the umask."""
    (lab.folder / "project/.env").write_text("JUPYTER_TOKEN=secret\n")
    before = os.umask(0)
    try:
        backup = lab.back_up()
    finally:
        os.umask(before)

    assert stat.S_IMODE(backup.stat().st_mode) == 0o700
    assert {0o600} == {stat.S_IMODE(path.stat().st_mode) for path in backup.iterdir()}
    assert restore.settings_of(backup, "")["settings/.env"] == "JUPYTER_TOKEN=secret\n"


def test_caches_and_data_sets_are_omitted_and_named_unless_all_is_asked_for(lab: Lab) -> None:
    """A data set's file is omitted only where every byte is the canonical one; models and own data always stay."""
    for name in (
        "cache/rocm7/x",
        "data/mnist/images",
        "data/mnist/mine.csv",
        "models/my-checkpoint",
        "leases/gpu0.lock",
        "cache/my.txt",
    ):
        (lab.share / name).parent.mkdir(parents=True, exist_ok=True)
        (lab.share / name).write_bytes(b"x" * 10)
    sets = {
        "share/data/mnist/images": (10, hashlib.sha256(b"x" * 10).hexdigest()),
        "share/data/mnist/mine.csv": (10, hashlib.sha256(b"y" * 10).hexdigest()),
    }

    few = model.read(lab.back_up(data_sets=sets))
    everything = model.read(lab.back_up(data_sets=sets, is_all=True))

    files = {path for path, entry in few.entries.items() if entry.type == "file"}
    assert files == {"share/data/mnist/mine.csv", "share/models/my-checkpoint", "share/cache/my.txt"}
    omitted = {"share/cache/rocm7", "share/data/mnist/images", "share/leases/gpu0.lock"}
    assert {each["path"] for each in few.omitted} == omitted
    assert {"share/cache/rocm7/x", "share/data/mnist/images"} <= set(everything.entries)


def test_packages_of_a_users_own_are_omitted_and_their_list_is_saved(lab: Lab) -> None:
    """Even with all caches: they fit one image, and `packages sync` installs the list again."""
    for name in ("cache/packages/torch/key/made/bin/tool", "cache/packages/wheels/uv/x", "packages/torch.json"):
        (lab.share / name).parent.mkdir(parents=True, exist_ok=True)
        (lab.share / name).write_text("{}")

    saved = model.read(lab.back_up(is_all=True))

    assert "share/packages/torch.json" in saved.entries
    assert not [path for path in saved.entries if path.startswith("share/cache/packages/")]
    (why,) = [each["why"] for each in saved.omitted if each["path"] == "share/cache/packages"]
    assert "rocmlab packages sync" in why


class TestConsistency:
    """The lab runs while it is backed up."""

    def test_a_journal_that_grows_is_saved_as_it_was_at_one_instant(self, lab: Lab) -> None:
        """What is saved is the file's beginning, up to where it was at that instant."""
        journal = lab.share / "journal.jsonl"
        journal.write_text("")
        program = "import sys\nwhile True: open(sys.argv[1], 'a').write('{\"event\": \"job finished\"}\\n')"
        with subprocess.Popen([sys.executable, "-c", program, str(journal)]) as writer:
            while journal.stat().st_size < 100_000:
                time.sleep(0.01)
            backup = lab.back_up()
            writer.kill()
        whole = journal.read_bytes()
        lab.lose()
        lab.restore(backup)

        saved = (lab.share / "journal.jsonl").read_bytes()
        assert len(saved) >= 100_000
        assert whole.startswith(saved)

    @pytest.mark.slow
    def test_a_file_that_changes_each_time_it_is_read_is_saved_and_named(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After some attempts its content of one instant is saved, and the backup reports it."""
        status_of = create.status_of
        journal = lab.share / "journal.jsonl"
        journal.write_text("line\n")

        def busy(source: str) -> os.stat_result | None:
            with open(source, "a") as file:
                file.write("line\n")
            return status_of(source)

        monkeypatch.setattr(create, "status_of", busy)
        assert create.create(lab.task("create", lab.backups), lab.said.append) == 0
        manifest = model.read(lab.find())

        assert manifest.entries["share/journal.jsonl"].was_changing
        assert any("changed during backup: share/journal.jsonl" in line for line in lab.said)

    @pytest.mark.slow
    def test_a_notebook_that_is_replaced_again_and_again_is_saved_whole(self, lab: Lab) -> None:
        """Never half of one version and half of another."""
        notebook = lab.notebooks / "a.ipynb"
        notebook.write_text("0" * 2_000_000)
        done = threading.Event()

        def save() -> None:
            number = 0
            while not done.is_set():
                number += 1
                (lab.folder / "draft").write_text(str(number % 10) * (2_000_000 + number % 7))
                os.replace(lab.folder / "draft", notebook)

        thread = threading.Thread(target=save)
        thread.start()
        try:
            backup = lab.back_up()
        finally:
            done.set()
            thread.join()
        lab.lose()
        lab.restore(backup)

        assert len(set((lab.notebooks / "a.ipynb").read_text())) == 1

    def test_a_database_in_use_is_saved_with_what_is_in_its_log(self, lab: Lab) -> None:
        """IPython's history: rows that are only in the write-ahead log are in the copy, which is a sound database."""
        path = lab.share / "history.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("CREATE TABLE history (line TEXT)")
            database.executemany("INSERT INTO history VALUES (?)", [(str(number),) for number in range(1000)])
            database.commit()
            assert Path(f"{path}-wal").stat().st_size
            backup = lab.back_up()
        lab.lose()
        lab.restore(backup)

        assert not Path(f"{path}-wal").exists()
        with contextlib.closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert database.execute("SELECT count(*) FROM history").fetchone() == (1000,)

    def test_what_is_no_file_does_not_stop_it(self, lab: Lab) -> None:
        """Sockets and pipes are omitted and named."""
        os.mkfifo(lab.share / "pipe")
        binds = "import socket; socket.socket(socket.AF_UNIX).bind('socket')"  # a longer path has no room in an address
        subprocess.run([sys.executable, "-c", binds], cwd=lab.share, check=True)
        backup = lab.back_up()

        assert {("share/pipe", "a pipe"), ("share/socket", "a socket")} == {
            (each["path"], each["why"]) for each in model.read(backup).omitted
        }


class TestInterrupted:
    """A backup that stops continues, and what was complete is not repeated."""

    @pytest.fixture(autouse=True)
    def _small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(create, "PART_BYTES", 100_000)

    @pytest.mark.slow
    def test_a_killed_backup_continues(self, lab: Lab) -> None:
        """SIGKILL in the middle; the parts that were complete are the same files afterwards."""
        for number in range(60):
            (lab.share / f"{number:02}").write_bytes(os.urandom(50_000))
        program = (
            "import sys, time; from rocmlab.backup import create, model\n"
            "create.PART_BYTES = 100_000\n"
            "real = create._Maker._close\n"
            "def slow(self): real(self); print(len(self.parts), flush=True); time.sleep(0.2)\n"
            "create._Maker._close = slow\n"
            "create.create(model.Task.from_json(sys.argv[1]), lambda line: None)"
        )
        task = lab.task("create", lab.backups).to_json()
        with subprocess.Popen([sys.executable, "-c", program, task], stdout=subprocess.PIPE, text=True) as killed:
            assert killed.stdout
            while int(killed.stdout.readline()) < 5:
                pass
            killed.send_signal(signal.SIGKILL)
        (partial,) = lab.backups.iterdir()
        assert partial.name.endswith(".partial")
        with pytest.raises(RocmlabError, match="no complete backup"):
            lab.find()
        finished = {path.name: path.stat().st_mtime_ns for path in sorted(partial.glob("files-*.tar"))[:5]}
        (lab.share / "03").write_bytes(b"changed meanwhile")
        (lab.share / "04").unlink()

        backup = lab.back_up()
        before = tree(lab.share)
        lab.lose()
        lab.restore(backup)

        assert any("continuing" in line for line in lab.said)
        assert finished == {name: (backup / name).stat().st_mtime_ns for name in finished}
        assert before == tree(lab.share)
        assert [backup] == list(lab.backups.iterdir())

    @NEEDS_ROOT
    @pytest.mark.parametrize("how", ["folder", "link", "open to others"])
    def test_a_folder_that_another_user_planted_is_not_continued(self, lab: Lab, how: str) -> None:
        """A real second uid has prepared an incomplete backup of this very lab; the real one is made next to it."""
        (lab.share / "secret").write_text("secret")
        planted = lab.backups / "rocmlab-20990101T000000Z.partial"
        folder = lab.folder / "elsewhere" if how == "link" else planted
        folder.mkdir(mode=0o700)
        header = {"format": 1, "project": "/the/clone", "all": False}
        (folder / MANIFEST).write_text(json.dumps(header) + "\n")
        if how == "link":
            planted.symlink_to(folder)
        folder.chmod(0o777 if how == "open to others" else 0o700)
        if how == "folder":
            os.chown(folder, UID, UID)
        before = sorted(os.listdir(folder))

        backup = lab.back_up()

        assert before == sorted(os.listdir(folder))
        assert backup.name < planted.name
        assert "share/secret" in model.read(backup).entries

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupted_backup_keeps_what_it_has_and_says_how_to_continue(self, lab: Lab, number: int) -> None:
        """Ctrl-C, or the end of the container: the part under way is ended properly, and nothing is repeated."""
        for name in range(40):
            (lab.share / f"{name:02}").write_bytes(os.urandom(30_000))
        program = (
            "import sys, time; from rocmlab.backup import create, model\n"
            "real = create._Maker._member\n"
            "def slow(*given): print('.', flush=True); time.sleep(0.05); return real(*given)\n"
            "create._Maker._member = slow\n"
            "create.create(model.Task.from_json(sys.argv[1]), lambda line: None)"
        )
        command = [sys.executable, "-c", program, lab.task("create", lab.backups).to_json()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as stopped:
            assert stopped.stdout
            assert stopped.stderr
            for _ in range(6):
                stopped.stdout.readline()
            stopped.send_signal(number)
            stopped.stdout.read()
            said = stopped.stderr.read()

        assert "the backup was interrupted" in said
        assert f"make backup TO={lab.backups}" in said
        (partial,) = lab.backups.iterdir()
        kept = model.read(partial).entries
        assert len(kept) >= 4
        lab.back_up()
        assert {path: entry.part for path, entry in model.read(lab.find()).entries.items()}.items() >= {
            path: entry.part for path, entry in kept.items() if entry.type == "file"
        }.items()

    @pytest.mark.slow
    @NEEDS_ROOT
    def test_a_full_disk_leaves_the_earlier_backup_whole_and_this_one_resumable(self, lab: Lab) -> None:
        """On a disk of 4 MB: an error that says what to do, then the same command with more room completes it."""
        with small_disk(lab.backups, 4):
            (lab.share / "first").write_bytes(os.urandom(500_000))
            first = lab.back_up()
            for number in range(10):
                (lab.share / f"{number}").write_bytes(os.urandom(500_000))

            with pytest.raises(RocmlabError) as refused:
                create.create(lab.task("create", lab.backups), lab.said.append)

            assert refused.value.exit_code == 1
            assert "is full" in refused.value.problem.what
            assert f"make backup TO={lab.backups}" in refused.value.problem.fix
            verify.verify(first, "first")
            (partial,) = lab.backups.glob("*.partial")
            kept = {path.name: path.stat().st_ino for path in partial.glob("files-*.tar")}
            assert len(kept) > 2

            subprocess.run(["mount", "-o", "remount,size=20m", str(lab.backups)], check=True)
            time.sleep(1.1)  # a name for each second
            second = lab.back_up()

            assert kept == {name: (second / name).stat().st_ino for name in kept}
            assert second != first
            before = tree(lab.share)
            lab.lose()
            lab.restore(second)
            assert before == tree(lab.share)

    @NEEDS_ROOT
    def test_a_full_disk_during_a_restore_overwrites_nothing(self, lab: Lab) -> None:
        """It is rejected before anything is written where it is known that it cannot fit."""
        (lab.share / "large").write_bytes(os.urandom(3_000_000))
        backup = lab.back_up()
        lab.lose()
        with small_disk(lab.share, 1):
            (lab.share / "mine").write_text("mine")

            with pytest.raises(RocmlabError, match="nothing was restored"):
                lab.restore(backup)

            assert os.listdir(lab.share) == ["mine"]


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """Mount a disk of that size."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class TestRestore:
    """Nothing that is there is overwritten."""

    def test_a_different_file_is_kept_under_a_new_name(self, lab: Lab) -> None:
        """Both versions exist afterwards; what is the same and what the backup does not have is not touched."""
        for name in ("same", "changed"):
            (lab.share / name).write_text(name)
        backup = lab.back_up()
        (lab.share / "changed").write_text("my newer text")
        (lab.share / "new").write_text("new")
        same = (lab.share / "same").stat().st_ino

        lab.restore(backup)
        lab.restore(backup)

        assert (lab.share / "changed").read_text() == "changed"
        (kept,) = lab.share.glob("changed.before-restore-*")
        assert kept.read_text() == "my newer text"
        assert same == (lab.share / "same").stat().st_ino
        assert (lab.share / "new").read_text() == "new"
        assert any(f"kept share/changed as {kept.name}" in line for line in lab.said)

    def test_a_log_of_another_database_is_not_left_next_to_the_restored_one(self, lab: Lab) -> None:
        """SQLite would apply it and destroy the database; it is kept under a new name as well."""
        (lab.share / "a.sqlite").write_bytes(b"SQLite format 3\0 old")
        backup = lab.back_up()
        (lab.share / "a.sqlite").write_bytes(b"SQLite format 3\0 newer")
        (lab.share / "a.sqlite-wal").write_bytes(b"log")

        lab.restore(backup)

        assert not (lab.share / "a.sqlite-wal").exists()
        assert len(list(lab.share.glob("a.sqlite-wal.before-restore-*"))) == 1

    def test_a_folder_where_a_link_is_now_does_not_write_through_the_link(self, lab: Lab, tmp_path: Path) -> None:
        """The link is kept under a new name, and what it points to stays as it is."""
        (lab.share / "data").mkdir()
        (lab.share / "data/x").write_text("x")
        backup = lab.back_up()
        lab.lose()
        outside = tmp_path / "outside"
        outside.mkdir()
        (lab.share / "data").symlink_to(outside)

        lab.restore(backup)

        assert os.listdir(outside) == []
        assert (lab.share / "data/x").read_text() == "x"

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_a_restore_that_was_ended_is_repeated_by_a_process_of_the_same_number(self, lab: Lab, number: int) -> None:
        """In each container it has the same one; a signal removes the draft, and the next restore that of a crash."""
        (lab.share / "runs").mkdir()
        (lab.share / "runs/large").write_bytes(os.urandom(5_000_000))
        before = tree(lab.share)
        backup = lab.back_up()
        lab.lose()
        program = (
            "import sys, time, os; from rocmlab.backup import model, restore\n"
            "os.getpid = lambda: 7\n"
            "def slow(*given): print('.', flush=True); time.sleep(60)\n"
            "if len(sys.argv) > 2: restore._copy = slow\n"
            "sys.exit(restore.restore(model.Task.from_json(sys.argv[1]), lambda line: None))"
        )
        command = [sys.executable, "-c", program, lab.task("restore", backup).to_json()]
        with subprocess.Popen([*command, "slow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ended:
            assert ended.stdout
            assert ended.stderr
            ended.stdout.readline()
            ended.send_signal(number)
            said = ended.stderr.read()
        left = list((lab.share / "runs").iterdir())

        subprocess.run(command, check=True)

        assert len(left) == (number == signal.SIGKILL)
        assert number == signal.SIGKILL or f"make restore FROM={backup}" in said
        assert {"runs": None, **before} == {**tree(lab.share), "runs": before["runs"]}

    def test_a_draft_that_another_restore_writes_stays(self, lab: Lab) -> None:
        """Only what no one writes is removed, and nothing that merely looks like it."""
        (lab.share / "x").write_text("x")
        backup = lab.back_up()
        (lab.share / "x").unlink()
        for name in (".rocmlab-restore-0a", ".rocmlab-restore-0b", ".rocmlab-restore-notes"):
            (lab.share / name).write_text(name)
        with (lab.share / ".rocmlab-restore-0a").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            lab.restore(backup)

        assert sorted(os.listdir(lab.share)) == [".rocmlab-restore-0a", ".rocmlab-restore-notes", "x"]
        omitted = model.read(lab.back_up()).omitted
        assert [(each["path"], each["why"]) for each in omitted] == [
            ("share/.rocmlab-restore-0a", "a draft of an interrupted restore")
        ]

    @NEEDS_ROOT
    def test_restored_files_belong_to_the_labs_user(self, lab: Lab) -> None:
        """Restored by root for another uid: files, folders and links are all theirs."""
        fill(lab)
        backup = lab.back_up()
        lab.lose()

        lab.restore(backup, owner=(UID, UID))

        assert {UID} == {path.lstat().st_uid for path in (lab.share, *lab.share.rglob("*"))}

    @NEEDS_ROOT
    def test_another_user_cannot_read_a_backup(self, lab: Lab) -> None:
        """A real second uid is rejected, though the folder that holds the backups is open to all."""
        (lab.share / "key").write_text("secret")
        backup = lab.back_up()
        lab.backups.chmod(0o755)
        open_to_others(lab.folder)

        done = subprocess.run(["sh", "-c", f"ls {backup}; cat {backup}/*"], user=UID, group=UID, capture_output=True)

        assert done.returncode != 0
        assert done.stdout == b""


class TestDamaged:
    """A damaged backup is rejected before anything is touched."""

    @pytest.mark.parametrize("what", ["byte", "truncated", "missing", "manifest", "sums"])
    def test_the_damage_is_named_and_nothing_is_restored(self, lab: Lab, what: str) -> None:
        """The error says which part, and which of the user's files."""
        (lab.share / "good").write_bytes(os.urandom(10_000))
        (lab.share / "precious").write_bytes(b"precious" * 1000)
        backup = lab.back_up()
        part = backup / "files-0001.tar"
        data = bytearray(part.read_bytes())
        if what == "byte":
            data[data.index(b"preciousprecious") + 100] ^= 1
            part.write_bytes(data)
        elif what == "truncated":
            part.write_bytes(data[: data.index(b"preciousprecious") + 100])
        elif what == "missing":
            part.unlink()
        else:
            name = MANIFEST if what == "manifest" else SUMS
            (backup / name).write_bytes((backup / name).read_bytes()[:-20])
        lab.lose()

        with pytest.raises(RocmlabError, match="damaged") as refused:
            lab.restore(backup)

        assert os.listdir(lab.share) == []
        if what in ("byte", "truncated"):
            assert "files-0001.tar" in refused.value.problem.what
            assert "share/precious" in refused.value.problem.why
            assert "share/good" not in refused.value.problem.why


Forge = Callable[[list[tuple[tarfile.TarInfo, bytes]]], Path]


class TestAStrangersBackup:
    """Its checksums are right, and it still writes nowhere but where it should."""

    @pytest.fixture
    def forge(self, lab: Lab) -> Forge:
        """Return a function that makes a backup of tar members, with a manifest that agrees with them."""

        def make(members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
            folder = lab.backups / "rocmlab-20260101T000000Z"
            folder.mkdir()
            lines: list[object] = [{"format": 1}]
            data = b""
            for info, content in members:
                info.size = len(content)
                kinds = {tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.REGTYPE: "file"}
                entry = model.Entry(
                    info.name,
                    kinds.get(info.type, "file"),
                    mode=info.mode,
                    part="files-0001.tar",
                    offset=len(data),
                    size=len(content),
                    sha256=hashlib.sha256(content).hexdigest(),
                    target=info.linkname if info.type == tarfile.SYMTYPE else "",
                )
                lines.append({"entry": vars(entry)})
                data += info.tobuf(tarfile.GNU_FORMAT) + content + b"\0" * (-len(content) % 512)
            (folder / "files-0001.tar").write_bytes(data + b"\0" * 1024)
            digest = hashlib.sha256((folder / "files-0001.tar").read_bytes()).hexdigest()
            lines.append({"part": "files-0001.tar", "sha256": digest})
            (folder / MANIFEST).write_text("".join(json.dumps(line) + "\n" for line in lines))
            manifest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
            (folder / SUMS).write_text(f"{manifest}  {MANIFEST}\n{digest}  files-0001.tar\n")
            return folder

        return make

    @pytest.mark.parametrize(
        "name",
        ["/etc/x", "../x", "share/../../x", "share/./x", "share//x", "other/x", "share", "share/", "settings/../x",
         "settings/.rocmlab", "share/a/../b", ""],
    )  # fmt: skip
    def test_a_path_that_leaves_the_share_is_rejected(self, lab: Lab, forge: Forge, name: str) -> None:
        """The whole backup is, before anything is touched."""
        backup = forge([(member("share/good"), b"good"), (member(name), b"bad")])

        with pytest.raises(RocmlabError, match="rejected"):
            lab.restore(backup)

        assert os.listdir(lab.share) == []

    @pytest.mark.parametrize(
        "kind",
        [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE],
    )
    def test_devices_and_hard_links_are_rejected(self, lab: Lab, forge: Forge, kind: bytes) -> None:
        """Rocmlab writes none."""
        info = member("share/x", kind)
        info.linkname = "/etc/passwd" if kind == tarfile.LNKTYPE else ""

        with pytest.raises(RocmlabError, match=r"rejected|damaged"):
            lab.restore(forge([(info, b"")]))

        assert os.listdir(lab.share) == []

    @pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6755])
    def test_a_program_that_runs_as_another_user_is_rejected(self, lab: Lab, forge: Forge, mode: int) -> None:
        """Neither set-user-ID nor set-group-ID files."""
        info = member("share/x")
        info.mode = mode

        with pytest.raises(RocmlabError, match="rejected"):
            lab.restore(forge([(info, b"")]))

    @pytest.mark.parametrize(
        "target",
        ["/etc", "/etc/passwd", "..", "../..", "../notebooks", "a/../../x", "good/../..", "/home/jovyan/share/../..",
         "/home/jovyan/shared"],
    )  # fmt: skip
    def test_a_link_that_leads_out_is_not_made_and_is_named(self, lab: Lab, forge: Forge, target: str) -> None:
        """The rest is restored: an own backup may have such a link, and its user is told the target."""
        info = member("share/link", tarfile.SYMTYPE)
        info.linkname = target

        lab.restore(forge([(member("share/good", tarfile.DIRTYPE), b""), (info, b"")]))

        assert os.listdir(lab.share) == ["good"]
        assert any(f"share/link -> {target}" in line for line in lab.said)

    def test_a_file_behind_a_link_is_not_written_through_it(self, lab: Lab, forge: Forge, tmp_path: Path) -> None:
        """The old trick: a link to a folder elsewhere, then a file in it; also where the link stays in the share."""
        outside = tmp_path / "outside"
        outside.mkdir()
        (lab.share / "there").symlink_to(outside)  # the user's own
        link = member("share/d", tarfile.SYMTYPE)
        link.linkname = "there"
        again = member("share/d/x")

        lab.restore(forge([(link, b""), (again, b"evil")]))

        assert os.listdir(outside) == []
        assert (lab.share / "d/x").read_text() == "evil"

    def test_a_manifest_that_differs_from_the_tar_file_is_rejected(self, lab: Lab, forge: Forge) -> None:
        """What was checked is what is restored."""
        backup = forge([(member("share/x"), b"x"), (member("share/y"), b"y")])
        text = (backup / MANIFEST).read_text().replace('"share/y"', '"share/z"')
        (backup / MANIFEST).write_text(text)
        digest = hashlib.sha256(text.encode()).hexdigest()
        lines = (backup / SUMS).read_text().splitlines()
        (backup / SUMS).write_text("\n".join([f"{digest}  {MANIFEST}", *lines[1:]]) + "\n")

        with pytest.raises(RocmlabError, match="rejected"):
            lab.restore(backup)

        assert os.listdir(lab.share) == []

    @pytest.mark.parametrize(
        "entry",
        [{"path": 1}, {**FILE, "offset": "0"}, {**FILE, "mode": "x"}, {**FILE, "size": 2**70}, {**FILE, "a": 1}, None],
    )  # fmt: skip
    def test_nonsense_in_the_manifest_is_an_error_and_no_traceback(self, lab: Lab, forge: Forge, entry: object) -> None:
        """It is called damaged."""
        backup = forge([])
        text = (backup / MANIFEST).read_text() + json.dumps({"entry": entry}) + "\n"
        (backup / MANIFEST).write_text(text)

        with pytest.raises(RocmlabError, match="damaged"):
            model.read(backup)


def member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    """Return a tar member."""
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


def test_a_later_format_is_refused(lab: Lab) -> None:
    """It says which rocmlab to use."""
    backup = lab.back_up()
    text = (backup / MANIFEST).read_text().replace('"format": 1', '"format": 2')
    (backup / MANIFEST).write_text(text)

    with pytest.raises(RocmlabError, match="format 2"):
        model.read(backup)


class TestWhatIsOmitted:
    """No folder that should be saved is omitted silently."""

    @pytest.mark.parametrize("where", ["share/backups", "share", "notebooks"])
    def test_a_backup_inside_the_share_holds_everything_but_backups(self, lab: Lab, where: str) -> None:
        """TO may be a folder of the share, or the share, or the notebooks folder; its backups are named as omitted."""
        fill(lab)
        inside = lab.folder / "project" / where
        inside.mkdir(exist_ok=True)
        (inside / "rocmlab-thesis").mkdir()
        (inside / "rocmlab-thesis/mine.txt").write_text("mine, next to the backups")
        before = {f"share/{path}" for path in tree(lab.share)} | {f"notebooks/{path}" for path in tree(lab.notebooks)}

        create.create(lab.task("create", inside), lab.said.append)
        create.create(lab.task("create", inside), lab.said.append)

        newest = model.read(lab.find(inside))
        saved = {os.fsencode(path).decode("latin-1") for path in newest.entries}
        assert saved == before | {"share", "notebooks"}
        omitted = {each["path"]: each["why"] for each in newest.omitted}
        assert len(omitted) == 2
        assert all(path.startswith(f"{where}/rocmlab-2") and why == "a backup in TO" for path, why in omitted.items())

    def test_one_folder_for_share_and_notebooks_is_saved_once(self, lab: Lab) -> None:
        """NOTEBOOKS_DIR may be the share."""
        fill(lab)
        before = tree(lab.share)

        backup = lab.back_up(roots={"share": str(lab.share), "notebooks": str(lab.share / ".." / "share")})
        lab.lose()
        lab.restore(backup)

        assert before == tree(lab.share)
        assert any("omitted notebooks (it is the same folder as share" in line for line in lab.said)

    def test_a_folder_inside_the_other_is_saved_once_and_named(self, lab: Lab) -> None:
        """NOTEBOOKS_DIR=. has the share and rocmlab's own folders in it; each that is not saved there has a reason."""
        project = lab.folder / "project"
        for name in (".git", ".venv", ".rocmlab"):
            (project / name).mkdir(exist_ok=True)
            (project / name / "x").write_text("x")
        (lab.share / "mine").write_text("mine")

        manifest = model.read(lab.back_up(roots={"share": str(lab.share), "notebooks": str(project)}))

        omitted = {each["path"]: each["why"] for each in manifest.omitted}
        assert set(omitted) == {"notebooks/share", *(f"notebooks/{name}" for name in (".git", ".venv", ".rocmlab"))}
        assert omitted["notebooks/share"] == "it is saved as share"
        assert "share/mine" in manifest.entries

    def test_a_share_in_rocmlabs_own_folder_is_saved(self, lab: Lab) -> None:
        """SHARE=.rocmlab is odd, and the user's."""
        (lab.folder / "project/.rocmlab/mine").write_text("mine")
        roots = {"share": str(lab.folder / "project/.rocmlab"), "notebooks": str(lab.notebooks)}

        assert "share/mine" in model.read(lab.back_up(roots=roots)).entries

    @pytest.mark.parametrize("kind", ["missing", "file", "unknown"])
    def test_a_share_that_is_not_there_makes_the_exit_code_one(self, lab: Lab, kind: str) -> None:
        """A disk that is not mounted, say; the backup is not called complete."""
        lab.share.rmdir()
        if kind == "file":
            lab.share.write_text("")
        roots = {"share": "" if kind == "unknown" else str(lab.share), "notebooks": str(lab.notebooks)}

        assert create.create(lab.task("create", lab.backups, roots=roots), lab.said.append) == 1

        assert any("NOT in the backup, could not be read: share" in line for line in lab.said)
        assert not any("is complete" in line for line in lab.said)

    def test_many_are_counted(self, lab: Lab) -> None:
        """The manifest has what the list does not."""
        for number in range(30):
            os.mkfifo(lab.share / f"{number}")

        lab.back_up()

        assert "  and 10 more; manifest.jsonl has them all" in lab.said

    @NEEDS_ROOT
    def test_a_backup_of_another_user_in_the_same_folder_is_no_obstacle(self, lab: Lab) -> None:
        """Two users keep their backups in one folder; neither can look into those of the other."""
        lab.back_up()
        for path in (lab.share, lab.notebooks, lab.backups):
            os.chown(path, UID, UID)
        open_to_others(lab.folder)

        done = as_second_user(CREATE, lab.task("create", lab.backups).to_json())

        assert done.returncode == 0, done.stderr
        assert len(list(lab.backups.iterdir())) == 2


def test_a_second_backup_at_the_same_time_leaves_the_first_one_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rejected before it touches a file; the part under way is not lost."""
    status_of = create.status_of
    fill(lab)
    before = tree(lab.share)
    refused: list[str] = []

    def meanwhile(source: str) -> os.stat_result | None:
        if not refused and list(lab.backups.glob("*/files-*.tar")):
            with pytest.raises(RocmlabError) as caught:
                create.create(lab.task("create", lab.backups), lab.said.append)
            refused.append(caught.value.problem.what)
        return status_of(source)

    monkeypatch.setattr(create, "status_of", meanwhile)
    assert create.create(lab.task("create", lab.backups), lab.said.append) == 0
    backup = lab.find()
    lab.lose()
    lab.restore(backup)

    assert "another process writes" in refused[0]
    assert before == tree(lab.share)


def test_a_backup_that_another_process_completes_just_now_is_not_written_into(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was incomplete when the second process chose it to continue; that one then makes its own."""
    (lab.share / "x").write_text("x")
    completed: list[Path] = []
    locked = create.locked

    def late(folder: Path, shown: str) -> object:
        if not completed:
            completed.append(folder.rename(folder.with_name(folder.name.removesuffix(".partial"))))
        return locked(folder, shown)

    monkeypatch.setattr(create, "locked", late)

    lab.back_up()

    assert os.listdir(completed[0]) == [MANIFEST]
    assert len(list(lab.backups.iterdir())) == 2


@NEEDS_ROOT
def test_a_file_that_cannot_be_read_makes_the_exit_code_one(lab: Lab) -> None:
    """The rest is saved, and the file is named: a real second user has a file of root's in the share."""
    (lab.share / "mine").write_text("mine")
    (lab.share / "roots").write_text("root's")
    (lab.share / "roots").chmod(0o600)
    for path in (lab.folder, *lab.folder.rglob("*")):
        if path.name != "roots":
            os.chown(path, UID, UID)
    task = lab.task("create", lab.backups).to_json()
    open_to_others(lab.folder)

    done = as_second_user(CREATE, task)

    assert done.returncode == 1, done.stderr
    assert "could not be read: share/roots" in done.stdout
    (backup,) = lab.backups.iterdir()
    assert "share/mine" in model.read(backup).entries


def test_progress_is_told_in_bytes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of how much."""
    monkeypatch.setattr(working, "PROGRESS_SECONDS", 0)
    (lab.share / "x").write_bytes(b"x" * 1_500_000)

    lab.back_up()

    assert any("1.5 MB of 1.5 MB" in line for line in lab.said)
