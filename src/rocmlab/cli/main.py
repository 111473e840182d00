"""From arguments to a command. Each command is imported only when it is used."""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
from collections.abc import Mapping, Sequence

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    import argparse

# command: (module, what it does); the order is that of use
VERBS = {
    "up": ("rocmlab.cli.up", "start the lab and print its URL"),
    "down": ("rocmlab.cli.lab", "stop the lab; the share stays"),
    "status": ("rocmlab.cli.lab", "say what runs, and where"),
    "url": ("rocmlab.cli.lab", "print the address of the running lab"),
    "logs": ("rocmlab.cli.lab", "print the server's log"),
    "shell": ("rocmlab.cli.lab", "open a shell inside the lab"),
    "build": ("rocmlab.cli.up", "build the image, or make the environment, without starting"),
    "clean": ("rocmlab.cli.lab", "stop, and remove image or environment; the share stays"),
    "upgrade": ("rocmlab.cli.upgrade", "get, build and start a newer version; switch back automatically if it fails"),
    "rollback": ("rocmlab.cli.upgrade", "go back to the version before the last upgrade"),
    "backup": ("rocmlab.cli.backup", "save share, notebooks and settings; an interrupted backup continues"),
    "restore": ("rocmlab.cli.backup", "restore a backup; nothing is overwritten"),
    "demo": ("rocmlab.cli.demo", "show the lab, its panel and smi on a simulated host with four GPUs"),
    "doctor": ("rocmlab.cli.doctor", "report what is wrong on the host and in the lab, and how to fix it"),
    "devices": ("rocmlab.cli.devices", "list the devices this process sees"),
    "smi": ("rocmlab.cli.smi", "show what the GPUs do, and whose notebook is on them"),
    "serve": ("rocmlab.cli.serve", "serve this host's GPU metrics for Prometheus, without Jupyter"),
    "monitoring": ("rocmlab.cli.monitoring", "start Prometheus and Grafana next to the lab, or stop them"),
    "nvitop": ("rocmlab.cli.nvitop", "watch the GPUs with the real nvitop, AMD's too"),
    "nvml-exec": ("rocmlab.cli.nvml_exec", "run gpustat or any other Python program that knows NVIDIA alone"),
    "simulate": ("rocmlab.cli.simulate", "write a simulated host with AMD GPUs"),
    "cdi": ("rocmlab.cli.cdi", "write the CDI specification of this host's AMD GPUs"),
    "record": ("rocmlab.cli.record", "run any command, and record what the devices do meanwhile"),
    "run": ("rocmlab.cli.run", "run notebooks headless"),
    "export": ("rocmlab.cli.export", "write a run for Slurm or Kubernetes"),
    "leases": ("rocmlab.cli.leases", "show which kernel holds which GPU, and what uses one without a lease"),
    "kernels": ("rocmlab.cli.kernels", "list what JupyterLab's launcher offers, or install kernels for these GPUs"),
    "datasets": ("rocmlab.cli.datasets", "fetch data sets into the share"),
    "cluster": ("rocmlab.cli.cluster", "use several machines as one: up, join, status, down"),
    "bench": ("rocmlab.cli.bench", "measure, and print ratios"),
}

MAKE_VARIABLES = (  # that are no settings: they hold for one command
    *("NOTEBOOKS", "PARAMS", "RUN", "BENCH", "TESTS", "ENGINE", "HEAD", "FORCE", "WHEN"),
    *("TO", "FROM", "ALL", "RUNS"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 1 the work failed, 2 usage or environment."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "--version"):
        _parser().parse_args(given or ["--help"])
        return 0
    is_verbose = given[0] in ("-v", "--verbose")
    given = given[1:] if is_verbose else given
    verb = given[0] if given else ""
    if verb not in VERBS:
        _parser().error(f"unknown command {verb!r}; choose one of: {', '.join(VERBS)}")
    if is_verbose:
        import logging

        logging.basicConfig(level=logging.DEBUG, format="%(message)s")  # warnings are printed without it, too
    try:
        _check_make_variables(os.environ)
        module = importlib.import_module(VERBS[verb][0])
        gc.enable()  # which `__main__` has put off
        return int(module.main(verb, given[1:]))
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


def _check_make_variables(environment: Mapping[str, str]) -> None:
    """Reject `make up PROT=9000`: make accepts any name silently, and the typo would be ignored.

    Raises:
        RocmlabError: a name after the target is not a setting.
    """
    if "ROCMLAB_RUNTIME" in environment or not environment.get("MAKEFLAGS"):
        return  # inside the lab, or not called by make
    import difflib

    from rocmlab.stack.settings import NAMES

    known = (*NAMES, *MAKE_VARIABLES, "ROCMLAB_SAFE_DIRECTORY")
    given = re.findall(r"(?:^|\s)([A-Za-z_]\w*)=", environment.get("MAKEFLAGS", "").partition("-- ")[2])
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

    width = max(map(len, VERBS))
    listed = "\n".join(f"  {verb:<{width}}  {text}" for verb, (_, text) in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="rocmlab",
        description="The Jupyter workstation for AMD GPUs.",
        usage="rocmlab [-v] COMMAND [options]",
        epilog=f"commands:\n{listed}\n\n`rocmlab COMMAND --help` explains one.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rocmlab {__version__}")
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is done, and show tracebacks")
    return parser


def runner_missing(err: ImportError) -> RocmlabError:
    """Return the error of a command that needs what only a lab has installed."""
    return RocmlabError(
        "the runner is not installed here", f"{err}", "use the lab's own: make shell, then the same command"
    )


def verb_parser(verb: str, **options: str) -> argparse.ArgumentParser:
    """Return an empty parser for one command."""
    import argparse

    text = VERBS[verb][1]
    return argparse.ArgumentParser(prog=f"rocmlab {verb}", description=text[0].upper() + text[1:] + ".", **options)  # type: ignore[arg-type]
