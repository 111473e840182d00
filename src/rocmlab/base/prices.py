"""Prices of electricity and of GPU time, which turn energy and GPU time into money. Off unless they are set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rocmlab.base.errors import RocmlabError

PER_KWH, PER_GPU_HOUR = "PRICE_PER_KWH", "PRICE_PER_GPU_HOUR"
JOULES_PER_KWH = 3.6e6
PRICE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) *([A-Za-z]{3}|[€$£¥])")


@dataclass(frozen=True)
class Amount:
    """Money: an estimate, as the prices are."""

    value: float
    currency: str
    is_whole: bool  # False: at least that much, as something of it is not known

    def __str__(self) -> str:
        """Return `about 0.36 EUR`, or `at least 0.36 EUR`."""
        text = f"{self.value:.2f}" if self.value >= 0.1 or not self.value else f"{self.value:.2g}"
        return f"{'about' if self.is_whole else 'at least'} {text} {self.currency}"


@dataclass(frozen=True)
class Prices:
    """At least one of them is known."""

    currency: str
    per_kwh: float | None = None
    per_gpu_hour: float | None = None

    def amount(self, joules: float | None, gpu_seconds: float | None, is_whole: bool = True) -> Amount | None:
        """Return what energy and GPU time cost together; None where nothing of it is known.

        Args:
            joules: None is unknown.
            gpu_seconds: added up over GPUs; None: there was no GPU.
            is_whole: whether the energy is all that was used.
        """
        if gpu_seconds is None:
            return None
        parts = []
        if self.per_kwh is not None:
            parts.append(None if joules is None else joules / JOULES_PER_KWH * self.per_kwh)
            is_whole = is_whole and joules is not None
        else:
            is_whole = True
        if self.per_gpu_hour is not None:
            parts.append(gpu_seconds / 3600 * self.per_gpu_hour)
        known = [part for part in parts if part is not None]
        return Amount(sum(known), self.currency, is_whole) if known else None


def parse(settings: Mapping[str, str]) -> Prices | None:
    """Return the prices; None where none is set.

    Raises:
        RocmlabError: one is malformed, or they are in two currencies.
    """
    found: dict[str, tuple[float, str]] = {}
    for name, example in ((PER_KWH, "0.30 EUR"), (PER_GPU_HOUR, "1.20 EUR")):
        text = settings.get(name, "").strip()
        if not text:
            continue
        match = PRICE.fullmatch(text)
        if match is None:
            why = "a price is a number and a currency: three letters, or one of € $ £ ¥"
            raise RocmlabError(f"{name}={text[:40]!r} is not a price", why, f"make up {name}='{example}'")
        found[name] = float(match[1]), match[2].upper()
    currencies = sorted({currency for _, currency in found.values()})
    if len(currencies) > 1:
        what = f"{PER_KWH} and {PER_GPU_HOUR} are in {' and '.join(currencies)}"
        raise RocmlabError(what, "their amounts are added up", "use one currency for both")
    prices = {name: price for name, (price, _) in found.items()}
    return Prices(currencies[0], prices.get(PER_KWH), prices.get(PER_GPU_HOUR)) if found else None
