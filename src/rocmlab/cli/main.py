"""From arguments to a command. Each command is imported only when it is used."""

from __future__ import annotations

import gc
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    import argparse

# group, as in `make help`: command: (module, what it does), in the order of use
GROUPS = {
    "Everyday": {
        "up": ("rocmlab.cli.up", "start the lab and print its URL"),
        "run": ("rocmlab.cli.run", "run notebooks headless"),
        "url": ("rocmlab.cli.lab", "print the address of the running lab"),
        "status": ("rocmlab.cli.lab", "show what runs, and where"),
        "devices": ("rocmlab.cli.devices", "list the devices this process sees"),
        "smi": ("rocmlab.cli.smi", "show the GPUs' load, memory and processes, with their notebooks"),
        "nvitop": ("rocmlab.cli.nvitop", "watch the GPUs with nvitop, AMD's included"),
        "leases": ("rocmlab.cli.leases", "show which kernel holds which GPU, and what uses one without a lease"),
        "kernels": ("rocmlab.cli.kernels", "list what JupyterLab's launcher offers, or install kernels for these GPUs"),
        "packages": ("rocmlab.cli.packages", "add packages of your own to a kernel, which stay after upgrades"),
        "demo": ("rocmlab.cli.demo", "show the lab, its panel and smi on a simulated host with four GPUs"),
        "doctor": ("rocmlab.cli.doctor", "report what is wrong on the host and in the lab, and how to fix it"),
        "monitoring": ("rocmlab.cli.monitoring", "start Prometheus and Grafana next to the lab, or stop them"),
        "password": ("rocmlab.cli.password", "set a password with which a browser logs in, next to the token"),
        "logs": ("rocmlab.cli.lab", "print the server's log"),
        "shell": ("rocmlab.cli.lab", "open a shell inside the lab"),
        "down": ("rocmlab.cli.lab", "stop the lab; the share is kept"),
    },
    "Several machines": {
        "cluster": ("rocmlab.cli.cluster", "use several machines as one: up, join, status, down"),
    },
    "Several users": {
        "hub": ("rocmlab.cli.hub", "JupyterHub on this machine, with a lab for each user: up, status, drain, down …"),
    },
    "Now and then": {
        "build": ("rocmlab.cli.up", "build the image, or make the environment, without starting"),
        "upgrade": (
            "rocmlab.cli.upgrade",
            "get, build and start a newer version; switch back automatically if it fails",
        ),
        "rollback": ("rocmlab.cli.upgrade", "go back to the version before the last upgrade"),
        "clean": ("rocmlab.cli.lab", "stop, and remove image or environment; the share is kept"),
        "backup": ("rocmlab.cli.backup", "save share, notebooks and settings; an interrupted backup continues"),
        "restore": ("rocmlab.cli.backup", "restore a backup; nothing is overwritten"),
        "bench": ("rocmlab.cli.bench", "measure, and print ratios"),
    },
    "Without make": {
        "datasets": ("rocmlab.cli.datasets", "fetch data sets into the share"),
        "export": ("rocmlab.cli.export", "write a run for Slurm or Kubernetes"),
        "record": ("rocmlab.cli.record", "run any command, and record the devices meanwhile"),
        "serve": ("rocmlab.cli.serve", "serve this host's GPU metrics for Prometheus, without Jupyter"),
        "nvml-exec": ("rocmlab.cli.nvml_exec", "run gpustat or another Python program that supports only NVIDIA"),
        "simulate": ("rocmlab.cli.simulate", "write a simulated host with AMD GPUs"),
        "cdi": ("rocmlab.cli.cdi", "write the CDI specification of this host's AMD GPUs"),
        "completion": ("rocmlab.cli.completion", "print a script with which bash, zsh or fish completes rocmlab"),
    },
}
COMMANDS = {command: entry for group in GROUPS.values() for command, entry in group.items()}
ALIASES = {"run-notebooks": "run", "top": "nvitop"}  # the names that `make` has for them
EXIT_CODES = "0 done; 1 the work failed, for example a notebook; 2 wrong usage, or the machine lacks something"

GO_ON = ("up", "upgrade", "rollback", "build")  # when their terminal is gone: in the middle there would be no lab
PACKAGED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "project")  # only in a released wheel


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code, see `EXIT_CODES`."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    is_verbose = given[:1] in (["-v"], ["--verbose"])
    given = given[1:] if is_verbose else given
    if not given or given[0] in ("-h", "--help", "--version"):
        _parser().parse_args(given or ["--help"])
        return 0
    command = ALIASES.get(given[0], given[0])
    if command not in COMMANDS:
        return _unknown_command(command)
    if is_verbose:
        import logging

        logging.basicConfig(level=logging.DEBUG, format="%(message)s")  # warnings are also printed without it
    _escape_what_a_terminal_cannot_show()
    with _streams(command in GO_ON):
        return _run(command, given[1:], is_verbose=is_verbose)


@contextmanager
def _streams(may_vanish: bool) -> Iterator[None]:
    """Print, or drop what cannot be printed where the terminal `may_vanish`."""
    streams = sys.stdout, sys.stderr
    if may_vanish:
        from rocmlab.runs.screen.lossy import Lossy

        sys.stdout, sys.stderr = (Lossy(each) for each in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def _run(command: str, arguments: Sequence[str], *, is_verbose: bool) -> int:
    try:
        _check_make_variables(os.environ)
        _enter_project(command, arguments)
        module = importlib.import_module(COMMANDS[command][0])
        gc.enable()  # which `__main__` has put off
        return int(module.main(command, arguments))
    except RocmlabError as err:
        if is_verbose:
            raise
        print(f"error: {err}", file=sys.stderr)
        return err.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has exited: print nothing more
        return 1
    except OSError as err:
        if is_verbose:
            raise
        where = f"{err.filename}: " if err.filename else ""
        problem = RocmlabError(
            f"{where}{err.strerror or err}",
            "the operating system rejected the operation",
            "check permissions and free space, then retry",
        )
        print(f"error: {problem}", file=sys.stderr)
        return problem.exit_code


def _enter_project(command: str, arguments: Sequence[str]) -> None:
    """Continue with the code of the project folder where this is an installed package's; help is its own."""
    if os.path.isdir(PACKAGED) and not {"-h", "--help"} & set(arguments):
        from rocmlab.stack import packaged

        packaged.enter(command, arguments, lambda line: print(line, file=sys.stderr, flush=True))


def _unknown_command(command: str) -> int:
    """Print the error of a command that does not exist."""
    from rocmlab.base.arguments import did_you_mean

    near = did_you_mean(command, [*COMMANDS, *ALIASES, "--help", "--version", "--verbose"])
    problem = RocmlabError(
        f"{command} is not a command of rocmlab",
        f"choose one of: {', '.join(COMMANDS)}",
        near or "rocmlab --help describes the commands",
    )
    print(f"error: {problem}", file=sys.stderr)
    return problem.exit_code


def _escape_what_a_terminal_cannot_show() -> None:
    """Have no name, and no "…" of ours, end a command where the locale is not UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_make_variables(environment: Mapping[str, str]) -> None:
    """Reject `make up PROT=9000`: make accepts any name silently, and the typo would be ignored.

    Raises:
        RocmlabError: a name after the target is not a setting.
    """
    if "ROCMLAB_RUNTIME" in environment or not environment.get("MAKEFLAGS"):
        return  # inside the lab, or not called by make
    import difflib

    from rocmlab.stack.setting_table import NAMES, OF_ONE_COMMAND

    known = (*NAMES, *OF_ONE_COMMAND, "HOST", "TEXT", "HUB_USER", "ROCMLAB_SAFE_DIRECTORY")
    # A space or a backslash in a value has a backslash before it: PARAMS=quick=true\ epochs=2
    words = r"(?:^|\s)([A-Za-z_]\w*)=(?:\\.|\S)*"
    given = re.findall(words, environment.get("MAKEFLAGS", "").partition("-- ")[2])
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name.upper(), known, 1)
            raise RocmlabError(
                f"{name}= is not a setting of rocmlab",
                "it would be ignored",
                f"did you mean {near[0]}=?" if near else "docs/settings.md lists the settings",
            )


def _parser() -> argparse.ArgumentParser:
    import argparse

    from rocmlab.base.arguments import Formatter

    width = max(map(len, COMMANDS))
    listed = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {command:<{width}}  {text}" for command, (_, text) in group.items())])
        for title, group in GROUPS.items()
    )
    aliases = ", ".join(f"{alias} = {command}" for alias, command in ALIASES.items())
    parser = argparse.ArgumentParser(
        prog="rocmlab",
        description="The Jupyter workstation for AMD GPUs.",
        usage="rocmlab [-v] COMMAND [options]",
        epilog=f"{listed}\n\nAs with make: {aliases}.\nExit codes: {EXIT_CODES}.\n"
        "`rocmlab COMMAND --help` describes a command.",
        formatter_class=Formatter,
    )
    parser.add_argument("--version", action="version", version=f"rocmlab {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is done, and show tracebacks")
    return parser


def runner_missing(err: ImportError) -> RocmlabError:
    """Return the error of a command that needs what only a lab has installed."""
    return RocmlabError(
        "the runner is not installed here", f"{err}", "use the lab's own: make shell, then the same command"
    )


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return what reads an argument that is a time in seconds."""
    import argparse

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {least:g} to {most:.0f}")
        return value

    return read


def command_parser(command: str, *, example: str = "", epilog: str = "", **options: str) -> argparse.ArgumentParser:
    """Return a parser for one command without arguments, with an example of its use."""
    from rocmlab.base.arguments import Parser, sentence

    shown = [*([f"example: rocmlab {command} {example}".rstrip()] if example else []), *([epilog] if epilog else [])]
    description = options.pop("description", "") or sentence(COMMANDS[command][1])
    return Parser(prog=f"rocmlab {command}", description=description, epilog="\n\n".join(shown), **options)
