"""One rank of the scaling benchmark: trains each measure of a list with DDP and times it; rank 0 writes the results.

With one rank there is no DDP around the network: that is the one device the others are compared with.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from rocmlab.base import files
from rocmlab.benchmarking.scaling import networks
from rocmlab.training.overlap import Overlap

LIMIT = datetime.timedelta(seconds=120)  # for one collective
AWAKE = 3  # steps
Measure = dict[str, Any]  # see report.Measure


class Team:
    """This rank's device, and how it communicates with the others."""

    def __init__(self, is_gpu: bool) -> None:
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_gpu else torch.device("cpu")
        if is_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(os.environ["ROCMLAB_COLLECTIVES"], timeout=LIMIT)
        # Also gloo, whose barrier names the rank that does not arrive.
        self.gloo = dist.new_group(backend="gloo", timeout=LIMIT)

    def meet(self) -> None:
        """Wait until this device is done and every rank is here."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        dist.monitored_barrier(self.gloo, timeout=LIMIT)

    def slowest(self, seconds: float) -> float:
        """Return the largest of all ranks' values."""
        value = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.gloo)
        return float(value)

    def total(self, value: float) -> float:
        """Return the sum of all ranks' values."""
        whole = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(whole, group=self.gloo)
        return float(whole)

    def digests(self, model: torch.nn.Module) -> list[str]:
        """Return the SHA-256 of every rank's parameters."""
        whole = torch.cat([one.detach().flatten().float().cpu() for one in model.parameters()])
        mine = torch.tensor(list(hashlib.sha256(whole.numpy().tobytes()).digest()), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(found, mine, group=self.gloo)  # not `all_gather_object`, which unpickles what arrives
        return [bytes(one.tolist()).hex() for one in found]


class Training:
    """A network, its optimiser, and DDP around it where several ranks share it."""

    def __init__(self, measure: Measure, team: Team, is_alone: bool = False) -> None:
        self.measure, self.team = measure, team
        with team.device:  # made where it stays: drawing 124 million numbers on the CPU takes seconds
            self.inner = networks.network(measure["network"], measure["size"], measure["seed"])
        self.model = torch.compile(self.inner) if measure.get("compile") else self.inner
        self.optimizer = networks.optimizer(measure["network"], self.inner)
        self.update: Callable[[], object] = self.optimizer.step
        if team.count > 1 and not is_alone and measure.get("talk", True):
            ids = [team.device.index] if team.device.type == "cuda" else None
            self.model = DistributedDataParallel(self.model, device_ids=ids, **measure["ddp"])
            if measure.get("hook") == "bf16":
                self.model.register_comm_hook(None, default_hooks.bf16_compress_hook)
            elif measure.get("hook") == "overlap":
                self.update = Overlap(self.model, self.optimizer).step
        self.dtype = torch.bfloat16 if measure.get("bf16") else None

    def backward(self, samples: networks.Batch, share: float = 1.0) -> torch.Tensor:
        """Add the gradients of `share` times the mean loss to those that are there, and return the mean loss."""
        if self.dtype is None:
            loss = self.model(*samples)
        else:
            with torch.autocast(self.team.device.type, self.dtype):
                loss = self.model(*samples)
        (loss * share if share != 1 else loss).backward()
        return loss.detach()

    def step(self, samples: networks.Batch) -> torch.Tensor:
        """Take one step and return the loss before it."""
        self.optimizer.zero_grad()
        loss = self.backward(samples)
        self.update()
        return loss

    def seconds(self, samples: networks.Batch) -> float:
        """Return how long a block of steps took this rank, its device done before and after.

        Some steps before are not counted, for a GPU that was idle has a low clock.
        """
        started = 0.0
        for count in (AWAKE, self.measure["steps"]):
            started = time.perf_counter()
            for _ in range(count):
                self.step(samples)
            if self.team.device.type == "cuda":
                torch.cuda.synchronize()
        return time.perf_counter() - started


def speed(measure: Measure, team: Team) -> dict[str, Any]:
    """Return samples per second, one number per timed block, warm-up excluded: of all ranks together, and alone.

    `alone`, if requested, is the mean over the ranks of what each does while the others wait, without DDP.
    """
    training = Training(measure, team)
    single = Training(measure, team, is_alone=True) if measure.get("alone") and team.count > 1 else None
    samples = networks.batch(
        measure["network"], measure["size"], measure["batch"], measure["seed"] + team.rank, team.device
    )
    for _ in range(measure["warm_up"]):
        for each in filter(None, (training, single)):
            each.step(samples)
    block = measure["steps"] * measure["batch"]
    rates, alone = [], []
    for _ in range(measure["blocks"]):
        if single:
            alone.append(team.total(block / _one_by_one(single, samples)) / team.count)
        team.meet()
        rates.append(block * team.count / team.slowest(training.seconds(samples)))
    parameters = sum(one.numel() for one in training.inner.parameters())
    return {"samples_per_second": rates, "alone": alone, "parameters": parameters}


def _one_by_one(training: Training, samples: networks.Batch) -> float:
    """Return this rank's seconds for a block of steps, in which no other rank computes."""
    seconds = 0.0
    for rank in range(training.team.count):
        training.team.meet()
        if rank == training.team.rank:
            seconds = training.seconds(samples)
    return seconds


def equality(measure: Measure, team: Team) -> dict[str, Any]:
    """Return the losses of some steps of all ranks together, and of one device that sees the very same samples.

    The one device takes the ranks' shares of a batch one after the other and steps when it has all of them.
    """
    name, size, count = measure["network"], measure["size"], measure["batch"]

    def share(step: int, rank: int) -> networks.Batch:
        seed = measure["seed"] + 1 + step * team.count + rank
        return networks.batch(name, size, count, seed, team.device)

    training = Training(measure, team)
    together = [
        team.total(float(training.step(share(step, team.rank)))) / team.count for step in range(measure["check_steps"])
    ]
    digests = team.digests(training.inner)
    del training
    alone = []
    if team.rank == 0:
        single = Training(measure, team, is_alone=True)
        for step in range(measure["check_steps"]):
            single.optimizer.zero_grad()
            losses = [single.backward(share(step, rank), 1 / team.count) for rank in range(team.count)]
            single.optimizer.step()
            alone.append(sum(map(float, losses)) / team.count)
    team.meet()
    return {"losses": together, "losses_alone": alone, "replicas_equal": len(set(digests)) == 1}


def run(measure: Measure, team: Team) -> dict[str, Any]:
    """Return all results of one measure; one that this machine cannot run has the reason as `error`."""
    torch.manual_seed(measure["seed"])
    if measure.get("threads"):
        torch.set_num_threads(measure["threads"])
    result: dict[str, Any] = {"name": measure["name"], "ranks": team.count}
    error = ""
    try:
        if measure.get("blocks"):
            result |= speed(measure, team)
        if measure.get("check_steps") and team.count > 1:
            result |= equality(measure, team)
    except (TypeError, ValueError, RuntimeError) as err:  # out of memory is one of them
        error = f"{type(err).__name__}: {err}"
    if team.slowest(bool(error)):  # if a rank has exited this fails also, and the job ends
        result["error"] = error or "it failed on another rank"
    if team.device.type == "cuda":
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    team.meet()
    return result


def main() -> None:
    """Take the measures from the file of the first argument, and write the results to that of the second."""
    order = json.loads(Path(sys.argv[1]).read_text())
    torch.set_float32_matmul_precision("high")
    team = Team(order["is_gpu"])
    results = []
    for measure in order["measures"]:
        started = time.perf_counter()
        results.append(run(measure, team))
        if team.rank == 0:
            speeds = results[-1].get("samples_per_second") or []
            rate = f"{sorted(speeds)[len(speeds) // 2]:,.0f} samples/s, " if speeds else ""
            sys.stdout.write(f"{measure['name']}: {rate}{time.perf_counter() - started:.1f} s\n")
            found = {"torch": torch.__version__, "results": results}
            files.write_text(Path(sys.argv[2]), json.dumps(found))  # whole, even if this process ends now
    with contextlib.suppress(RuntimeError):  # a partner may have exited already: all is done
        dist.monitored_barrier(team.gloo, timeout=LIMIT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
