"""What a user chooses for a lab: the CPU, GPUs of its own, or GPUs that each kernel leases for itself."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocmlab.base import formatting
from rocmlab.base.errors import RocmlabError

CPU, PER_KERNEL = "cpu", "kernels"
FIELD = "gpus"
VARIABLE = "ROCMLAB_HUB_GPUS"  # of the lab: `cpu`, `kernels`, or the locks of its GPUs with commas


@dataclass(frozen=True)
class Gpu:
    """One GPU as the form shows it."""

    label: str
    holder: str | None  # who has it; None: it is free
    since: str | None = None  # UTC
    simulated: bool = False


def possible(count: int) -> tuple[str, ...]:
    """Return what can be chosen on a machine with that number of GPUs, the default first."""
    return (PER_KERNEL, CPU, *map(str, range(1, count + 1))) if count else (CPU,)


def parse(options: Mapping[str, object], count: int) -> str:
    """Return what a user has chosen, by the options of a start, which a program may have sent.

    Raises:
        RocmlabError: it is none of those that are possible.
    """
    found = options.get(FIELD)
    if isinstance(found, (list, tuple)):  # as a form sends it
        found = found[0] if found else None
    text = possible(count)[0] if found in (None, "") else str(found)
    if text not in possible(count):
        why = f"this machine has {count} GPUs, so it is one of: {', '.join(possible(count))}"
        raise RocmlabError(f"gpus={text[:20]} cannot be chosen", why, "choose again on the page of the start")
    return text


def wanted(choice: str) -> int:
    """Return how many GPUs a lab itself holds."""
    return int(choice) if choice.isdigit() else 0


def title(choice: str, count: int) -> str:
    """Return what a choice means."""
    if choice == CPU:
        return "CPU"
    if choice == PER_KERNEL:
        return "lab only: each kernel leases the GPUs that it needs, and returns them at its end"
    number = int(choice)
    return f"{'all ' if number == count > 1 else ''}{formatting.plural(number, 'GPU')} for as long as the lab runs"


def form(gpus: Sequence[Gpu]) -> str:
    """Return the form of the start page: what can be chosen, what is free, and who has the rest."""
    parts = []
    for position, choice in enumerate(possible(len(gpus))):
        checked = " checked" if position == 0 else ""
        text = html.escape(title(choice, len(gpus)))
        parts.append(
            f'<div class="radio"><label><input type="radio" name="{FIELD}" value="{choice}"{checked}> '
            f"{text}</label></div>"
        )
    if not gpus:
        return "".join(parts)
    free = sum(gpu.holder is None for gpu in gpus)
    rows = "".join(f"<li>{html.escape(gpu.label)}{' (SIMULATED)' * gpu.simulated}: {_state(gpu)}</li>" for gpu in gpus)
    note = "A lab that asks for more GPUs than are free waits, in the order of the requests."
    return f"{''.join(parts)}<p>{free} of {len(gpus)} GPUs free. {note}</p><ul>{rows}</ul>"


def _state(gpu: Gpu) -> str:
    if gpu.holder is None:
        return "free"
    since = f", since {html.escape(gpu.since)}" if gpu.since else ""
    return f"leased to {html.escape(gpu.holder)}{since}"
