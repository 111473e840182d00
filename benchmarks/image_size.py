"""Fail where our own layers of the lab's image, without the frameworks and the base, are larger than planned.

For releases: `PYTHONPATH=src python3 -m benchmarks.image_size` after `make build`.
"""

from __future__ import annotations

import json
import sys

from benchmarks.start import layer_sizes
from rocmlab.stack import project
from rocmlab.stack.docker import DockerLab

# 335 MB were measured for the CPU; a base with a TensorFlow of its own gets more packages.
BUDGETS_MB = {"cpu": 400, "slim": 400, "cuda": 700, "rocm": 700, "debian": 700}


def excess(kind: str, image: str, sizes: dict[str, float]) -> str:
    """Return the error of an image with too large layers; empty: it keeps to the plan."""
    budget = BUDGETS_MB[kind]
    if sizes["layers_mb"] <= budget:
        return ""
    return (
        f"error: the layers of {image} have {sizes['layers_mb']:.0f} MB\n"
        f"  why: {budget} MB are planned for an image of the kind {kind}\n"
        f"  fix: docker history {image} shows the layers; or change BUDGETS_MB in benchmarks/image_size.py"
    )


def main() -> int:
    """Print the sizes in MB, and return the exit code."""
    lab = project.reopen(project.find()).lab
    if not isinstance(lab, DockerLab):
        print("error: the lab has no image of Docker", file=sys.stderr)
        return 2
    sizes = layer_sizes(lab)
    print(json.dumps({"image": lab.image, "kind": lab.kind, "budget_mb": BUDGETS_MB[lab.kind], **sizes}))
    if found := excess(lab.kind, lab.image, sizes):
        print(found, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
