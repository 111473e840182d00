"""`rocmlab kernels`: what JupyterLab's launcher offers, on which GPUs, and who has them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.base.safe import printable
from rocmlab.cli.main import command_parser
from rocmlab.devices import Device
from rocmlab.kernels import gpus as lab_gpus
from rocmlab.kernels import kernelspec
from rocmlab.kernels.gpus import Gpus
from rocmlab.lab import environments, offers
from rocmlab.lab.offers import Changes, Spec
from rocmlab.packages import overlays


def main(command: str, arguments: Sequence[str]) -> int:
    """List, install or remove the kernels of this lab."""
    chosen = build_parser(command).parse_args(arguments)
    if bool(chosen.path) != (chosen.what == "add") and chosen.what != "remove":
        what, fix = ("needs PATH", "add PATH") if chosen.what == "add" else ("has no PATH", chosen.what)
        raise RocmlabError(
            f"kernels {chosen.what} {what}", "the folder of an environment is added", f"rocmlab kernels {fix}"
        )
    if "ROCMLAB_RUNTIME" not in os.environ and not (chosen.prefix or chosen.user):
        return _inside(command, arguments, chosen)
    if chosen.what == "list":
        _list(as_json=chosen.json)
        return 0
    if chosen.path:
        _change(chosen)
        chosen.what = "install"
    base = offers.base_folder()
    folder = offers.default_folder(os.environ)
    if chosen.prefix or chosen.user:
        folder = Path(chosen.prefix, "share/jupyter/kernels") if chosen.prefix else offers.user_folder(os.environ)
    try:
        if chosen.what == "install":
            is_labs = "ROCMLAB_KERNELS" in os.environ and not (chosen.prefix or chosen.user)
            home = offers.user_folder(os.environ) if is_labs else None
            own = environments.specifications(_listed())
            changes = offers.install(folder, offers.plain(base) | own, lab_gpus.look(os.environ), home)
        else:
            changes = offers.remove(folder, offers.plain(base))
    except OSError as err:
        raise RocmlabError(
            f"{err.filename or folder}: {err.strerror or err}",
            "kernels are written there",
            "name another: --prefix DIR",
        ) from err
    _show(changes, folder)
    return 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab kernels`."""
    parser = command_parser(command, example="add work/project/.venv --name mine")
    parser.add_argument(
        "what",
        nargs="?",
        choices=["list", "install", "add", "remove"],
        default="list",
        help="what to do (default: list); install: write what the launcher offers again",
    )
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH|NAME",
        help="add: the folder of an environment of uv, venv, conda or pixi; remove: its name",
    )
    parser.add_argument("--name", metavar="NAME", help="what the kernel is called (add; default: as its folder)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--prefix", metavar="DIR", help="install below this environment, in share/jupyter/kernels")
    where.add_argument("--user", action="store_true", help="install for this user alone")
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON (list only)")
    return parser


def _change(chosen: argparse.Namespace) -> None:
    """Add an environment to the list on the share, or remove it."""
    share = os.environ.get(overlays.SHARE)
    if not share:
        raise RocmlabError("this lab has no share", "the list of environments is there", "make up")
    listed = environments.read(share)
    if chosen.what == "add":
        found = environments.look(chosen.path, chosen.name)
        environments.write(share, environments.with_added(listed, found))
        print(f"kernel {found.name}: {found.python} ({found.kind})")
        _warn(found)
        return
    kept = [each for each in listed if each.name != chosen.path]
    if len(kept) == len(listed):
        names = ", ".join(each.name for each in listed) or "none"
        raise RocmlabError(f"{chosen.path} is not a kernel that was added", f"added: {names}", "rocmlab kernels list")
    environments.write(share, kept)


def _listed() -> list[environments.Environment]:
    """Return the list on the share; where it cannot be used, the lab has its own kernels, and the reason is shown."""
    try:
        return environments.read(os.environ.get(overlays.SHARE))
    except RocmlabError as err:
        print(f"WARNING: {err}", file=sys.stderr)
        return []


def _warn(found: environments.Environment) -> None:
    lab = offers.plain(offers.base_folder()).get("torch", {}).get("argv", [None])[0]
    if problem := environments.wrong_build(found, lab_gpus.look(os.environ), lab):
        print(f"WARNING: {problem}", file=sys.stderr)


def _inside(command: str, arguments: Sequence[str], chosen: argparse.Namespace) -> int:
    """Ask the lab itself: its kernels are those of its own environment."""
    from rocmlab.stack import project as projects

    lab = projects.reopen(projects.find()).lab
    if lab.inside() is None:
        raise RocmlabError("the lab is not running", "its kernels are in the lab, and only it can list them", "make up")
    if chosen.what == "add":
        path = str(lab.seen_inside(Path(os.path.abspath(os.path.expanduser(chosen.path)))))
        arguments = ["add", path, *(["--name", chosen.name] if chosen.name else [])]
    return lab.run([command, *arguments])


def _show(changes: Changes, folder: Path) -> None:
    if changes.written:
        print(f"in {folder}: {', '.join(changes.written)}")
    if changes.removed:
        print(f"removed: {', '.join(changes.removed)}")
    for name in changes.left:
        print(f"kept: the kernel {name} was not installed by rocmlab", file=sys.stderr)


def _list(*, as_json: bool) -> None:
    gpus = lab_gpus.look(os.environ)
    folders = [offers.user_folder(os.environ), offers.base_folder()]
    if offers.default_folder(os.environ) == offers.base_folder():
        folders.reverse()
    if "ROCMLAB_KERNELS" in os.environ:
        folders.insert(0, offers.default_folder(os.environ))
    listed = offers.listed([folder for folder in folders if folder.is_dir()])
    holders = _holders(gpus.devices)
    rows = [_row(name, path, spec, gpus, holders) for name, (path, spec) in listed.items()]
    if as_json:
        print(json.dumps({"simulated": gpus.is_simulated, "kernels": rows}, indent=1))
        return
    if gpus.is_simulated:
        print("SIMULATED: not the GPUs of this machine")
    for row in rows:
        print(f"{row['name']:<16}  {row['display_name']}")
        print(f"{'':<16}  {row['python']}")
        for line in row["state"]:
            print(f"{'':<16}  {line}")
    for each in _listed():
        _warn(each)
    if not rows:
        print("no kernels of rocmlab are installed here: rocmlab kernels install")


def _holders(devices: Sequence[Device]) -> dict[Device, str | None]:
    """Return who has each GPU; None for one that is free."""
    from rocmlab.kernels.leases import Leases

    held = Leases.of_host().held(devices)
    return {device: str(held[device]) if device in held else None for device in devices}


def _row(name: str, path: Path, spec: Spec, gpus: Gpus, holders: dict[Device, str | None]) -> dict[str, Any]:
    wanted = kernelspec.gpus(spec)
    options = [device for device in gpus.devices if wanted in (1, "all", device.pci_address)]
    free = [device for device in options if holders[device] is None]
    state = [
        f"{lab_gpus.label(device)}: {'free' if holders[device] is None else f'leased to {holders[device]}'}"
        for device in options
    ]
    if wanted == 0:
        state = ["CPU"]
    elif gpus.problem:
        state = [f"no GPU: {printable(gpus.problem.what)}"]
    elif not gpus.devices:
        state = ["a GPU that every program shares" if gpus.is_shared else "CPU: the lab has no GPU"]
    elif not options:
        state = ["its GPU is missing"]
    found = [{"pci_address": each.pci_address, "name": each.name, "leased_to": holders[each]} for each in options]
    return {
        "name": name,
        "display_name": printable(str(spec.get("display_name", ""))),
        "python": printable(str((overlays.applied(spec, os.environ).get("argv") or [""])[0])),
        "path": str(path),
        "gpus": wanted,
        "devices": found,
        "is_free": bool(len(free) == len(options) if wanted == "all" else free) if options else None,
        "state": state,
    }
