"""A step that overlaps with the last sum of gradients gives the results of a plain step, also with late sums."""

from __future__ import annotations

import inspect
import json
import os

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training import launch

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "torch") != "torch", reason="run it with KERAS_BACKEND=torch"),
]

# A network whose first matrix also makes its output, so that its gradient is the last; four ways to train it, each with
# DDP's own sums and with Overlap.
PROGRAM = """
import contextlib, json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from rocmlab.training.overlap import Overlap

dist.init_process_group(os.environ["ROCMLAB_COLLECTIVES"])
torch.set_num_threads(1)
rank = dist.get_rank()

NETWORK
def train(way, overlaps):
    inner = tied()
    model = DistributedDataParallel(inner, gradient_as_bucket_view=True, bucket_cap_mb=0.3)
    optimizer = torch.optim.AdamW(inner.parameters(), lr=0.01)
    overlap = Overlap(model, optimizer) if overlaps else None
    seen = []
    for number in range(5):
        words = torch.randint(50, (4, 6), generator=torch.Generator().manual_seed(10 * number + rank))
        optimizer.zero_grad()
        if way == "accumulate":
            with model.no_sync():
                model(words.flip(0)).backward()
        if way == "twice":
            model(words).backward()
        model(words).backward()
        if overlap:
            seen.append((overlap._work is not None, len(overlap._late)))
        if way == "clip":
            if overlap:
                overlap.wait()
            nn.utils.clip_grad_norm_(inner.parameters(), 0.1)
        (overlap or optimizer).step()
    return torch.cat([one.detach().flatten() for one in inner.parameters()]), seen

found = {}  # of each way: equal to plain steps, equal in both ranks, what was late, how many parameters there are
for way in ("plain", "accumulate", "clip", "twice"):
    expected, _ = train(way, overlaps=False)
    told, seen = train(way, overlaps=True)
    others = [torch.zeros_like(told) for _ in range(2)]
    dist.all_gather(others, told)
    equal = [bool((expected == told).all()), bool((others[0] == others[1]).all())]
    found[way] = [*equal, seen, len(list(tied().parameters()))]
if rank == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
dist.barrier()
dist.destroy_process_group()
"""


def test_overlapped_steps_are_plain_steps_bit_for_bit(tmp_path):
    """Alone, with accumulated gradients, clipped and after two sums, the parameters end as without it, in all ranks."""
    (tmp_path / "train.py").write_text(PROGRAM.replace("NETWORK", inspect.getsource(tied)))

    launch.run(tmp_path / "train.py", str(tmp_path / "found.json"), processes=2)

    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"plain", "accumulate", "clip", "twice"}
    for is_as_plain, is_as_others, seen, parameters in found.values():
        assert is_as_plain
        assert is_as_others
        assert all(is_under_way for is_under_way, _late in seen)
        assert all(0 < late < parameters for _is_under_way, late in seen[1:])  # DDP sorts buckets after the first step


class Late:
    """A sum over three ranks with the same gradients, which is there when it is waited for and no sooner."""

    def __init__(self, gradients):
        self.gradients, self.is_done = gradients, False

    def wait(self):
        """Add up."""
        if not self.is_done:
            self.gradients.mul_(3)
            self.is_done = True

    def get_future(self):
        """Return the sum: this one is waited for immediately."""
        import torch

        self.wait()
        future = torch.futures.Future()
        future.set_result([self.gradients])
        return future


def tied():
    """Return a network whose embedding makes its output also."""
    import torch
    from torch import nn

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 320)
            nn.init.normal_(self.words.weight, std=0.1)
            self.layers = nn.ModuleList([nn.Linear(320, 320) for _ in range(4)])

        def forward(self, words):
            x = self.words(words)
            for layer in self.layers:
                x = x + layer(x).relu()
            return nn.functional.cross_entropy((x @ self.words.weight.T).flatten(0, 1), words.roll(1).flatten())

    torch.manual_seed(1)
    return Tied()


def steps(way, overlaps, monkeypatch, *, cap=0.3, static=False):
    """Train a network whose embedding makes its output also; return its parameters."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from rocmlab.training import overlap

    def at_once(state, bucket):
        future = torch.futures.Future()
        future.set_result(bucket.buffer().mul_(3))
        return future

    inner = tied()
    model = DistributedDataParallel(inner, gradient_as_bucket_view=True, bucket_cap_mb=cap, static_graph=static)
    groups = [{"params": inner.layers.parameters()}, {"params": inner.words.parameters(), "lr": 0.02}]
    optimizer = torch.optim.SGD(
        groups, lr=0.01, momentum=0.9
    )  # three times the gradient is another step, unlike Adam's
    if overlaps:
        monkeypatch.setattr(overlap.dist, "all_reduce", lambda gradients, *_, **__: Late(gradients))
        stepping = overlap.Overlap(model, optimizer)
    else:
        model.register_comm_hook(None, at_once)
        stepping = optimizer
    for number in range(4):
        words = torch.randint(50, (4, 6), generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        if way == "accumulate":
            with model.no_sync():
                model(words.flip(0)).backward()
        for _ in range(2 if way == "twice" else 1):
            model(words).backward()
        if way == "clip":
            getattr(stepping, "wait", lambda: None)()
            nn.utils.clip_grad_norm_(inner.parameters(), 0.1)
        assert float(inner.words.weight.grad.abs().sum()) > 0
        (optimizer if way == "own" else stepping).step()
    return torch.cat([one.detach().flatten() for one in inner.parameters()])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("plain", {}),
        ("plain", {"static": True}),
        ("accumulate", {}),
        ("clip", {}),
        ("twice", {}),
        ("twice", {"cap": 100}),  # one bucket, which is the last
        ("own", {}),  # a caller uses the optimizer's own step
    ],
)
def test_a_sum_that_comes_as_late_as_it_may_changes_nothing(monkeypatch, way, options):
    """Nothing reads or adds to a gradient before its sum is there."""
    expected = steps(way, False, monkeypatch, **options)
    found = steps(way, True, monkeypatch, **options)

    assert bool((expected == found).all())


@pytest.mark.usefixtures("alone")
def test_gradients_that_are_copied_out_are_rejected():
    """DDP's default would train on gradients that were never added up."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import SGD

    from rocmlab.training.overlap import Overlap

    model = DistributedDataParallel(nn.Linear(2, 2))
    with pytest.raises(RocmlabError, match="gradient_as_bucket_view=True"):
        Overlap(model, SGD(model.parameters()))
