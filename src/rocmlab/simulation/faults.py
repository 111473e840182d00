"""Faults that a simulated host can have: changes of its tree, or reads that fail."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rocmlab.base.errors import RocmlabError
from rocmlab.devices.roots import FAULTS_FILE
from rocmlab.simulation import cards, processes, system, topology
from rocmlab.simulation.hosts import Gpu, Host
from rocmlab.simulation.trees import Tree

HANG_FILES = ("gpu_busy_percent", "mem_busy_percent", "gpu_metrics", "pp_dpm_sclk", "pp_dpm_mclk")
CONSUMER_LACKS = ("unique_id", "product_name", "product_number", "serial_number", "mem_busy_percent", "gpu_metrics")
LINK_FILES = ("current_link_width", "current_link_speed", "max_link_width", "max_link_speed")  # of the PCI core


@dataclass(frozen=True)
class Fault:
    """One fault, as `KIND[:GPU[:DETAIL]]` gives it."""

    kind: str  # a key of KINDS
    gpu: int | None = None  # HIP index; None: all GPUs
    detail: str = ""  # file (eio, ebusy, hang), or seconds after which it happens (vanish, lost)

    @property
    def after_seconds(self) -> float:
        """When a card goes; 0: from the start."""
        return float(self.detail) if self.kind in ("vanish", "lost") and self.detail else 0.0


def parse_fault(text: str) -> Fault:
    """Turn `KIND[:GPU[:DETAIL]]` into a fault.

    Raises:
        RocmlabError: it has another form, or an unknown kind.
    """
    kind, *rest = text.split(":", 2)
    if kind not in KINDS:
        raise RocmlabError(f"--fault {text}: unknown fault {kind!r}", "", f"choose one of: {', '.join(KINDS)}")
    if rest and rest[0] and not rest[0].isdecimal():
        raise _malformed(text, "the second part is the HIP index of a GPU")
    detail = rest[1] if len(rest) > 1 else ""
    if kind in ("vanish", "lost") and detail and not re.fullmatch(r"\d+(\.\d+)?", detail):
        raise _malformed(text, "the third part is the number of seconds after which the card goes")
    if "/" in detail and (detail.startswith("/") or ".." in detail):
        raise _malformed(text, "the third part is a file in the GPU's PCI folder")
    return Fault(kind, int(rest[0]) if rest and rest[0] else None, detail)


def apply_faults(tree: Tree, host: Host, faults: Sequence[Fault], seconds: float = 0.0) -> None:
    """Apply the faults that have happened by then to the tree.

    Raises:
        RocmlabError: a fault names a GPU that the host does not have, or a file that the GPU does not have.
    """
    reads: dict[str, str] = {}
    absent: set[int] = set()
    for fault in faults:
        if fault.gpu is not None and fault.gpu >= len(host.gpus):
            raise RocmlabError(
                f"--fault {fault.kind}:{fault.gpu}: GPU {fault.gpu} not found",
                f"this host has {len(host.gpus)}",
                f"choose 0 to {len(host.gpus) - 1}",
            )
        if fault.after_seconds > seconds:
            continue
        apply, _ = KINDS[fault.kind]
        is_of_all = fault.gpu is None or fault.kind == "no-driver"  # they share it
        for gpu in host.gpus if is_of_all else (host.gpus[fault.gpu or 0],):
            apply(tree, gpu, fault, reads)
            if fault.kind in WITHOUT_COMPUTE:
                absent.add(gpu.number)
    if absent and f"{topology.KFD}/dev" in tree.files:  # not with no-driver
        topology.omit(tree, host, absent)
    if reads:
        tree.files[FAULTS_FILE] = (json.dumps(reads, indent=1, sort_keys=True) + "\n").encode()


def adjust_host(host: Host, faults: Sequence[Fault]) -> Host:
    """Return the host with what must be planned for and not changed afterwards: degraded links."""
    slow = {fault.gpu for fault in faults if fault.kind == "degraded-link"}
    return replace(
        host,
        gpus=tuple(
            replace(gpu, link_width=8) if slow and (None in slow or gpu.number in slow) else gpu for gpu in host.gpus
        ),
    )


Apply = Callable[[Tree, Gpu, Fault, dict[str, str]], None]  # to one of the GPUs that have the fault; reads that fail


def _is_present(tree: Tree, gpu: Gpu) -> bool:
    """Return whether the card is on the bus, and not gone by an earlier fault."""
    return f"{gpu.folder}/vendor" in tree.files


def _vanish(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    _lost(tree, gpu, fault, reads)
    tree.put(f"{topology.KFD}/topology", generation_id=3)


def _lost(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    first_card = gpu.partitions[0].card - (gpu.partitions[0].render - 128)
    minors = [partition.render - 128 for partition in gpu.partitions] + [minor for _, minor in gpu.spare_cards]
    for minor in minors:
        tree.nodes.pop(f"dev/dri/card{first_card + minor}", None)
        tree.nodes.pop(f"dev/dri/renderD{128 + minor}", None)
    tree.remove(gpu.folder)
    for platform in cards.platforms(gpu):
        tree.remove(cards.xcp_folder(platform))
    processes.leave(tree, gpu)


def _failing_read(error: str, default: tuple[str, ...]) -> Apply:
    def apply(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
        names = (fault.detail,) if fault.detail else default
        paths = [f"{gpu.folder}/{name}" for name in names]
        present = [path for path in paths if path in tree.files]
        if fault.detail and not present and _is_present(tree, gpu):
            raise RocmlabError(
                f"--fault {fault.kind}: {fault.detail} is not a file of GPU {gpu.number}",
                f"its folder is /{gpu.folder}",
                "name a file relative to that folder, such as gpu_busy_percent",
            )
        if fault.kind == "hang" and not fault.detail:
            sensors = cards.hwmon_folder(gpu)
            present += [path for path in tree.files if path.startswith(sensors) and path.endswith(SENSOR_ENDS)]
        reads.update(dict.fromkeys(present, error))

    return apply


SENSOR_ENDS = ("_input", "_average", "pwm1")


def _unreadable_node(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    for partition in gpu.partitions:
        path = f"dev/dri/renderD{partition.render}"
        if path in tree.nodes:
            tree.nodes[path] = replace(tree.nodes[path], mode=0)


def _denied_node(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    reads.update({f"dev/dri/renderD{partition.render}": "EPERM" for partition in gpu.partitions})


def _no_render_group(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    lines = [line for line in tree.files["etc/group"].decode().splitlines() if not line.startswith("render:")]
    tree.put_lines("etc/group", lines)
    tree.nodes = {path: replace(node, mode=0o600, gid=0) for path, node in tree.nodes.items()}


def _no_kfd(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    tree.remove("dev/kfd")


def _no_driver(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    for gone in (system.MODULE, "sys/bus/pci/drivers/amdgpu", topology.KFD, "dev/kfd", "dev/dri", "proc/modules"):
        tree.remove(gone)
    tree.remove("sys/class/drm")
    kept = ("uevent", "vendor", "device", "class", "revision", "subsystem_vendor", "subsystem_device", *LINK_FILES)
    inside = [path for path in tree.files if path.startswith(gpu.folder + "/")]
    for path in inside:
        if path.rpartition("/")[0] != gpu.folder or path.rpartition("/")[2] not in kept:
            tree.remove(path)
    if _is_present(tree, gpu):
        lines = tree.files[f"{gpu.folder}/uevent"].decode().splitlines()
        tree.put_lines(f"{gpu.folder}/uevent", [line for line in lines if not line.startswith("DRIVER=")])
    for platform in cards.platforms(gpu):
        tree.remove(cards.xcp_folder(platform))
    for path in [path for path in tree.links if path.startswith((f"{gpu.folder}/drm", f"{gpu.folder}/hwmon"))]:
        del tree.links[path]
    tree.put("proc", modules=b"")


def _consumer(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    for name in CONSUMER_LACKS:
        tree.files.pop(f"{gpu.folder}/{name}", None)


def _asleep(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    if not _is_present(tree, gpu):
        return
    tree.put(gpu.folder, power_state="D3hot" if gpu.product.is_apu else "D3cold")  # the board cuts a card's power
    cards.add_power_management(tree, gpu.folder, may_sleep=True, status="suspended")


def _without_compute(tree: Tree, gpu: Gpu, *_: object) -> None:
    """Take away the processes that compute on a GPU, which `topology.omit` takes out of KFD."""
    processes.leave(tree, gpu)


def _ecc(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    path = f"{gpu.folder}/ras/umc_err_count"
    if path in tree.files:
        tree.files[path] = b"ue: 2\nce: 117\n"


def _nothing(tree: Tree, gpu: Gpu, fault: Fault, reads: dict[str, str]) -> None:
    """What was planned already: see `adjust_host` and the extra products of `write_host`."""


# kind: (what it does to the tree, what it is)
KINDS: dict[str, tuple[Apply, str]] = {
    "vanish": (_vanish, "the card is missing from the bus and from the topology (third part: after N seconds)"),
    "lost": (_lost, "the card is missing, and the topology still lists it (third part: after N seconds)"),
    "eio": (_failing_read("EIO", ("gpu_busy_percent",)), "reading a file fails with EIO (third part: the file)"),
    "ebusy": (_failing_read("EBUSY", ("gpu_busy_percent",)), "reading a file fails with EBUSY (third part: the file)"),
    "hang": (_failing_read("hang", HANG_FILES), "the power firmware hangs: reads of its values never return"),
    "unreadable-node": (_unreadable_node, "no user may open the render node (mode 0000)"),
    "denied-node": (_denied_node, "a container's device rules deny the render node"),
    "no-render-group": (_no_render_group, "no group render; the nodes belong to root alone"),
    "no-kfd": (_no_kfd, "/dev/kfd is missing"),
    "no-driver": (_no_driver, "the driver amdgpu is not loaded; the cards are on the bus"),
    "degraded-link": (_nothing, "8 PCIe lanes in use of 16"),
    "igpu": (_nothing, "the processor also has a small GPU of its own (gfx1036)"),
    "consumer": (_consumer, "files are missing as on consumer cards: no name, id, memory load, gpu_metrics"),
    "asleep": (_asleep, "the card is suspended"),
    "no-atomics": (_without_compute, "the slot does not pass PCIe atomics on, so KFD skips the card"),
    "ecc": (_ecc, "the memory counts 2 uncorrected and 117 corrected errors (instinct)"),
}


WITHOUT_COMPUTE = ("vanish", "no-atomics")  # the topology lacks the GPU then


def _malformed(text: str, why: str) -> RocmlabError:
    return RocmlabError(
        f"--fault {text}: not understood", why, "--fault KIND[:GPU[:DETAIL]], such as eio:0:gpu_metrics"
    )
