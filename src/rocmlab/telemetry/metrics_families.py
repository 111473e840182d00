"""Families of metrics while they are filled: unknown values stay away, labels are safe, no series comes twice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

Labels = Mapping[str, object]  # None and the empty text are no label
LABEL_LIMIT = 200  # characters of a label's value: a notebook's path may be longer, and each series carries it
UNITS = ("ratio", "bytes", "watts", "celsius", "hertz", "joules", "volts", "seconds", "lanes")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def label_text(value: object) -> str:
    """Return what a label may hold of any text: valid UTF-8 without control characters, of a bounded length.

    Quotes, backslashes and line feeds stay: the exposition escapes them. None becomes the empty text, which to
    Prometheus is the same as no label.
    """
    if value is None:
        return ""
    text = CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(value)).encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= LABEL_LIMIT else text[: LABEL_LIMIT - 1] + "…"


@dataclass
class _Family:
    kind: str  # gauge, counter or info
    meaning: str
    rows: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)  # by labels


class Families:
    """Metric families in the order in which they were first named."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def gauge(self, name: str, meaning: str, labels: Labels, value: float | None) -> None:
        """Add one series of a gauge; nothing where the value is unknown."""
        self._add("gauge", name, meaning, labels, value)

    def counter(self, name: str, meaning: str, labels: Labels, value: float | None) -> None:
        """Add one series of a counter, whose name ends with `_total`; nothing where the value is unknown."""
        self._add("counter", name.removesuffix("_total"), meaning, labels, value)

    def info(self, name: str, meaning: str, labels: Labels) -> None:
        """Add what is worth knowing as labels of the constant 1; the name is exposed with `_info` behind it."""
        self._add("info", name.removesuffix("_info"), meaning, labels, 1.0)

    def _add(self, kind: str, name: str, meaning: str, labels: Labels, value: float | None) -> None:
        if value is None:
            return
        safe = tuple((label, text) for label, given in labels.items() if (text := label_text(given)))
        family = self._families.setdefault(name, _Family(kind, meaning))
        family.rows.setdefault(tuple(sorted(safe)), float(value))

    def collect(self) -> Iterator[Metric]:
        """Yield them as prometheus_client's own families; this makes the object one of its custom collectors."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        for name, family in self._families.items():
            names = sorted({label for labels in family.rows for label, _ in labels})
            unit = next((unit for unit in UNITS if name.endswith(f"_{unit}")), "")
            for_gauge = family.kind == "gauge"
            if family.kind == "info":
                info = InfoMetricFamily(name, family.meaning)
                for labels in family.rows:
                    info.add_metric([], dict(labels))
                yield info
                continue
            metric = (GaugeMetricFamily if for_gauge else CounterMetricFamily)(
                name, family.meaning, labels=names, unit=unit
            )
            for labels, value in family.rows.items():
                known = dict(labels)
                metric.add_metric([known.get(label, "") for label in names], value)
            yield metric
