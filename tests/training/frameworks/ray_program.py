"""Run by test_ray_train.py: train a small network in Ray Train's workers and print the result as JSON.

python ray_program.py FOLDER WORKERS STRATEGY LOSS: LOSS is what dies in the second epoch: `none`, `worker`, `node`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch

from rocmlab.training import cluster
from rocmlab.training.cluster import worker

OPTIONS = {"epochs": 4, "steps": 3, "batch": 15}  # a batch that two workers cannot share evenly


def is_victim(what, is_last):
    """Return whether this worker is to be lost: the last one, or that on the second node; the head is everything."""
    return os.environ.get("RAY_PROGRAM_NODE") == "second" if what == "node" else is_last and what == "worker"


def lose(what):
    """Kill this worker, or the node it runs on: its raylet, which is this worker's parent."""
    if what == "node":
        parent = os.getppid()
        assert Path(f"/proc/{parent}/comm").read_text().strip() == "raylet"
        os.kill(parent, signal.SIGKILL)
    worker.die()


def train(options):
    """Train as one worker, in float64, so that differences are not rounding."""
    torch.manual_seed(7)
    rank, workers = worker.rank()
    x, y = torch.randn(options["steps"] * options["batch"], 6, dtype=torch.float64), None
    y = (x.sum(1, keepdim=True) + x[:, :1] ** 2) / 3
    layers = [torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)]
    model = worker.spread(torch.nn.Sequential(*layers).double().to(worker.device()), options["strategy"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)  # a checkpoint without its moments would show
    state = worker.restore(model, optimizer) or {"epoch": 0, "losses": [], "attempts": []}
    first = state["epoch"]
    state["attempts"].append([first, workers])
    for epoch in range(first, options["epochs"]):
        for start in range(0, len(x), options["batch"]):
            images, labels = x[start : start + options["batch"]], y[start : start + options["batch"]]
            mine = worker.part(len(images))
            optimizer.zero_grad()
            loss = ((model(images[mine]) - labels[mine]) ** 2).sum() / len(images)
            (loss * workers).backward()
            optimizer.step()
            state["losses"].append(worker.total(loss.detach().clone()).item())
            if epoch == 1 and first == 0 and start > 0 and is_victim(options["loss"], rank == workers - 1):
                lose(options["loss"])
        state["epoch"] = epoch + 1
        worker.save(model, optimizer, state, {"epoch": epoch + 1})
    return {**state, "digests": worker.digests(model), "devices": worker.members(), "python": sys.executable}


def main():
    """Train with one process, without Ray, then with Ray Train."""
    folder, workers, strategy, loss = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    options = {**OPTIONS, "strategy": strategy, "loss": "none"}
    alone = worker.alone(train, options, folder / "alone")
    interrupt = signal.getsignal(signal.SIGINT)
    connection = cluster.connect(workers)
    team = cluster.team(connection.nodes, "cpu", workers)
    together = cluster.fit(train, {**options, "loss": loss}, team, folder / "together").value
    same = signal.getsignal(signal.SIGINT) == interrupt
    result = {"alone": alone, "together": together, "is_own": connection.is_own, "same_interrupt": same}
    cluster.close()
    Path(folder, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
