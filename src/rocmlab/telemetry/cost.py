"""What some work cost, from readings taken while it ran: as numbers, as one line, and as a small chart."""

from __future__ import annotations

import html
from dataclasses import dataclass

from rocmlab.base import formatting
from rocmlab.devices import recording
from rocmlab.devices.recording import Recording

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 40  # of the chart as text


@dataclass(frozen=True, repr=False)
class Cost:
    """What some work cost. As a text it is one line. Unknown is None, also of several GPUs if it is of one of them.

    Several GPUs are added up, but for percentages: their mean, of throttling the largest. A GPU's numbers are those of
    all that used it; `own_memory_bytes` is this process's.
    """

    wall_seconds: float
    cpu_seconds: float  # of this process, and of its child processes that have exited meanwhile
    cpu_cores: int  # that this process may use
    peak_process_bytes: int | None  # of the host's memory, resident
    where: str  # the GPUs that were read, and how many were not; or that there is none to use
    recording: Recording  # the readings of these GPUs; without one, of this process
    memory: str  # where frameworks allocate: VRAM, or GTT on most APUs
    peak_memory_bytes: float | None
    mean_memory_bytes: float | None
    own_memory_bytes: int | None  # the most that was seen; None: the driver does not list this process
    is_own_estimated: bool  # in a container, where the driver's process ids are other ones
    mean_busy_percent: float | None
    busy_seconds: float | None  # in which kernels ran on the GPUs
    mean_power_watts: float | None
    energy_joules: float | None
    throttled_percent: float | None  # of the time
    throttle_reasons: tuple[str, ...]

    def __str__(self) -> str:
        """Return the line."""
        return " · ".join([elapsed(self.wall_seconds), self.where, *self._of_gpus(), *self._of_process()])

    def _of_gpus(self) -> Iterator[str]:
        if self.peak_memory_bytes is not None:
            own = f"{'about ' * self.is_own_estimated}{formatting.size(self.own_memory_bytes)}"
            own = f" ({own} of this process)" if self.own_memory_bytes is not None else ""
            mean = formatting.size(self.mean_memory_bytes)
            yield f"{self.memory} peak {formatting.size(self.peak_memory_bytes)}{own}, mean {mean}"
        if self.mean_busy_percent is not None:
            yield f"busy {self.mean_busy_percent:.0f} %, {elapsed(self.busy_seconds)} of GPU time"
        watts = "" if self.mean_power_watts is None else f"{self.mean_power_watts:.0f} W"
        if power := ", ".join(filter(None, (watts, formatting.energy(self.energy_joules)))):
            yield power
        if self.throttled_percent is not None:
            share = f"throttled {self.throttled_percent:.0f} % of the time: {', '.join(self.throttle_reasons)}"
            yield share if self.throttle_reasons else "not throttled"

    def _of_process(self) -> Iterator[str]:
        share = 100 * self.cpu_seconds / max(self.wall_seconds, 1e-9) / self.cpu_cores
        cores = f"{self.cpu_cores} core{'s' * (self.cpu_cores > 1)}"
        yield f"CPU {elapsed(self.cpu_seconds)}, {share:.0f} % of {cores}"
        if self.peak_process_bytes is not None:
            yield f"process memory peak {formatting.size(self.peak_process_bytes)}"

    def __repr__(self) -> str:
        """Return the line, and below it how busy each device was over time."""
        lines = [str(self)]
        for device, samples in self.recording.samples.items():
            if len(busy := [value for _, value in recording.series(samples, "busy_percent")]) > 1:
                lines.append(f"{_bars(busy)}  busy, 0 to 100 %: {self.recording.devices[device]['name']}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the line, and the chart as SVG."""
        from rocmlab.devices import recording_plot

        chart = recording_plot.draw(self.recording, self.where) or ""
        labels = recording_plot.legend(self.recording) if chart and len(self.recording.devices) > 1 else []
        legend = "".join(f'<br><span style="color:{colour}">■</span> {html.escape(name)}' for colour, name in labels)
        return f"<div><code>{html.escape(str(self))}</code><br>{chart}{legend}</div>"


def gpu_totals(kept: Recording) -> dict[str, Any]:
    """Return what `Cost` has of the GPUs of a recording, whose memory is under `vram_used_bytes`."""
    each = recording.summarise(kept)
    throttling = [_throttled(samples) for samples in kept.samples.values()]
    shares = [share for share, _ in throttling if share is not None]
    busy = _total(summary.mean_busy_percent for summary in each)
    means = (recording.integral(recording.series(one, "vram_used_bytes")).mean for one in kept.samples.values())
    return {
        "peak_memory_bytes": _total(summary.peak_vram_bytes for summary in each),
        "mean_memory_bytes": _total(means),
        "mean_busy_percent": None if busy is None else busy / len(each),
        "mean_power_watts": _total(summary.mean_power_watts for summary in each),
        "energy_joules": _total(summary.energy_joules for summary in each),
        "throttled_percent": max(shares, default=None),
        "throttle_reasons": tuple(sorted({reason for _, found in throttling for reason in found})),
    }


def _throttled(samples: Sequence[Mapping[str, Any]]) -> tuple[float | None, set[str]]:
    """Return for which share of the time a GPU throttled, in percent, and why."""
    known = [(one["time_seconds"], one["throttle_reasons"]) for one in samples if "throttle_reasons" in one]
    share = recording.integral([(moment, 100.0 * bool(reasons)) for moment, reasons in known]).mean
    return share, {reason for _, reasons in known for reason in reasons}


def _total(values: Iterable[float | None]) -> float | None:
    """Add up; None if one is unknown, or there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None


def elapsed(seconds: float | None) -> str:
    """Return a time as `27 ms` or `4.2 s`; empty if unknown."""
    return f"{seconds * 1e3:.0f} ms" if seconds is not None and seconds < 1 else formatting.duration(seconds)


def _bars(percents: Sequence[float]) -> str:
    step = -(-len(percents) // WIDTH)
    parts = [percents[first : first + step] for first in range(0, len(percents), step)]
    return "".join(BARS[min(len(BARS) - 1, int(sum(part) / len(part) / 100 * len(BARS)))] for part in parts)
