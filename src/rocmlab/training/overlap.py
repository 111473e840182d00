"""DDP whose optimizer starts while the last gradients are still under way. Only ranks import this: it needs torch.

DDP adds up gradients while backward computes those before them, except the last bucket: nothing is left to compute
beside it, and every GPU waits. It is often the largest, for an embedding is the first layer, and one that also makes
the output has its gradient last. Here all other parameters take their step in that time.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Overlap:
    """A DDP model's step, with the last bucket's sum beside it. The numbers are those of `optimizer.step()`.

    The optimizer's `step` is called twice, each time for the parameters that have a gradient then; so it must be one
    that treats every parameter by itself, as those of `torch.optim` but LBFGS do. Whatever needs all gradients
    (clipping by their norm, looking at them) calls `wait` first.
    """

    def __init__(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.group = model.process_group
        # NCCL and RCCL divide while they add; elsewhere that is a pass of its own.
        self.averages = dist.get_backend(self.group) == "nccl"
        self._late: list[torch.nn.Parameter] = []  # those of the last bucket
        self._work: dist.Work | None = None  # their sum, not waited for
        model.register_comm_hook(None, self._reduce)

    def step(self) -> None:
        """Take one step: first with the gradients that are there, then with the last."""
        if self._work is None:  # under `no_sync`, or `wait` was called
            self.optimizer.step()
            return
        late = {id(parameter) for parameter in self._late}
        early = [one for group in self.optimizer.param_groups for one in group["params"] if id(one) not in late]
        self._step_without(self._late)
        self.wait()
        self._step_without(early)

    def wait(self) -> None:
        """Let what follows on this device see all gradients."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def _step_without(self, parameters: list[torch.nn.Parameter]) -> None:
        kept = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None  # an optimizer passes those by
        self.optimizer.step()
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient

    # DDP compares the annotations with its own, as types, which `from __future__ import annotations` makes texts.
    def _reduce(self, state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        gradients = bucket.buffer()
        if bucket.index() == 0:
            self.wait()  # of an earlier backward without a step
        if self.averages:
            work = dist.all_reduce(gradients, dist.ReduceOp.AVG, group=self.group, async_op=True)
        else:
            gradients.div_(self.group.size())
            work = dist.all_reduce(gradients, group=self.group, async_op=True)
        if not bucket.is_last():
            return work.get_future().then(lambda done: done.value()[0])
        self._work, self._late = work, list(bucket.parameters())
        now: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        now.set_result(gradients)
        return now
