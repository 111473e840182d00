"""The compute processes of a simulated host, as KFD lists them: simulated, or real ones that appear to use a GPU.

Source of the files: kernel drivers/gpu/drm/amd/amdkfd/kfd_process.c (`kfd_procfs_show`), and what AMD's tools read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rocmlab.simulation.hosts import Gpu, Host, Partition
from rocmlab.simulation.loads import State
from rocmlab.simulation.topology import KFD
from rocmlab.simulation.trees import Tree

NAMESPACE = "pid_namespace"  # in the mark of a host: of the process ids that its list of processes has
FIRST_PID = 41001
FIRST_PASID = 32770
DRIVER_BYTES = 26 << 20  # what it takes itself


@dataclass(frozen=True)
class GpuUse:
    """One process on one GPU; a process on several GPUs is given once for each.

    Without a command the process is one of this machine: readers find the rest in the real `/proc`.
    """

    pid: int
    gpu: int = 0  # HIP index
    vram_bytes: int = 1 << 30
    cu_occupancy: int = 0  # compute units
    sdma_seconds: float = 0.0
    evicted_seconds: float = 0.0
    command: tuple[str, ...] = ()  # of a simulated process, which gets its own entry in the host's `/proc`


def simulated(host: Host, states: Mapping[int, State]) -> list[GpuUse]:
    """Return a process for each GPU that works, on all of its partitions; the states are by the GPU's number."""
    found: list[GpuUse] = []
    nodes = [gpu for gpu in host.gpus for _ in gpu.partitions]
    for index, gpu in enumerate(nodes):
        state, parts = states.get(gpu.number), len(gpu.partitions)
        if state is None or state.busy < 2:
            continue
        use = GpuUse(
            pid=FIRST_PID + gpu.number,
            gpu=index,
            vram_bytes=state.vram_used // parts * 19 // 20,
            cu_occupancy=int(gpu.product.compute_units // parts * state.busy / 100),
            sdma_seconds=int(state.seconds * 120) * 1e-6,
            command=("python3", "train.py"),
        )
        found.append(use)
    return found


def files(host: Host, uses: Sequence[GpuUse]) -> dict[str, bytes]:
    """Return what KFD, and for simulated processes `/proc`, holds of these processes."""
    tree = Tree()
    nodes = [(gpu, partition) for gpu in host.gpus for partition in gpu.partitions]
    for turn, pid in enumerate(dict.fromkeys(use.pid for use in uses)):
        own = {use.gpu: use for use in uses if use.pid == pid}
        folder = f"{KFD}/proc/{pid}"
        tree.put(folder, pasid=FIRST_PASID + turn)
        for index, (_, partition) in enumerate(nodes):
            _add_use(tree, folder, partition, own.get(index))
        if command := next((use.command for use in own.values() if use.command), None):
            _add_entry(tree, pid, command)
    return tree.files


def with_their_memory(gpus: Iterable[Gpu], states: Mapping[int, State], uses: Sequence[GpuUse]) -> dict[int, State]:
    """Return the states with the memory in use that these processes have, and what the driver itself takes."""
    found, index = {}, 0
    for gpu in gpus:
        parts, state = len(gpu.partitions), states[gpu.number]
        taken = sum(use.vram_bytes for use in uses if index <= use.gpu < index + parts)
        total = gpu.product.vram_bytes
        found[gpu.number] = replace(state, vram_used=min(total, taken + DRIVER_BYTES))
        index += parts
    return found


def leave(tree: Tree, gpu: Gpu) -> None:
    """Take away what a GPU's processes have on it, and the simulated one that has nothing else."""
    pid = FIRST_PID + gpu.number
    tree.remove(f"{KFD}/proc/{pid}")
    tree.remove(f"proc/{pid}")
    ends = tuple(f"_{partition.gpu_id}" for partition in gpu.partitions)
    for path in [path for path in tree.files if path.startswith(f"{KFD}/proc/")]:
        if path.split("/")[7].endswith(ends):
            del tree.files[path]


def _add_use(tree: Tree, folder: str, partition: Partition, use: GpuUse | None) -> None:
    kfd_id = partition.gpu_id
    sdma = round(use.sdma_seconds * 1e6) if use else 0
    tree.put(folder, **{f"vram_{kfd_id}": use.vram_bytes if use else 0, f"sdma_{kfd_id}": sdma})
    tree.put(
        f"{folder}/stats_{kfd_id}",
        cu_occupancy=use.cu_occupancy if use else 0,
        evicted_ms=round(use.evicted_seconds * 1000) if use else 0,
    )
    if use:
        tree.put(f"{folder}/queues/{use.gpu}", gpuid=kfd_id, size=1 << 20, type=0)


def _add_entry(tree: Tree, pid: int, command: Sequence[str]) -> None:
    name = os.path.basename(command[0])[:15]
    tree.put(f"proc/{pid}", comm=name, cmdline="\0".join((*command, "")).encode())
    lines = (f"Name:\t{name}", f"Pid:\t{pid}", "PPid:\t1", "Uid:\t1000\t1000\t1000\t1000", f"NSpid:\t{pid}")
    tree.put_lines(f"proc/{pid}/status", lines)
