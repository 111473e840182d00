"""What the original articles published, 2019 to 2022: the only place of these numbers that a program compares with.

Hardware and software were different then, so these numbers are never a limit. All of them were measured with the
framework's usual way to train, so they are compared with that alone (`comparison.PLAIN`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MICRO, MILLI = 1e-6, 1e-3
KERAS_2 = "called a step there: Keras 2 counted samples"
UNKNOWN = "RMSprop, batch unknown"
UNET = "float32, 512 px, batch 16"
TORCH = "PyTorch 1.12"


@dataclass(frozen=True)
class Published:
    """One number of an article."""

    table: str  # a name of `comparison.TABLES`
    year: int
    device: str
    stack: str
    seconds_per_sample: float | None  # None: the article has a ratio only, or a time whose batch is unknown
    variant: str  # the settings, as in `comparison.Result`; what differs in them is not compared
    note: str = ""

    @property
    def label(self) -> str:
        """Year and hardware, which are shown wherever the number is."""
        return f"{self.device} ({self.year})"

    @property
    def summary(self) -> str:
        """The result in a line: `Tesla K80 (2019), batch 128: 43 µs per sample, …`."""
        micro = (self.seconds_per_sample or 0.0) / MICRO
        time = f"{micro:.0f} µs per sample" if micro < 1000 else f"{micro / 1000:.0f} ms per sample"
        return f"{self.label}, {self.variant}: {', '.join(filter(None, (time if micro else '', self.note)))}"


# By table and year: device, software, seconds per sample, settings, note.
ARTICLES: Mapping[tuple[str, int], Sequence[tuple[Any, ...]]] = {
    ("fc", 2019): (
        ("Radeon RX 480", "TensorFlow 1.12, ROCm 2.1", 47 * MICRO, "batch 128", KERAS_2),
        ("Tesla K80", "TensorFlow 1.12", 43 * MICRO, "batch 128", "10 times as expensive then"),
    ),
    ("cnn_backends", 2019): (
        ("Radeon R9 M380", "PlaidML 0.6.4", 153 * MICRO, "Adadelta, batch 128", "2.78 times its CPU"),
        ("Core i5 3.2 GHz, CPU", "TensorFlow 2.0", 425 * MICRO, "Adadelta, batch 128"),
    ),
    ("cnn_devices", 2021): (
        ("Radeon Pro 560X", "tensorflow-metal 0.2", None, UNKNOWN, "19 ms per step, 2.1 times its CPU, 56 % busy"),
        ("MacBook Pro 2018, CPU", "TensorFlow 2.6", None, UNKNOWN, "40 ms per step"),
    ),
    ("unet", 2021): (
        ("M1, 8 GPU cores", "tensorflow-metal", 328 * MILLI, UNET, "twice its CPU"),
        ("Quadro RTX 6000", "TensorFlow", None, "float32 and mixed, 512 px, batch 16", "10 to 20 times the M1"),
        ("M1 Max", "TensorFlow", None, UNET, "estimated, 2 to 6 times slower than the RTX 6000"),
    ),
    ("bert_training", 2022): (
        ("M1, CPU", TORCH, 45.4 / 32, "all weights, batch 32, 512 tokens"),
        ("M1, GPU", TORCH, 1 / 1.25, "all weights, batch 1, 512 tokens", "stopped after 60 of 1,000 steps"),
        ("M1, CPU", TORCH, 32.0 / 64, "head only, batch 64, 512 tokens"),
        ("M1, GPU", TORCH, 14.95 / 64, "head only, batch 64, 512 tokens", "2.14 times its CPU"),
        ("M1 Ultra", TORCH, None, "batch 64", "quoted: 7 times its CPU in training, 14 times in inference"),
    ),
    ("bert_batches", 2022): tuple(
        (f"M1, {side}", TORCH, seconds / batch, f"batch {batch}", note)
        for batch, cpu, gpu in ((8, 78.9 * MILLI, 189 * MILLI), (64, 547 * MILLI, 345 * MILLI), (256, 3.69, 1.56))
        for side, seconds, note in (("CPU", cpu, ""), ("GPU", gpu, f"{cpu / gpu:.2f} times its CPU"))
    ),
}
PUBLISHED = tuple(Published(table, year, *row) for (table, year), rows in ARTICLES.items() for row in rows)
