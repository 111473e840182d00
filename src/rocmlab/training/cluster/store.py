"""Where the workers of a training find each other: keys and values in a Ray actor, which Ray's token protects.

PyTorch's own store is a TCP server on all interfaces without a password: anyone who reaches it can replace a worker.
The values are bytes, and nothing here unpickles them.

Imports Ray and PyTorch: only `pinned` imports this, late.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rocmlab.training.cluster.values import Values

ANSWER_SECONDS = 60.0  # for one answer of the actor, beyond the time that it was requested to wait
_clones: list[dist.Store] = []  # PyTorch keeps only its own part of a store that it requested


def start(node: str) -> Any:  # noqa: ANN401  a Ray actor
    """Start the actor on this node, or on another if there is no place; it ends with the last who knows it."""
    where = NodeAffinitySchedulingStrategy(node, soft=True)
    return ray.remote(num_cpus=0)(Values).options(scheduling_strategy=where).remote()


class RayStore(dist.Store):  # type: ignore[misc]  # PyTorch is missing when types are checked
    """A store of PyTorch on the actor.

    Args:
        values: the actor.
        prefix: of all keys; stores with another prefix share nothing with this one.
    """

    def __init__(self, values: Any, prefix: str) -> None:  # noqa: ANN401
        super().__init__()
        self._actor, self._prefix = values, prefix

    def clone(self) -> dist.Store:
        """Return another store with the same keys."""
        other = RayStore(self._actor, self._prefix)
        other.set_timeout(self.timeout)
        _clones.append(other)
        return other

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._ask("put", self._named(key), _bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value, waiting until it is there; raise DistStoreError when the store's time is up."""
        seconds = self.timeout.total_seconds()
        value = self._ask("get", self._named(key), seconds, seconds=seconds)
        if value is None:
            raise _late([key], seconds)
        return bytes(value)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys have values; raise DistStoreError when the time is up."""
        seconds = (timeout or self.timeout).total_seconds()
        if not self._ask("wait", [self._named(key) for key in keys], seconds, seconds=seconds):
            raise _late(keys, seconds)

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have values."""
        return bool(self._ask("check", [self._named(key) for key in keys]))

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return the sum."""
        return int(self._ask("add", self._named(key), amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if it is the expected one; return the resulting value."""
        return bytes(self._ask("compare_and_put", self._named(key), _bytes(expected), _bytes(desired)))

    def delete_key(self, key: str) -> bool:
        """Remove a value, and return whether it was there."""
        return bool(self._ask("delete", self._named(key)))

    def num_keys(self) -> int:
        """Return how many keys there are, of all prefixes."""
        return int(self._ask("count"))

    def has_extended_api(self) -> bool:
        """Return False: only these functions exist."""
        return False

    def _named(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _ask(self, method: str, *arguments: object, seconds: float = 0.0) -> Any:  # noqa: ANN401
        return ray.get(getattr(self._actor, method).remote(*arguments), timeout=seconds + ANSWER_SECONDS)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _late(keys: Sequence[str], seconds: float) -> Exception:
    error: Exception = dist.DistStoreError(f"no worker has set {', '.join(keys)} within {seconds:g} seconds")
    return error
