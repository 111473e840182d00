"""The options of `rocmlab export`: those of `rocmlab run`, and those that a scheduler needs in addition."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.spec import options, resources

Kind = Literal["slurm", "k8s"]
WITHOUT = ("resume", "list", "fail_fast", "warm")  # options of a run that a site's scheduler cannot honour
MAX_NUMBER = 1_000_000


def parser(kind: Kind) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab export slurm` or `rocmlab export k8s`."""
    made = options.parser()
    made.prog = f"rocmlab export {kind}"
    made.description = {
        "slurm": "Write an array script for Slurm, of which each task runs one notebook.",
        "k8s": "Write an Indexed Job for Kubernetes, of which each pod runs one notebook.",
    }[kind]
    made.epilog = "The other options are those of `rocmlab run`. See docs/sites.md."
    made.add_argument("--backend", choices=("rocm", "cuda", "cpu"), help="whose GPUs the site has (default: the lab's)")
    made.add_argument("--node-gpus", type=_count("--node-gpus"), metavar="N", help="GPUs of one node: what `all` means")
    made.add_argument("--cpus", type=_count("--cpus"), metavar="N", help="cores of each job")
    made.add_argument("--job-memory", type=_memory, metavar="SIZE", help="host memory of each job, such as 64GiB")
    made.add_argument("--parallel", type=_count("--parallel"), metavar="N", help="jobs at the same time, at most")
    made.add_argument("--copy", action="store_true", help="copy the notebooks, and no other files, into the run folder")
    made.add_argument("--image", help="the container image to run in")
    (_add_slurm if kind == "slurm" else _add_kubernetes)(made)
    return made


def _add_slurm(made: argparse.ArgumentParser) -> None:
    made.add_argument("--container", choices=("apptainer", "podman"), help="what runs the image (default: apptainer)")
    made.add_argument("--time", type=_minutes, metavar="MINUTES", help="limit of a job, its start included")
    made.add_argument("--partition", metavar="NAME", help="as sbatch --partition")
    made.add_argument("--account", metavar="NAME", help="as sbatch --account")
    made.add_argument(
        "--gpu-option",
        choices=("gres", "gpus-per-task", "gpus-per-node"),
        default="gres",
        help="how GPUs are requested (default: --gres=gpu:N)",
    )
    made.add_argument("--gpu-type", metavar="TYPE", help="the site's name of a product: --gres=gpu:TYPE:N")
    made.add_argument("--array-size", type=_count("--array-size"), default=1000, metavar="N", help="largest array")
    made.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="as --sbatch=--constraint=mi300x")


def _add_kubernetes(made: argparse.ArgumentParser) -> None:
    made.add_argument("--claim", metavar="NAME", help="the PersistentVolumeClaim of the share")
    made.add_argument("--namespace", metavar="NAME", help="the namespace of the jobs")
    made.add_argument("--group", action="append", type=_group, default=[], metavar="GID", help="group of /dev/kfd")
    made.add_argument("--user", type=_count("--user"), default=1000, metavar="UID", help="the user in the pods")
    made.add_argument("--shm", type=_memory, default=8 * 2**30, metavar="SIZE", help="of /dev/shm (default: 8GiB)")
    made.add_argument("--node-selector", action="append", type=_pair, default=[], metavar="KEY=VALUE")


def job_parser() -> argparse.ArgumentParser:
    """Return the parser of `rocmlab export job`."""
    made = argparse.ArgumentParser(prog="rocmlab export job", description="Run one job of an exported run.")
    made.add_argument("folder", type=Path, help="the run's folder")
    made.add_argument("number", type=_number, nargs="?", help="of the job (default: as the scheduler's array says)")
    made.add_argument("--first", type=_number, default=0, help="the number of the array's first job")
    return made


def collect_parser() -> argparse.ArgumentParser:
    """Return the parser of `rocmlab export collect`."""
    made = argparse.ArgumentParser(prog="rocmlab export collect", description="Make the report of an exported run.")
    made.add_argument("folder", type=Path, help="the run's folder")
    made.add_argument("--wait", type=_waiting, default=0.0, metavar="SECONDS", help="for jobs that have not finished")
    made.add_argument("--json", action="store_true", help="print results.json instead of the summary")
    return made


def _number(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) <= MAX_NUMBER:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not the number of a job: expected 0 to {MAX_NUMBER:,}")


def _waiting(text: str) -> float:
    seconds = float(text)
    if 0 <= seconds < float("inf"):
        return seconds
    raise argparse.ArgumentTypeError(f"{text} is not a time in seconds")


def check(asked: argparse.Namespace, kind: Kind) -> None:
    """Reject options that would be ignored, or cannot be satisfied.

    Raises:
        RocmlabError: there are some.
    """
    usual = vars(parser(kind).parse_args([]))
    extra = [f"--{name.replace('_', '-')}" for name in WITHOUT if getattr(asked, name) != usual[name]]
    if extra:
        raise RocmlabError(
            f"`{' '.join(extra)}` cannot be used with `export {kind}`",
            "the site's scheduler decides when and where each job runs",
            "omit it, or use it with `rocmlab run`",
        )
    if asked.gpus not in (None, "none"):
        raise RocmlabError(
            f"`--gpus {asked.gpus}` cannot be used with `export {kind}`",
            "the scheduler chooses the devices of each job",
            "their number: --job-gpus N; only the CPU: --gpus none",
        )
    if asked.engine == "ray":
        raise RocmlabError("`--engine ray` cannot be used with `export`", "Ray is another scheduler", "omit `--engine`")
    if kind == "k8s":
        for name, example in (("image", "--image registry.example/rocmlab:1.0"), ("claim", "--claim share")):
            if not getattr(asked, name):
                raise RocmlabError(f"--{name} is missing", "a pod needs it", example)
    elif asked.container and not asked.image:
        raise RocmlabError(
            f"`--container {asked.container}` requires `--image`", "there is no image to run", "--image …"
        )


def read(kind: Kind, words: Sequence[str]) -> argparse.Namespace:
    """Return the options.

    Raises:
        RocmlabError: they are invalid.
    """
    try:
        asked = parser(kind).parse_intermixed_args(list(words))
    except RocmlabError as err:
        said = (
            text.replace("rocmlab run", f"rocmlab export {kind}")
            for text in (err.problem.what, err.problem.why, err.problem.fix)
        )
        raise RocmlabError(*said) from err
    check(asked, kind)
    return asked


READERS: Mapping[str, Callable[[Sequence[str]], argparse.Namespace]] = {  # by kind of `rocmlab export`
    "slurm": lambda words: read("slurm", words),
    "k8s": lambda words: read("k8s", words),
    "job": lambda words: job_parser().parse_args(words),
    "collect": lambda words: collect_parser().parse_args(words),
}


def _count(name: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_NUMBER:
            return int(text)
        raise RocmlabError(
            f'invalid `{name}` value "{text}"', f"expected an integer from 1 to {MAX_NUMBER:,}", f"{name} 4"
        )

    return convert


def _minutes(text: str) -> float:
    return 60.0 * _count("--time")(text)


def _memory(text: str) -> int:
    return resources.memory(text, "the size")


def _group(text: str) -> int:
    if text.isascii() and text.isdecimal():
        return int(text)
    raise RocmlabError(
        f'invalid `--group` value "{text}"', "nodes name groups differently: expected the number", "--group 109"
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if key and equals:
        return key, value
    raise RocmlabError(
        f'invalid `--node-selector` value "{text}"', "expected KEY=VALUE", "--node-selector amd.com/gpu.family=AI"
    )
