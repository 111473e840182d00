"""Run training steps over an order of rows: many in one CUDA or HIP graph on a GPU, one after another elsewhere.

A graph repeats on the device what the host launched once, so a step costs the device's time alone. What it holds is
fixed: addresses, shapes and every number the host computed. Hence the first steps of a training run uncaptured (they
are its warm-up, on the same side stream, and nothing has to be undone), and constants are made on the device once.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from rocmlab.training.resident import pace
from rocmlab.training.resident.engine import fell_back, summary
from rocmlab.training.resident.torch_store import Untyped

Rows = Any  # a slice of consecutive rows, or a tensor of row numbers, (rows,) int64 on the device
Steps = Callable[[Rows, int], Any]  # steps(rows, batch) trains len(rows) / batch steps and returns what it likes

GROUP = 36  # steps in one graph, at most
WARM_STEPS = 3  # uncaptured steps of full batches before the first capture
MIN_STEPS = 16  # planned steps below which capturing costs more than it saves
SPAN_SECONDS = 0.25  # a graph replaces this much uncaptured time and no more: slow steps gain nothing from large graphs
CONSTANT_ITEMS = 4096  # arrays up to this size are taken as constants


class Loop:
    """Steps one after another."""

    def __init__(self, steps: Steps, batch: int) -> None:
        self._steps, self._batch = steps, batch

    def run(self, order: torch.Tensor | int) -> Untyped:
        """Train on the rows in this order, or on the first N; return what the last steps returned."""
        count = order if isinstance(order, int) else order.numel()
        full = count // self._batch * self._batch
        span = GROUP * self._batch
        result = None
        for start in range(0, full, span):
            stop = min(start + span, full)
            result = self._steps(_rows(order, start, stop), self._batch)
            pace.reach(stop // self._batch)
        return self._steps(_rows(order, full, count), count - full) if full < count else result


class Graphs:
    """Steps captured in graphs; the first ones, and all of them once capturing has failed, run one after another.

    `steps` reads and writes tensors that keep their addresses, and waits for nothing; `planned` counts those of the
    whole training, to see what is worth capturing; `recording` makes steps capturable.
    """

    def __init__(
        self,
        steps: Steps,
        batch: int,
        planned: int,
        device: torch.device,
        recording: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self._steps, self._batch, self._planned, self._device = steps, batch, planned, device
        self._recording, self._constants = recording, Constants(device.type)
        self._stream = torch.cuda.Stream(device)
        self._plain = Loop(steps, batch)
        self._seconds = SPAN_SECONDS  # of an uncaptured step, the shortest seen
        self.group = 0  # steps in the largest graph so far
        self.reason = "" if planned >= MIN_STEPS else f"{planned} steps are too few to be worth a graph"
        self.forget()

    def forget(self) -> None:
        """Drop the graphs: what they read is elsewhere now, or the host's numbers have changed."""
        self._captured: dict[int, _Captured] = {}
        self._warm: dict[int, int] = {}
        self._size = 0  # steps to capture together; 0: to be found out
        self._pool: Any = None

    def run(self, order: torch.Tensor | int) -> Untyped:
        """Train on the rows in this order, or on the first N; return what the last steps returned."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(self._stream):
                if self.reason:
                    return self._plain.run(order)
                return self._run_all(torch.arange(order, device=self._device) if isinstance(order, int) else order)
        finally:  # also after an interrupt, where the weights are read next
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _run_all(self, rows: torch.Tensor) -> Untyped:
        start, count, result = 0, rows.numel(), None
        while start < count:
            size = self._next(count, count - start)
            result = self._run(rows[start : start + size], min(size, self._batch))
            start += size
            pace.reach(start // self._batch)
        return result

    def _next(self, count: int, left: int) -> int:
        """Return how many rows to run next: a group of batches, one batch, or what is left."""
        if left < self._batch or self.reason or self._warm.get(self._batch, 0) < WARM_STEPS:
            return min(left, self._batch)
        if not self._size:
            self._size = group_size(count // self._batch, self._planned, self._seconds)
        return self._size * self._batch if left >= self._size * self._batch else self._batch

    def _run(self, rows: torch.Tensor, batch: int) -> Untyped:
        needed = WARM_STEPS if batch == self._batch else 1
        if not self.reason and self._warm.get(batch, 0) >= needed:
            captured = self._captured.get(rows.numel()) or self._capture(rows.numel(), batch)
            if captured is not None:
                return captured.replay(rows)
        if self.reason:
            return self._steps(rows, batch)
        return self._warm_up(rows, batch)

    def _warm_up(self, rows: torch.Tensor, batch: int) -> Untyped:
        """Train one step uncaptured: real training, and the libraries and the optimizer set themselves up."""
        torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        with self._recording(), self._constants:
            result = self._steps(rows, batch)
        torch.cuda.synchronize(self._device)
        self._seconds = min(self._seconds, time.perf_counter() - began)
        self._warm[batch] = self._warm.get(batch, 0) + 1
        return result

    def _capture(self, count: int, batch: int) -> _Captured | None:
        """Capture the steps over `count` rows; None, and a reason, when they cannot be captured."""
        generator = torch.cuda.default_generators[self._device.index or 0]
        state = generator.clone_state()
        rows = torch.zeros(count, dtype=torch.int64, device=self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            self._constants.check()
            with self._recording(), self._constants:
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream), pace.uncounted():
                    result = self._steps(rows, batch)
                self._constants.check()
        except Exception as error:  # whatever a model does that a graph cannot hold: every kind of error ends here
            generator.graphsafe_set_state(state)  # a failed capture leaves the old state believing that it still runs
            self.forget()
            self.group = 0
            self.reason = f"its steps cannot be captured in a graph ({_cause(error)})"
            fell_back(f"{self.reason}; they run one after another")
            return None
        self._pool = graph.pool()
        self.group = max(self.group, count // batch)
        self._captured[count] = _Captured(graph, rows, result)
        return self._captured[count]


class _Captured:
    """A graph, the rows it reads and what its steps returned: tensors that each replay fills again."""

    def __init__(self, graph: Untyped, rows: torch.Tensor, result: Untyped) -> None:
        self.graph, self.rows, self.result = graph, rows, result

    def replay(self, rows: torch.Tensor) -> Untyped:
        self.rows.copy_(rows)
        self.graph.replay()
        return self.result


class Constants(TorchFunctionMode):  # type: ignore[misc]
    """Make tensors from the host's numbers once and keep them on the device: a graph cannot hold a copy from the host.

    Under it `torch.as_tensor(number or small array)` for a device of this kind returns a tensor made before.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self._made: dict[Any, torch.Tensor] = {}

    def __torch_function__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        if func is torch.as_tensor or func is torch.tensor:
            made = self._constant(func, args, kwargs)
            if made is not None:
                return made
        return func(*args, **kwargs)

    def check(self) -> None:
        """Raise RuntimeError if a constant was changed in place: then a replay would begin with another value."""
        changed = [key for key, tensor in self._made.items() if tensor._version]
        if changed:
            raise RuntimeError(f"the model changes a constant in place: {changed[0][1]!r}")

    def _constant(self, func: Untyped, args: Untyped, kwargs: Untyped) -> torch.Tensor | None:
        data = args[0] if args else kwargs.get("data")
        device = kwargs.get("device")
        value = _hashable(data)
        if value is None or torch.device(device if device is not None else "cpu").type != self._kind:
            return None
        key = (kwargs.get("dtype"), value, str(device))
        made = self._made.get(key)
        if made is None:
            if self._kind == "cuda" and torch.cuda.is_current_stream_capturing():
                # Not seen in the warm-up: a number can be filled in by the graph itself, an array cannot.
                return torch.full((), data, dtype=key[0], device=device) if np.isscalar(data) else None
            made = self._made[key] = func(*args, **kwargs)
        return made.clone() if func is torch.tensor else made


def group_size(steps: int, planned: int, seconds: float) -> int:
    """Return how many of an epoch's steps, of so many planned, to capture together: few launches, little left over."""
    limit = max(1, min(GROUP, steps, planned // 4, round(SPAN_SECONDS / max(seconds, 1e-6))))
    sizes = range(limit, limit // 2, -1)
    return min(sizes, key=lambda size: steps // size + steps % size)


def _rows(order: torch.Tensor | int, start: int, stop: int) -> Rows:
    return slice(start, stop) if isinstance(order, int) else order[start:stop]


def _hashable(data: Untyped) -> Untyped:
    """Return a key for a number, a flat sequence of them or a small array; None for anything else."""
    if isinstance(data, (bool, int, float, np.number)):
        return (type(data).__name__, data)
    if isinstance(data, (list, tuple)) and all(isinstance(item, (bool, int, float)) for item in data):
        return (type(data[0]).__name__ if data else "", tuple(data))
    if isinstance(data, np.ndarray) and data.size <= CONSTANT_ITEMS and data.dtype.hasobject is False:
        return (data.dtype.str, data.shape, data.tobytes())
    return None


def _cause(error: BaseException) -> str:
    """Return in a line why a capture failed, and where: the first error, of which the later ones follow."""
    while error.__context__ is not None:
        error = error.__context__
    ours = (__file__, str(Path(torch.__file__).parent))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{summary(error)}{place}"
