"""One rank of the probe of `collectives`: a checked all-reduce, and its bandwidth on rank 0's last line.

It imports nothing of rocmlab, for it runs in PyTorch's environment.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import time
from typing import Any

READY = "READY"  # this rank has its device; from here on it is the collective that takes the time
ROUNDS = 5


def main() -> None:
    """Add up over all ranks; print READY before, and the bandwidth afterwards.

    Arguments: nccl or gloo, the file through which ranks find each other, cuda or cpu, bytes of the larger sum.
    """
    backend, meeting, kind, size_bytes = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    import torch
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(kind, rank) if kind == "cuda" else torch.device("cpu")
    if kind == "cuda":
        torch.cuda.set_device(device)
    small, large = torch.full((256,), rank + 1.0, device=device), torch.ones(size_bytes // 4, device=device)
    _wait(torch, kind)
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=120),  # the parent ends it earlier
    )
    dist.all_reduce(small)
    _check(small, ranks * (ranks + 1) / 2)
    seconds = []
    for number in range(ROUNDS + 2):
        _wait(torch, kind)
        started = time.perf_counter()
        dist.all_reduce(large)
        _wait(torch, kind)
        if number >= 2:
            seconds.append(time.perf_counter() - started)
    _check(large, float(ranks) ** (ROUNDS + 2))
    if rank == 0:
        moved_bytes = 2 * (ranks - 1) / ranks * large.numel() * 4  # what each rank sends, as nccl-tests count it
        result = {"gigabytes_per_second": moved_bytes / statistics.median(seconds) / 1e9}
        sys.stdout.write(json.dumps(result) + "\n")


def _wait(torch: Any, kind: str) -> None:  # noqa: ANN401  the module
    if kind == "cuda":
        torch.cuda.synchronize()


def _check(added: Any, expected: float) -> None:  # noqa: ANN401  a tensor
    """Raise if the sum is wrong: RCCL has returned garbage instead of hanging."""
    least, most = float(added.min()), float(added.max())
    if (least, most) != (expected, expected):
        msg = f"the sum over all ranks is wrong: {least} … {most} instead of {expected}"
        raise ArithmeticError(msg)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as rank.py does: taking the process apart sometimes trips over gloo's threads
