"""What `run` and `export` check on the host before anything is built, and what they print where there is no lab."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.spec import ahead

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rocmlab.runs.jobs import Job
    from rocmlab.stack.settings import Settings

NO_LAB = (
    "no up-to-date lab found here, so kernels, free GPUs, finished jobs and times are not known; `make up` builds it"
)


def check(args: argparse.Namespace) -> int | None:
    """Check on the host what can be checked, and answer what needs no lab; nothing is written or started.

    Args:
        args: the arguments of `run` or of `export slurm` and `export k8s`.

    Returns:
        the exit code where that was all: a dry run or a list without a current lab; None: the lab is to do it.

    Raises:
        RocmlabError: something is wrong, or only a lab can answer.
    """
    from rocmlab.stack import project as projects
    from rocmlab.stack import settings as configuration

    folder = projects.find()
    settings = configuration.load(folder)
    configuration.port_of(settings)
    looks_only = args.dry_run or args.list
    found = None
    again = args.resume or getattr(args, "reproduce", None)
    if not again and not args.list:
        notebooks = (folder / os.path.expanduser(settings.get("NOTEBOOKS_DIR"))).absolute()
        found = ahead.look(args, notebooks, folder)
    if again or args.compare:
        _check_run(args, settings)
    if not looks_only or _is_there(folder, is_current=not args.list):
        return None
    if found is None:
        what = "--list" if args.list else f"{_again(args)} --dry-run"
        raise RocmlabError(
            f"{what}: no up-to-date lab found here",
            "runs are in the lab's share, and this command does not build a lab",
            "make up, then the same command",
        )
    return _show(found, args.gpus, as_json=args.json)


def _check_run(args: argparse.Namespace, settings: Settings) -> None:
    """Refuse a run of which it is known that it does not exist: where there was no lab yet, and no share.

    Raises:
        RocmlabError: it does not exist.
    """
    from rocmlab.stack import project as projects

    folder = settings.project
    again = args.resume or getattr(args, "reproduce", None)
    if projects.existing(folder) is not None or args.share or "/" in settings.get("SHARE"):
        return
    names = [Path(name) for name in (again, args.compare) if name]
    if (folder / "share/runs").is_dir() or any(path.exists() for path in names):
        return
    what = _again(args) if again else f"--compare {args.compare}"
    raise RocmlabError(f"{what}: no lab found here", "runs are in the lab's share", "make up, then the same command")


def _again(args: argparse.Namespace) -> str:
    return f"--resume {args.resume}" if args.resume else f"--reproduce {args.reproduce}"


def _is_there(folder: Path, *, is_current: bool) -> bool:
    """Return whether the lab is built (and, if required, current); engines are queried only where there was one."""
    from rocmlab.stack import project as projects

    if projects.existing(folder) is None:
        return False
    lab = projects.plan(folder, stays=True).lab
    return lab.is_prepared() if is_current else lab.is_built()


def _show(found: ahead.Ahead, gpus: str | None, *, as_json: bool) -> int:
    from rocmlab.cli.devices import use_remembered_root
    from rocmlab.devices import discover
    from rocmlab.runs.scheduling.chosen import choose_gpus

    use_remembered_root()
    chosen = choose_gpus(discover(), gpus, os.environ)
    notes = [*found.notes, NO_LAB]
    if as_json:
        rows = [ahead.as_dict(job) for job in found.jobs]
        print(json.dumps({"slots": None, "jobs": rows, "notes": notes}, indent=1))
    else:
        print("\n".join(_table(found.jobs)))
        count = len(found.jobs)
        where = ", ".join(device.name for device in chosen) or "the CPU alone"
        print(f"{count} job{'s' * (count != 1)}; devices of this host: {where}")
        print("\n".join(notes))
    return 1 if any(row.problem for row in found.jobs) else 0


def _table(rows: Sequence[Job]) -> list[str]:
    cells = [("notebook", "kernel", "requests", "parameters")]
    cells += [(row.name, row.kernel or "", _wanted(row), _parameters(row.parameters)) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    lines = []
    for texts in cells:
        padded = (text.ljust(width) for text, width in zip(texts, widths, strict=False))
        lines.append("  ".join([*padded, texts[3]]))
    for row in rows:
        if row.problem:
            lines += [f"{row.name}: {row.problem.what}", f"  why: {row.problem.why}", f"  fix: {row.problem.fix}"]
    return [line.rstrip() for line in lines]


def _wanted(row: Job) -> str:
    if row.problem:
        return "cannot run"
    if row.gpus == 0:
        return "CPU"
    if row.gpus is None:
        return "1 GPU, or CPU"
    if row.gpus == "all":
        return f"all GPUs ({note})" if (note := ahead.note(row)) else "all GPUs"
    return f"{row.gpus} GPU{'s' * (row.gpus != 1)}"


def _parameters(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
