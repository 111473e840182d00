"""`rocmlab clean --runs 30d`: old runs, listed first and removed after a yes; image, environment and lab stay."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.base.formatting import amount

TYPE_CHECKING = False  # `clean` without --runs needs none of it
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rocmlab.stack.project import Project
    from rocmlab.stack.prune import OldRun


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--runs`."""
    import argparse

    parser.add_argument(
        "--runs", metavar="AGE", help="only remove finished runs older than this (30d, 4w, 12h; or RUNS=30d)"
    )
    parser.add_argument("--in-share", help=argparse.SUPPRESS)  # this is the container that reads a volume
    parser.add_argument("--name", action="append", help=argparse.SUPPRESS)  # a run to remove there


def age_of(chosen: argparse.Namespace) -> str:
    """Return the age that was given, empty where the whole lab is to be cleaned."""
    return str(chosen.runs or os.environ.get("RUNS", ""))


def main(chosen: argparse.Namespace, age: str, *, is_forced: bool) -> int:
    """List old runs, ask for confirmation, and remove them.

    Raises:
        RocmlabError: the age cannot be read, there is no terminal to confirm on, or the share cannot be reached.
    """
    from rocmlab.stack import project as projects
    from rocmlab.stack import prune

    seconds = prune.age_seconds(age)
    if chosen.in_share:
        runs = Path(chosen.in_share)
        done = prune.remove(runs, chosen.name, seconds) if chosen.name else prune.find(runs, seconds)
        print(json.dumps([asdict(run) for run in done]))
        return 0
    project = projects.reopen(projects.find())
    found = _do(project, age, seconds, [])
    _list([run for run in found if run.kept_because], "stays")
    old = [run for run in found if not run.kept_because]
    if not old:
        print(f"no finished run is older than {age}; nothing was removed")
        return 0
    _list(old, "old")
    total = amount(sum(run.size for run in old))
    count = f"{len(old)} run{'s' * (len(old) != 1)}"
    if not is_forced and not _agrees(f"remove {'this' if len(old) == 1 else 'these'} {count} ({total})? [y/N] ", age):
        print("nothing was removed")
        return 1
    done = _do(project, age, seconds, [run.name for run in old])
    _list([run for run in done if run.kept_because], "failed")
    removed = [run for run in done if not run.kept_because]
    print(f"removed {len(removed)} runs ({amount(sum(run.size for run in removed))})")
    return 0 if len(removed) == len(old) else 1


def _list(runs: Sequence[OldRun], label: str) -> None:
    for run in runs:
        size = f"{amount(run.size)}, {run.files} files"
        why = f"; {run.kept_because}" if run.kept_because else ""
        print(f"  {label:6}  {run.name}  finished {run.finished[:10]}  {size}{why}")


def _agrees(question: str, age: str) -> bool:
    if not sys.stdin.isatty():
        raise RocmlabError(
            "nothing was removed: no terminal to confirm on",
            "the runs above would be",
            f"make clean RUNS={age} FORCE=1",
        )
    from rocmlab.cli import stopping

    return stopping.agrees(question)


def _do(project: Project, age: str, seconds: float, names: Sequence[str]) -> list[OldRun]:
    """Find old runs, or remove those that are named, wherever the share is."""
    from rocmlab.stack import process, prune, volumes
    from rocmlab.stack.container import ContainerLab
    from rocmlab.stack.native import NativeLab

    lab = project.lab
    if isinstance(lab, NativeLab):
        runs = lab.share_folder / "runs"
        return prune.remove(runs, names, seconds) if names else prune.find(runs, seconds)
    assert isinstance(lab, ContainerLab)
    if not lab.is_built():
        raise RocmlabError(
            f"the image {lab.image} is missing",
            f"the share {lab.share()} is read by a container of that image",
            f"make build, then: make clean RUNS={age}",
        )
    mount = volumes.share(lab, is_read_only=not names)
    if mount is None:
        return []
    arguments = ["clean", "--runs", age, "--in-share", f"{volumes.SHARE}/runs", *(f"--name={name}" for name in names)]
    code, output = process.capture(
        volumes.command(lab, [mount], arguments), env=lab.environment, timeout_seconds=24 * 3600
    )
    if code == 0:
        with suppress(ValueError, TypeError, IndexError):
            return [prune.OldRun(**each) for each in json.loads(output.strip().splitlines()[-1])]
    raise RocmlabError("the runs cannot be listed", output.strip()[-400:], "make doctor", exit_code=1)
