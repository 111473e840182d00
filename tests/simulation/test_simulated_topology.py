"""The KFD topology of simulated hosts is one that AMD's runtime accepts; with that runtime: tests/oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocmlab.devices.topology import parse_properties
from rocmlab.simulation import KINDS, PROFILES, write_host

NODES = "sys/devices/virtual/kfd/kfd/topology/nodes"
GPU_CACHES = {9, 10, 11}  # data, instructions, both: with 8, which says that it is a GPU's


def properties(path: Path) -> dict[str, int]:
    """Return the lines of a properties file."""
    return parse_properties((path / "properties").read_text())


@pytest.mark.long
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("fault", [None, *KINDS])
def test_nodes_are_numbered_and_linked_without_a_hole(tmp_path: Path, profile: str, fault: str | None) -> None:
    """Consecutive numbers, links to nodes that are there, and as many of each thing as the node counts."""
    nodes = write_host(tmp_path, profile=profile, faults=[f"{fault}:0"] if fault else []) / NODES
    found = sorted(int(path.name) for path in nodes.iterdir()) if nodes.exists() else []

    assert found == list(range(len(found)))
    assert bool(found) == (fault != "no-driver")
    for number in found:
        node = nodes / str(number)
        counted = properties(node)
        links = [properties(path) for path in (node / "io_links").iterdir()]
        kinds = {properties(path)["type"] for path in (node / "caches").iterdir()}
        assert {link["node_from"] for link in links} <= {number}
        assert {link["node_to"] for link in links} <= set(found) - {number}
        assert counted["io_links_count"] == len(links)
        assert counted["caches_count"] == len(list((node / "caches").iterdir()))
        assert bool(kinds) == (counted["simd_count"] > 0)
        assert kinds <= GPU_CACHES


@pytest.mark.parametrize(("is_older", "ids"), [(False, 16), (True, 2)])
def test_partitions_have_ids_of_their_own_with_newer_drivers(tmp_path: Path, is_older: bool, ids: int) -> None:
    """Older drivers give each partition that of its card."""
    host = write_host(tmp_path, profile="instinct", gpus=2, partition="cpx", partitions_are_functions=is_older)
    found = [properties(path)["unique_id"] for path in (host / NODES).iterdir()]

    assert len(set(found) - {0}) == ids
