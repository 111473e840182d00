"""The facts for the checks: each is gathered once, when first needed, and within a time limit.

Reading is all that happens here. A question that the system does not answer in time (a hung driver) raises
`UnansweredError` for every check that asks it, so that one such file costs its time limit once.
"""

from __future__ import annotations

import concurrent.futures
import grp
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from rocmlab.base import background
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.devices import Device, discover, is_simulated, nodes, products, topology, visibility
from rocmlab.devices.cards import Cards
from rocmlab.devices.rocm import Rocm
from rocmlab.devices.roots import list_names, read_integer, read_text
from rocmlab.stack.engine import Engine
from rocmlab.stack.settings import for_frameworks

if TYPE_CHECKING:
    from rocmlab.stack.project import Project
    from rocmlab.stack.settings import Settings

T = TypeVar("T")
HOST, CONTAINER = "host", "container"
LIMIT_SECONDS = 2.0  # for one fact
ENGINE_LIMIT_SECONDS = 25.0  # the engine's own limit is 20 s a command
CONTAINER_RUNTIMES = ("docker", "podman")


class UnansweredError(Exception):
    """The system did not answer a query in time; the message names it."""


class fact(Generic[T]):  # used as a decorator
    """A property that is gathered once per situation, within its time limit."""

    def __init__(self, gather: Callable[[Any], T], limit_seconds: float | None = None) -> None:
        self.gather = gather
        self.limit_seconds = limit_seconds
        self.__doc__ = gather.__doc__

    @overload
    def __get__(self, situation: None, owner: type) -> fact[T]: ...

    @overload
    def __get__(self, situation: Situation, owner: type) -> T: ...

    def __get__(self, situation: Situation | None, owner: type) -> fact[T] | T:
        """Return what was gathered."""
        return self if situation is None else situation.once(self)


def slow(limit_seconds: float) -> Callable[[Callable[[Any], T]], fact[T]]:
    """Make a fact with a time limit of its own."""
    return lambda gather: fact(gather, limit_seconds)


@dataclass(frozen=True)
class Node:
    """A device node with its device number, which distinguishes it from another of the same name."""

    path: str  # without the simulated root
    gid: int
    mode: int  # permission bits
    major: int
    minor: int
    error: str | None  # why this process cannot open it: EACCES, EPERM, …; None if it can

    @property
    def group_may_open(self) -> bool:
        """Return whether the node's group, or everyone, may read and write it."""
        return self.mode & 0o060 == 0o060 or self.mode & 0o006 == 0o006

    def __str__(self) -> str:
        return f"{self.path} group {self.gid} mode {self.mode:04o}"


@dataclass(frozen=True)
class PciGpu:
    """An AMD display or compute device on the PCI bus, driver or not."""

    address: str
    device_id: int
    driver: str | None
    power_state: str | None  # D0, D3cold, …

    @property
    def never_supported(self) -> str | None:
        """The generation and chip of a GPU that is older than ROCm; None for any other."""
        return products.never_supported(self.device_id)

    def __str__(self) -> str:
        return f"{self.address} 1002:{self.device_id:04x} driver {self.driver or 'none'}"


@dataclass
class Situation:
    """One side of one machine, as it is now."""

    root: Path
    side: str = HOST
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    project: Project | None = None  # host: what `make up` would start
    plan_problem: Problem | None = None  # host: why nothing can be planned
    requested: Settings | None = None  # host: what was chosen, where nothing can be planned
    running: Project | None = None  # host: the lab that the last `make up` left
    uid: int = field(default_factory=os.geteuid)
    groups: frozenset[int] = field(default_factory=lambda: frozenset({os.getegid(), *os.getgroups()}))
    limit_seconds: float = LIMIT_SECONDS
    operation_limit_seconds: float = 180.0  # for one framework on one device, its import included
    with_frameworks: bool = True
    lab_report: Mapping[str, Any] | None = None  # host: the report of the lab's own doctor
    given: Mapping[str, Any] = field(default_factory=dict)  # facts by name that are known already
    _kept: dict[str, Any] = field(default_factory=dict, init=False, compare=False)  # a copy gathers again

    def once(self, wanted: fact[T]) -> T:
        """Return a fact, gathered on a thread that is abandoned if the system does not answer.

        Raises:
            UnansweredError: it did not answer in time, now or before.
            Exception: what gathering raised.
        """
        name = wanted.gather.__name__
        if name in self.given:
            return self.given[name]  # type: ignore[no-any-return]
        if name not in self._kept:
            self._kept[name] = self._gathered(wanted)
        value, error = self._kept[name]
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    def _gathered(self, wanted: fact[T]) -> tuple[T | None, BaseException | None]:
        limit = wanted.limit_seconds or self.limit_seconds
        future = background.start(lambda: wanted.gather(self))
        if not concurrent.futures.wait([future], limit).done:
            name = wanted.gather.__name__.replace("_", " ")
            return None, UnansweredError(f"{name}: the system did not answer within {limit:g} s")
        error = future.exception()
        return None if error else future.result(), error

    # -- reading below the root ----------------------------------------------------------------------------------

    def text(self, path: str) -> str | None:
        """Return a small file's text, or None."""
        return read_text(self.root / path)

    def number(self, path: str) -> int | None:
        """Return a file's number, or None."""
        return read_integer(self.root / path)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        return list_names(self.root / path)

    def exists(self, path: str) -> bool:
        """Return whether this file exists."""
        return os.path.lexists(self.root / path)

    # -- who and where -------------------------------------------------------------------------------------------

    @property
    def simulated(self) -> bool:
        """Return whether this is a simulated host."""
        return is_simulated(self.root)

    @property
    def backend(self) -> str:
        """The backend in force, empty where nothing could be decided."""
        if self.side == CONTAINER:
            return self.environment.get("ROCMLAB_BACKEND", "")
        return self.project.choice.backend if self.project else ""

    @property
    def runtime(self) -> str:
        """The runtime in force, empty where nothing could be decided."""
        if self.side == CONTAINER:
            return self.environment.get("ROCMLAB_RUNTIME", "")
        return self.project.choice.runtime if self.project else ""

    @property
    def in_container(self) -> bool:
        """Return whether this process is inside a container."""
        return self.side == CONTAINER and self.runtime in CONTAINER_RUNTIMES

    @property
    def for_container(self) -> bool:
        """Return whether the GPUs are to be passed to a container, whose entry point joins the nodes' groups."""
        return self.side == HOST and self.runtime in CONTAINER_RUNTIMES and not self.is_rootless

    @property
    def is_rootless(self) -> bool:
        """Return whether the engine in use has only this user's rights."""
        return self.side == HOST and self.project is not None and self.project.choice.is_rootless

    @property
    def asked_backend(self) -> str:
        """The user's setting of BACKEND: auto, or a backend."""
        return self._asked("BACKEND")

    @property
    def asked_runtime(self) -> str:
        """The user's setting of RUNTIME: auto, or a runtime."""
        return self._asked("RUNTIME")

    def _asked(self, name: str) -> str:
        settings = self.project.settings if self.project else self.requested
        return "auto" if self.side == CONTAINER or settings is None else settings.get(name)

    @property
    def no_amd(self) -> str:
        """Say why nothing about AMD GPUs applies; empty where it does."""
        if self.asked_backend not in ("auto", "rocm"):
            return f"BACKEND={self.asked_backend} was chosen"
        if self.side == CONTAINER and self.backend not in ("", "rocm") and not self.simulated:
            return f"the lab's backend is {self.backend}"
        if self.pci_gpus or self.passed or self.exists("dev/kfd"):
            return ""
        return "" if self.backend == "rocm" else "no AMD GPU was found"

    @property
    def no_rocm(self) -> str:
        """Say why nothing about the driver of AMD GPUs applies; empty where it does."""
        if self.no_amd or self.passed or self.candidates or not self.pci_gpus:
            return self.no_amd
        return f"{self.pci_gpus[0].never_supported}: ROCm has never supported it, and the CPU computes"

    @property
    def no_kfd_gpus(self) -> str:
        """Say why nothing about GPUs with a driver applies; empty where it does."""
        return self.no_amd or ("" if self.passed else "the driver lists no AMD GPU")

    # -- devices -------------------------------------------------------------------------------------------------

    @fact
    def devices(self) -> list[Device]:
        """The devices as this process sees them, masks applied."""
        return discover(self.root, self.environment)

    @property
    def gpus(self) -> list[Device]:
        """The AMD GPUs among the devices that KFD lists."""
        return [device for device in self.devices if device.backend == "rocm" and device.kfd_node is not None]

    @fact
    def passed(self) -> list[Device]:
        """The AMD GPUs that KFD lists, as one sees them who may open every node that is there."""
        return [gpu for gpu in self.examined[0] if gpu.kfd_node is not None]

    @fact
    def examined(self) -> tuple[list[Device], list[Problem]]:
        """All AMD GPUs of the host, and what in the kernel's description of them is damaged."""
        return Rocm().examine(self.root, as_root=True)

    @fact
    def kfd(self) -> topology.Topology:
        """The KFD topology, with the nodes that cannot be read."""
        return topology.read(self.root)

    @property
    def maskable(self) -> list[Device]:
        """The AMD GPUs that masks are about: those that a container gets, or those of this process, hidden or not."""
        return self.passed if self.side == HOST and self.runtime in CONTAINER_RUNTIMES else self.gpus

    @property
    def chosen(self) -> list[Device]:
        """The AMD GPUs that the lab gets, or has."""
        if self.side == CONTAINER or not self.project:
            return [gpu for gpu in self.gpus if gpu.is_usable]
        found = self.passed if self.for_container else self.gpus
        try:
            return visibility.select(found, self.project.settings.get("GPUS"))
        except RocmlabError:  # the plan has reported it
            return [gpu for gpu in found if gpu.is_usable]

    @fact
    def compute_node(self) -> Node | None:
        """`/dev/kfd`."""
        return self._node(nodes.kfd(self.root))

    @fact
    def render_nodes(self) -> list[Node]:
        """The render nodes of the AMD GPUs with a driver; those of other vendors' GPUs do not matter for ROCm."""
        wanted = {gpu.render_node for gpu in self.passed}
        found = (self._node(node) for node in nodes.render_nodes(self.root) if node.path in wanted)
        return [node for node in found if node]

    @property
    def compute_nodes(self) -> list[Node]:
        """`/dev/kfd` and the render nodes."""
        return [*([self.compute_node] if self.compute_node else []), *self.render_nodes]

    def _node(self, node: nodes.Node | None) -> Node | None:
        if node is None:
            return None
        try:
            found = os.stat(self.root / node.path.lstrip("/"))
        except OSError:
            return None
        return Node(
            node.path,
            node.gid,
            node.mode,
            os.major(found.st_rdev),
            os.minor(found.st_rdev),
            node.error,
        )

    @fact
    def pci_gpus(self) -> list[PciGpu]:
        """The AMD display and compute devices of the PCI bus (classes 0x03 and 0x12)."""
        found = sorted(Cards(self.root).by_address.items())
        return [PciGpu(address, card.device or 0, card.driver, card.text("power_state")) for address, card in found]

    @property
    def candidates(self) -> list[PciGpu]:
        """Those of `pci_gpus` that are not older than ROCm."""
        return [gpu for gpu in self.pci_gpus if not gpu.never_supported]

    @fact
    def driver_is_live(self) -> bool:
        """Whether amdgpu is there: loaded, built into the kernel, or shown by a GPU that KFD lists."""
        is_loaded = self.text("sys/module/amdgpu/initstate") == "live"
        return is_loaded or topology.is_built_in(self.root) or bool(self.passed)

    def group_name(self, gid: int) -> str | None:
        """Return the host's name for a group, or None."""
        if self.simulated:
            listed = re.findall(rf"^([^:\n]+):[^:\n]*:{gid}:", self.text("etc/group") or "", re.MULTILINE)
            return listed[0] if listed else None
        try:
            return grp.getgrgid(gid).gr_name
        except KeyError:
            return None

    # -- engine and lab ------------------------------------------------------------------------------------------

    @slow(ENGINE_LIMIT_SECONDS)
    def engine(self) -> Engine:
        """The Docker engine."""
        from rocmlab.stack import engine as engines

        return engines.probe(self.environment)

    @fact
    def env_values(self) -> dict[str, str]:
        """The current settings in `.env`."""
        settings = self.project.settings if self.project else self.requested
        return settings.read_env() if settings else {}

    @property
    def lab_environment(self) -> Mapping[str, str]:
        """The variables that reach the lab: into a container those of `.env`, else this process's as well."""
        if self.for_container or self.is_rootless:
            return self.env_values
        return {**self.environment, **for_frameworks(self.env_values)}

    @fact
    def rocm_version(self) -> str | None:
        """The ROCm release that the lab uses: of this side's /opt/rocm, else by the base image's tag."""
        told = re.match(r"\d+\.\d+(\.\d+)?", self.text("opt/rocm/.info/version") or "")
        if told is None and self.side == CONTAINER:  # a slim image: ROCm is in wheels
            recorded = re.search(r'"rocm": "(\d+\.\d+(?:\.\d+)?)', self.text("etc/rocmlab-build.json") or "")
            return recorded[1] if recorded else None
        if self.side == CONTAINER or self.runtime == "native":
            return told[0] if told else None
        if not self.project:
            return None
        tag = re.search(r"rocm(\d+\.\d+(\.\d+)?)", self.project.values.get("BASE_IMAGE", ""))
        return tag[1] if tag else None

    @fact
    def shm_bytes(self) -> int | None:
        """The size of /dev/shm."""
        try:
            found = os.statvfs("/dev/shm")
        except OSError:
            return None
        return found.f_frsize * found.f_blocks
