"""The scaling report: throughput compared with one device, and how far the losses are apart."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking import rows
from rocmlab.benchmarking.scaling import measures, runs
from rocmlab.benchmarking.scaling.measures import Results
from rocmlab.devices import discover
from rocmlab.training.placement import Description

PARTS = 2  # of the CPU, where there are no two GPUs
THROUGHPUT = "samples/s"
GAP = "nats"  # of a loss


@dataclass(frozen=True)
class Row(rows.Row):
    """One result. For throughput `theirs` is what that many devices would do if each did what one does alone."""

    efficiency: float | None = None  # ours / theirs, as `ratio`; None where it is not a throughput of several GPUs
    losses: tuple[float, ...] | None = None  # of all devices together
    losses_alone: tuple[float, ...] | None = None  # of one device on the same samples
    replicas_equal: bool | None = None


def throughput(name: str, rates: Sequence[float], alone: Sequence[float], count: int) -> Row:
    """Return a row of samples per second on `count` devices, compared with `count` times one device's."""
    ours = statistics.median(rates)
    perfect = count * statistics.median(alone) if alone and count > 1 else None
    efficiency = round(ours / perfect, 4) if perfect else None
    return Row(
        name=name,
        unit=THROUGHPUT,
        ours=round(ours, 1),
        theirs=round(perfect, 1) if perfect else None,
        ratio=efficiency,
        runs=len(rates),
        spread=(round(min(rates), 1), round(max(rates), 1)),
        efficiency=efficiency,
    )


def gap(name: str, together: Sequence[float], alone: Sequence[float], replicas_equal: bool | None) -> Row:
    """Return a row with the largest difference between the losses of all devices together and of one."""
    apart = [abs(one - other) for one, other in zip(together, alone, strict=True)]
    return Row(
        name=name,
        unit=GAP,
        ours=max(apart),
        theirs=None,
        ratio=None,
        runs=len(apart),
        spread=(min(apart), max(apart)),
        losses=tuple(together),
        losses_alone=tuple(alone),
        replicas_equal=replicas_equal,
    )


def ddp_rows(found: dict[int, Results]) -> Iterator[Row]:
    """Yield the rows of DDP: each measure on each number of devices, by the names of the contract.

    What one device does is taken from the same run, where it was measured alternating with all together.
    """
    one_device = {name: one["samples_per_second"] for name, one in found.get(1, {}).items()}
    for count, results in sorted(found.items()):
        alone = {**one_device, **{name: one["alone"] for name, one in results.items() if one.get("alone")}}
        alone["transformer_strong"] = alone.get("transformer_weak", [])
        for name, one in results.items():
            if name.endswith("_equal"):
                short = name.removesuffix("_equal")
                yield gap(f"ddp_{short}_loss_gap_{count}", one["losses"], one["losses_alone"], one["replicas_equal"])
            else:
                # The settings of DDP are compared with the plain network; compiled, one GPU is faster also.
                base = alone.get(name) or ([] if "compile" in name else alone.get("transformer_weak", []))
                yield throughput(f"ddp_{name}_{count}", one["samples_per_second"], base, count)


def keras_rows(found: dict[int, Results]) -> Iterator[Row]:
    """Yield the rows of Keras on JAX."""
    alone = found.get(1, {})
    for count, results in sorted(found.items()):
        for name, one in results.items():
            first = alone.get(name, {})
            if one.get("samples_per_second"):
                base = first.get("samples_per_second", [])
                yield throughput(f"{name}_{count}", one["samples_per_second"], base, count)
            if count > 1 and first.get("losses"):
                yield gap(f"keras_jax_loss_gap_{count}", one["losses"], first["losses"], one["replicas_equal"])


@dataclass(frozen=True)
class Plan:
    """What was requested."""

    size: str = "large"
    blocks: int = 5  # timed blocks of each result
    counts: tuple[int, ...] = ()  # numbers of GPUs; empty: 1, 2, 4, … and all
    is_tuning: bool = False  # also compare the settings of DDP
    frameworks: tuple[str, ...] = ("ddp", "keras")
    time_limit_seconds: float = 300  # of each run


class Report:
    """Runs one framework after the other, and keeps what they found and why something is missing."""

    def __init__(self, plan: Plan, gpus: Sequence[Description]) -> None:
        self.plan, self.gpus = plan, gpus
        self.simulated = len(gpus) < 2
        self.found: dict[str, dict[int, Results]] = {"ddp": {}, "keras": {}}
        self.skipped: dict[str, str] = {}
        self.counts = _counts(plan.counts, len(gpus))
        if self.simulated:
            why = f"PyTorch sees {len(gpus)} GPU{'s' * (len(gpus) != 1)}; two of one kind are needed"
            wanted = ("ddp_transformer_weak_2", "ddp_mnist_128_2", "keras_jax_weak_2")
            self.skipped |= {name: why for name in wanted if name.split("_")[0] in plan.frameworks}

    def run(self) -> None:
        """Measure on each number of devices."""
        for count in self.counts:
            # With DDP the ranks themselves compare the losses with one device, so one part of the CPU shows nothing.
            if "ddp" in self.plan.frameworks and not (self.simulated and count == 1):
                self._try("ddp", count, f"ddp_{count}", self._ddp)
            if "keras" in self.plan.frameworks:
                self._try("keras", count, f"keras_jax_weak_{count}", self._keras)
        if self.plan.is_tuning and "keras" in self.plan.frameworks and not self.simulated:
            for variant in measures.KERAS_VARIANTS:
                for count in (1, max(self.counts)):
                    self._try("keras", count, f"keras_jax_{variant}_{count}", self._keras, variant)

    def _try(self, framework: str, count: int, name: str, run: Callable[..., Results], *more: str) -> None:
        kind = "parts of the CPU (SIMULATED)" if self.simulated else "GPUs"
        sys.stderr.write(f"{name}, {count} {kind}\n")  # progress
        try:
            results = run(count, *more)
        except RocmlabError as err:
            self.skipped[name] = str(err)
            return
        self.skipped |= {f"ddp_{one}_{count}": results[one]["error"] for one in results if "error" in results[one]}
        done = {one: found for one, found in results.items() if "error" not in found}
        self.found[framework].setdefault(count, {}).update(done)

    def _where(self, count: int) -> dict[str, Any]:
        if self.simulated:
            return {"processes": count}
        return {"gpus": [int(one["index"]) for one in self.gpus[:count]]}

    def _ddp(self, count: int) -> Results:
        plan = self.plan
        listed = (
            measures.equality("tiny", is_gpu=False)
            if self.simulated
            else measures.of_one_size(plan.size, plan.blocks, count, plan.is_tuning)
        )
        return runs.ddp(listed, time_limit_seconds=plan.time_limit_seconds, **self._where(count))

    def _keras(self, count: int, variant: str = "") -> Results:
        plan = self.plan
        measure = (
            measures.keras("tiny", 0, is_gpu=False)
            if self.simulated
            else measures.keras(plan.size, plan.blocks, variant=variant, counts=self.counts)
        )
        limit = plan.time_limit_seconds
        if self.simulated or count > 1:
            return {measure["name"]: runs.keras_jax(measure, time_limit_seconds=limit, **self._where(count))}
        # "One GPU" is the mean of all that are measured together, for they differ by a percent.
        numbers = [int(one["index"]) for one in self.gpus[: max(self.counts)]]
        every = [runs.keras_jax(measure, time_limit_seconds=limit, gpus=[number]) for number in numbers]
        blocks = zip(*(one["samples_per_second"] for one in every), strict=True)
        return {measure["name"]: {**every[0], "samples_per_second": [statistics.mean(block) for block in blocks]}}

    def as_dict(self) -> dict[str, Any]:
        """Return the report; its rows are `Row`s."""
        every = [one for results in self.found.values() for part in results.values() for one in part.values()]
        device = f"{len(self.gpus)}x {self.gpus[0]['name']}" if not self.simulated else ""
        return {
            "bench": "multi-gpu",
            "device": device or f"{PARTS} parts of {discover()[-1].name}",
            "simulated": self.simulated,
            "versions": {name: one[name] for name in ("torch", "jax", "keras") for one in every if name in one},
            "rows": [*ddp_rows(self.found["ddp"]), *keras_rows(self.found["keras"])],
            "skipped": self.skipped,
        }


def measure(plan: Plan) -> dict[str, Any]:
    """Measure and return the report: device, simulated, versions, rows, skipped.

    Where PyTorch sees no two GPUs of one kind it measures no speed: two parts of the CPU show that the method is
    right, and the report says `simulated`.

    Raises:
        RocmlabError: more GPUs were requested than there are of one kind, or PyTorch is not installed.
    """
    report = Report(plan, runs.team())
    report.run()
    return report.as_dict()


def _counts(wanted: Sequence[int], gpus: int) -> list[int]:
    """Return one device first, then the largest number: so an interrupted run has the most informative results.

    Raises:
        RocmlabError: more GPUs were requested than there are of one kind.
    """
    if wanted and not 1 <= min(wanted) <= max(wanted) <= max(1, gpus):
        fix = f"choose 1 to {gpus}" if gpus > 1 else "omit --counts: two parts of the CPU show that losses agree"
        raise RocmlabError(f"{max(wanted)} GPUs were requested", f"there are {gpus} of one kind", fix)
    if gpus < 2:
        return [1, PARTS]
    return sorted({1, *(wanted or runs.counts(gpus))}, key=lambda count: (count != 1, -count))
