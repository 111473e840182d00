"""What the hub counts of each user's leases, on a simulated host with a clock of the test."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from rocmlab.devices import Device, discover
from rocmlab.hub import usage
from rocmlab.hub.usage import Usage
from rocmlab.kernels.holders import Holder
from rocmlab.simulation import write_host

ADA, BOB = 1001, 1002


class Host:
    """A simulated host, who has its GPUs, and the time."""

    def __init__(self, folder: Path) -> None:
        self.root = Path(write_host(folder / "host", gpus=2))
        self.state = folder / "hub"
        self.gpus: list[Device] = [device for device in discover(self.root, {}) if device.backend == "rocm"]
        self.held: dict[Device, Holder] = {}
        self.now = 1_000_000.0

    def start(self) -> Usage:
        """Begin to count, or continue."""
        return Usage(self.state, self.root, lambda: self.held, lambda: self.now)

    def lease(self, gpu: int, uid: int, started: float) -> None:
        """Let a user have a GPU; the time is what the note says."""
        text = datetime.fromtimestamp(started, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.held[self.gpus[gpu]] = Holder(owner="anyone", pid=1, uid=uid, started=text)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Two GPUs, which are free."""
    found = Host(tmp_path)
    found.state.mkdir()
    return found


def hours(host: Host) -> dict[int, float]:
    """Return the GPU seconds of each uid."""
    return {uid: round(used.gpu_seconds) for uid, used in usage.read(host.state)[1].items()}


def test_each_user_is_counted_what_their_leases_last(host: Host) -> None:
    """From the begin of a lease, also where the hub was stopped meanwhile; a GPU that is free is no one's."""
    first = host.start()
    first.read()
    host.now += 10
    host.lease(0, ADA, host.now - 4)
    host.lease(1, BOB, host.now - 6)
    first.read()
    host.now += 10
    first.read()
    first.close()
    assert hours(host) == {ADA: 14, BOB: 16}
    energy = usage.read(host.state)[1][ADA]
    assert energy.energy_joules is not None
    assert energy.energy_joules > 0
    assert energy.is_energy_whole  # nothing is missing of a lease that was seen from its begin

    host.held.pop(host.gpus[1])
    host.now += 1000  # the hub is stopped, and the lab of one runs on
    second = host.start()
    second.read()
    second.close()

    assert hours(host) == {ADA: 1014, BOB: 16}
    energy = usage.read(host.state)[1][ADA]
    assert energy.energy_joules is not None
    assert not energy.is_energy_whole  # of the time in between only the hours are known


def test_no_note_counts_more_than_the_time_that_the_hub_saw(host: Host) -> None:
    """What a note says of its begin is its user's own text; without a uid it is no one's."""
    counting = host.start()
    counting.read()
    host.now += 10
    host.lease(0, ADA, 0.0)
    host.lease(1, BOB, host.now + 1e6)
    counting.read()
    counting.close()
    assert hours(host) == {ADA: 10, BOB: 0}

    host.held = {host.gpus[0]: Holder(owner="ada")}
    host.now += 10
    again = host.start()
    again.read()
    again.close()
    assert hours(host) == {ADA: 10, BOB: 0}


@pytest.mark.parametrize("left", ["", "{", "[]", "\0" * 8])
def test_a_damaged_file_is_kept_and_counting_begins_again(
    host: Host, caplog: pytest.LogCaptureFixture, left: str
) -> None:
    """What it had may be needed for a bill, and is not overwritten."""
    path = host.state / usage.FILE
    path.write_text(left)

    host.start().read()

    (aside,) = host.state.glob(f"{usage.FILE}.damaged-*")
    assert aside.read_text() == left
    assert "was damaged" in caplog.text
    assert usage.read(host.state)[0] == host.now
