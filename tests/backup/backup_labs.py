"""A lab to back up, and a second user."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from second_user import UID

from rocmlab.backup import choice, create, restore
from rocmlab.backup.model import Task

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk, or a second user, needs root")
PROJECT = "/the/clone"
CREATE = (
    "import sys; from rocmlab.backup import create, databases, model\n"
    "if len(sys.argv) > 2: databases.TIMEOUT_SECONDS = float(sys.argv[2])\n"
    "sys.exit(create.create(model.Task.from_json(sys.argv[1]), lambda line: print(line, flush=True)))"
)
RESTORE = (
    "import sys; from rocmlab.backup import model, restore\n"
    "sys.exit(restore.restore(model.Task.from_json(sys.argv[1]), print))"
)


class Lab:
    """A share, notebooks and settings in folders of the test's own, and where their backups go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.share, self.notebooks = folder / "project/share", folder / "project/notebooks"
        self.backups = folder / "backups"
        for path in (self.share, self.notebooks, self.backups, folder / "project/.rocmlab"):
            path.mkdir(parents=True)
        self.said: list[str] = []

    def task(self, kind: str, backup: Path, **more: object) -> Task:
        """Return a task with the lab's folders."""
        roots = {"share": str(self.share), "notebooks": str(self.notebooks)}
        settings = str(self.folder / "project") if kind == "create" else ""
        task = Task(kind, str(backup), str(backup), roots, project=PROJECT, settings=settings)
        return replace(task, **more)

    def back_up(self, **more: object) -> Path:
        """Make a backup and return its folder."""
        assert create.create(self.task("create", self.backups, **more), self.said.append) == 0, self.said
        return self.find()

    def find(self, given: Path | None = None) -> Path:
        """Return the backup that a path means, by default the newest one."""
        return choice.find(given or self.backups, PROJECT, self.said.append)

    def restore(self, backup: Path, **more: object) -> None:
        """Restore a backup."""
        assert restore.restore(self.task("restore", backup, **more), self.said.append) == 0

    def lose(self) -> None:
        """Remove everything."""
        for path in (self.share, self.notebooks):
            shutil.rmtree(path)
            path.mkdir()


def tree(folder: Path) -> dict[str, object]:
    """Return everything that a restore must bring back, by path."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        what: object = None
        if path.is_symlink():
            what = os.readlink(path)
        elif path.is_file():
            what = path.read_bytes()
        times = () if path.is_symlink() else (stat.S_IMODE(status.st_mode), status.st_mtime_ns)
        found[os.fsencode(path.relative_to(folder)).decode("latin-1")] = (what, times)
    return found


def as_second_user(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program as a real second user."""
    return subprocess.run(
        ["/usr/bin/env", "python3", "-c", program, *arguments],
        user=UID,
        group=UID,
        extra_groups=[],
        env={"PYTHONPATH": str(Path(create.__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
    )
