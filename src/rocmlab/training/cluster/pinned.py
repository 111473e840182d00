"""Each worker of Ray Train on the GPU that Ray gave it, whichever of the masks Ray itself has set.

Ray writes one variable (HIP_VISIBLE_DEVICES if it could import `amdsmi`, else CUDA_VISIBLE_DEVICES) and leaves the
other as the node has it; a program that reads that one would compute on another worker's GPU. A worker without a GPU
would find all of the node's. So both are written here before the worker's first look at a GPU. Workers of one node
see each other's GPUs, which peer-to-peer transfers need, and each takes its own.

They find each other through a Ray actor instead of a server of PyTorch's, which any machine and user could reach.

Imports Ray and PyTorch: only `fitting` imports this, late.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.torch import TorchConfig

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import session
from rocmlab.training import children, network, rank
from rocmlab.training.cluster.store import RayStore, start
from rocmlab.training.cluster.team import masks

SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def granted() -> tuple[str, list[str]]:
    """Return this worker's node, and the GPUs that Ray gave it."""
    context = ray.get_runtime_context()
    return context.get_node_id(), [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]


def pin(gpus: Sequence[int], values: Any, number: str) -> None:  # noqa: ANN401  the actor of `store`
    """Let this process see these GPUs, by every mask, and find and reach the others in the network of Ray's nodes."""
    from rocmlab.devices import Device, visibility

    session.restore_signals()
    chosen = [Device("rocm", gpu, "", is_usable=True) for gpu in gpus]
    for name, value in visibility.child_environment(chosen).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    listen_on(ray.util.get_node_ip_address(), number)
    rank.use_store(lambda number, _ranks: RayStore(values, str(number)))
    # A sum that never comes back ends its process, and Ray Train begins again from the last checkpoint.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")


def listen_on(address: str, number: str) -> None:
    """Have the sockets of gloo and NCCL in this process on the interface with this address alone.

    On the loopback always; between machines an interface that is already set is kept. `number`: see `network`.

    Raises:
        RocmlabError: none is set, and it is not known which interface has the address: all of them would be open.
    """
    os.environ.pop("NCCL_COMM_ID", None)
    if address.startswith("127."):
        os.environ.update(network.on_this_machine(number))
        return
    os.environ.update(network.closed_to_others(number))
    if all(os.environ.get(name) for name in SOCKETS):
        return
    found = network.interface(address)
    if found is None:
        raise RocmlabError(
            f"no network interface has the address {address} of this node",
            "gloo and NCCL would listen on all interfaces",
            "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the cluster's interface on every node",
        )
    for name, value in zip(SOCKETS, (found, f"={found}"), strict=True):
        os.environ[name] = os.environ.get(name) or value


def forget_master() -> None:
    """Remove the address of a server that was never started: a program that a worker starts would open it."""
    for name in children.OF_A_NETWORK:
        os.environ.pop(name, None)


class PinnedBackend(TorchConfig().backend_cls):  # type: ignore[misc]  # Ray has no types
    """Ray Train's own way to start PyTorch, behind the masks."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:  # noqa: ANN401  Ray's
        """Write the masks in all workers, then connect them."""
        places = worker_group.execute(granted)
        values, number = start(places[0][0]), network.handshake_number()
        for worker, gpus in enumerate(masks(places)):
            worker_group.execute_single(worker, pin, gpus, values, number)
        super().on_start(worker_group, backend_config)
        worker_group.execute(forget_master)


@dataclass
class PinnedTorch(TorchConfig):  # type: ignore[misc]
    """PyTorch as Ray Train sets it up, with `PinnedBackend`."""

    @property
    def backend_cls(self) -> type:
        """The class that starts it."""
        return PinnedBackend
