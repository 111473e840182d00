"""Data sets as NumPy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocmlab.training.datasets import formats
from rocmlab.training.datasets.cache import Progress, fetch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def mnist(share: Path | None = None, progress: Progress | None = None) -> tuple[Pair, Pair]:
    """Return the handwritten digits as `(x_train, y_train), (x_test, y_test)`.

    Images are uint8 (60000, 28, 28) and (10000, 28, 28), labels uint8 (60000,) and (10000,).
    """
    return _load("mnist", share, progress)


def fashion_mnist(share: Path | None = None, progress: Progress | None = None) -> tuple[Pair, Pair]:
    """Return the images of clothes; same shapes as `mnist`."""
    return _load("fashion_mnist", share, progress)


def _load(name: str, share: Path | None, progress: Progress | None) -> tuple[Pair, Pair]:
    folder = fetch(name, share=share, progress=progress)
    train, test = (
        (formats.read_idx(folder / f"{part}-images-idx3-ubyte"), formats.read_idx(folder / f"{part}-labels-idx1-ubyte"))
        for part in ("train", "t10k")
    )
    return train, test
