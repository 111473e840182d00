"""Keys and values for the workers of a training, as a Ray actor holds them: one method for each need of `store`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class Values:
    """Bytes by key; a request that waits for a key is answered when it has a value."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Condition()

    async def put(self, key: str, value: bytes) -> None:
        """Set a value."""
        self._values[key] = value
        await self._notify()

    async def get(self, key: str, seconds: float) -> bytes | None:
        """Return a value, waiting that long until it is there; None: it is still missing."""
        return self._values.get(key) if await self.wait([key], seconds) else None

    async def add(self, key: str, amount: int) -> int:
        """Add to a number, which begins at 0, and return the sum."""
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()  # before anything else can run
        await self._notify()
        return total

    async def compare_and_put(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set a value if it is the expected one, or missing while nothing is expected; return the resulting value."""
        there = self._values.get(key)
        if there == expected or (there is None and not expected):
            self._values[key] = desired
            await self._notify()
            return desired
        return expected if there is None else there

    async def wait(self, keys: Sequence[str], seconds: float) -> bool:
        """Wait that long until all keys have values, and return whether they have."""
        if self._has(keys):
            return True
        async with self._changed:
            try:
                await asyncio.wait_for(self._changed.wait_for(lambda: self._has(keys)), seconds)
            except asyncio.TimeoutError:  # another class than the builtin one in Python 3.10
                return False
        return True

    async def check(self, keys: Sequence[str]) -> bool:
        """Return whether all keys have values."""
        return self._has(keys)

    async def delete(self, key: str) -> bool:
        """Remove a value, and return whether it was there."""
        return self._values.pop(key, None) is not None

    async def count(self) -> int:
        """Return how many keys there are."""
        return len(self._values)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)
