"""Data sets, fetched once into the share, checked by sha256, and never silently synthetic."""

from rocmlab.training.datasets.arrays import fashion_mnist, mnist
from rocmlab.training.datasets.cache import fetch, is_cached
from rocmlab.training.datasets.catalogue import DATASETS

__all__ = ["DATASETS", "fashion_mnist", "fetch", "is_cached", "mnist"]
