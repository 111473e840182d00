"""How busy a device is, is read from that very device, or not reported."""

from __future__ import annotations

import threading

import pytest
from hosts import Gpu, make_host

from rocmlab.training import watch

FIRST = Gpu(node=1, location=0x300, minor=128, files={"gpu_busy_percent": "97\n"})
SECOND = Gpu(node=2, location=0x8300, minor=129, unique_id=7, files={"gpu_busy_percent": "12\n"})


def used(backend="rocm", pci=None):
    """Return what placement says of a device."""
    return {"backend": backend, "name": "a device", "index": 0, "pci": pci, "simulated": False}


@pytest.fixture
def host(monkeypatch, tmp_path):
    """Return a function that makes a host with these GPUs the one that is read."""

    def host(*gpus):
        monkeypatch.setenv("ROCMLAB_ROOT", str(make_host(tmp_path / "host", *gpus)))

    return host


def watched(description):
    """Return what was read of a device until it had been read twice, or immediately if it is not read at all."""
    with watch.Busy(description, seconds_between=0.001) as busy:
        if busy.is_watching:
            assert busy.wait_for(2, seconds=60)
    return busy.percent


def test_the_gpu_with_the_same_pci_address_is_read(host):
    """Of two GPUs the one is read that the framework computes on, wherever it is in the list."""
    host(FIRST, SECOND)

    assert watched(used(pci="0000:83:00.0")) == 12.0
    assert watched(used(pci="0000:03:00.0")) == 97.0


def test_the_only_gpu_needs_no_address(host):
    """A framework that does not report the PCI address can only mean the GPU that this process may use."""
    host(FIRST)

    assert watched(used()) == 97.0


def test_of_several_gpus_without_an_address_none_is_guessed(host):
    """It is not known which of two a framework means, so nothing is reported."""
    host(FIRST, SECOND)

    assert watched(used()) is None


def test_a_mask_leaves_the_only_gpu(host, monkeypatch):
    """A kernel with a lease sees one of two GPUs, and that is the one."""
    host(FIRST, SECOND)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")

    assert watched(used()) == 12.0


def test_the_cpu_is_never_called_busy_as_a_gpu(host):
    """On the CPU the answer is unknown, although there is a GPU that works."""
    host(FIRST)
    before = threading.active_count()

    with watch.Busy(used("cpu")) as busy:
        assert threading.active_count() == before

    assert busy.percent is None


def test_a_gpu_that_does_not_tell_is_unknown(host):
    """A driver without the metric leads to None, not to 0."""
    host(Gpu(node=1, location=0x300, minor=128))

    with watch.Busy(used(), seconds_between=0.001) as busy:
        assert busy.is_watching

    assert (busy.percent, busy.watts) == (None, None)


def test_the_power_of_that_gpu_is_read(host):
    """The mean of what its driver reported, in watts."""
    power = {"hwmon/hwmon3/name": "amdgpu\n", "hwmon/hwmon3/power1_average": "235500000\n"}
    host(Gpu(node=1, location=0x300, minor=128, files={**FIRST.files, **power}))

    with watch.Busy(used(), seconds_between=0.001) as busy:
        assert busy.wait_for(2, seconds=60)

    assert busy.watts == pytest.approx(235.5)


def test_watching_ends_with_the_block(host):
    """No thread is left, also after an error."""
    host(FIRST)
    before = threading.active_count()

    with pytest.raises(ZeroDivisionError), watch.Busy(used(), seconds_between=60):
        1 / 0  # noqa: B018

    assert threading.active_count() == before
