"""The tables of the original articles for one machine: what was measured here, next to what they published.

A function of data: `of_row` and `of_loop` make Results of what `train_row` and a notebook measured, `recorded` of what
earlier runs recorded; `table` combines them. Nothing that was computed on a simulated device is ever compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rocmlab.benchmarking import rows as tables
from rocmlab.benchmarking.published import PUBLISHED, Published

NOW = "now"
PLAIN = ("fit", "loop")  # the framework's usual way, which the articles used: Keras' `fit`, a loop of PyTorch


@dataclass(frozen=True)
class Table:
    """One experiment of an article."""

    title: str
    samples: int  # per epoch there; `seconds_per_epoch` is for that number, computed from the time per sample


TABLES = {
    "fc": Table("Dense network on MNIST, per device (2019)", 60_000),
    "cnn_backends": Table("Convolutional network on MNIST, per backend (2019)", 60_000),
    "cnn_devices": Table("Convolutional network on MNIST, CPU and GPU, 50 epochs (2021)", 60_000),
    "unet": Table("U-Net, CPU and GPU, float32 and mixed precision (2021)", 500),
    "bert_training": Table("BERT, all weights or the head only (2022)", 1_000),
    "bert_batches": Table("BERT, inference by batch size (2022)", 1_000),
}
WORKLOADS = {  # of `train`: table and variant
    "mnist_fc": ("fc", "batch {batch_size}"),
    "mnist_cnn": ("cnn_backends", "Adadelta, batch {batch_size}"),
    "mnist_cnn_rmsprop": ("cnn_devices", "RMSprop, batch {batch_size}"),
    "unet": ("unet", "float32, {size} px, batch {batch_size}"),
    "unet_mixed": ("unet", "mixed_float16, {size} px, batch {batch_size}"),
}


@dataclass(frozen=True)
class Result:
    """How long one way takes for a sample, on one device of this machine."""

    table: str
    device: str  # the product, as the framework or the driver names it
    kind: str  # rocm, cuda, metal, cpu
    framework: str
    method: str  # fit, fit_resident, loop
    variant: str  # all other settings that change the time
    seconds_per_sample: float  # the median
    batch_size: int
    spread: tuple[float, float] | None = None  # minimum and maximum, in seconds per sample
    joules_per_sample: float | None = None  # of the whole device, idle draw included; None: its power is unknown
    source: str = NOW  # or the run that recorded it
    measured: str = ""  # the day, UTC
    simulated: bool = False

    @property
    def seconds_per_step(self) -> float:
        """Time of one batch."""
        return self.seconds_per_sample * self.batch_size

    @property
    def seconds_per_epoch(self) -> float:
        """Time of as many samples as an epoch of the article has."""
        return self.seconds_per_sample * TABLES[self.table].samples

    @property
    def joules_per_epoch(self) -> float | None:
        """Energy of as many samples; None: unknown."""
        return None if self.joules_per_sample is None else self.joules_per_sample * TABLES[self.table].samples


def of_row(row: Mapping[str, Any], measured: str) -> list[Result]:
    """Return the two results, `fit` and `fit_resident`, of a row of `train_row`; `measured` is the day."""
    table, variant = WORKLOADS[row["workload"]]
    found = []
    for method, suffix in (("fit", "_theirs"), ("fit_resident", "")):
        steps = [seconds / row["samples"] * row["batch_size"] for seconds in row[f"seconds{suffix}"]]
        result = of_loop(table, row["device"], variant.format(**row), row["batch_size"], steps, measured)
        watts = row.get(f"watts{suffix}")
        joules = None if watts is None else watts * result.seconds_per_sample
        found.append(replace(result, framework=row["framework"], method=method, joules_per_sample=joules))
    return found


def of_loop(
    table: str, device: Mapping[str, Any], variant: str, batch_size: int, seconds: Sequence[float], measured: str
) -> Result:
    """Return the result of a plain loop of PyTorch: `seconds` of each step, with the device as `placement` has it."""
    times = [one / batch_size for one in seconds]
    return Result(
        table=table,
        device=device["name"],
        kind=device["backend"],
        framework="torch",
        method="loop",
        variant=variant,
        seconds_per_sample=median(times),
        batch_size=batch_size,
        spread=(min(times), max(times)) if len(times) > 1 else None,
        measured=measured,
        simulated=bool(device.get("simulated")),
    )


def newest(results: Sequence[Result]) -> list[Result]:
    """Return the results that may be compared: no simulated ones, of equal settings the last measured one.

    What was measured now and what earlier runs recorded are kept apart.
    """
    found: dict[tuple[object, ...], Result] = {}
    for one in sorted(results, key=lambda result: result.measured):
        if not one.simulated:
            found[one.table, one.device, one.framework, one.method, one.variant, one.source == NOW] = one
    return list(found.values())


def ratio(result: Result, results: Sequence[Result], **other: str) -> float | None:
    """Return how many times as fast a result is as another one that differs in nothing but `other`.

    `ratio(gpu, all, kind="cpu")` compares with the CPU, `ratio(one, all, method="fit")` with `fit`. None: no such
    result, or it is the result itself. What was measured in the same run is preferred.
    """
    wanted = replace(result, **other)  # type: ignore[arg-type]  # names of fields that are texts
    if wanted == result or result.simulated:
        return None
    names = ["table", "kind", "framework", "method", "variant"] + ([] if "kind" in other else ["device"])
    alike = [
        one
        for one in results
        if not one.simulated and all(getattr(one, name) == getattr(wanted, name) for name in names)
    ]
    alike.sort(key=lambda one: (one.source == result.source, one.measured))
    return alike[-1].seconds_per_sample / result.seconds_per_sample if alike else None


def against_published(result: Result, published: Sequence[Published] = PUBLISHED) -> dict[str, float]:
    """Return how many times as fast a result is as the articles' devices with the same settings, by year and hardware.

    Empty for everything but the framework's usual way: the articles used that alone.
    """
    if result.method not in PLAIN or result.simulated:
        return {}
    return {
        one.label: one.seconds_per_sample / result.seconds_per_sample
        for one in published
        if one.seconds_per_sample and (one.table, one.variant) == (result.table, result.variant)
    }


def table(name: str, results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the rows of one article's table, as JSON: this machine's, then those that were published.

    Args:
        name: of `TABLES`.
        results: of all tables; those of others are omitted.
    """
    known = newest([one for one in results if one.table == name])
    known.sort(
        key=lambda one: (one.variant, one.kind == "cpu", one.device, one.framework, one.method, one.source != NOW)
    )
    return [_row(one, known) for one in known] + [_published(one) for one in PUBLISHED if one.table == name]


def _row(one: Result, known: Sequence[Result]) -> dict[str, Any]:
    of_float32 = one.variant.replace("mixed_float16", "float32")
    return {
        "device": one.device,
        "kind": one.kind,
        "framework": one.framework,
        "method": one.method,
        "settings": one.variant,
        "microseconds_per_sample": 1e6 * one.seconds_per_sample,
        "spread_microseconds": None if one.spread is None else [1e6 * value for value in one.spread],
        "milliseconds_per_step": 1e3 * one.seconds_per_step,
        "seconds_per_epoch": one.seconds_per_epoch,
        "hours_per_100000_steps": 1e5 * one.seconds_per_step / 3600,
        "hours_per_100000_samples": 1e5 * one.seconds_per_sample / 3600,
        "joules_per_epoch": one.joules_per_epoch,
        "times_its_cpu": ratio(one, known, kind="cpu"),
        "times_tensorflow_on_the_cpu": ratio(one, known, kind="cpu", framework="tensorflow"),
        "times_fit": ratio(one, known, method="fit"),
        "times_float32": ratio(one, known, variant=of_float32),
        "times_published": against_published(one),
        "measured": one.measured,
        "source": one.source,
        "published": False,
    }


def _published(one: Published) -> dict[str, Any]:
    seconds = one.seconds_per_sample
    return {
        "device": one.label,
        "framework": one.stack,
        "method": "published",
        "settings": one.variant,
        "microseconds_per_sample": None if seconds is None else 1e6 * seconds,
        "seconds_per_epoch": None if seconds is None else seconds * TABLES[one.table].samples,
        "note": one.note,
        "measured": str(one.year),
        "source": "article",
        "published": True,
    }


def markdown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Return rows of `table` as a table of Markdown, with these columns: key → title."""
    return tables.markdown([*columns.values()], [[_cell(row, key) for key in columns] for row in rows])


def _cell(row: Mapping[str, Any], key: str) -> object:
    if key == "times_published":
        times = row.get(key) or {}
        return "; ".join(f"{tables.text(one)} x {name}" for name, one in times.items()) or row.get("note")
    if key == "microseconds_per_sample" and row.get("spread_microseconds"):
        return f"{tables.text(row[key])} ({tables.span(row['spread_microseconds'])})"
    return row.get(key)


def every(results: Sequence[Result]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield all tables that have a result of this machine, by name."""
    for name in TABLES:
        if any(one.table == name and not one.simulated for one in results):
            yield name, table(name, results)
