"""The worker processes of a run."""

from __future__ import annotations

from collections.abc import Mapping


class Workers:
    """What the workers of a run have in common."""

    def __init__(self, environment: Mapping[str, str], slots: int) -> None:
        self.environment = dict(environment)  # what each worker inherits, before it is pinned to its devices
        self.slots = slots

    async def close(self) -> None:
        """End what is left."""
