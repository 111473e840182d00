"""Every backend answers the same questions with the same types."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hosts import Gpu, make_host

from rocmlab.devices import Backend, Device, discover, metal
from rocmlab.devices.discovery import ALL


@pytest.mark.parametrize("backend", ALL, ids=lambda backend: backend.name)
def test_every_backend_keeps_the_contract(backend: Backend, tmp_path: Path) -> None:
    """On this host and on a simulated one: devices of its own kind, an index exactly where usable, JSON at the end."""
    root = make_host(tmp_path, Gpu(1, 0x0300, 128), Gpu(2, 0x0400, 129), absent=(129,))

    for where in (Path("/"), root):
        found = backend.discover(where)

        assert all(isinstance(device, Device) and device.backend == backend.name for device in found)
        assert all((device.index is not None) == device.is_usable for device in found)
        assert all((device.why_not is None) == device.is_usable for device in found)
        assert json.loads(json.dumps([device.as_dict() for device in found])) == [device.as_dict() for device in found]


def test_the_cpu_is_always_there_and_last(tmp_path: Path) -> None:
    """A host with GPUs lists them first; the CPU closes the list."""
    found = discover(make_host(tmp_path, Gpu(1, 0x0300, 128)))

    assert [device.backend for device in found] == ["rocm", "cpu"]


def test_metal_reads_what_macos_reports() -> None:
    """A Metal-capable GPU is usable under its model's name; one without Metal says why not."""
    report = {
        "SPDisplaysDataType": [
            {"sppci_model": "Apple M3 Pro", "spdisplays_mtlgpufamilysupport": "spdisplays_metal3"},
            {"sppci_model": "Old Card"},
        ]
    }

    first, second = metal.parse(json.dumps(report))

    assert (first.name, first.is_usable, first.index) == ("Apple M3 Pro", True, 0)
    assert (second.name, second.is_usable, second.index) == ("Old Card", False, None)


def test_metal_survives_a_report_that_is_not_json() -> None:
    """A broken report means no GPU, not a traceback."""
    assert metal.parse("not json") == []
