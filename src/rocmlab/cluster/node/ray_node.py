"""What this machine's Ray node is made of: its address, devices, resources, labels, environment and command.

All of it is decided here, from the environment of the lab alone, and nothing is started; `serving` does that. The node
is given the number of its GPUs and masks that name them, and Ray counts through the mask: so Ray's ids of GPUs are the
indices of HIP, whether or not Ray finds AMD's library.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmlab import __version__
from rocmlab.base import addresses, confidential, cores, private
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import ports, token
from rocmlab.devices import Device, discover, is_simulated, system_root, visibility
from rocmlab.devices.rocm import rocm_version

OFF, HEAD = "off", "head"
CPU_PLACE = "cpu_place"  # the resource that a job without a GPU takes
MAX_FOLDER_CHARACTERS = 32  # bytes: Ray adds up to 70 for a socket, and a socket's path has at most 107
SMALLEST_STORE, LARGEST_STORE = 80_000_000, 8_000_000_000  # bytes


@dataclass(frozen=True)
class Plan:
    """All that is decided of a node before it starts."""

    is_head: bool
    head: str  # host:port
    address: str  # this machine's own
    port: int  # CLUSTER_PORT: the first of its ports
    folder: Path  # of Ray's sockets and logs, of the token and the record
    devices: tuple[Device, ...] = ()  # the GPUs that the cluster may use, in the order of their indices
    simulated: bool = False
    cpus: int = 1
    store_bytes: int = SMALLEST_STORE
    rocm: str | None = None  # version of ROCm here

    @property
    def record(self) -> Path:
        """Where the node reports its state."""
        return self.folder / "node.json"

    @property
    def token(self) -> Path:
        """The token's file."""
        return self.folder / "token"


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether CLUSTER makes this lab a node."""
    return environment.get("CLUSTER", "") not in ("", OFF)


def plan(
    environment: Mapping[str, str],
    *,
    folder: Path | None = None,
    cpus: int | None = None,
    store_bytes: int | None = None,
) -> Plan:
    """Decide what this machine's node is; nothing is started or written.

    Args:
        environment: of the lab: CLUSTER, CLUSTER_ADDRESS, CLUSTER_PORT, and what decides which GPUs it has.
        folder: another than the usual one, for a second node of a machine.
        cpus: that the node tells Ray of; None: those this process may use.
        store_bytes: the size of Ray's object store; None: half of what /dev/shm has free, between 80 MB and 8 GB.

    Raises:
        RocmlabError: a setting is wrong, or this machine has no address in the network.
    """
    chosen = environment.get("CLUSTER", "")
    if not is_wanted(environment):
        raise RocmlabError(
            "this lab is not a node of a cluster",
            f"CLUSTER={chosen or OFF}",
            "make cluster-up, or make cluster-join HEAD=host:port CLUSTER_TOKEN=…",
        )
    first = ports.parse(environment.get("CLUSTER_PORT") or str(ports.FIRST))
    is_head = chosen == HEAD
    head_host = "" if is_head else ports.split(chosen)[0]
    address = own_address(environment.get("CLUSTER_ADDRESS", ""), head_host)
    root = system_root()
    gpus = offered(discover(environment=environment))
    return Plan(
        is_head=is_head,
        head=f"{address}:{first}" if is_head else chosen,
        address=address,
        port=first,
        folder=check_folder(folder) if folder else usual_folder(first),
        devices=tuple(gpus),
        simulated=is_simulated(root),
        cpus=cpus or cores.count(),
        store_bytes=store_bytes or _store_bytes(),
        rocm=rocm_version(root),
    )


def offered(devices: Sequence[Device]) -> list[Device]:
    """Return the GPUs that a node offers: the usable ones of one backend, by index; Ray knows only one kind a node."""
    usable = [each for each in devices if each.backend in ("rocm", "cuda") and each.is_usable]
    backend = usable[0].backend if usable else ""
    found = [each for each in usable if each.backend == backend and each.index is not None]
    return sorted(found, key=lambda each: each.index or 0)


def own_address(wanted: str, head_host: str) -> str:
    """Return this machine's address in the cluster's network.

    Args:
        wanted: CLUSTER_ADDRESS; empty: that of the way to the head.
        head_host: of the head; empty: this is the head, and the way is that to anywhere.

    Raises:
        RocmlabError: the machine does not have that address, it is of the loopback, or there is no route to the head.
    """
    if wanted.startswith("127.") or wanted == "::1":
        raise RocmlabError(
            f"CLUSTER_ADDRESS={wanted} reaches no other machine",
            "it is the loopback, in whose place Ray takes the network's address: the node would be open to the network",
            "leave it empty; for this machine alone no cluster is needed: make run-notebooks",
        )
    if wanted:
        if _is_ours(wanted):
            return wanted
        raise RocmlabError(
            f"CLUSTER_ADDRESS={wanted} is not an address of this machine",
            "none of its network interfaces has it",
            "`ip -brief address` lists them",
        )
    try:
        return addresses.own(head_host or addresses.OUTSIDE)
    except OSError as err:
        if not head_host:
            return "127.0.0.1"  # no network: a cluster of one machine
        raise RocmlabError(
            f"no route to {head_host}",
            err.strerror or str(err),
            "give the head's address: HEAD=192.168.1.10:6379",
        ) from err


def _is_ours(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def usual_folder(first: int, uid: int | None = None) -> Path:
    """Return the folder of this (or another) user's node with this CLUSTER_PORT: short, for sockets lie in it."""
    return Path(f"/tmp/rocmlab-ray-{os.getuid() if uid is None else uid}-{first}")


def check_folder(folder: Path) -> Path:
    """Return a folder that is short enough for sockets.

    Raises:
        RocmlabError: it is not.
    """
    if len(os.fsencode(folder)) > MAX_FOLDER_CHARACTERS:
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
        raise RocmlabError(
            f"{folder} is too long for Ray's sockets",
            f"it may have {MAX_FOLDER_CHARACTERS} letters",
            f"--folder /tmp/rocmlab-ray-{digest}",
        )
    return folder


def make_private(folder: Path) -> None:
    """Make a node's folder; raise RocmlabError if another user could use it. Another port has another folder."""
    private.make_folder(folder, "another user could use the cluster", "choose another CLUSTER_PORT, such as 7379")


def _store_bytes() -> int:
    try:
        free = shutil.disk_usage("/dev/shm").free // 2
    except OSError:
        return SMALLEST_STORE
    return max(SMALLEST_STORE, min(LARGEST_STORE, free))


def resources(plan: Plan) -> dict[str, int]:
    """Return a node's resources other than CPUs and GPUs: the number of GPUs of each gfx, and a place for CPU jobs."""
    kinds = Counter(device.gfx for device in plan.devices if device.gfx)
    return {**dict(sorted(kinds.items())), CPU_PLACE: 1}


def labels(plan: Plan) -> dict[str, str]:
    """Return the labels of a node for Ray."""
    found = {
        "rocmlab.version": __version__,
        "rocmlab.backend": plan.devices[0].backend if plan.devices else "cpu",
        "rocmlab.simulated": str(plan.simulated).lower(),
        "rocmlab.rocm": plan.rocm or "none",
        "rocmlab.hostname": socket.gethostname(),
    }
    return {name: label_value(text) for name, text in found.items()}


def label_value(text: str) -> str:
    """Return a text as Ray takes it for a label: letters, digits, `-_.`, 63 at most, a letter or digit at both ends."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.")


def ray_environment(plan: Plan, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the node, which its workers inherit.

    Raises:
        RocmlabError: a GPU cannot be given to a process.
    """
    changed = {
        **client_environment(plan.head, plan.folder),
        "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper": "true",  # kernels have sessions of their own
        "RAY_worker_niceness": "0",  # by itself Ray gives everybody else the processor first, and kernels inherit that
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a task without GPUs sees the node's
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "180",  # a machine that trains is slow to start anything
        "RAY_agent_register_timeout_ms": "180000",
        "RAY_prestart_worker_first_driver": "false",  # else a process of 100 MB for each CPU, before any work
        "RAY_enable_metrics_collection": "false",  # its port needs no token; rocmlab has metrics of its own
        "AUTOSCALER_METRIC_PORT": "-1",  # nor do these two of the head, which there is no option to switch off:
        "DASHBOARD_METRIC_PORT": "-1",  # they fail to listen, log that, and continue
        "ROCMLAB_CLUSTER_NODE": "1",
    }
    return visibility.apply({**confidential.without(base), **changed}, plan.devices)


def client_environment(head: str, folder: Path) -> dict[str, str]:
    """Return what a program on this machine needs to use the cluster: `ray.init()` finds it by these."""
    return {
        "RAY_ADDRESS": head,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def command(plan: Plan) -> list[str]:
    """Return what starts the node and stays until it ends; no secret is in it."""
    arguments = [sys.executable, "-m", "rocmlab.cluster.node.starter", "start", "--block", "--disable-usage-stats"]
    arguments += ["--head", "--dashboard-host=127.0.0.1", "--include-dashboard=true"] if plan.is_head else []
    arguments += [] if plan.is_head else [f"--address={plan.head}"]
    arguments += ports.options(plan.port, is_head=plan.is_head)
    arguments += [f"--node-ip-address={plan.address}", f"--temp-dir={plan.folder / 'ray'}"]
    arguments += [f"--num-cpus={plan.cpus}", f"--num-gpus={len(plan.devices)}"]
    arguments += [f"--object-store-memory={plan.store_bytes}", f"--resources={json.dumps(resources(plan))}"]
    arguments += ["--labels=" + ",".join(f"{name}={value}" for name, value in labels(plan).items())]
    return arguments


def give_token(plan: Plan, environment: Mapping[str, str]) -> None:
    """Put the token where the node and this machine's programs read it.

    Raises:
        RocmlabError: there is none.
    """
    make_private(plan.folder)
    token.write(plan.token, token.of(environment))


def busy_ports(plan: Plan) -> list[str]:
    """Return the node's own ports that another program has, as `head 6379`; those of the workers are not looked at."""
    found = []
    for port in ports.TABLE:
        if port.count > 1 or (port.is_of_head and not plan.is_head):
            continue
        number = plan.port + port.offset
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1" if port.is_loopback else "", number))
            except OSError:
                found.append(f"{port.name} {number}")
    return found
