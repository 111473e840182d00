"""`rocmlab backup` and `rocmlab restore`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from rocmlab.backup import choice, places, restore
from rocmlab.backup.model import Task, named
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import command_parser
from rocmlab.cli.stopping import flag
from rocmlab.cli.up import say
from rocmlab.stack import busy
from rocmlab.stack import project as projects
from rocmlab.stack.project import Project


def main(command: str, arguments: Sequence[str]) -> int:
    """Back up or restore the lab that the last `make up` left."""
    chosen = build_parser(command).parse_args(arguments)
    if command == "restore":
        return _restore(chosen.given or os.environ.get("FROM", ""), is_forced=chosen.force or flag("FORCE"))
    if chosen.job:
        task = Task.from_json(chosen.job)
        return places.WORKS[task.kind](task, say)
    return _backup(chosen.to or os.environ.get("TO", ""), is_all=chosen.all or flag("ALL"))


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab backup` or `rocmlab restore`."""
    parser = command_parser(
        command, example="--to /mnt/disk/rocmlab" if command == "backup" else "--from /mnt/disk/rocmlab"
    )
    if command == "backup":
        parser.add_argument(
            "--to", metavar="DIR", help="where backups are kept, each in a folder of its own (or TO=DIR)"
        )
        parser.add_argument("--all", action="store_true", help="also caches and data sets (or ALL=1)")
        parser.add_argument("--job", help=argparse.SUPPRESS)  # this is the container that reads a volume
    else:
        parser.add_argument(
            "--from", dest="given", metavar="DIR", help="a backup, or a folder of backups (or FROM=DIR)"
        )
        parser.add_argument("--force", action="store_true", help="even if notebooks are open in the lab (or FORCE=1)")
    return parser


def _backup(to: str, *, is_all: bool) -> int:
    if not to:
        raise RocmlabError(
            "the folder for the backup is missing", "TO= is empty", "make backup TO=/path/to/another/disk"
        )
    project = projects.reopen(projects.find())
    folder = Path(to).expanduser().resolve()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise RocmlabError(
            f"could not create {folder}", err.strerror or str(err), "make backup TO=/another/folder"
        ) from err
    task = Task(
        "create",
        backup=str(folder),
        shown=named(str(folder)),
        roots={},
        project=str(project.settings.project),
        is_all=is_all,
        data_sets=_data_sets(),
    )
    return places.run(project, task, say)


def _data_sets() -> dict[str, tuple[int, str]]:
    """Return the files that can be fetched again: size in bytes and SHA-256, by path in the share."""
    from rocmlab.training.datasets.catalogue import DATASETS

    return {
        f"{each.folder(Path('share'))}/{file.name}": (file.size_bytes, file.sha256)
        for each in DATASETS.values()
        for file in each.files
    }


def _restore(given: str, *, is_forced: bool) -> int:
    if not given:
        raise RocmlabError(
            "the backup to restore is missing", "FROM= is empty", "make restore FROM=/path/to/the/backups"
        )
    project = projects.reopen(projects.find())
    folder = choice.find(Path(given).expanduser().resolve(), str(project.settings.project), say)
    shown = named(str(folder))
    if not is_forced:
        _check_nothing_runs(project, given)
    task = Task("restore", backup=str(folder), shown=shown, roots={}, project=str(project.settings.project))
    with projects.locked(project, say):
        code = places.run(project, task, say)
        if code == 0:
            places.restore_settings(project, restore.settings_of(folder, shown), say)
            say("make up starts the lab with what was restored")
    return code


def _check_nothing_runs(project: Project, given: str) -> None:
    """Raise RocmlabError if a notebook is open or a run is under way, or that is unknown."""
    found = busy.find(project.lab)
    if not found.works and not found.unknown:
        return
    what = "tasks run in the lab" if found.works else "it is not known what runs in the lab"
    raise RocmlabError(
        f"make restore replaces files, and {len(found.works) or ''} {what}".replace("  ", " "),
        "their files may change while they are open:\n" + busy.lines(found.works) if found.works else found.unknown,
        f"make down, then restore; or now: make restore FORCE=1 FROM={quote(named(given))}",
        exit_code=1,
    )
