"""What an installation changed, as text."""

from __future__ import annotations

import sys

from rocmlab.packages.installing import Outcome
from rocmlab.packages.overlays import Place


def lines(outcome: Outcome, place: Place) -> list[str]:
    """Return what a user should know: what is there now, what it hides, what that breaks."""
    if outcome.waiting:
        what = f"removed from the list of the kernel {place.kernel}; not installed for this image"
        return [f"{what}: {', '.join(outcome.waiting)}", f"  fix: rocmlab packages sync --kernel {place.kernel}"]
    if outcome.prefix is None:
        return [f"the kernel {place.kernel} has no packages of its own any more"]
    changed = ", ".join(f"{name} {version}" for name, version in sorted(outcome.changed.items()))
    found = [f"the kernel {place.kernel} has now: {changed}" if changed else "everything requested is there already"]
    found += [
        f"note: {name} {own} hides the lab's {lab}, for this kernel"
        for name, (lab, own) in sorted(outcome.hides.items())
    ]
    found += [f"WARNING: {line}" for line in outcome.breaks]
    if outcome.breaks:
        found.append(f"  fix: rocmlab packages remove NAME --kernel {place.kernel}, or another version of it")
    found += [f"NOT installed: {text}\n  why: {why}" for text, why in outcome.failed.items()]
    return found


def show(outcome: Outcome, place: Place) -> None:
    """Print it."""
    sys.stdout.write("\n".join(lines(outcome, place)) + "\n")
    sys.stdout.flush()
