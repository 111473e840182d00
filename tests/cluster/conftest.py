"""The cluster of this session: its tests, in this folder and in tests/security, and their order."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make `shared_cluster` known to every folder."""
    config.pluginmanager.import_plugin("cluster_nodes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what uses the cluster last, for it lasts until the session ends, and two idle nodes need CPU and memory.

    The attack is first: nodes of the other tests die in it, and for half a minute Ray still sends them work.
    """
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    if item.path.parent.name == "security" and item.get_closest_marker("cluster"):
        return 1
    return 2 if "shared_cluster" in getattr(item, "fixturenames", ()) else 0
