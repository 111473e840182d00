"""`rocmlab doctor`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rocmlab import __version__, doctor
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import stopping
from rocmlab.cli.main import command_parser, seconds
from rocmlab.doctor import checks, report
from rocmlab.doctor.model import BLOCKS, CONTAINER, HOST, WARNS, Finding, Repair, UnansweredError
from rocmlab.stack import project as projects
from rocmlab.stack import project_folder

MIN_LIMIT_SECONDS = 0.001
EPILOG = "Exit code: 0 nothing is wrong, 1 warnings, 2 something stops the lab. docs/doctor.md explains more."


def main(command: str, arguments: Sequence[str]) -> int:
    """Run the checks, print what was found, and repair what is safe to repair."""
    chosen = build_parser(command).parse_args(arguments)
    _check(chosen)
    if chosen.list:
        print("\n".join(report.catalogue(checks.ALL)))
        return 0
    wanted = doctor.Wanted(
        only=tuple(id for given in chosen.only for id in map(str.strip, given.split(",")) if id),
        quick=chosen.quick,
        frameworks=not chosen.no_frameworks,
        operation_limit_seconds=chosen.time_limit,
    )
    if wanted.frameworks and not chosen.json and sys.stderr.isatty():
        print("checking; the frameworks' first computation can take a minute …", file=sys.stderr)
    side = chosen.side or (CONTAINER if os.environ.get("ROCMLAB_RUNTIME") else HOST)
    found = doctor.on_container(wanted) if side == CONTAINER else doctor.on_host(_folder(), wanted)
    repaired: list[str] = []
    if chosen.json and not chosen.fix:
        print(json.dumps(as_dict(found), indent=1))
        return doctor.exit_code(found.findings)
    if not chosen.json:
        screen = report.Screen(shutil.get_terminal_size((100, 24)).columns, colour=_has_colour())
        print("\n".join(screen.lines(found)))
    if chosen.fix:
        found, repaired = repair(found, always=chosen.yes, quiet=chosen.json)
    if chosen.json:
        print(json.dumps({**as_dict(found), "repaired": repaired}, indent=1))
    return doctor.exit_code(found.findings)


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab doctor`."""
    parser = command_parser(command, example="--only gpu.answers --json", epilog=EPILOG)
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON")
    parser.add_argument("--fix", action="store_true", help="offer repairs that are safe, and ask before each")
    parser.add_argument("--yes", action="store_true", help="with --fix: do not ask")
    parser.add_argument("--quick", action="store_true", help="only the checks that `make up` runs first")
    parser.add_argument("--no-frameworks", action="store_true", help="do not start TensorFlow and PyTorch")
    parser.add_argument("--only", metavar="ID", action="append", default=[], help="only this check; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the checks")
    parser.add_argument("--side", choices=(HOST, CONTAINER), help="where the doctor runs (default: detected)")
    limit = seconds(MIN_LIMIT_SECONDS, 86400)
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=limit,
        default=180.0,
        help="time limit of a framework on one device (default: 180)",
    )
    return parser


def _check(chosen: argparse.Namespace) -> None:
    """Reject options that would be ignored silently.

    Raises:
        RocmlabError: there is one.
    """
    for given in chosen.only:
        if not given.strip(", "):
            raise RocmlabError(f"--only {given!r} does not name a check", "the list is empty", "rocmlab doctor --list")
    if chosen.yes and not chosen.fix:
        raise RocmlabError(
            "`--yes` requires `--fix`",
            "alone it does nothing: it changes what `--fix` does",
            "rocmlab doctor --fix --yes",
        )


def _folder() -> Path | None:
    try:
        return projects.find()
    except project_folder.Untrusted:
        raise
    except RocmlabError:
        return None


def _has_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def as_dict(found: doctor.Report) -> dict[str, Any]:
    """Return a report ready for JSON."""
    situation = found.situation
    findings = found.findings
    facts: dict[str, Any] = {
        "rocmlab": __version__,
        "simulated": found.simulated,
        "side": situation.side,
        "backend": situation.backend,
        "runtime": situation.runtime,
        "uid": situation.uid,
        "groups": sorted(situation.groups),
        "lab": None if found.lab is None else "asked" if not found.lab.get("problem") else "silent",
        "exit_code": doctor.exit_code(findings),
        "blocks": sum(finding.status == BLOCKS for finding in findings),
        "warns": sum(finding.status == WARNS for finding in findings),
        "findings": [finding.as_dict() for finding in findings],
    }
    if found.lab is not None and not found.lab.get("problem"):
        kept = ("rocmlab", "backend", "runtime", "uid", "groups", "devices", "nodes", "rocm_version")
        facts["inside"] = {name: found.lab.get(name) for name in kept}
    try:
        facts["devices"] = [device.as_dict() for device in situation.devices]
        facts["nodes"] = [
            {"path": node.path, "gid": node.gid, "mode": node.mode, "major": node.major, "minor": node.minor}
            for node in situation.compute_nodes
        ]
        facts["rocm_version"] = situation.rocm_version
    except UnansweredError as err:
        facts |= {"devices": [], "nodes": [], "rocm_version": None, "unanswered": str(err)}
    return facts


def repair(found: doctor.Report, *, always: bool, quiet: bool = False) -> tuple[doctor.Report, list[str]]:
    """Offer each repair, apply those that the user accepts, and check again what they repair."""
    offers = [(finding, finding.repair) for finding in found.findings if finding.repair]

    def show(text: str) -> None:
        print(text, file=sys.stderr if quiet else sys.stdout)

    if not offers:
        show("\nnothing here can be repaired automatically")
    done: list[str] = []
    for finding, repair in offers:
        if not _agreed(repair, always=always, show=show):
            continue
        repair.apply()
        done.append(repair.what)
        found = _again(found, finding)
        left = [one for one in found.findings if one.check == finding.check and one.status in (BLOCKS, WARNS)]
        show(f"done: {repair.what}" + (f"; {finding.check} still reports: {left[0].problem}" if left else ""))
    for line in _for_root(found):
        show(f"needs root, run it yourself: {line}")
    return found, done


def _for_root(found: doctor.Report) -> list[str]:
    """Return the lines with sudo among the fixes; doctor never runs them."""
    fixes = (one.problem.fix for one in found.findings if one.problem and one.status in (BLOCKS, WARNS))
    lines = (line for fix in fixes for line in fix.splitlines() if line.startswith("sudo ") and "<<" not in line)
    return list(dict.fromkeys(lines))


def _agreed(repair: Repair, *, always: bool, show: Callable[[str], None]) -> bool:
    if always:
        return True
    if not sys.stdin.isatty():
        show(f"would {repair.what} (--yes does it without a terminal)")
        return False
    return stopping.agrees(f"\n{repair.what}? [y/N] ")


def _again(found: doctor.Report, finding: Finding) -> doctor.Report:
    """Run one check again."""
    before = found.situation
    new = checks.BY_ID[finding.check].run(dataclasses.replace(before))  # a copy has gathered nothing yet
    kept = [one for one in found.findings if (one.check, one.side) != (finding.check, finding.side)]
    return doctor.Report(before, (*kept, *new), found.lab)
