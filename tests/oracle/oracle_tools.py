"""AMD's real tools, run on a simulated host, and what they print by GPU."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
DEFAULT = "/var/tmp/rocmlab-oracles"
ROCM_SMI_ARGUMENTS = (
    *("--json", "--showid", "--showbus", "--showuniqueid", "--showserial", "--showproductname", "--showvbios"),
    *("--showdriverversion", "--showuse", "--showmeminfo", "vram", "gtt", "--showtemp", "--showpower"),
    *("--showmaxpower", "--showclocks", "--showfan", "--showvoltage", "--showperflevel", "--showreplaycount"),
    *("--showcomputepartition", "--showmemorypartition"),
)  # without --showmemuse, at which rocm-smi 6.4 and 7.2 fall over a partition
NOTHING = (None, "", "N/A", "n/a", "None", "Unknown")  # how the tools say that they do not know


def missing() -> str:
    """Say why the tools cannot run here, or nothing where they can."""
    hint = "run the oracle tests as root on a Debian machine, or use .ci/run"
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return f"AMD's tools need mounts of their own: {hint}"
    if lacking := [name for name in ("unshare", "apt-get", "dpkg-deb", "chroot") if not shutil.which(name)]:
        return f"there is no {lacking[0]}: {hint}"
    return "" if Path("/usr/share/keyrings/debian-archive-keyring.gpg").exists() else f"no Debian keyring: {hint}"


@functools.cache
def folder() -> Path:
    """Return the folder of the tools, made the first time."""
    found = Path(os.environ.get("ORACLES") or DEFAULT)
    subprocess.run([REPOSITORY / "scripts/make-oracles", found], check=True, timeout=600)
    return found


def run(tool: str, tree: Path, *arguments: str) -> Any:
    """Return the JSON that a tool prints; it may say other things around it."""
    done = subprocess.run([folder() / tool, tree, *arguments], capture_output=True, text=True, timeout=120, check=False)
    for start, line in enumerate(done.stdout.splitlines(keepends=True)):
        if line.startswith(("{", "[")):
            text = "".join(done.stdout.splitlines(keepends=True)[start:])
            return json.JSONDecoder().raw_decode(text)[0]
    raise AssertionError(f"{tool} {' '.join(arguments)} printed no JSON: {done.returncode} {done.stderr[-2000:]}")


def rocm_smi(tool: str, tree: Path) -> dict[int, dict[str, Any]]:
    """Return what rocm-smi prints, by KFD's id of the GPU or partition."""
    printed = run(tool, tree, *ROCM_SMI_ARGUMENTS)
    version = printed.pop("system")["Driver version"]
    with contextlib.suppress(AssertionError):
        for name, card in run(tool, tree, "--json", "--showmemuse").items():
            printed[name] |= card
    return {int(card["GUID"]): {**card, "card": name, "Driver version": version} for name, card in printed.items()}


def amd_smi(tool: str, tree: Path) -> dict[int, dict[str, Any]]:
    """Return what four commands of amd-smi print, by KFD's id and with keys such as `metric.power.socket_power`."""
    listed = {gpu["gpu"]: flat(gpu, "list") for gpu in run(tool, tree, "list", "-e", "--json")}
    for command in ("static", "metric"):
        for gpu in run(tool, tree, command, "--json")["gpu_data"]:
            listed[gpu["gpu"]] |= flat(gpu, command)
    for gpu in run(tool, tree, "partition", "--json")["current_partition"]:
        listed[gpu["gpu_id"]] |= flat(gpu, "partition")
    return {gpu["list.kfd_id"]: gpu for gpu in listed.values()}


def flat(value: Any, path: str) -> dict[str, Any]:
    """Return the leaves of nested JSON by their path; a value with its unit is one leaf."""
    if isinstance(value, dict):
        if set(value) == {"value", "unit"}:
            return {path: value["value"] if value["value"] in NOTHING else f"{value['value']} {value['unit']}"}
        return {key: leaf for name, inner in value.items() for key, leaf in flat(inner, f"{path}.{name}").items()}
    return {path: value}
