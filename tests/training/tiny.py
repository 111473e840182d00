"""A data set of a few bytes, and a program that fetches it: `python tiny.py SHARE ADDRESS`.

It has MNIST's file names and shapes of three and two images of 2 x 2, with checksums of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path

from rocmlab.training.datasets import DATASETS, fetch
from rocmlab.training.datasets.formats import header
from rocmlab.training.datasets.model import DataFile, Dataset, Source
from rocmlab.training.datasets.sources import Mirror

SHAPES = {
    "train-images-idx3-ubyte": (3, 2, 2),
    "train-labels-idx1-ubyte": (3,),
    "t10k-images-idx3-ubyte": (2, 2, 2),
    "t10k-labels-idx1-ubyte": (2,),
}
VALUES = {
    "train-images-idx3-ubyte": bytes([0, 1, 2, 3, 127, 128, 129, 130, 252, 253, 254, 255]),
    "train-labels-idx1-ubyte": bytes([5, 0, 4]),
    "t10k-images-idx3-ubyte": bytes([7, 6, 5, 4, 3, 2, 1, 0]),
    "t10k-labels-idx1-ubyte": bytes([7, 2]),
}
CONTENT = {name: header(*shape) + VALUES[name] for name, shape in SHAPES.items()}
FILES = tuple(
    DataFile(name, len(content), hashlib.sha256(content).hexdigest(), SHAPES[name]) for name, content in CONTENT.items()
)


def dataset(*sources: Source) -> Dataset:
    """Return the data set `tiny` with these sources."""
    return Dataset("tiny", "five images", "public domain", FILES, sources)


def write_packed(folder: Path) -> Path:
    """Write the files as .gz into a folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENT.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


if __name__ == "__main__":
    DATASETS["tiny"] = dataset(Mirror(sys.argv[2], "the test's mirror"))
    fetch("tiny", share=Path(sys.argv[1]), progress=lambda line: print(line, flush=True))  # noqa: T201
