"""`rocmlab export`: a run as scripts for a site's scheduler; one job of it; and its report."""

from __future__ import annotations

import argparse
import os
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
KINDS = ("slurm", "k8s", "job", "collect")


def main(arguments: Sequence[str]) -> int:
    """Write a run for Slurm or Kubernetes, run one job of it, or collect what all have left.

    Returns:
        of `slurm` and `k8s` 0; of `job` that of the job; of `collect` 0 if all jobs are ok, else 1.

    Raises:
        RocmlabError: the arguments cannot be met.
    """
    kind, rest = arguments[0], list(arguments[1:])
    if kind == "job":
        return _job(rest)
    return _collect(rest) if kind == "collect" else _export("k8s" if kind == "k8s" else "slurm", rest)


def _job(arguments: Sequence[str]) -> int:
    from rocmlab.batch import array_task, granted, options

    asked = options.job_parser().parse_args(arguments)
    number = granted.number(os.environ) if asked.number is None else asked.number
    if number is None:
        raise RocmlabError(
            "which job?",
            "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set here",
            f"rocmlab export job {asked.folder} 0",
        )
    return array_task.run(asked.folder, asked.first + number)


def _collect(arguments: Sequence[str]) -> int:
    from rocmlab.batch import options

    asked = options.collect_parser().parse_args(arguments)
    from rich.console import Console

    from rocmlab.batch.collect import collect
    from rocmlab.runs.screen import summary

    run = collect(asked.folder, asked.wait)
    if asked.json:
        sys.stdout.write(files.to_json(run.as_dict()) + "\n")
    else:
        summary.show(run, Console(highlight=False, width=None if sys.stdout.isatty() else 160))
    return 0 if run.is_ok else 1


def _export(kind: str, arguments: Sequence[str]) -> int:
    from rocmlab.batch import kubernetes, layout, options, slurm

    asked = options.read("k8s" if kind == "k8s" else "slurm", arguments)
    if kind == "slurm" and not asked.image and os.environ.get("ROCMLAB_RUNTIME") in ("docker", "podman"):
        raise RocmlabError(
            "the nodes would not find this lab",
            f"it is in a container, and the scripts would name its interpreter, {sys.executable}",
            "--image lab.sif; or export from a lab without a container, in a folder that the nodes see: RUNTIME=native",
        )
    share = layout.share_of(asked)
    backend = _backend(asked)
    jobs = layout.plan(asked, share, backend)
    if asked.dry_run:
        found = layout.groups(jobs, asked.timeout, {})
        sys.stdout.write("".join(f"{_said(group.count, group.gpus)}\n" for group in found))
        return 0
    folder, laid = layout.write(asked, jobs, share, backend)
    try:
        if kind == "slurm":
            made = {f"{slurm.FOLDER}/{name}": text for name, text in _slurm(laid, folder.path, asked).items()}
        else:
            made = {kubernetes.FILE: kubernetes.text(kubernetes.documents(laid, folder.path, asked))}
    except RocmlabError:
        _remove(folder.path)
        raise
    for name, text in made.items():
        path = folder.path / name
        path.parent.mkdir(mode=private.folder_mode(), exist_ok=True)
        files.write_text(path, text)
        if name.endswith(".sh"):
            path.chmod(path.stat().st_mode | stat.S_IXUSR)  # for others it is as this user's umask has it
    _announce(kind, laid, folder.path, asked)
    return 0


def _slurm(laid: Layout, folder: Path, asked: argparse.Namespace) -> dict[str, str]:
    from rocmlab.batch import slurm

    return slurm.scripts(laid, folder, asked, {} if asked.image else os.environ)  # an image has its own


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)  # it was made a moment ago, by this process alone


def _backend(asked: argparse.Namespace) -> str:
    if asked.gpus == "none":
        return "cpu"
    backend = asked.backend or os.environ.get("ROCMLAB_BACKEND") or "rocm"
    if backend not in BACKENDS:
        raise RocmlabError(f"the backend {backend} with export", "no site has it", "--backend rocm")
    return backend


def _said(count: int, gpus: int) -> str:
    where = f"{formatting.plural(gpus, 'GPU')} each" if gpus else "the CPU"
    return (
        f"{formatting.plural(count, 'job')} on {where}"
        if not gpus
        else f"{formatting.plural(count, 'job')} with {where}"
    )


def _announce(kind: str, laid: Layout, folder: Path, asked: argparse.Namespace) -> None:
    if asked.json:
        sys.stdout.write(files.to_json({"folder": str(folder), **laid.as_dict()}) + "\n")
        return
    lines = [f"{_said(group.count, group.gpus)}" for group in laid.groups]
    lines.append(f"written to {folder}, which every machine must see at this path")
    if kind == "slurm":
        lines += [f"  would Slurm take it?  bash {folder}/slurm/submit.sh --test-only"]
        lines += [f"  hand it over:         bash {folder}/slurm/submit.sh"]
        if any(group.seconds is None for group in laid.groups) and not asked.time:
            lines.append(
                "no time limit is known: Slurm uses the partition's; --timeout SECONDS or --time MINUTES sets one"
            )
    else:
        lines += [f"  would it be taken?    kubectl apply --dry-run=server -f {folder}/kubernetes.yaml"]
        lines += [f"  hand it over:         kubectl apply -f {folder}/kubernetes.yaml"]
        if not asked.group and laid.backend == "rocm":
            lines.append("if a pod may not open /dev/kfd, name its group: --group $(stat -c %g /dev/kfd), on a node")
    sys.stdout.write("\n".join(lines) + "\n")
