"""What the training function of one worker calls: its rank, its part of a batch, the checkpoint, the other workers.

The same function also runs without Ray, as the only worker (`alone`): then checkpoints are in a folder. PyTorch is
imported late, Ray only in its own workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.training import placement

FILE = "checkpoint.pt"
STRATEGIES = ("ddp", "fsdp")
_alone: ContextVar[tuple[Path, str] | None] = ContextVar("alone", default=None)  # folder, device


class Lost(Exception):
    """The only worker, which runs without Ray, was to die; a process of its own would have been killed."""


def alone(
    loop: Callable[[dict[str, Any]], dict[str, Any]],
    options: Mapping[str, Any],
    folder: Path,
    *,
    device: str = "cpu",
    max_failures: int = 3,
) -> dict[str, Any]:
    """Run the training in this process, without Ray, as its only worker; after a `Lost` from the last checkpoint.

    `loop`, `options` and `max_failures` are those of `fit`; `device` is `cpu`, or a GPU as PyTorch calls it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    token = _alone.set((folder, device))
    try:
        for _ in range(max_failures):
            with contextlib.suppress(Lost):
                return loop(dict(options))
        return loop(dict(options))
    finally:
        _alone.reset(token)


def rank() -> tuple[int, int]:
    """Return this worker's number, and how many there are."""
    if _alone.get():
        return 0, 1
    from ray import train

    context = train.get_context()
    return context.get_world_rank(), context.get_world_size()


def device() -> Any:  # noqa: ANN401  a torch.device
    """Return what this worker computes on: the GPU that Ray gave it, or the CPU."""
    import torch

    if here := _alone.get():
        return torch.device(here[1])
    from ray.train.torch import get_device

    return get_device()


def part(count: int) -> slice:
    """Return this worker's part of a batch of that many samples; the parts differ by one sample at most."""
    number, workers = rank()
    return slice(count * number // workers, count * (number + 1) // workers)


def spread(model: Any, strategy: str = "ddp") -> Any:  # noqa: ANN401  a torch.nn.Module
    """Return the model, which is on this worker's device, so that its gradients are the mean over the workers.

    With `ddp` every worker has all of it, with `fsdp` each has a part of every parameter, and of the optimizer.

    Raises:
        RocmlabError: the strategy is unknown.
    """
    if strategy not in STRATEGIES:
        raise RocmlabError(f"strategy={strategy!r} is unknown", "", f"use one of: {', '.join(STRATEGIES)}")
    if rank()[1] == 1:
        return model
    if strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device().type, (rank()[1],))
        for layer in model.children():
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def total(value: Any) -> Any:  # noqa: ANN401  a torch.Tensor
    """Return the sum of a tensor over all workers."""
    if rank()[1] > 1:
        import torch.distributed as dist

        dist.all_reduce(value)
    return value


def gathered(value: object) -> list[Any]:
    """Return what each worker has, by rank: what JSON can express, because data from a network is not unpickled."""
    if rank()[1] == 1:
        return [value]
    import torch
    import torch.distributed as dist

    text = json.dumps(value).encode()
    where = torch.device("cpu") if dist.get_backend() == "gloo" else device()
    sizes = torch.zeros(rank()[1], dtype=torch.int64, device=where)
    sizes[rank()[0]] = len(text)
    dist.all_reduce(sizes)
    mine = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=where)
    mine[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    found = [torch.empty_like(mine) for _ in range(rank()[1])]
    dist.all_gather(found, mine)
    return [json.loads(bytes(one[:size].tolist())) for one, size in zip(found, sizes.tolist(), strict=True)]


def members() -> list[placement.Description]:
    """Describe every worker's device, as PyTorch reports it there, with `node` and `rank`; GPUs must be of one kind.

    A worker on the CPU is `simulated` where another one shares its machine.

    Raises:
        RocmlabError: the GPUs are of different kinds.
    """
    used = device()
    every = placement.visible("torch") if used.type == "cuda" else [placement.choose("torch", "cpu")]
    mine = {**every[used.index or 0], "rank": rank()[0], "node": platform.node()}
    return described(gathered(mine))


def described(found: Sequence[placement.Description]) -> list[placement.Description]:
    """Return the workers' descriptions, with those `simulated` that share a CPU; an error if they differ in kind."""
    names = sorted({f"{one['backend']} {one['name']}" for one in found if one["backend"] != "cpu"})
    if len(names) > 1:
        raise RocmlabError(
            "GPUs of different kinds cannot share one training: " + ", ".join(names),
            "a sum over different kinds hangs or fails, and every step would wait for the slowest",
            "let only nodes with GPUs of one kind take part, or choose them: make up GPUS=…",
        )
    hosts = [one["node"] for one in found]
    return [{**one, "simulated": one["backend"] == "cpu" and hosts.count(one["node"]) > 1} for one in found]


def digests(model: Any) -> list[str]:  # noqa: ANN401  a torch.nn.Module
    """Return each worker's SHA-256 of all parameters, by rank; parts of them are put together first."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        found.update(whole.detach().cpu().contiguous().numpy().tobytes())
    return gathered(found.hexdigest())


def save(model: Any, optimizer: Any, state: Mapping[str, Any], metrics: Mapping[str, float]) -> None:  # noqa: ANN401
    """Keep a checkpoint, from which any number of workers can continue; every worker calls this, rank 0 writes.

    When this returns, a training that loses a worker continues from here; with Ray that takes about a second.
    `state` is what else the training function needs, in plain Python; `metrics` is what Ray Train notes with it.
    """
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, optimizer, options=options)  # every worker takes part
    content = {"model": weights, "optimizer": moments, "state": dict(state)}
    if here := _alone.get():
        new = here[0] / f"{FILE}.new"
        torch.save(content, new)
        new.replace(here[0] / FILE)
        return
    from ray import train

    with tempfile.TemporaryDirectory(prefix="rocmlab-checkpoint-") as folder:
        if rank()[0] == 0:
            torch.save(content, Path(folder, FILE))
        train.report(dict(metrics), checkpoint=train.Checkpoint.from_directory(folder) if rank()[0] == 0 else None)
    # Ray Train looks for reports once a second: what dies before it has seen this one would cost it.
    train.get_all_reported_checkpoints(consistency_mode=train.CheckpointConsistencyMode.COMMITTED)


def restore(model: Any, optimizer: Any) -> dict[str, Any] | None:  # noqa: ANN401  torch's
    """Put the last checkpoint into the model and the optimizer and return its `state`; None if there is none."""
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    if here := _alone.get():
        found = here[0] / FILE
        content = torch.load(found, map_location="cpu", weights_only=True) if found.is_file() else None
    else:
        from ray import train

        with contextlib.ExitStack() as stack:
            checkpoint: Any = train.get_checkpoint()
            folder = stack.enter_context(checkpoint.as_directory()) if checkpoint is not None else None
            content = torch.load(Path(folder, FILE), map_location="cpu", weights_only=True) if folder else None
    if content is None:
        return None
    options = StateDictOptions(full_state_dict=True)
    set_state_dict(
        model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"], options=options
    )
    return dict(content["state"])


def die() -> None:
    """End this worker immediately, like a crash or a lost node: to show that the training survives it."""
    if _alone.get():
        raise Lost
    os.kill(os.getpid(), signal.SIGKILL)
