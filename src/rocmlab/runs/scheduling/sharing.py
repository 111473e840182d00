"""Sharing out GPUs among several claims, some of which must move because another program has leased theirs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rocmlab.devices import Device
from rocmlab.runs.scheduling.pool import Pool, sets_of

if TYPE_CHECKING:
    from rocmlab.runs.scheduling.placement import Place


def shared_out(claims: Sequence[Place], gpus: Sequence[Device], pool: Pool) -> list[tuple[Device, ...]] | None:
    """Return GPUs for each claim, its own as far as possible; None if they are too few.

    Args:
        claims: oldest first.
        gpus: that no job has.
        pool: which of them nobody claims either.
    """
    # A claim to mixed GPUs is as many claims to one.
    parts = [
        (number, 1 if claim.demand.is_mixed else claim.count)
        for number, claim in enumerate(claims)
        for _ in range(claim.count if claim.demand.is_mixed else 1)
    ]
    hopeless: set[tuple[int, frozenset[Device]]] = set()

    def share(at: int, left: frozenset[Device]) -> list[list[Device]] | None:
        if at == len(parts):
            return []
        if (at, left) in hopeless:
            return None
        number, count = parts[at]
        for option in _preferred(claims[number], count, left, pool):
            rest = share(at + 1, left.difference(option))
            if rest is not None:
                return [option, *rest]
        hopeless.add((at, left))
        return None

    shared = share(0, frozenset(gpus))
    if shared is None:
        return None
    found: list[set[Device]] = [set() for _ in claims]
    for (number, _), option in zip(parts, shared, strict=True):
        found[number].update(option)
    return [tuple(pool.in_order(each)) for each in found]


def _preferred(claim: Place, count: int, gpus: Collection[Device], pool: Pool) -> list[list[Device]]:
    """Return a choice of each product, as they can stand for each other; what the claim has already comes first."""
    own_first = sorted(pool.in_order(gpus), key=lambda gpu: (gpu not in claim.devices, gpu not in pool))
    sets = sets_of(replace(claim.demand, is_mixed=False), own_first)
    options = [each[:count] for each in sets if len(each) >= count]
    return sorted(options, key=lambda option: -len(set(option).intersection(claim.devices)))
