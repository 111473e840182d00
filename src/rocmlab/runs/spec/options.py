"""The options of `rocmlab run`, and which of them a run remembers for `--resume`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.base.arguments import Parser
from rocmlab.base.errors import RocmlabError
from rocmlab.runs.jobs import Job, stem
from rocmlab.runs.spec import parameters, resources, selection

KEPT = ("gpus", "mixed", "timeout", "cell_timeout", "memory", "retries", "fail_fast", "engine", "warm")
WITH_REPRODUCE = ("reproduce", "share", "json", "dry_run", "name", "compare")
WITH_RESUME = ("resume", "share", "json", "dry_run", "list", "cluster", "exchange")
MAX_RETRIES = 1000
ENGINES = ("rocmlab", "ray")
GRID = (
    "A comma between values of -p makes a grid: -p lr=0.1,0.01 -p seed=1,2 is four jobs of each notebook. "
    "A value that begins with a quote, [ or { keeps its commas: -p 'layers=[64, 32]', -p 'title=\"a, b\"'."
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `rocmlab run`."""
    made = Parser(
        prog="rocmlab run",
        description="Run notebooks headless, one process each, spread over the GPUs.",
        epilog=f"example: rocmlab run 01_mnist_fc -p learning_rate=0.1,0.01 --job-gpus 1\n\n{GRID}\n\n"
        "Exit code: 0 every notebook completed, 1 one did not, 2 nothing to run. docs/running.md explains more.",
    )
    add_options(made)
    made.add_argument(
        "--gpus",
        metavar="WHICH",
        help="all, none, how many (2), or which: 0,2 or 0000:03:00.0 (default: all of the lab)",
    )
    made.add_argument("--mixed", action="store_true", help="a notebook may get GPUs of different products")
    made.add_argument("--fail-fast", action="store_true", help="stop everything when the first notebook fails")
    _add_engine(made)
    made.add_argument(
        "--warm",
        type=_one_of("--warm", "auto", "off"),
        default="auto",
        metavar="auto|off",
        help="off: start every kernel without a fork server (default: auto)",
    )
    made.add_argument(
        "--resume", metavar="RUN", help="continue a run (`last`, a name, a folder) where it was interrupted"
    )
    made.add_argument(
        "--reproduce",
        metavar="RUN",
        help="run the notebooks of a run again, with its parameters and exactly the versions of its packages",
    )
    made.add_argument("--json", action="store_true", help="print results.json instead of the summary")
    made.add_argument("--list", action="store_true", help="list the runs of the share, newest first")
    return made


def add_options(made: argparse.ArgumentParser) -> None:
    """Add the options that `rocmlab run` and `rocmlab export` have both."""
    made.add_argument(
        "notebooks",
        nargs="*",
        metavar="NOTEBOOK",
        help="path, name, folder or glob, or a list of jobs (.yaml, .csv); default: every notebook of the lab",
    )
    made.add_argument(
        "-p",
        "--parameter",
        dest="parameters",
        action="append",
        default=[],
        type=parameters.check_pair,
        metavar="NAME=VALUE[,VALUE…]",
        help="a parameter for every notebook, as YAML; several values make a grid; may be repeated",
    )
    _add_resources(made)
    made.add_argument("--share", metavar="DIR", help="the share; results go to DIR/runs (default: the lab's)")
    made.add_argument("--name", metavar="NAME", help="name of the run (default: that of the notebook, or `notebooks`)")
    made.add_argument("--kernel", metavar="NAME", help="kernel to use (default: each notebook's own)")
    _add_limits(made)
    made.add_argument(
        "--compare", metavar="RUN", help="earlier run to compare with: its folder, its name in the share, or `last`"
    )
    made.add_argument("--dry-run", action="store_true", help="print what would run, and run nothing")


def _add_resources(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--job-gpus",
        type=_checked(resources.gpus, "--job-gpus"),
        metavar="N|all",
        help="how many GPUs each notebook gets (default: from its metadata, else one)",
    )
    made.add_argument(
        "--vram",
        type=_checked(resources.vram, "--vram"),
        metavar="SIZE",
        help="what each GPU of a notebook must have and have free, such as 24GB (default: from its metadata)",
    )


def _add_limits(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--timeout",
        type=_checked(resources.seconds, "--timeout"),
        metavar="SECONDS",
        help="time limit of a notebook (default: no limit)",
    )
    made.add_argument(
        "--cell-timeout",
        type=_checked(resources.seconds, "--cell-timeout"),
        metavar="SECONDS",
        help="time limit of a cell (default: no limit)",
    )
    made.add_argument(
        "--memory",
        type=_checked(resources.memory, "--memory"),
        metavar="SIZE",
        help="limit of the host memory that a notebook's kernel may allocate, such as 16GB (Linux; default: no limit)",
    )
    made.add_argument(
        "--retries",
        type=_retries,
        default=1,
        metavar="N",
        help="how often to retry a notebook whose kernel died or was killed (default: 1)",
    )


def _add_engine(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--engine",
        type=_one_of("--engine", *ENGINES),
        metavar="|".join(ENGINES),
        help="rocmlab: on this machine; ray: on the machines of the cluster (default: rocmlab)",
    )
    made.add_argument(
        "--cluster",
        metavar="HOST:PORT",
        help="head of the cluster, with --engine ray (default: the one this machine belongs to)",
    )
    made.add_argument(
        "--exchange",
        metavar="URL",
        help="where machines of the cluster without the share leave results, such as s3://bucket/folder "
        "(default: Ray transfers them)",
    )


def _checked(read: Callable[[object, str], Any], what: str) -> Callable[[str], Any]:
    return lambda text: read(text, what)


def _retries(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) <= MAX_RETRIES:
        return int(text)
    raise RocmlabError(f"--retries = {text!r}", f"expected an integer from 0 to {MAX_RETRIES}", "--retries 2")


def _one_of(name: str, *choices: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text in choices:
            return text
        raise RocmlabError(f"{name} = {text!r}", f"it is one of {', '.join(choices)}", f"{name} {choices[0]}")

    return convert


def check(args: argparse.Namespace) -> None:
    """Reject arguments that `--resume`, `--reproduce` and `--list` would ignore.

    Raises:
        RocmlabError: there are some.
    """
    reproduced = getattr(args, "reproduce", None)
    if not args.resume and not args.list and not reproduced:
        return
    allowed = WITH_RESUME if args.resume else ("list", "share", "json") if args.list else WITH_REPRODUCE
    usual = vars(parser().parse_args([]))
    extra = [_word(name) for name, value in vars(args).items() if name not in allowed and value != usual[name]]
    extra += ["--list"] if args.resume and args.list else []
    if not extra:
        return
    if args.list and not args.resume:
        raise RocmlabError(f"--list with {', '.join(extra)}", "it lists all runs of a share", "rocmlab run --list")
    if reproduced and not args.resume:
        why = "notebooks, parameters and options are those of that run"
        fix = f"rocmlab run --reproduce {reproduced}, or a new run without --reproduce"
        raise RocmlabError(f"--reproduce with {', '.join(extra)}", why, fix)
    raise RocmlabError(
        f"--resume with {', '.join(extra)}",
        "a run continues with the notebooks, parameters and options that it began with, or its results would be of two",
        f"rocmlab run --resume {args.resume}, or a new run without --resume",
    )


def _word(name: str) -> str:
    return {"notebooks": "notebooks", "parameters": "-p"}.get(name, f"--{name.replace('_', '-')}")


def share_of(args: argparse.Namespace) -> Path:
    """Return the share: that of the option, else of the lab, else `share` here."""
    return Path(args.share or os.environ.get("ROCMLAB_SHARE") or "share").expanduser().absolute()


def name_of(args: argparse.Namespace, jobs: Sequence[Job]) -> str:
    """Return what a run is called; without `--name` as its job, its notebook, its list, or `notebooks`."""
    if args.name or len(jobs) == 1:
        return str(args.name or jobs[0].name)
    sources = {job.notebook for job in jobs}
    if len(sources) == 1:
        return stem(sources.pop())
    words = args.notebooks
    return Path(words[0]).stem if len(words) == 1 and selection.is_list(words[0]) else "notebooks"


def kept(args: argparse.Namespace, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a run as its journal keeps them; `--compare last` would mean another run later."""
    found = {**{name: getattr(args, name) for name in KEPT}, "compare": earlier["folder"] if earlier else None}
    return {**found, "reproduce": args.reproduce} if args.reproduce else found


def restored(args: argparse.Namespace, options: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options with which a run is continued: those of its journal, and those allowed next to `--resume`."""
    of_the_run = {name: options[name] for name in (*KEPT, "compare", "reproduce") if name in options}
    return argparse.Namespace(**{**vars(args), **of_the_run})
