"""`rocmlab cdi`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.cli.devices import use_remembered_root
from rocmlab.cli.main import command_parser
from rocmlab.devices import cdi, is_simulated, system_root
from rocmlab.devices.rocm import Rocm
from rocmlab.stack import envfile


def main(command: str, arguments: Sequence[str]) -> int:
    """Print the specification, write it to --output, or check one; exit code 1 if the checked one is wrong."""
    chosen = build_parser(command).parse_args(arguments)
    use_remembered_root()
    if chosen.check:
        return check(Path(chosen.check))
    text = cdi.to_json(_specification(group_ids=not chosen.no_group_ids))
    if is_simulated(system_root()):
        print(f"SIMULATED: these are the GPUs of {system_root()}, which no engine can pass", file=sys.stderr)
    if not chosen.output:
        print(text, end="")
        return 0
    _write(Path(chosen.output), text, group_ids=not chosen.no_group_ids)
    print(f"{chosen.output}: the GPUs of this host by index, by PCI address, and {cdi.KIND}={cdi.ALL}")
    return 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab cdi`."""
    parser = command_parser(command, example="--output /etc/cdi/amd.json")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--output",
        metavar="FILE",
        help="write the specification there, as a rule /etc/cdi/amd.json (default: print it)",
    )
    where.add_argument("--check", metavar="FILE", help="report whether a specification is valid and matches this host")
    parser.add_argument(
        "--no-group-ids",
        action="store_true",
        help="omit the nodes' groups, for engines with a CDI older than 0.7 (Podman 4)",
    )
    return parser


def _write(path: Path, text: str, *, group_ids: bool) -> None:
    try:
        envfile.write(path, text, mode=0o644)
    except RocmlabError as err:
        if not isinstance(err.__cause__, PermissionError):
            raise
        again = f"sudo scripts/rocmlab cdi --output {path}" + ("" if group_ids else " --no-group-ids")
        raise RocmlabError.of(replace(err.problem, fix=again)) from err


def _specification(*, group_ids: bool) -> dict[str, Any]:
    root = system_root()
    gpus = [gpu for gpu in Rocm().discover(root, as_root=True) if gpu.is_usable]
    if not gpus:
        raise RocmlabError(
            "no AMD GPU found",
            "the KFD topology lists none whose render node is here",
            "make doctor shows what is missing; without a driver: sudo modprobe amdgpu",
        )
    return cdi.specification(gpus, root, group_ids=group_ids)


def check(path: Path) -> int:
    """Say what is wrong with a specification."""
    found = cdi.read(path)
    if isinstance(found, Problem):
        raise RocmlabError.of(found)
    fix = f"sudo scripts/rocmlab cdi --output {path}"
    invalid = cdi.problems(found)
    if invalid or not isinstance(found, dict):
        raise RocmlabError(f"{path} is not a valid CDI specification", "\n".join(invalid), fix, exit_code=1)
    if stale := cdi.differences(found, _specification(group_ids=True)):
        raise RocmlabError(f"{path} does not describe this host", "\n".join(stale), fix, exit_code=1)
    print(f"{path}: valid (CDI {found['cdiVersion']}), and matches this host: {len(found['devices'])} names")
    return 0
