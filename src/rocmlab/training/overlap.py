"""DDP whose optimizer starts while the last gradients are still under way. Only ranks import this: it needs torch.

DDP adds up gradients while backward computes those before them, except the last bucket: nothing is left to compute
meanwhile, and every GPU waits. It is often the largest, for an embedding is the first layer, and one that also makes
the output has its gradient last. Here all other parameters take their step in that time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rocmlab.base.errors import RocmlabError


class Overlap:
    """A DDP model's step, overlapping with the last bucket's sum. The results are those of `optimizer.step()`.

    The optimizer's `step` is called twice, each time for the parameters that have a gradient then. So it must treat
    and count every parameter separately, as those of `torch.optim` except LBFGS do, and hooks on it run twice. Whatever
    needs all gradients calls `wait` first: clipping by their norm, looking at them, a GradScaler's two methods.
    A forward pass, and the optimizer's own `step`, wait by themselves.

    Raises:
        RocmlabError: DDP copies the gradients out of their buckets, before they are added up.
    """

    def __init__(self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
        if not model.gradient_as_bucket_view:
            raise RocmlabError(
                "Overlap cannot work with this model",
                "DDP copies its gradients out of the buckets, before the last ones are added up",
                "DistributedDataParallel(…, gradient_as_bucket_view=True)",
            )
        self.optimizer = optimizer
        self.group = model.process_group
        self._late: list[torch.nn.Parameter] = []  # those of the last bucket
        self._work: dist.Work | None = None  # their sum, not waited for
        model.register_comm_hook(None, self._reduce)
        model.register_forward_pre_hook(lambda *_: self.wait())  # before DDP moves or adds to what is being summed
        optimizer.register_step_pre_hook(lambda *_: self.wait())

    def step(self) -> None:
        """Take one step: first with the gradients that are there, then with the last."""
        work, self._work = self._work, None
        if work is None:  # under `no_sync`, or `wait` was called
            self.optimizer.step()
            return
        late = {id(parameter) for parameter in self._late}
        every = [one for group in self.optimizer.param_groups for one in group["params"]]
        try:
            self._step_without(self._late)
        finally:
            work.wait()
        self._step_without(one for one in every if id(one) not in late)

    def wait(self) -> None:
        """Let what follows on this device see all gradients."""
        work, self._work = self._work, None
        if work is not None:
            work.wait()

    def _step_without(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        kept = [(parameter, parameter.grad) for parameter in parameters]
        try:
            for parameter, _gradient in kept:
                parameter.grad = None  # an optimizer passes those by
            self.optimizer.step()
        finally:
            for parameter, gradient in kept:
                parameter.grad = gradient

    # DDP compares the annotations with its own, as types, which `from __future__ import annotations` makes texts.
    def _reduce(self, state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        gradients = bucket.buffer()
        if dist.get_backend(self.group) == "nccl":  # NCCL and RCCL divide while they add
            work = dist.all_reduce(gradients, dist.ReduceOp.AVG, group=self.group, async_op=True)
        else:
            gradients.mul_(1 / self.group.size())  # as DDP itself does
            work = dist.all_reduce(gradients, group=self.group, async_op=True)
        if not bucket.is_last():
            return work.get_future().then(lambda done: done.value()[0])
        self._work, self._late = work, list(bucket.parameters())
        now: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        now.set_result(gradients)
        return now
