"""Writing a simulated host, and moving its values."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.devices.processes import SIMULATED_MARK as MARK
from rocmlab.devices.processes import namespace
from rocmlab.devices.roots import FAULTS_FILE
from rocmlab.simulation import cards, processes, system, topology, trees
from rocmlab.simulation.faults import Fault, adjust_host, apply_faults, parse_fault
from rocmlab.simulation.hosts import Host, plan
from rocmlab.simulation.loads import State, parse_busy, state_at
from rocmlab.simulation.processes import GpuUse
from rocmlab.simulation.trees import Tree

KEPT = "run"  # what is leased of it now: kernels that run keep their leases
TOP = ("sys", "dev", "proc", "etc", MARK, FAULTS_FILE)  # all that we write
OPEN_TO_ALL = 0o666


class Live:
    """A simulated host whose values move; time is given, so that nothing has to wait for it."""

    def __init__(
        self,
        folder: Path,
        *,
        gpus: int | None = None,
        profile: str = "radeon",
        partition: str = "spx",
        partitions_are_functions: bool = False,
        products: Sequence[str] = (),
        busy: str = "idle",
        faults: Sequence[Fault | str] = (),
        seed: int = 0,
        character_nodes: bool = False,
        node_mode: int | None = None,
        processes: Sequence[GpuUse] | None = None,
    ) -> None:
        """Write the host as it is at 0 seconds.

        Args:
            folder: where; new, empty, or a simulated host, which is replaced.
            gpus: how many, 1 to 64; None for as many as the profile has by default.
            profile: radeon, instinct, apu or mixed.
            partition: spx, dpx, qpx or cpx: into how many parts each GPU that can be is divided.
            partitions_are_functions: number partitions as older drivers do, by the function of the PCI address.
            products: kinds of GPUs to use alternately in place of the profile's own (`products.PRODUCTS`).
            busy: idle, steady, waves, training, a percentage, or percentages by HIP index such as `0:95,1:10`.
            faults: what is broken, as `KIND[:GPU[:DETAIL]]` or `Fault`.
            seed: decides serial numbers and the like; the same seed writes the same files.
            character_nodes: make real character devices, of group render with mode 0660; only root can.
            node_mode: permission bits of the device nodes; None for 0666 (0660 with `character_nodes`).
            processes: what uses the GPUs; None for one simulated process on each GPU that works.

        Raises:
            RocmlabError: an argument is impossible, or the folder holds something else.
        """
        self.folder = folder
        self.processes = processes  # a change of them shows with the next step
        self._faults = [parse_fault(fault) if isinstance(fault, str) else fault for fault in faults]
        extra = ("raphael",) if any(fault.kind == "igpu" for fault in self._faults) else ()
        planned = plan(profile, gpus, partition=partition, products=products, extra=extra, seed=seed)
        self.host: Host = adjust_host(replace(planned, partitions_are_functions=partitions_are_functions), self._faults)
        self.pattern = parse_busy(busy, len(self.host.gpus))  # a replacement shows with the next step
        mode = node_mode if node_mode is not None else 0o660 if character_nodes else OPEN_TO_ALL
        self._fixed = _fixed(self.host, mode=mode, gid=system.RENDER_GID if character_nodes else None)
        mark = {"profile": profile, "gpus": len(self.host.gpus), "partition": partition, "busy": busy, "seed": seed}
        self._mark = mark
        self._states: dict[int, State] = {}
        self._tree = self._at(0.0)
        _claim(folder)
        self._tree.write(folder, character_nodes=character_nodes)

    def step(self, seconds: float) -> None:
        """Bring the tree to what it is `seconds` after the beginning; time must not run backwards."""
        after = self._at(seconds)
        trees.apply_change(self.folder, self._tree, after)
        self._tree = after

    def _at(self, seconds: float) -> Tree:
        tree = copy(self._fixed)
        tree.files, tree.nodes = dict(tree.files), dict(tree.nodes)
        tree.links, tree.folders = dict(tree.links), set(tree.folders)
        self._states = {
            gpu.number: state_at(gpu, gpu.number, self.pattern, seconds, self._states.get(gpu.number))
            for gpu in self.host.gpus
        }
        tree.files[MARK] = self._marked()
        states, uses = self._used(self._states)
        for gpu in self.host.gpus:
            tree.files.update(cards.readings(gpu, states[gpu.number]))
        tree.files.update(processes.files(self.host, uses))
        apply_faults(tree, self.host, self._faults, seconds)
        return tree

    def _used(self, states: dict[int, State]) -> tuple[dict[int, State], Sequence[GpuUse]]:
        """Return the processes, and the states of the GPUs with the memory that these have."""
        if self.processes is None:
            return states, processes.simulated(self.host, states)
        return processes.with_their_memory(self.host.gpus, states, self.processes), self.processes

    def _marked(self) -> bytes:
        """Say what this is; with processes of this machine also by which process ids they are counted."""
        counted = {} if self.processes is None else {processes.NAMESPACE: namespace()}
        return (json.dumps({**self._mark, **counted}, indent=1) + "\n").encode()


def write_host(folder: Path, **options: Any) -> Path:  # noqa: ANN401  those of Live
    """Write a simulated host, see `Live`, and return its folder, for `ROCMLAB_ROOT` or `discover(root)`."""
    return Live(folder, **options).folder


def is_ours(folder: Path) -> bool:
    """Return whether a folder is a simulated host that we wrote."""
    return (folder / MARK).is_file()


def _fixed(host: Host, *, mode: int, gid: int | None) -> Tree:
    tree = Tree()
    system.add_system(tree, host)
    system.add_driver(tree)
    topology.add_topology(tree, host, mode=mode, gid=gid)
    for gpu in host.gpus:
        cards.add_card(tree, host, gpu, mode=mode, gid=gid)
    return tree


def _claim(folder: Path) -> None:
    """Make the folder, or empty it of an earlier simulated host."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        taken = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        why = "a broken link is there" if taken.is_symlink() else "a file is there"
        raise RocmlabError(f"{taken} is not a folder", why, "name a new folder") from None
    present = os.listdir(folder)
    if not present:
        return
    others = sorted(set(present) - set(TOP) - {KEPT})
    if not is_ours(folder) or others:
        raise RocmlabError(
            f"{folder} is not empty",
            f"it holds {', '.join(others[:3])}" if others else f"it has no {MARK}, so it is not a simulated host",
            "name a new folder",
        )
    trees.clear(folder, TOP)
