"""What AMD's HIP runtime makes of visibility masks, against what rocmlab says of them, on the same simulated hosts."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import oracle_hip
import pytest
from oracle_hip import MASKS

from rocmlab.devices import discover, visibility
from rocmlab.simulation import write_host

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

HIP, CUDA, ROCR = MASKS
COUNTS = (1, 2, 4, 8)
RANDOM_MASKS = int(os.environ.get("RANDOM_MASKS", "400"))
SEED = os.environ.get("TEST_SEED", "file")
# Single values, with {0} and {1} in place of the UUIDs of the first two GPUs, less their GPU-.
NUMBERS = ("0", "1", "1,0", "3,1", "0,0", "1,0,1", "0,9", "9,0", "9", "4", "7,6,5", "-1", "0,-1,1", "1,-1", "-1,0", "")
SPACES = ("0, 1", " 0", "0 ,1", "0 1", "0;1", "\t1", "1\t")
EMPTY_ENTRIES = ("0,", ",0", "0,,1", ",", " ", "0, ")
NOTATIONS = ("+1", "-0", "01", "010", "0x1", "0X1", "0x", "1x", "1abc", "1.5", "0-1", "1e0")
HUGE = ("99999999999", "2147483648", "4294967296", "4294967297", "9999999999999999999999")
NAMES = ("abc", "abc,1", "0,abc,1", "all", "none", "None", "void", "NoDevFiles", "GPU", "GPU-", "GPU-XX", "GPU-xx")
UUIDS = (
    *("GPU-{1}", "GPU-{0},GPU-{0}", "GPU-{1},GPU-{0}", "GPU-{1},0", "0,GPU-{1}", "{1}", "gpu-{1}", " GPU-{1}"),
    *("GPU-{1} ", "GPU-{1}, GPU-{0}", "GPU-{1:.2}", "GPU-{1:.4}", "GPU-{1:.6}", "GPU-{1}0", "GPU-0000000000000000"),
    *("PU-{1}", "GPU-{1},9,0", "9,GPU-{1}"),
)
VALUES = (*NUMBERS, *SPACES, *EMPTY_ENTRIES, *NOTATIONS, *HUGE, *NAMES, *UUIDS)
# Values of HIP_, CUDA_ and ROCR_VISIBLE_DEVICES together; None is not set.
TOGETHER = (
    *(("0", "1", None), ("1", "", None), ("", "0", None), ("9", "0", None), ("-1", "0", None), ("abc", "1", None)),
    *((None, "", "1"), ("0", None, "1"), ("1", None, "2,3"), ("1,0", None, "2,3"), ("2", None, "2,3"), ("", None, "2")),
    *(("0", None, ""), (None, None, "-1"), ("0", None, "-1"), ("GPU-{1}", None, "1"), ("0", None, "GPU-{1}")),
    *(("GPU-{1}", None, "0"), (None, "1", "2,3"), ("0", "1", "2,3"), ("0,1", "1,0", "3,2"), ("3", None, "3")),
    *(("0", None, ",0"), ("", "", ""), (None, "GPU-{0}", "1,0"), ("1", None, "0,0,1")),
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A host for each number of GPUs; that with eight has another order of HIP than of PCI addresses."""
    base = tmp_path_factory.mktemp("hosts")
    return {
        count: write_host(base / str(count), profile="instinct" if count == 8 else "radeon", gpus=count)
        for count in COUNTS
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the probe is compiled."""
    return tmp_path_factory.mktemp("built")


def filled(value: str, host: Path) -> str:
    """Return a value with the UUIDs of a host's first two GPUs; with one GPU, the second is unknown."""
    ids = [device.unique_id or "" for device in discover(host, {}) if device.backend == "rocm"]
    return value.format(*[*ids, "f" * 16][:2]) if "{" in value else value


def differences(host: Path, built: Path, environments: Sequence[Mapping[str, str]]) -> list[str]:
    """Return where HIP and rocmlab see other GPUs: nothing where they agree."""
    devices = discover(host, {})
    found = []
    for variables, answer in zip(environments, oracle_hip.seen(host, built, environments), strict=True):
        mask = visibility.visible(variables, devices)
        ours = None if mask.error else [gpu.pci_address for gpu in mask.gpus]
        theirs = oracle_hip.addresses(answer)
        if ours != theirs or (not theirs and theirs is not None) != (answer.get("error") == oracle_hip.NO_DEVICE):
            found.append(f"{variables}: HIP {answer}, rocmlab {ours}")
    return found


@pytest.mark.long
@pytest.mark.parametrize("count", COUNTS)
def test_every_kind_of_value_is_read_as_hip_reads_it(hosts: dict[int, Path], built: Path, count: int) -> None:
    """Each value in each variable, and values in several of them, leave the GPUs that HIP sees, in its order."""
    host = hosts[count]
    alone = [{name: value} for name in MASKS for value in VALUES]
    together = [
        {name: value for name, value in zip(MASKS, values, strict=True) if value is not None} for values in TOGETHER
    ]
    environments = [
        {name: filled(value, host) for name, value in variables.items()}
        for variables in ({}, *alone, *together, {"GPU_DEVICE_ORDINAL": "1"}, {"AMD_VISIBLE_DEVICES": "1"})
    ]
    environments += [{name: filled("GPU-{1}", host).upper()} for name in MASKS]

    assert differences(host, built, environments) == []


@pytest.mark.parametrize("count", COUNTS)
def test_random_masks_are_read_as_hip_reads_them(hosts: dict[int, Path], built: Path, count: int) -> None:
    """Entries of every kind, in any number and order, in one to three variables; the seed is that of the run."""
    host = hosts[count]
    chance = random.Random(f"{SEED}/{count}")
    entries = [filled(entry, host) for entry in (*"01234567", *"01234567", *VALUES)]
    environments = []
    for _ in range(RANDOM_MASKS // len(COUNTS)):
        names = chance.sample(MASKS, chance.choice((1, 1, 2, 3)))
        environments.append({name: ",".join(chance.choices(entries, k=chance.randint(1, 5))) for name in names})

    assert differences(host, built, environments) == []


@pytest.mark.parametrize(("fault", "left"), [("vanish:1", 3), ("lost:1", 3), ("denied-node:1", 3), ("no-kfd", 0)])
def test_a_closed_gpu_takes_no_number(tmp_path: Path, built: Path, fault: str, left: int) -> None:
    """Masks count the GPUs that are left, for HIP and for rocmlab alike."""
    host = write_host(tmp_path, gpus=4, faults=[fault])
    values = ("0", "1", "2", "3", "2,1,0", "1,2,3", "")
    environments = [{}, *({name: value} for name in MASKS for value in values)]

    assert differences(host, built, environments) == []
    assert len(visibility.visible({}, discover(host, {})).gpus) == left


def test_an_unreadable_node_stops_all(tmp_path: Path, built: Path) -> None:
    """HIP sees no GPU, even where a mask names another one."""
    host = write_host(tmp_path, gpus=4, faults=["unreadable-node:1"])

    assert differences(host, built, [{}, {HIP: "0"}, {ROCR: "0"}]) == []
    assert [device.index for device in discover(host, {}) if device.backend == "rocm"] == [None] * 4


@pytest.mark.parametrize("is_older", [False, True])
def test_partitions_have_ids_where_the_driver_gives_them(tmp_path: Path, built: Path, is_older: bool) -> None:
    """With older drivers they share one: HIP takes the first partition for it, and ROCr none."""
    host = write_host(tmp_path, profile="instinct", gpus=2, partition="qpx", partitions_are_functions=is_older)
    devices = [device for device in discover(host, {}) if device.backend == "rocm"]
    environments = [{name: f"GPU-{devices[number].unique_id}"} for name in (HIP, ROCR) for number in (0, 1, 5)]

    seen = [len(oracle_hip.addresses(each) or []) for each in oracle_hip.seen(host, built, environments)]
    ours = [len(visibility.visible(each, devices).gpus) for each in environments]

    assert seen == ours == ([1, 1, 1, 0, 0, 0] if is_older else [1] * 6)
