"""`rocmlab export`: a run as scripts for a site's scheduler; one job of it; and its report."""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rocmlab.base import files, formatting, private
from rocmlab.base.errors import RocmlabError

if TYPE_CHECKING:
    from rocmlab.batch.layout import Layout

BACKENDS = ("rocm", "cuda", "cpu")


def main(arguments: Sequence[str]) -> int:
    """Write a run for Slurm or Kubernetes, run one job of it, or collect what all have left.

    Returns:
        of `slurm` and `k8s` 0; of `job` that of the job; of `collect` 0 if all jobs are ok, else 1.

    Raises:
        RocmlabError: the arguments cannot be met.
    """
    from rocmlab.batch import options

    kind, args = arguments[0], options.read(arguments[0], arguments[1:])
    if kind == "job":
        return _job(args)
    return _collect(args) if kind == "collect" else _export(kind, args)


def _job(args: argparse.Namespace) -> int:
    from rocmlab.batch import array_task

    number = array_task.array_index(os.environ) if args.number is None else args.number
    if number is None:
        raise RocmlabError(
            "which job?",
            "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set here",
            f"rocmlab export job {args.folder} 0",
        )
    return array_task.run(args.folder, args.first + number)


def _collect(args: argparse.Namespace) -> int:
    from rich.console import Console

    from rocmlab.batch.collect import collect
    from rocmlab.runs.screen import summary

    run = collect(args.folder, args.wait)
    if args.json:
        sys.stdout.write(files.to_json(run.as_dict()) + "\n")
    else:
        summary.show(run, Console(highlight=False, width=None if sys.stdout.isatty() else 160))
    return 0 if run.is_ok else 1


def _export(kind: str, args: argparse.Namespace) -> int:
    from rocmlab.batch import kubernetes, layout, slurm
    from rocmlab.runs.spec import options as run_options

    if kind == "slurm" and not args.image and os.environ.get("ROCMLAB_RUNTIME") in ("docker", "podman"):
        raise RocmlabError(
            "the nodes would not find this lab",
            f"it is in a container, and the scripts would name its interpreter, {sys.executable}",
            "--image lab.sif; or export from a lab without a container, in a folder that the nodes see: RUNTIME=native",
        )
    share = run_options.share_of(args)
    backend = _backend(args)
    jobs = layout.plan(args, share, backend)
    if args.dry_run:
        found = layout.groups(jobs, args.timeout, {})
        sys.stdout.write("".join(f"{_said(group.count, group.gpus)}\n" for group in found))
        return 0
    folder, laid = layout.write(args, jobs, share, backend)
    try:
        if kind == "slurm":
            environment = {} if args.image else os.environ  # an image has its own
            scripts = slurm.scripts(laid, folder.path, args, environment)
            made = {f"{slurm.FOLDER}/{name}": text for name, text in scripts.items()}
        else:
            made = {kubernetes.FILE: kubernetes.text(kubernetes.documents(laid, folder.path, args))}
    except RocmlabError:
        shutil.rmtree(folder.path, ignore_errors=True)  # it was made a moment ago, by this process alone
        raise
    for name, text in made.items():
        path = folder.path / name
        path.parent.mkdir(mode=private.folder_mode(), exist_ok=True)
        files.write_text(path, text)
        if name.endswith(".sh"):
            path.chmod(path.stat().st_mode | stat.S_IXUSR)  # for others it is as this user's umask has it
    _announce(kind, laid, folder.path, args)
    return 0


def _backend(args: argparse.Namespace) -> str:
    if args.gpus == "none":
        return "cpu"
    backend = args.backend or os.environ.get("ROCMLAB_BACKEND") or "rocm"
    if backend not in BACKENDS:
        raise RocmlabError(f"the backend {backend} with export", "no site has it", "--backend rocm")
    return backend


def _said(count: int, gpus: int) -> str:
    return formatting.plural(count, "job") + (f" with {formatting.plural(gpus, 'GPU')} each" if gpus else " on the CPU")


def _announce(kind: str, laid: Layout, folder: Path, args: argparse.Namespace) -> None:
    if args.json:
        sys.stdout.write(files.to_json({"folder": str(folder), **laid.as_dict()}) + "\n")
        return
    lines = [_said(group.count, group.gpus) for group in laid.groups]
    lines.append(f"written to {folder}, which every machine must see at this path")
    if kind == "slurm":
        lines += [f"  would Slurm take it?  bash {folder}/slurm/submit.sh --test-only"]
        lines += [f"  hand it over:         bash {folder}/slurm/submit.sh"]
        if any(group.seconds is None for group in laid.groups) and not args.time:
            lines.append(
                "no time limit is known: Slurm uses the partition's; --timeout SECONDS or --time MINUTES sets one"
            )
    else:
        lines += [f"  would it be taken?    kubectl apply --dry-run=server -f {folder}/kubernetes.yaml"]
        lines += [f"  hand it over:         kubectl apply -f {folder}/kubernetes.yaml"]
        if not args.group and laid.backend == "rocm":
            lines.append("if a pod may not open /dev/kfd, name its group: --group $(stat -c %g /dev/kfd), on a node")
    sys.stdout.write("\n".join(lines) + "\n")
