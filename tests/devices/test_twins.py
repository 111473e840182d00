"""Synthetic twins of what public captures show: small hosts of the same class, written here, so that everyone has them.

`scripts/fetch-captures` fetches the captures themselves.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import Gpu, make_host

from rocmlab.devices import sample
from rocmlab.devices.rocm import Rocm

RADEON_SENSORS = {
    "hwmon/hwmon2/name": "radeon\n",
    "hwmon/hwmon2/temp1_input": "41000\n",
    "hwmon/hwmon2/temp1_crit": "120000\n",
    "hwmon/hwmon2/fan1_input": "900\n",
}


class TestOlderThanRocm:
    """Cards of GCN 1 and 2: R7 240, R9 280, HD 7870."""

    @pytest.mark.parametrize(
        ("device_id", "generation"),
        [
            (0x6613, "GCN 1 (Oland)"),
            (0x679A, "GCN 1 (Tahiti)"),
            (0x6818, "GCN 1 (Pitcairn)"),
            (0x6658, "GCN 2 (Bonaire)"),
        ],
    )
    @pytest.mark.parametrize("driver", ["radeon", "amdgpu", None])
    def test_its_generation_is_the_reason(
        self, tmp_path: Path, device_id: int, generation: str, driver: str | None
    ) -> None:
        """Whatever driver it has: no other driver, slot or kernel would help."""
        root = make_host(tmp_path, Gpu(None, 0x0100, 128, device_id=device_id, driver=driver))

        found = Rocm().discover(root)[0]

        assert found.why_not == f"it is {generation}, which ROCm has never supported: the CPU computes"
        assert found.name == f"AMD {generation} 1002:{device_id:04x}"

    @pytest.mark.parametrize("device_id", [0x7550, 0x73FF, 0x67DF, 0x66A0])
    def test_a_newer_card_without_compute_node_is_not_called_old(self, tmp_path: Path, device_id: int) -> None:
        """RX 9070, RX 6600, RX 580, Radeon VII: the slot is the usual reason."""
        root = make_host(tmp_path, Gpu(None, 0x0100, 128, device_id=device_id))

        why_not = str(Rocm().discover(root)[0].why_not)

        assert "old" not in why_not
        assert "atomic" in why_not

    def test_the_sensors_of_radeon_are_read(self, tmp_path: Path) -> None:
        """Its first temperature has no label, and is the edge."""
        card = Gpu(None, 0x0100, 128, device_id=0x6818, driver="radeon", vram_bytes=None, files=RADEON_SENSORS)
        root = make_host(tmp_path, card)

        reading = sample(Rocm().discover(root)[0], root)

        assert (reading.edge_celsius, reading.edge_critical_celsius, reading.fan_rpm) == (41.0, 120.0, 900)
