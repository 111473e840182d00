"""What rocmlab says of simulated hosts, against AMD's own tools on the same hosts."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import oracle_fields
import oracle_tools
import pytest
from oracle_fields import Difference, Known

from rocmlab.devices import Device, discover, sample
from rocmlab.devices.model import Sample
from rocmlab.simulation import Live

pytestmark = pytest.mark.oracle

TOOLS = ("rocm-smi-6.1", "rocm-smi-6.4", "rocm-smi-7.2", "amd-smi-10.1")
# host: (how it is written, values that each tool must be compared on with success, at least)
HOSTS: dict[str, tuple[dict[str, Any], int]] = {
    "radeon idle": ({"profile": "radeon", "gpus": 2}, 50),
    "radeon busy": ({"profile": "radeon", "gpus": 3, "busy": "0:95,2:40"}, 75),
    "radeon of several kinds": (
        {"products": ("w7900", "rx7800xt", "rx9070xt", "rx7900xt"), "gpus": 4, "busy": "waves", "seed": 7},
        100,
    ),
    "degraded link": ({"gpus": 2, "faults": ("degraded-link:1",)}, 50),
    "instinct idle": ({"profile": "instinct", "gpus": 4}, 100),
    "instinct training": ({"profile": "instinct", "busy": "training"}, 200),
    "mi210": ({"profile": "instinct", "products": ("mi210",), "gpus": 8, "busy": "waves", "seed": 3}, 200),
    "mi210 with errors": ({"profile": "instinct", "products": ("mi210",), "gpus": 2, "faults": ("ecc:0",)}, 50),
    "cpx": ({"profile": "instinct", "partition": "cpx", "gpus": 2, "busy": "0:95"}, 120),
    "cpx on an older driver": (
        {"profile": "instinct", "partition": "cpx", "gpus": 2, "busy": "0:95", "partitions_are_functions": True},
        120,
    ),
    "apu idle": ({"profile": "apu"}, 18),
    "apu busy": ({"profile": "apu", "busy": "90"}, 18),
    "mixed idle": ({"profile": "mixed"}, 65),
    "mixed busy": ({"profile": "mixed", "gpus": 4, "busy": "0:80,1:30,2:100"}, 90),
}
# rocm-smi 6.1 finds partitions by the id that they share; newer drivers give each its own, and it lists the first.
PAIRS = [(host, tool) for host in HOSTS for tool in TOOLS if (host, tool) != ("cpx", "rocm-smi-6.1")]


@dataclass(frozen=True)
class Comparison:
    """What came of comparing one host with one tool."""

    same: int
    both_silent: int
    explained: tuple[Known, ...]
    unexplained: tuple[Difference, ...]


Compare = Callable[[str, str], Comparison]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Compare a host with a tool; each host is written once, and each pair compared once."""
    base = tmp_path_factory.mktemp("hosts")

    @functools.cache
    def tree(host: str) -> Path:
        return Live(base / host.replace(" ", "-"), **HOSTS[host][0]).folder

    return functools.cache(lambda host, tool: _compare(tree(host), tool))


class TestAgreement:
    """Each value that rocmlab prints is the one that AMD's tools print."""

    @pytest.mark.long
    @pytest.mark.parametrize(("host", "tool"), PAIRS)
    def test_every_value_is_the_tools_own(self, compared: Compare, host: str, tool: str) -> None:
        """Values are equal in the tool's notation; each difference has its reason in the one list of them."""
        found = compared(host, tool)

        assert [str(difference) for difference in found.unexplained] == []
        assert found.same >= HOSTS[host][1]

    @pytest.mark.parametrize("tool", TOOLS)
    def test_a_moving_host_is_followed(self, tool: str, tmp_path: Path) -> None:
        """After steps in time the values have changed, and are still those of the tools."""
        live = Live(tmp_path / "host", profile="mixed", busy="waves")
        root = live.folder
        before = [sample(device, root) for device in _gpus(root)]

        for seconds in (5.0, 17.5):
            live.step(seconds)
            found = _compare(root, tool)

            assert [str(difference) for difference in found.unexplained] == []
            assert found.same >= 65
        after = [sample(device, root) for device in _gpus(root)]
        assert all(old.busy_percent != new.busy_percent for old, new in zip(before, after, strict=True))

    def test_a_vanished_card_is_gone_for_all(self, tmp_path: Path) -> None:
        """Tools and rocmlab renumber alike when a card leaves the bus."""
        live = Live(tmp_path / "host", profile="instinct", gpus=4, faults=["vanish:1:10"])
        assert len(_gpus(live.folder)) == 4

        live.step(11.0)

        assert len(_gpus(live.folder)) == 3
        assert [str(found) for tool in TOOLS[:3] for found in _compare(live.folder, tool).unexplained] == []


class TestCompleteness:
    """Nothing is omitted in silence."""

    def test_every_field_has_an_oracle_or_a_reason(self) -> None:
        """Each field of Device and Sample is printed by a tool, or listed with the reason why by none."""
        names = {field.name for field in fields(Device)} | {f"sample.{field.name}" for field in fields(Sample)}
        printed = {*oracle_fields.ROCM_SMI, *oracle_fields.AMD_SMI}

        assert names == printed | set(oracle_fields.NOT_PRINTED)
        assert not printed & set(oracle_fields.NOT_PRINTED)

    @pytest.mark.long("every pair")
    def test_every_known_difference_still_exists(self, compared: Compare) -> None:
        """A tool that has been fixed loses its entry in the list."""
        used = {known for host, tool in PAIRS for known in compared(host, tool).explained}

        assert [known.reason for known in oracle_fields.KNOWN if known not in used] == []

    @pytest.mark.long("every pair")
    def test_every_printed_value_was_seen_equal_somewhere(self, compared: Compare) -> None:
        """No field is only ever unknown or explained away: each was compared with success on some host."""
        for host, tool in PAIRS:
            compared(host, tool)

        assert [
            f"{tool}: {name}"
            for tool in TOOLS
            for name in oracle_fields.fields_of(tool)
            if not SEEN[tool, name] and (tool, name) not in NEVER_EQUAL
        ] == []


class TestIndices:
    """The numbers of GPUs, which differ from each other."""

    def test_hip_index_follows_kfd_and_not_pci(self, tmp_path: Path) -> None:
        """amd-smi's HIP-ID is our index, on hosts where its order is not that of PCI addresses."""
        root = Live(tmp_path / "host", profile="instinct", products=("mi210",), gpus=8).folder
        listed = oracle_tools.run("amd-smi-10.1", root, "list", "-e", "--json")
        ours = {device.pci_address: device.index for device in _gpus(root)}

        assert [gpu["hip_id"] for gpu in listed] == [ours[gpu["bdf"]] for gpu in listed]
        assert [gpu["hip_id"] for gpu in listed] == [3, 2, 0, 1, 7, 6, 4, 5]


SEEN: Counter[tuple[str, str]] = Counter()
ASKS_DRIVER = ("compute_units", "gfx", "driver")
NEVER_EQUAL = {
    *(("amd-smi-10.1", name) for name in ASKS_DRIVER),
    *((tool, "name") for tool in ("rocm-smi-6.4", "rocm-smi-7.2")),
}


def _gpus(root: Path) -> list[Device]:
    return [device for device in discover(root, {}) if device.backend == "rocm"]


def _compare(root: Path, tool: str) -> Comparison:
    read = oracle_tools.rocm_smi if tool.startswith("rocm-smi") else oracle_tools.amd_smi
    printed = read(tool, root)
    devices = {device.kfd_id: device for device in _gpus(root)}
    assert printed.keys() == devices.keys()
    same = both_silent = 0
    explained, unexplained = [], []
    for kfd_id, device in devices.items():
        read_now = {f"sample.{name}": value for name, value in sample(device, root).as_dict().items()}
        for name, difference in _values(tool, device, {**device.as_dict(), **read_now}, printed[kfd_id]):
            if difference.theirs == difference.ours:
                same += difference.ours is not None
                both_silent += difference.ours is None
                SEEN[tool, name] += difference.ours is not None
            elif found := oracle_fields.known(difference):
                explained.append(found)
            else:
                unexplained.append(difference)
    return Comparison(same, both_silent, tuple(explained), tuple(unexplained))


def _values(tool: str, device: Device, ours: dict[str, Any], theirs: dict[str, Any]) -> list[tuple[str, Difference]]:
    found = []
    for name, field in oracle_fields.fields_of(tool).items():
        text = next((str(theirs[key]) for key in field.keys if theirs.get(key) not in oracle_tools.NOTHING), None)
        meant = re.match(field.pattern, text) if text is not None else None
        shown = None if ours[name] is None else field.print(ours[name])
        found.append((name, Difference(tool, name, device, meant[1] if meant else None, shown)))
    return found
