"""Fail where the lab's image is larger than planned: our own layers of it, or all of it.

For releases: `PYTHONPATH=src python3 -m benchmarks.image_size` after `make build`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

from benchmarks.start import layer_sizes
from rocmlab.stack import project
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.image import NEEDED_BYTES


@dataclass(frozen=True)
class Budget:
    """What an image may have, in MB on the disk."""

    layers_mb: float  # ours, without the frameworks and the base
    total_mb: float  # with both; where it was not measured, the disk that `make up` says it needs
    is_measured: bool = False


def _announced(kind: str) -> float:
    return NEEDED_BYTES[kind] / 1e6


# The CPU's was measured on Debian 12 (2026-11-25): 337 MB of 5,035 MB. With its own TensorFlow a base gets more.
BUDGETS = {
    "cpu": Budget(400, 5500, is_measured=True),
    "slim": Budget(400, _announced("slim")),
    "cuda": Budget(700, _announced("cuda")),
    "rocm": Budget(700, _announced("rocm")),
    "debian": Budget(700, _announced("debian")),
}


def excess(kind: str, image: str, sizes: dict[str, float]) -> str:
    """Return the error of an image that is too large; empty: it keeps to the plan."""
    budget, total = BUDGETS[kind], sum(sizes.values())
    found = [("the layers of ", sizes["layers_mb"], budget.layers_mb), ("", total, budget.total_mb)]
    for what, size, planned in found:
        if size > planned:
            return (
                f"error: {what}{image} {'have' if what else 'has'} {size:.0f} MB\n"
                f"  why: {planned:.0f} MB are planned for an image of the kind {kind}\n"
                f"  fix: docker history {image} shows the layers; or change BUDGETS in benchmarks/image_size.py"
            )
    return ""


def main() -> int:
    """Print the sizes in MB, and return the exit code."""
    lab = project.reopen(project.find()).lab
    if not isinstance(lab, DockerLab):
        print("error: the lab has no image of Docker", file=sys.stderr)
        return 2
    sizes, budget = layer_sizes(lab), BUDGETS[lab.kind]
    planned = {"budget_layers_mb": budget.layers_mb, "budget_total_mb": budget.total_mb}
    print(json.dumps({"image": lab.image, "kind": lab.kind, **planned, "is_measured": budget.is_measured, **sizes}))
    if found := excess(lab.kind, lab.image, sizes):
        print(found, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
