"""A torch optimizer as resident steps use it: capturable, with rates a graph reads, spread over the whole GPU."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch

from rocmlab.training.resident import torch_store
from rocmlab.training.resident.torch_store import Untyped

HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # where torch keeps what runs around a step
# Optimizers that treat each element by itself, so that a parameter may be updated in pieces.
ELEMENTWISE = ("SGD", "Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam")


class Scaled:
    """An optimizer with the gradient scaler that float16 needs; give it to `fit_resident` as `optimizer`."""

    def __init__(self, optimizer: Untyped, scaler: Untyped) -> None:
        self.optimizer, self.scaler = optimizer, scaler


class Optimizer:
    """A torch optimizer as the steps use it: capturable where it can be, its learning rates tensors meanwhile."""

    def __init__(self, given: Untyped, device: torch.device) -> None:
        self.optimizer = given.optimizer if isinstance(given, Scaled) else given
        self.scaler = given.scaler if isinstance(given, Scaled) else None
        self._device = device
        self._capturable: list[tuple[Any, Any]] = []  # changed groups, and their value before
        self._rates: list[tuple[Any, Any, torch.Tensor]] = []  # group, the caller's rate, the tensor in its place
        self._wanted = False
        self._pieces: Pieces | None = None
        self._steps = 0

    def uncapturable(self) -> str:
        """Return why its update cannot be captured; empty when it can."""
        name = type(self.optimizer).__name__
        groups = self.optimizer.param_groups
        if any(getattr(self.optimizer, hooks, None) for hooks in HOOKS):
            return f"the optimizer {name} has hooks that run on the host"
        if type(self.optimizer) is not torch.optim.SGD and not all("capturable" in group for group in groups):
            return f"the optimizer {name} keeps numbers on the host (it has no `capturable`)"
        if self.scaler is not None and not all(group.get("fused") for group in groups):
            return f"a gradient scaler reads on the host whether to step; {name}(..., fused=True) does not need that"
        return ""

    def make_capturable(self) -> None:
        """From now on, let steps be captured."""
        self._wanted = True
        self._move()

    def begin(self) -> None:
        """Put the learning rates where a graph reads them again for each step."""
        if not self._wanted:
            return
        self._move()
        tensors = {id(group): tensor for group, _, tensor in self._rates}
        self._rates = []
        for group in self.optimizer.param_groups:
            rate = group["lr"]
            if "capturable" not in group or (isinstance(rate, torch.Tensor) and rate.device.type != "cpu"):
                continue
            tensor = tensors.get(id(group))
            if tensor is None:
                tensor = torch.zeros((), device=self._device)
            tensor.fill_(float(rate))
            self._rates.append((group, rate, tensor))
            group["lr"] = tensor

    def end(self) -> None:
        """Put the learning rates back as the caller had them."""
        for group, rate, tensor in self._rates:
            if group["lr"] is tensor:
                group["lr"] = rate

    def close(self) -> None:
        """Undo `capturable`, so that the optimizer continues outside as it was."""
        for group, before in self._capturable:
            group["capturable"] = before
            if before or group.get("fused"):
                continue
            for parameter in group["params"]:
                state = self.optimizer.state.get(parameter, {})
                if isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].cpu()

    def drop_gradients(self) -> None:
        """Free the gradients; those of a graph are in its memory."""
        self.optimizer.zero_grad(set_to_none=True)

    def forget(self) -> None:
        """Read parameters and state again: something was changed since."""
        self._pieces, self._steps = None, 0

    def step(self, loss: torch.Tensor) -> None:
        """Take the gradients of the loss and update."""
        if self.scaler is None:
            loss.backward()
            if self._pieces is not None:
                self._pieces.step()
                return
            self.optimizer.step()
            self._steps += 1
            if self._wanted and self._steps == 1:  # the state exists now, and nothing is being captured yet
                self._pieces = Pieces.of(self.optimizer)
            return
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _move(self) -> None:
        """Set `capturable` and move the counts of steps to the device: also of new groups and loaded states."""
        for group in self.optimizer.param_groups:
            if not group.get("capturable", True):
                self._capturable.append((group, group["capturable"]))
                group["capturable"] = True
            for parameter in group["params"]:
                state = self.optimizer.state.get(parameter, {})
                if group.get("capturable") and isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].to(self._device)


class Pieces:
    """A twin of an optimizer over pieces of its parameters and state, which are the optimizer's own memory.

    Only counts of steps and the like, one value a parameter, are copied for all but a parameter's first piece; they
    advance alike.
    """

    def __init__(self, optimizer: Untyped, size: int) -> None:
        self._twin, self._size = copy.copy(optimizer), size
        self._twin.__dict__.pop("step", None)  # a scheduler's counter around the original's
        self._twin.state = defaultdict(dict)
        self._twin.param_groups = []
        self._cut: list[tuple[torch.Tensor, list[torch.Tensor]]] = []
        for group in optimizer.param_groups:
            pieces = [piece for value in group["params"] for piece in self._add(value, optimizer.state)]
            self._twin.param_groups.append({**group, "params": pieces})

    @classmethod
    def of(cls, optimizer: Untyped) -> Pieces | None:
        """Return the twin of an optimizer that gains by it; None for any other."""
        values = [value for group in optimizer.param_groups for value in group["params"]]
        size = torch_store.piece_size(values)
        known = type(optimizer) is getattr(torch.optim, type(optimizer).__name__, None)
        scalars = any(value.ndim == 0 for value in values)  # whose state cannot be distinguished from a count of steps
        if not size or scalars or not known or type(optimizer).__name__ not in ELEMENTWISE:
            return None
        return cls(optimizer, size)

    def step(self) -> None:
        """Update the parameters from their gradients."""
        for value, pieces in self._cut:
            grads = [None] * len(pieces) if value.grad is None else value.grad.reshape(-1).split(self._size)
            for piece, grad in zip(pieces, grads, strict=True):
                piece.grad = grad
        self._twin.step()
        for _, pieces in self._cut:
            for piece in pieces:
                piece.grad = None

    def _add(self, value: torch.Tensor, state: Untyped) -> list[torch.Tensor]:
        pieces = torch_store.cut([value], self._size)
        for key, kept in state.get(value, {}).items():
            whole = isinstance(kept, torch.Tensor) and kept.shape == value.shape
            parts = torch_store.cut([kept], self._size) if whole else [kept, *(_copy(kept) for _ in pieces[1:])]
            for piece, part in zip(pieces, parts, strict=True):
                self._twin.state[piece][key] = part
        self._cut.append((value, pieces))
        return pieces


def _copy(kept: Untyped) -> Untyped:
    return kept.clone() if isinstance(kept, torch.Tensor) else kept
