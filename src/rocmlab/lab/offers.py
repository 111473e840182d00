"""What JupyterLab's launcher offers, for the GPUs that the lab has when it starts.

The plain kernels are made with the environment; from them these are derived: one free GPU (`torch`, the name that
notebooks keep), all GPUs (`torch-all`), the CPU (`torch-cpu`), and with few GPUs each of them (`torch-gpu0`). Only
kernelspecs that carry our mark are ever replaced or removed. This runs at every start of a lab, so it imports little.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError
from rocmlab.base.safe import printable
from rocmlab.devices import Device
from rocmlab.kernels import kernelspec
from rocmlab.kernels.gpus import Gpus
from rocmlab.lab import icons, kernels

FEW = 4  # GPUs that are offered by name
SUFFIX = r"(-all|-cpu|-gpu\d+)?"
OURS = re.compile(rf"({'|'.join(kernels.TITLES)}){SUFFIX}")
NO_WORDS = ("no", "n", "false", "off", "0", "0.0")  # of jupyter_core

Spec = dict[str, Any]


@dataclass(frozen=True)
class Offer:
    """One kernel of each framework."""

    suffix: str  # of the kernelspec's name
    label: str  # behind the framework's title
    gpus: int | str  # what is requested of the provisioner
    badge: str  # on the icon


ABSENT = Offer("", "", 0, "")  # of a framework that the image does not have


@dataclass
class Changes:
    """What was done to a folder of kernelspecs."""

    written: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # not written by rocmlab, with a name that we would use


def offers(gpus: Gpus) -> list[Offer]:
    """Return what a lab with these GPUs offers for each framework, the plain kernel first."""
    mark = ", SIMULATED" if gpus.is_simulated else ""
    if gpus.is_shared:
        return [Offer("", "", 1, "")]  # nothing reserves such a GPU, and nothing hides it
    if gpus.problem:
        return [Offer("", "", 1, ""), Offer("-cpu", "CPU", 0, "CPU")]  # the plain one shows what is wrong
    if not gpus.devices:
        return [Offer("", "", 1, "")]
    one = "one free GPU" if len(gpus.devices) > 1 else "GPU"
    found = [Offer("", one + mark, 1, "GPU")]
    if len(gpus.devices) > 1:
        found.append(Offer("-all", f"all {len(gpus.devices)} GPUs{mark}", "all", f"{len(gpus.devices)} GPUs"))
        found += _by_name(gpus.devices, mark)
    return [*found, Offer("-cpu", "CPU", 0, "CPU")]


def _by_name(devices: tuple[Device, ...], mark: str) -> Iterator[Offer]:
    addresses = [device.pci_address for device in devices]
    if len(devices) > FEW or None in addresses or len(set(addresses)) < len(addresses):
        return  # too many, or parts of one GPU, which have the same address
    for device in devices:
        label = printable(f"GPU {device.index}: {device.name}{mark}")
        yield Offer(f"-gpu{device.index}", label, str(device.pci_address), f"GPU {device.index}")


def base_folder() -> Path:
    """Return where this environment's plain kernels lie."""
    return Path(sys.prefix, "share/jupyter/kernels")


def user_folder(environment: Mapping[str, str]) -> Path:
    """Return where Jupyter looks for this user's own kernels. Source: jupyter_core."""
    if data := environment.get("JUPYTER_DATA_DIR"):
        return Path(data, "kernels")
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Jupyter/kernels"))
    return Path(environment.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share"), "jupyter/kernels")


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder in which Jupyter looks first: the lab's own, else the environment's if it is this user's."""
    base = base_folder()
    if own := environment.get("ROCMLAB_KERNELS"):
        return Path(own)  # of this container: a home that persists would also show them to other images
    if preference := environment.get("JUPYTER_PREFER_ENV_PATH"):
        return user_folder(environment) if preference.lower() in NO_WORDS else base
    try:
        is_own = Path(sys.prefix).stat().st_uid == os.geteuid()
    except OSError:
        is_own = False
    return base if is_own else user_folder(environment)


def plain(folder: Path) -> dict[str, Spec]:
    """Return the plain kernels that were made with the environment, by framework; an error if there are none."""
    found = {name: spec for name in kernels.TITLES if (spec := _ours(folder / name))}
    if not found:
        raise RocmlabError(
            f"{folder} has no kernels of rocmlab", "they are made with the lab's environment", "make build, and make up"
        )
    return found


def install(folder: Path, specs: Mapping[str, Spec], gpus: Gpus, home: Path | None = None) -> Changes:
    """Write what is offered for these GPUs, and remove what was offered before and no longer is.

    Args:
        folder: of kernelspecs, one that Jupyter searches; it is made.
        specs: the plain kernel of each framework.
        gpus: of the lab.
        home: the user's own kernelspecs, in which Jupyter looks later: names that they use are left to them, and what
            an earlier lab generated there is removed; None where `folder` is that folder.
    """
    if not kernels.is_registered():
        raise RocmlabError(
            f"{sys.prefix} has no provisioner {kernels.PROVISIONER}",
            "Jupyter starts such kernels only where the package rocmlab is installed with it",
            "make build, which installs it",
        )
    changes = Changes()
    folder.mkdir(parents=True, exist_ok=True)
    for framework, spec in specs.items():
        for offer in [ABSENT] if kernelspec.absence(spec) else offers(gpus):
            name = framework + offer.suffix
            taken = next((each for each in (folder, home) if each and _is_not_ours(each / name)), None)
            if taken:
                changes.left.append(name)
                continue
            _write(folder / name, _derived(spec, framework, offer), icons.svg(framework, offer.badge))
            changes.written.append(name)
    changes.removed = _remove(folder, keep=set(changes.written))
    changes.removed += _remove(home, keep=set()) if home else []
    return changes


def remove(folder: Path, specs: Mapping[str, Spec]) -> Changes:
    """Remove what `install` wrote; in the folder of the environment the plain kernels stay, as they were made."""
    changes = Changes()
    if folder == base_folder():
        for framework, spec in specs.items():
            _write(folder / framework, _derived(spec, framework, Offer("", "", 1, "")), icons.svg(framework))
            changes.written.append(framework)
    changes.removed = _remove(folder, keep=set(changes.written))
    return changes


def listed(folders: list[Path]) -> dict[str, tuple[Path, Spec]]:
    """Return our kernels as Jupyter finds them: the folder that comes first has each name."""
    found: dict[str, tuple[Path, Spec]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/kernel.json")):
            if spec := _ours(path.parent):
                found.setdefault(path.parent.name, (path, spec))
    order = {name: place for place, name in enumerate(kernels.TITLES)}
    return dict(sorted(found.items(), key=lambda item: (order.get(item[0].partition("-")[0], len(order)), item[0])))


def _derived(spec: Spec, framework: str, offer: Offer) -> Spec:
    derived = copy.deepcopy(spec)
    if kernelspec.absence(spec):
        return derived
    title = kernels.TITLES.get(framework, spec["display_name"])
    derived["display_name"] = f"{title} ({offer.label})" if offer.label else title
    config = {"provisioner_name": kernels.PROVISIONER, "config": {"gpus": offer.gpus}}
    derived["metadata"] = {**derived["metadata"], "kernel_provisioner": config}
    derived["metadata"]["rocmlab"].pop("title", None)  # see `marks`
    return derived


def _ours(folder: Path) -> Spec | None:
    """Return a kernelspec that carries our mark and one of our names; None for every other."""
    try:
        spec = json.loads((folder / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    metadata = spec.get("metadata") if isinstance(spec, dict) else None
    ours = metadata.get("rocmlab") if isinstance(metadata, dict) else None
    if not isinstance(ours, dict):
        return None
    added = ours.get("added")  # the name of an environment of the user's own, see `environments`
    is_added = isinstance(added, str) and re.fullmatch(re.escape(added) + SUFFIX, folder.name)
    return spec if is_added or OURS.fullmatch(folder.name) else None


def _is_not_ours(folder: Path) -> bool:
    """Return whether there is something that rocmlab did not write; a link is the user's own, whatever it leads to."""
    return folder.is_symlink() or (folder.exists() and any(folder.iterdir()) and _ours(folder) is None)


def _write(folder: Path, spec: Spec, icon: str) -> None:
    """Write a kernelspec so that a Jupyter that reads it meanwhile finds it whole."""
    folder.mkdir(exist_ok=True)
    for name, text in ((icons.FILE, icon), ("kernel.json", json.dumps(spec, indent=1) + "\n")):
        files.write_text(folder / name, text)


def _remove(folder: Path, keep: set[str]) -> list[str]:
    removed = []
    for path in sorted(folder.glob("*/kernel.json")):
        name = path.parent.name
        if name not in keep and not path.parent.is_symlink() and _ours(path.parent):
            shutil.rmtree(path.parent)
            removed.append(name)
    return removed
