"""What the notebooks 01, 02, 06, 07 and 08 recorded in earlier runs of the share, as results of `comparison`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rocmlab.benchmarking.comparison import Result

log = logging.getLogger("rocmlab")

MAX_RUNS = 50  # runs that are read
MAX_BYTES = 64_000_000  # of a results.json
FC_PARAMETERS, UNET_PARAMETERS = 669_706, 20_886_706  # other networks take another time

Json = Mapping[str, Any]


def earlier(runs: Path) -> tuple[list[Result], list[str]]:
    """Return what earlier runs recorded, and what of it cannot be compared, with the reason.

    Short runs (`quick`) are omitted: the first epoch, which compiles, is in their times.
    """
    results: list[Result] = []
    omitted: list[str] = []
    for path in sorted(runs.glob("*/results.json"), key=lambda one: one.parent.name, reverse=True)[:MAX_RUNS]:
        for job in _jobs(path):
            try:
                _add(job, path.parent.name, results, omitted)
            except (ValueError, KeyError, TypeError, AttributeError) as err:  # a record of another version
                log.debug("nothing from a job of %s: %s: %s", path, type(err).__name__, err)
    return results, omitted


def _jobs(path: Path) -> list[Json]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        return list(json.loads(path.read_text(encoding="utf-8"))["jobs"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as err:
        log.debug("nothing from %s: %s: %s", path, type(err).__name__, err)
        return []


def _add(job: Json, run: str, results: list[Result], omitted: list[str]) -> None:
    recorded = job["recorded"]
    reader = READERS.get(recorded.get("workload"))
    if reader is None or job["status"] != "ok":
        return
    if job["simulated"] or recorded.get("simulated") or recorded["device"].get("simulated"):
        omitted.append(f"{run}, {job['name']}: simulated, which is no measure of speed")
        return
    if {**job.get("defaults", {}), **job["parameters"]}.get("quick"):
        omitted.append(f"{run}, {job['name']}: quick, so that compiling may be part of the times")
        return
    results += reader(recorded, {"source": run, "measured": str(job.get("started") or "")[:10]})


def _fc(recorded: Json, where: Json) -> Iterator[Result]:
    if recorded["parameters"] == FC_PARAMETERS and recorded["epochs"] > 1:
        yield from _ways(recorded, where, "fc", f"batch {recorded['batch_size']}", recorded["batch_size"])


def _cnn(recorded: Json, where: Json) -> Iterator[Result]:
    training = recorded["training"]
    if training["epochs"] > 1:
        kind = {"adadelta": ("cnn_backends", "Adadelta"), "rmsprop": ("cnn_devices", "RMSprop")}[training["optimizer"]]
        batch = training["batch_size"]
        old = {"resident": training.get("resident", True)}
        yield from _ways({**old, **recorded}, where, kind[0], f"{kind[1]}, batch {batch}", batch)


def _ways(recorded: Json, where: Json, table: str, variant: str, batch: int) -> Iterator[Result]:
    """Yield `fit_resident` and, where it was measured, `fit`; an older record has one of the two."""
    own = "fit_resident" if recorded.get("resident", True) else "fit"
    for name, method in (("microseconds_per_sample", own), ("fit_microseconds_per_sample", "fit")):
        is_first_epoch = name.startswith("fit_") and recorded.get("fit_epochs") == 1  # which compiles
        if recorded.get(name) and not is_first_epoch:
            yield _result(recorded, where, table, method, variant, 1e-6 * recorded[name], batch)


def _unet(recorded: Json, where: Json) -> Iterator[Result]:
    if recorded["size"] == 512 and recorded["parameters"] != UNET_PARAMETERS:
        return
    settings = f"{recorded['size']} px, batch {recorded['batch_size']}"
    precisions = recorded["milliseconds_per_picture"]
    for precision, milliseconds in precisions.items():
        variant = f"{precision}, {settings}"
        yield _result(recorded, where, "unet", "fit_resident", variant, 1e-3 * milliseconds, recorded["batch_size"])
    if milliseconds := recorded.get("fit_milliseconds_per_picture"):
        variant = f"{next(iter(precisions))}, {settings}"
        yield _result(recorded, where, "unet", "fit", variant, 1e-3 * milliseconds, recorded["batch_size"])


def _bert(recorded: Json, where: Json) -> Iterator[Result]:
    """Yield the steps of both ways; rows are padded to the longest of a batch there, not to 512 tokens."""
    batch = recorded["settings"]["batch"]
    for way, kinds in (recorded.get("step_milliseconds") or {}).items():
        weights = {"full": "all weights", "frozen": "head only"}[way]
        variant = f"{weights}, batch {batch}, padded by batch, {recorded['model']}"
        for kind, milliseconds in kinds.items():
            on = {**recorded, "device": _device(recorded, kind)}
            yield _result(on, where, "bert_training", "loop", variant, 1e-3 * milliseconds / batch, batch)


def _batches(recorded: Json, where: Json) -> Iterator[Result]:
    usual = recorded["model"].startswith("bert-base") and recorded["data"] == "trec"
    suffix = "" if usual else f", {recorded['model']}, {recorded['data']} questions"
    for side, batches in recorded["seconds_by_batch"].items():
        kind = "cpu" if side == "cpu" else recorded["device"]["backend"]
        on = {**recorded, "device": _device(recorded, kind)}
        for text, seconds in batches.items():
            batch, ordered = int(text), sorted(seconds)
            middle = ordered[len(ordered) // 2] / batch
            spread = (ordered[0] / batch, ordered[-1] / batch)
            yield _result(on, where, "bert_batches", "loop", f"batch {batch}{suffix}", middle, batch, spread)


def _device(recorded: Json, kind: str) -> Json:
    """Return the device that was used if it is of this kind; the name of the CPU next to a GPU is not recorded."""
    used: Json = recorded["device"]
    return used if used["backend"] == kind else {"backend": kind, "name": "CPU" if kind == "cpu" else kind}


def _result(recorded: Json, where: Json, table: str, *values: Any) -> Result:  # noqa: ANN401  as Result has them
    """Return a result of the recorded device and framework; `values` are those of `Result` from `method` on."""
    device = recorded["device"]
    return Result(table, device["name"], device["backend"], recorded["framework"], *values, **where)


READERS: dict[object, Callable[[Json, Json], Iterator[Result]]] = {
    "mnist_fc": _fc,
    "mnist_cnn": _cnn,
    "segmentation_unet": _unet,
    "bert_trec": _bert,
    "bert_inference": _batches,
}
