"""The options of `rocmlab export`: those of `rocmlab run`, and those that a scheduler needs in addition."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rocmlab.base.arguments import Parser, add_command, subcommands
from rocmlab.base.arguments import options as arguments_of
from rocmlab.base.errors import RocmlabError
from rocmlab.runs.spec import options, resources

KINDS = {  # in the order of use
    "slurm": "write an array script for Slurm, of which each task runs one notebook",
    "k8s": "write an Indexed Job for Kubernetes, of which each pod runs one notebook",
    "job": "run one job of an exported run; the scheduler calls this",
    "collect": "make the report of an exported run",
}
RUNS = f"01_mnist_fc -p learning_rate=0.1,0.01 %s\n\n{options.GRID}\n\ndocs/sites.md explains more."
EXAMPLES = {
    "slurm": "rocmlab export slurm " + RUNS % "--partition mi300",
    "k8s": "rocmlab export k8s " + RUNS % "--image registry.example/rocmlab:1.0 --claim share",
    "job": "rocmlab export job share/runs/20260101T000000Z-tonight 3",
    "collect": "rocmlab export collect share/runs/20260101T000000Z-tonight --wait 3600",
}
PARALLEL = {"slurm": "", "k8s": " with the same number of GPUs"}  # which Kubernetes cannot limit together
MAX_NUMBER = 1_000_000


def add_kinds(made: argparse.ArgumentParser) -> None:
    """Add the kinds of `rocmlab export` as subcommands."""
    kinds = made.add_subparsers(dest="kind", required=True, metavar="KIND", title="kinds")
    for kind, text in KINDS.items():
        each = add_command(kinds, kind, text, EXAMPLES[kind])
        {"job": _add_job, "collect": _add_collect}.get(kind, lambda each, kind=kind: _add_run(each, kind))(each)


def parser(kind: str) -> argparse.ArgumentParser:
    """Return the parser of a kind of `rocmlab export`."""
    made = Parser(prog="rocmlab export")
    add_kinds(made)
    return subcommands(made)[kind]


def _add_run(made: argparse.ArgumentParser, kind: str) -> None:
    options.add_options(made)
    usual = vars(options.parser().parse_args([]))
    made.set_defaults(**{name: usual[name] for name in usual.keys() - vars(made.parse_args([])).keys()})
    made.add_argument(
        "--gpus", type=_none, metavar="none", help="run on the CPU (default: each job gets GPUs from the scheduler)"
    )
    made.add_argument("--backend", choices=("rocm", "cuda", "cpu"), help="whose GPUs the site has (default: the lab's)")
    made.add_argument("--node-gpus", type=_count("--node-gpus"), metavar="N", help="GPUs of one node: what `all` means")
    made.add_argument("--cpus", type=_count("--cpus"), metavar="N", help="cores of each job (default: the site's)")
    made.add_argument("--job-memory", type=_memory, metavar="SIZE", help="host memory of each job, such as 64GiB")
    made.add_argument(
        "--parallel",
        type=_count("--parallel"),
        metavar="N",
        help=f"how many jobs{PARALLEL[kind]} may run at the same time (default: no limit)",
    )
    made.add_argument("--copy", action="store_true", help="copy the notebooks, and no other files, into the run folder")
    made.add_argument("--json", action="store_true", help="print the folder and its jobs as JSON")
    made.add_argument("--image", metavar="IMAGE", help="container image to run in")
    (_add_slurm if kind == "slurm" else _add_kubernetes)(made)


def _add_slurm(made: argparse.ArgumentParser) -> None:
    made.add_argument("--container", choices=("apptainer", "podman"), help="what runs the image (default: apptainer)")
    made.add_argument(
        "--time",
        type=_minutes,
        metavar="MINUTES",
        help="time limit of a job, its start included (default: by --timeout, or earlier runs)",
    )
    made.add_argument("--partition", metavar="NAME", help="partition, as for sbatch")
    made.add_argument("--account", metavar="NAME", help="account, as for sbatch")
    made.add_argument(
        "--gpu-option",
        choices=("gres", "gpus-per-task", "gpus-per-node"),
        default="gres",
        help="how GPUs are requested (default: gres, as --gres=gpu:N)",
    )
    made.add_argument("--gpu-type", metavar="TYPE", help="the site's name of a product, as in --gres=gpu:TYPE:N")
    made.add_argument(
        "--array-size",
        type=_count("--array-size"),
        default=1000,
        metavar="N",
        help="largest array that the site allows (default: 1000)",
    )
    made.add_argument(
        "--sbatch",
        action="append",
        default=[],
        metavar="OPTION",
        help="another option of sbatch, such as --sbatch=--constraint=mi300x; may be repeated",
    )


def _add_kubernetes(made: argparse.ArgumentParser) -> None:
    made.add_argument("--claim", metavar="NAME", help="PersistentVolumeClaim of the share")
    made.add_argument("--namespace", metavar="NAME", help="namespace of the jobs")
    made.add_argument(
        "--group",
        action="append",
        type=_group,
        default=[],
        metavar="GID",
        help="number of the group of /dev/kfd on the nodes; may be repeated",
    )
    made.add_argument(
        "--user",
        type=_count("--user"),
        default=1000,
        metavar="UID",
        help="number of the user in the pods (default: 1000)",
    )
    made.add_argument("--shm", type=_memory, default=8 * 2**30, metavar="SIZE", help="size of /dev/shm (default: 8GiB)")
    made.add_argument(
        "--node-selector",
        action="append",
        type=_pair,
        default=[],
        metavar="KEY=VALUE",
        help="label that nodes with GPUs must have; may be repeated",
    )


def _add_job(made: argparse.ArgumentParser) -> None:
    made.add_argument("folder", type=Path, metavar="DIR", help="folder of the run")
    made.add_argument(
        "number", type=_number, nargs="?", metavar="N", help="number of the job (default: the scheduler's array index)"
    )
    made.add_argument(
        "--first", type=_number, default=0, metavar="N", help="number of the array's first job (default: 0)"
    )


def _add_collect(made: argparse.ArgumentParser) -> None:
    made.add_argument("folder", type=Path, metavar="DIR", help="folder of the run")
    made.add_argument(
        "--wait",
        type=_waiting,
        default=0.0,
        metavar="SECONDS",
        help="wait for jobs that have not finished (default: 0)",
    )
    made.add_argument("--json", action="store_true", help="print results.json instead of the summary")


def _number(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) <= MAX_NUMBER:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not the number of a job: expected 0 to {MAX_NUMBER:,}")


def _waiting(text: str) -> float:
    seconds = float(text)
    if 0 <= seconds < float("inf"):
        return seconds
    raise argparse.ArgumentTypeError(f"{text} is not a time in seconds")


def check(args: argparse.Namespace, kind: str) -> None:
    """Reject options that would be ignored, or cannot be satisfied.

    Raises:
        RocmlabError: there are some.
    """
    if kind == "k8s":
        for name, example in (("image", "--image registry.example/rocmlab:1.0"), ("claim", "--claim share")):
            if not getattr(args, name):
                raise RocmlabError(f"--{name} is missing", "a pod needs it", example)
    elif args.container and not args.image:
        raise RocmlabError(
            f"`--container {args.container}` requires `--image`", "no container image is given", "--image …"
        )


def read(kind: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a kind of `rocmlab export`: slurm, k8s, job or collect.

    Raises:
        RocmlabError: they are invalid.
    """
    made = parser(kind)
    if kind in ("job", "collect"):
        return made.parse_args(arguments)
    _check_no_option_of_run(made, arguments)
    args = made.parse_intermixed_args(list(arguments))
    check(args, kind)
    return args


def _check_no_option_of_run(made: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Explain an option of `rocmlab run` that an export lacks, which is another error than a typo.

    Raises:
        RocmlabError: there is one.
    """
    known, of_run = arguments_of(made), arguments_of(options.parser())
    for word in (each.partition("=")[0] for each in arguments):
        if word in of_run and word not in known:
            raise RocmlabError(
                f"`{word}` cannot be used with `{made.prog.removeprefix('rocmlab ')}`",
                "the site's scheduler decides when and where each job runs",
                f"omit {word}, or use it with `rocmlab run`",
            )


def _none(text: str) -> str:
    if text == "none":
        return text
    raise RocmlabError(
        f"`--gpus {text}` cannot be used with `export`",
        "the scheduler chooses the devices of each job",
        "their number: --job-gpus N; only the CPU: --gpus none",
    )


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
