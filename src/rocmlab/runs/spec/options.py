"""The options of `rocmlab run`, and which of them a run remembers for `--resume`."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.spec import parameters, resources

KEPT = ("gpus", "mixed", "timeout", "cell_timeout", "memory", "retries", "fail_fast", "engine", "warm")
WITH_RESUME = ("resume", "share", "json", "dry_run", "list", "cluster", "exchange")
MAX_RETRIES = 1000
HELP = "rocmlab run --help lists the options"
ENGINES = ("rocmlab", "ray")


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in three lines, and not how everything is used."""

    def error(self, message: str) -> NoReturn:
        """Refuse the words.

        Raises:
            RocmlabError: always.
        """
        what, why, fix = message.removeprefix("argument "), "the words do not fit together", HELP
        if unknown := re.match(r"unrecognized arguments: (-[^\s=]*)", message):
            what, why = f"{unknown[1]} is no option of rocmlab run", "nothing has that name"
            near = difflib.get_close_matches(
                unknown[1], [each for each in self._option_string_actions if len(each) > 2], 1
            )
            fix = f"did you mean {near[0]}?" if near else HELP
        elif lacking := re.match(r"(.*): expected one argument", what):
            what, why = f"{lacking[1]} stands alone", "it needs a value behind it"
        raise RocmlabError(what, why, fix)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `rocmlab run`."""
    made = _Parser(
        prog="rocmlab run",
        description="Run notebooks headless, one process each, spread over the GPUs.",
        epilog="A comma between values of -p makes a grid: -p lr=0.1,0.01 -p seed=1,2 is four jobs of each notebook. "
        "A value that begins with a quote, [ or { keeps its commas: -p 'layers=[64, 32]', -p 'title=\"a, b\"'. "
        "Exit code: 0 every notebook ran to its end, 1 one did not, 2 nothing to run. See docs/running.md.",
    )
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
    made.add_argument("--gpus", metavar="WHICH", help="all, none, how many (2), or which (0,2 or 0000:03:00.0)")
    _add_resources(made)
    made.add_argument("--share", metavar="DIR", help="the share; results go to DIR/runs (default: the lab's share)")
    made.add_argument("--name", help="the name of the run (default: of the notebook, or `notebooks`)")
    made.add_argument("--kernel", metavar="NAME", help="the kernel to use (default: each notebook's own)")
    made.add_argument(
        "--timeout",
        type=_checked(resources.seconds, "--timeout"),
        metavar="SECONDS",
        help="the longest a notebook may take",
    )
    made.add_argument(
        "--cell-timeout",
        type=_checked(resources.seconds, "--cell-timeout"),
        metavar="SECONDS",
        help="the longest a cell may take",
    )
    made.add_argument(
        "--memory",
        type=_checked(resources.memory, "--memory"),
        metavar="SIZE",
        help="the most host memory that a notebook's kernel may allocate, such as 16GB (Linux; default: no limit)",
    )
    _add_rules(made)
    made.add_argument("--compare", metavar="RUN", help="an earlier run: its folder, its name in the share, or `last`")
    made.add_argument(
        "--resume", metavar="RUN", help="continue a run (`last`, a name, a folder) where it was cut short"
    )
    made.add_argument("--list", action="store_true", help="list the runs of the share, newest first")
    made.add_argument("--json", action="store_true", help="print results.json instead of the summary")
    made.add_argument("--dry-run", action="store_true", help="print what would run, and run nothing")
    return made


def _add_resources(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--job-gpus",
        type=_checked(resources.gpus, "--job-gpus"),
        metavar="N|all",
        help="how many GPUs each notebook gets (default: what its metadata says, else one)",
    )
    made.add_argument(
        "--vram",
        type=_checked(resources.vram, "--vram"),
        metavar="SIZE",
        help="what each GPU of a notebook must have and have free, such as 24GB (default: what its metadata says)",
    )
    made.add_argument("--mixed", action="store_true", help="a notebook may get GPUs of different products")


def _add_rules(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--retries",
        type=_retries,
        default=1,
        metavar="N",
        help="how often a notebook is tried again whose kernel died or was killed (default: 1)",
    )
    made.add_argument("--fail-fast", action="store_true", help="stop everything when the first notebook fails")
    made.add_argument(
        "--engine",
        type=_one_of("--engine", *ENGINES),
        metavar="|".join(ENGINES),
        help="rocmlab: on this machine; ray: on the machines of the cluster",
    )
    made.add_argument(
        "--cluster",
        metavar="HOST:PORT",
        help="the head of the cluster, with --engine ray (default: the one this machine belongs to)",
    )
    made.add_argument(
        "--exchange",
        metavar="URL",
        help="where machines of the cluster leave results that cannot see the share, such as s3://bucket/folder "
        "(default: Ray brings them)",
    )
    made.add_argument(
        "--warm",
        type=_one_of("--warm", "auto", "off"),
        default="auto",
        metavar="auto|off",
        help="off: start every kernel cold",
    )


def _checked(read: Callable[[object, str], Any], what: str) -> Callable[[str], Any]:
    return lambda text: read(text, what)


def _retries(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) <= MAX_RETRIES:
        return int(text)
    raise RocmlabError(f"--retries = {text!r}", f"this is no number from 0 to {MAX_RETRIES}", "--retries 2")


def _one_of(name: str, *choices: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text in choices:
            return text
        raise RocmlabError(f"{name} = {text!r}", f"it is one of {', '.join(choices)}", f"{name} {choices[0]}")

    return convert


def check(asked: argparse.Namespace) -> None:
    """Refuse words that `--resume` and `--list` would ignore.

    Raises:
        RocmlabError: there are some.
    """
    if not asked.resume and not asked.list:
        return
    allowed = WITH_RESUME if asked.resume else ("list", "share", "json")
    usual = vars(parser().parse_args([]))
    extra = [_word(name) for name, value in vars(asked).items() if name not in allowed and value != usual[name]]
    extra += ["--list"] if asked.resume and asked.list else []
    if not extra:
        return
    if asked.list and not asked.resume:
        raise RocmlabError(f"--list with {', '.join(extra)}", "it lists all runs of a share", "rocmlab run --list")
    raise RocmlabError(
        f"--resume with {', '.join(extra)}",
        "a run goes on with the notebooks, parameters and options that it began with, or its results would be of two",
        f"rocmlab run --resume {asked.resume}, or a new run without --resume",
    )


def _word(name: str) -> str:
    return {"notebooks": "notebooks", "parameters": "-p"}.get(name, f"--{name.replace('_', '-')}")


def kept(asked: argparse.Namespace, earlier: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a run as its journal keeps them.

    Args:
        asked: by the command line.
        earlier: the run to compare with; `last` would mean another one later.
    """
    return {**{name: getattr(asked, name) for name in KEPT}, "compare": earlier["folder"] if earlier else None}


def restored(asked: argparse.Namespace, options: Mapping[str, Any]) -> argparse.Namespace:
    """Return the options with which a run is continued: those of its journal, and those allowed beside `--resume`."""
    of_the_run = {name: options[name] for name in (*KEPT, "compare") if name in options}
    return argparse.Namespace(**{**vars(asked), **of_the_run})
