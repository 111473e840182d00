"""Each worker of Ray Train on the GPU that Ray gave it, whichever of the masks Ray itself has set.

Ray writes one variable (HIP_VISIBLE_DEVICES if it could import `amdsmi`, else CUDA_VISIBLE_DEVICES) and leaves the
other as the node has it; a program that reads that one would compute on another worker's GPU. A worker without a GPU
would find all of the node's. So both are written here before the worker's first look at a GPU. Workers of one node
see each other's GPUs, which peer-to-peer transfers need, and each takes its own.

Imports Ray and PyTorch: only `fitting` imports this, late.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.torch import TorchConfig

from rocmlab.cluster import session
from rocmlab.training.cluster import network
from rocmlab.training.cluster.team import masks


def granted() -> tuple[str, list[str]]:
    """Return this worker's node, and the GPUs that Ray gave it."""
    context = ray.get_runtime_context()
    return context.get_node_id(), [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]


def pin(gpus: Sequence[int]) -> None:
    """Let this process see these GPUs, by every mask, and talk over the network in which Ray's nodes talk."""
    from rocmlab.devices import Device, visibility

    session.restore_signals()
    chosen = [Device("rocm", gpu, "", is_usable=True) for gpu in gpus]
    for name, value in visibility.child_environment(chosen).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    interface = network.interface(ray.util.get_node_ip_address())
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ():
        os.environ.setdefault(name, str(interface))
    # A sum that never comes back ends its process, and Ray Train begins again from the last checkpoint.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")


class PinnedBackend(TorchConfig().backend_cls):  # type: ignore[misc]  # Ray has no types
    """Ray Train's own way to start PyTorch, behind the masks."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:  # noqa: ANN401  Ray's
        """Write the masks in all workers, then connect them."""
        for number, gpus in enumerate(masks(worker_group.execute(granted))):
            worker_group.execute_single(number, pin, gpus)
        super().on_start(worker_group, backend_config)


@dataclass
class PinnedTorch(TorchConfig):  # type: ignore[misc]
    """PyTorch as Ray Train sets it up, with `PinnedBackend`."""

    @property
    def backend_cls(self) -> type:
        """The class that starts it."""
        return PinnedBackend
