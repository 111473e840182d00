"""The CDI specification of a host's AMD GPUs: the device nodes of each, by names that container engines understand.

Source: the Container Device Interface specification (cncf-tags/container-device-interface, SPEC.md and schema/). Names
are those of AMD's container toolkit (`0`, `1`, … by PCI address, and `all`), and each GPU's PCI address; of a card in
partitions it names them all, and each is `<address>-<number>`. Owner and mode of each node are written out: an engine
that is told neither makes the node root's with mode 0666.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.base.errors import Problem
from rocmlab.devices.model import Device

KIND = "amd.com/gpu"
KFD = "/dev/kfd"
ALL = "all"
LIMIT_BYTES = 4 << 20
VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
KIND_FORM = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
SPECIFICATION_KEYS = {"cdiVersion", "kind", "annotations", "devices", "containerEdits"}
EDIT_KEYS = {"env", "deviceNodes", "mounts", "hooks", "intelRdt", "additionalGids", "netDevices"}
NODE_NUMBERS = ("major", "minor", "fileMode", "uid", "gid")
NODE_KEYS = {"path", "hostPath", "type", "permissions", *NODE_NUMBERS}


def name_of(device: Device, devices: Sequence[Device]) -> str:
    """Return the name that means this one of all `devices` and no other, however they are counted.

    It is the PCI address; of a card that is several devices this names all, and each has its partition's number behind.
    """
    address = device.pci_address or f"index-{device.index}"
    return f"{address}-{device.partition or 0}" if len(_of_card(device, devices)) > 1 else address


def _of_card(device: Device, devices: Sequence[Device]) -> list[Device]:
    """Return the partitions of the card that this device is on, itself included."""
    return [other for other in devices if device.pci_address and other.pci_address == device.pci_address] or [device]


def specification(devices: Sequence[Device], root: Path, *, group_ids: bool = True) -> dict[str, Any]:
    """Return the specification of these GPUs, whose nodes must be there; `group_ids` needs CDI 0.7.0."""
    gpus = [device for device in devices if device.backend == "rocm" and device.render_node]
    ordered = sorted(gpus, key=lambda device: (_address(device), device.partition or 0))
    named: list[dict[str, Any]] = []
    for position, device in enumerate(ordered):
        card = _of_card(device, ordered)
        given = {str(position): [device], name_of(device, ordered): [device]}
        if device == card[-1] and len(card) > 1:
            given[str(device.pci_address)] = card
        edits = {name: _edits(which, root, group_ids=group_ids) for name, which in given.items()}
        named += [{"name": name, "containerEdits": edit} for name, edit in edits.items()]
    named.append({"name": ALL, "containerEdits": _edits(ordered, root, group_ids=group_ids)})
    found: dict[str, Any] = {"cdiVersion": "", "kind": KIND, "devices": named}
    if any(device.simulated for device in ordered):
        found["annotations"] = {"rocmlab.simulated": "true"}
    found["cdiVersion"] = oldest_version(found)
    return found


def _address(device: Device) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.findall(r"[0-9a-fA-F]+", device.pci_address or ""))


def _edits(devices: Sequence[Device], root: Path, *, group_ids: bool) -> dict[str, Any]:
    paths = [KFD, *(path for device in devices for path in (device.card_node, device.render_node) if path)]
    found = [node for path in dict.fromkeys(paths) if (node := _node(path, root))]
    edits: dict[str, Any] = {"deviceNodes": found}
    groups = sorted({node["gid"] for node in found} - {0})
    if groups and group_ids:
        edits["additionalGids"] = groups
    return edits


def _node(path: str, root: Path) -> dict[str, Any] | None:
    try:
        status = os.stat(root / path.lstrip("/"))
    except OSError:
        return None
    return {
        "path": path,
        "permissions": "rw",
        "uid": status.st_uid,
        "gid": status.st_gid,
        "fileMode": stat.S_IMODE(status.st_mode),
    }


def oldest_version(specification: Mapping[str, Any]) -> str:
    """Return the oldest CDI version that has what this specification uses; an older engine refuses a newer one."""
    edits = [entry.get("containerEdits", {}) for entry in (*specification["devices"], specification)]
    if any("additionalGids" in edit or "intelRdt" in edit for edit in edits):
        return "0.7.0"
    if any("annotations" in entry for entry in (*specification["devices"], specification)):
        return "0.6.0"
    has_digit_first = any(entry["name"][:1].isdigit() for entry in specification["devices"])
    has_host_path = any("hostPath" in node for edit in edits for node in edit.get("deviceNodes", []))
    return "0.5.0" if has_digit_first or has_host_path else "0.3.0"


def to_json(specification: Mapping[str, Any]) -> str:
    """Return the text of the file."""
    return json.dumps(specification, indent=1) + "\n"


def names_in(folder: Path) -> list[str]:
    """Return the qualified names of all JSON specifications in a folder; what cannot be read names nothing."""
    names: list[str] = []
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError:
        return []
    for path in paths:
        found = read(path)
        if isinstance(found, dict) and not problems(found):
            names += [f"{found['kind']}={entry['name']}" for entry in found["devices"]]
    return names


def has_yaml(folder: Path) -> bool:
    """Return whether there is a specification that only an engine can read: nothing here understands YAML."""
    try:
        return any(path.suffix in (".yaml", ".yml") for path in folder.iterdir())
    except OSError:
        return False


def read(path: Path) -> object:
    """Return what a JSON file holds, or the reason as a Problem; of a file beyond 4 MiB only the beginning is read."""
    try:
        with open(path, "rb") as file:
            found: object = json.loads(file.read(LIMIT_BYTES))
        return found
    except (OSError, ValueError, RecursionError) as err:
        return Problem(f"{path} cannot be read as JSON", str(err), f"sudo scripts/rocmlab cdi --output {path}")


# -- checking ------------------------------------------------------------------------------------------------------


def problems(found: object) -> list[str]:
    """Return what a specification has that the public schema does not allow, a sentence each.

    The rules are those of the schema and of the specification's text that concern device nodes; mounts and hooks,
    which AMD GPUs do not need, are not looked into.
    """
    if not isinstance(found, dict):
        return ["it is not an object"]
    faults = [f"it lacks {key}" for key in ("cdiVersion", "kind", "devices") if key not in found]
    faults += [f"{key} is not part of a specification" for key in found if key not in SPECIFICATION_KEYS]
    if "cdiVersion" in found and found["cdiVersion"] not in VERSIONS:
        faults.append(f"cdiVersion {found['cdiVersion']!r} is not one of {', '.join(VERSIONS)}")
    if "kind" in found and not (isinstance(found["kind"], str) and KIND_FORM.fullmatch(found["kind"])):
        faults.append(f"kind {found['kind']!r} is not vendor/class")
    faults += _edits_problems("the specification", found.get("containerEdits", {}))
    devices = found.get("devices", [])
    if not isinstance(devices, list) or ("devices" in found and not devices):
        return [*faults, "devices is not a list with at least one device"]
    for number, entry in enumerate(devices):
        faults += _device_problems(number, entry)
    names = [entry["name"] for entry in devices if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
    faults += [f"the name {name} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    if not faults and _number(found["cdiVersion"]) < _number(oldest_version(found)):
        faults.append(f"cdiVersion {found['cdiVersion']} is too low: it uses what {oldest_version(found)} brought")
    return faults


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _device_problems(number: int, entry: object) -> list[str]:
    if not isinstance(entry, dict):
        return [f"device {number} is not an object"]
    name = entry.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return [f"device {number} has the name {name!r}, which is not letters, digits and _ - . : between them"]
    faults = [
        f"device {name}: {key} is unknown" for key in entry if key not in ("name", "annotations", "containerEdits")
    ]
    if "containerEdits" not in entry:
        return [*faults, f"device {name} lacks containerEdits"]
    return faults + _edits_problems(f"device {name}", entry["containerEdits"])


def _edits_problems(where: str, edits: object) -> list[str]:
    if not isinstance(edits, dict):
        return [f"{where}: containerEdits is not an object"]
    faults = [f"{where}: {key} is unknown" for key in edits if key not in EDIT_KEYS]
    listed = {key: edits.get(key, []) for key in ("deviceNodes", "additionalGids", "env")}
    faults += [f"{where}: {key} is not a list" for key, value in listed.items() if not isinstance(value, list)]
    if faults:
        return faults
    faults += [f"{where}: additionalGids has {gid!r}" for gid in listed["additionalGids"] if not _is_id(gid)]
    faults += [f"{where}: env has {text!r}" for text in listed["env"] if not isinstance(text, str) or "=" not in text]
    for node in listed["deviceNodes"]:
        faults += [f"{where}: {reason}" for reason in _node_problems(node)]
    return faults


def _node_problems(node: object) -> list[str]:
    if not isinstance(node, dict) or not isinstance(node.get("path"), str) or not node["path"].startswith("/"):
        return ["a device node has no absolute path"]
    path = node["path"]
    faults = [f"{path}: {key} is unknown" for key in node if key not in NODE_KEYS]
    faults += [f"{path}: {key} is {node[key]!r}" for key in NODE_NUMBERS if key in node and not _is_id(node[key])]
    if not set(str(node.get("permissions", ""))) <= set("rwm"):
        faults.append(f"{path}: permissions {node['permissions']!r} are not made of r, w and m")
    return faults


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return in what a valid specification disagrees with this host's, a sentence each; names of others are theirs."""
    if found["kind"] != expected["kind"]:
        return [f"it is for {found['kind']}, not for {expected['kind']}"]
    ours = {entry["name"]: entry["containerEdits"] for entry in expected["devices"]}
    theirs = {entry["name"]: entry["containerEdits"] for entry in found["devices"]}
    faults = [f"{name} is missing" for name in ours if name not in theirs]
    faults += [f"{name} is not a GPU of this host" for name in theirs if name not in ours]
    for name in ours:
        if name in theirs:
            faults += [f"{name}: {reason}" for reason in _node_differences(theirs[name], ours[name])]
    return faults


def _node_differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    here = {node["path"]: node for node in ours.get("deviceNodes", [])}
    there = {node["path"]: node for node in theirs.get("deviceNodes", [])}
    faults = [f"{path} is missing" for path in here if path not in there]
    faults += [f"{path} does not belong to it" for path in there if path not in here]
    for path, node in here.items():
        for key in ("uid", "gid", "fileMode"):
            if path in there and there[path].get(key) != node[key]:
                faults.append(f"{path} has {key} {there[path].get(key)}, and the node here has {node[key]}")
    return faults
