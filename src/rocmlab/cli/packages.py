"""`rocmlab packages`: packages of the user's own, which outlive containers and upgrades."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from rocmlab.base.arguments import add_command
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import command_parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rocmlab.stack.lab import Lab

KERNELS = ("torch", "tensorflow")
NOTES = """They are in an environment of their own on the share, over the lab's packages and for one kernel. pip \
in a notebook installs there as well. What requirements.txt or pyproject.toml next to the notebooks declares is \
installed by rocmlab packages sync. The lab's TensorFlow, PyTorch and JAX stay; other packages of the lab may be \
hidden by another version, and what that breaks is named. After an upgrade, or with another image: rocmlab packages \
sync. Kernels that run already have new packages after the next `import`, other versions after a restart."""


def main(command: str, arguments: Sequence[str]) -> int:
    """Add, remove, list or synchronise packages in the lab."""
    chosen = build_parser(command).parse_args(arguments)
    if "ROCMLAB_RUNTIME" not in os.environ:
        return _inside(command, arguments)
    from rocmlab.lab import packages

    if chosen.what == "list":
        return _list(packages.states(os.environ), as_json=chosen.json)
    from rocmlab.packages import installing, pip, report

    if chosen.what == "sync":
        return _sync(chosen.kernel)
    place = packages.place(chosen.kernel, os.environ, _say)
    if chosen.what == "add":
        request = pip.parse(_as_pip(chosen))
        assert request is not None  # the options above are those that it knows
        outcome = installing.add(place, request.wanted, _say, request.options)
    else:
        outcome = installing.remove(place, chosen.names, _say)
    report.show(outcome, place)
    return 1 if outcome.failed else 0


def _sync(kernel: str | None) -> int:
    """Install the list and what is declared, for one kernel or for all; what fails for one does not stop the others."""
    from rocmlab.lab import packages
    from rocmlab.packages import installing, report, requested

    code = 0
    places = [packages.place(kernel, os.environ, _say)] if kernel else packages.ready(os.environ, _say)
    wanted = packages.wanted(os.environ)
    for place in places:
        mine = wanted.get(place.kernel, ())
        try:
            if not (kernel or mine or place.current() or requested.read(place.share, place.kernel)):
                continue
            outcome = installing.sync(place, _say, mine)
        except RocmlabError as err:
            _say(f"error: {err}")
            code = max(code, err.exit_code)
            continue
        report.show(outcome, place)
        code = max(code, 1 if outcome.failed else 0)
    return code


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab packages`."""
    parser = command_parser(command, example="add accelerate 'pandas<3'", epilog=NOTES)
    commands = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)
    texts = {
        "add": ("install packages for a kernel, and note them in its list", "add --kernel tensorflow seaborn"),
        "remove": ("remove packages from the list, with what nothing else in it needs", "remove seaborn"),
        "list": ("list the packages, and whether this image has them", "list --json"),
        "sync": ("install what is declared next to the notebooks and the list again, for this image", "sync"),
    }
    parsers = {
        name: add_command(commands, name, text, example and f"rocmlab {command} {example}")
        for name, (text, example) in texts.items()
    }
    for name, default, shown in (("add", "torch", "torch"), ("remove", "torch", "torch"), ("sync", None, "all")):
        parsers[name].add_argument(
            "--kernel", choices=KERNELS, default=default, help=f"whose packages (default: {shown})"
        )
    add = parsers["add"]
    add.add_argument("names", nargs="+", metavar="NAME", help="a package, as pip takes it: name, name==1.0, path, URL")
    add.add_argument("-U", "--upgrade", action="store_true", help="the newest version, also if one is there")
    add.add_argument("--index-url", metavar="URL", help="from this index instead of pip's own")
    add.add_argument("--find-links", metavar="DIR|URL", help="also from this folder or page of wheels")
    add.add_argument("--no-index", action="store_true", help="from --find-links alone")
    parsers["remove"].add_argument(
        "names", nargs="+", metavar="NAME", help="a package of the list, by name or as `list` shows it"
    )
    parsers["list"].add_argument("--json", action="store_true", help="print everything known, as JSON")
    return parser


def _as_pip(chosen: argparse.Namespace) -> list[str]:
    """Return the arguments of `add` as pip has them."""
    options = ["--upgrade"] if chosen.upgrade else []
    options += ["--no-index"] if chosen.no_index else []
    options += ["--index-url", chosen.index_url] if chosen.index_url else []
    options += ["--find-links", chosen.find_links] if chosen.find_links else []
    return [*options, "--", *chosen.names]


def _inside(command: str, arguments: Sequence[str]) -> int:
    """Have the lab do it: it has the interpreters, and its user owns the share."""
    from rocmlab.stack import project as projects

    lab = projects.reopen(projects.find()).lab
    if lab.inside() is None:
        raise RocmlabError("the lab is not running", "packages are for its kernels", "make up")
    return lab.run([command, *arguments])


def _list(states: Sequence[dict[str, Any]], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"kernels": states}, indent=1))
        return 0
    from rocmlab.packages.requested import NAME

    for state in states:
        if not state["packages"]:
            print(f"{state['kernel']:<11} no packages of your own")
        for number, each in enumerate(state["packages"]):
            requirement = each["requirement"]
            is_named = requirement == each["name"] or NAME.match(requirement)
            text = requirement if is_named else f"{each['name']}: {requirement}"
            version = "not installed" if requirement in state["missing"] else each["version"] or ""
            file = f"({each['declared_in']})" if each["declared_in"] else ""
            print(f"{state['kernel'] if number == 0 else '':<11} {text:<30} {version:<12} {file}".rstrip())
        for line in state["hides"]:
            print(f"{'':<11} {line}")
        for line in state["reasons"]:
            print(f"{'':<11} {line}")
        if state["fix"]:
            print(f"{'':<11} fix: {state['fix']}")
    return 0


def of_lab(lab: Lab) -> list[dict[str, Any]] | None:
    """Return what `list --json` has of a running lab; None: it does not answer, or is of an earlier version."""
    status, found = lab.ask("/rocmlab/api/packages")
    kernels = found.get("kernels") if status == 200 and isinstance(found, dict) else None
    return kernels if isinstance(kernels, list) else None


def notes(lab: Lab) -> list[str]:
    """Return what was declared or added and is not installed, each a line with the command."""
    from rocmlab.packages import system

    try:
        names = lab.missing_system_packages()
    except RocmlabError as err:
        return [*missing(lab), err.problem.what]
    lines = [f"{system.finding(names)}: {system.fix(names)}"] if names else []
    return [*missing(lab), *lines]


def missing(lab: Lab) -> list[str]:
    """Return which packages are not installed for a running lab's image, a line with the command for each kernel."""
    return [
        f"kernel {each['kernel']}: {reason}" + (f"; scripts/{each['fix']}" if each["fix"] else "")
        for each in of_lab(lab) or []
        for reason in each.get("reasons", ())  # a lab of an earlier version has none
    ]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
