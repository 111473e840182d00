"""A Sample from small trees: every file, every fallback, and every way in which a file can be wrong."""

from __future__ import annotations

import errno
import json
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocmlab.devices import cards, sample, sensors
from rocmlab.devices.model import Device, Sample

ADDRESS = "0000:03:00.0"
DEVICE = Device("rocm", 0, "test card", True, pci_address=ADDRESS, simulated=True)
FOLDER = f"sys/bus/pci/devices/{ADDRESS}"
HWMON = "hwmon/hwmon7"

FILES = {
    "gpu_busy_percent": "97\n",
    "mem_busy_percent": "41\n",
    "mem_info_vram_used": "8589934592\n",
    "mem_info_vram_total": "68702699520\n",
    "mem_info_gtt_used": "16777216\n",
    "mem_info_gtt_total": "134217728000\n",
    "pp_dpm_sclk": "0: 500Mhz \n1: 800Mhz *\n2: 1700Mhz \n",
    "pp_dpm_mclk": "0: 400Mhz \n1: 1600Mhz *\n",
    "current_link_width": "8\n",
    "current_link_speed": "16.0 GT/s PCIe\n",
    "pcie_replay_count": "5\n",
    "power_dpm_force_performance_level": "auto\n",
    "power/runtime_status": "active\n",
    "ras/umc_err_count": "ue: 1\nce: 3\n",
    "ras/gfx_err_count": "ue: 0\nce: 0\n",
    "ras/features": "feature mask: 0x3fff\n",
    f"{HWMON}/name": "amdgpu\n",
    f"{HWMON}/temp1_label": "edge\n",
    f"{HWMON}/temp1_input": "51000\n",
    f"{HWMON}/temp1_crit": "100000\n",
    f"{HWMON}/temp2_label": "junction\n",
    f"{HWMON}/temp2_input": "66500\n",
    f"{HWMON}/temp2_crit": "110000\n",
    f"{HWMON}/temp3_label": "mem\n",
    f"{HWMON}/temp3_input": "58000\n",
    f"{HWMON}/temp3_crit": "95000\n",
    f"{HWMON}/power1_average": "235500000\n",
    f"{HWMON}/power1_cap": "300000000\n",
    f"{HWMON}/power1_cap_max": "330000000\n",
    f"{HWMON}/freq1_label": "sclk\n",
    f"{HWMON}/freq1_input": "1690000000\n",
    f"{HWMON}/freq2_label": "mclk\n",
    f"{HWMON}/freq2_input": "1600000000\n",
    f"{HWMON}/in0_label": "vddgfx\n",
    f"{HWMON}/in0_input": "850\n",
    f"{HWMON}/fan1_input": "1500\n",
    f"{HWMON}/fan1_max": "3000\n",
    f"{HWMON}/pwm1": "102\n",
}

FULL = Sample(
    time_seconds=0,
    busy_percent=97.0,
    memory_busy_percent=41.0,
    vram_used_bytes=8589934592,
    vram_total_bytes=68702699520,
    gtt_used_bytes=16777216,
    gtt_total_bytes=134217728000,
    power_watts=235.5,
    power_cap_watts=300.0,
    power_cap_max_watts=330.0,
    edge_celsius=51.0,
    edge_critical_celsius=100.0,
    junction_celsius=66.5,
    junction_critical_celsius=110.0,
    memory_celsius=58.0,
    memory_critical_celsius=95.0,
    core_clock_hertz=1_690_000_000,
    core_clock_max_hertz=1_700_000_000,
    memory_clock_hertz=1_600_000_000,
    memory_clock_max_hertz=1_600_000_000,
    voltage_volts=0.85,
    fan_rpm=1500,
    fan_percent=40.0,
    link_width=8,
    link_speed_gts=16.0,
    pcie_replays=5,
    ecc_corrected={"umc": 3, "gfx": 0},
    ecc_uncorrected={"umc": 1, "gfx": 0},
    performance_level="auto",
)

METRICS = {
    "edge": 50,
    "hotspot": 60,
    "memory": 70,
    "busy": 33,
    "memory_busy": 44,
    "power": 111,
    "core": 1234,
    "memory_clock": 999,
    "fan": 777,
    "width": 4,
    "speed": 80,
    "voltage": 801,
    "throttle": 1 << 35,
}
METRICS_OFFSETS = {
    "edge": 4,
    "hotspot": 6,
    "memory": 8,
    "busy": 16,
    "memory_busy": 18,
    "power": 22,
    "core": 54,
    "memory_clock": 58,
    "fan": 72,
    "width": 74,
    "speed": 76,
    "voltage": 106,
    "throttle": 112,
}


def table(**values: int) -> bytes:
    """Return a `gpu_metrics` of revision 1.3 with only these values present."""
    content = bytearray(struct.pack("<HBB", 120, 1, 3) + b"\xff" * 116)
    for name, number in values.items():
        struct.pack_into("<Q" if name == "throttle" else "<H", content, METRICS_OFFSETS[name], number)
    return bytes(content)


def write(root: Path, files: dict[str, str | bytes | None], folder: str = FOLDER) -> Path:
    """Write a device's files below `root`, or remove those that are None; return the root."""
    for name, content in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def sampled(root: Path, device: Device = DEVICE) -> Sample:
    """Read a Sample and take its time out of it."""
    return replace(sample(device, root), time_seconds=0)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with one card that reports everything."""
    return write(tmp_path, dict(FILES))


class TestSources:
    """Which file feeds which field."""

    def test_all_files(self, host: Path) -> None:
        """Every field comes from its file, in base units."""
        assert sampled(host) == FULL

    def test_the_time_is_that_of_the_reading(self, host: Path) -> None:
        """It is Unix time."""
        before = time.time()

        assert before <= sample(DEVICE, host).time_seconds <= time.time()

    def test_files_come_before_the_table(self, host: Path) -> None:
        """The table adds what no file tells: why the card throttles."""
        write(host, {"gpu_metrics": table(**METRICS)})

        assert sampled(host) == replace(FULL, throttle_reasons=("TEMP_EDGE",))

    def test_the_table_fills_gaps(self, tmp_path: Path) -> None:
        """Without other files, the table alone gives what it has."""
        write(tmp_path, {"gpu_metrics": table(**METRICS)})

        assert sampled(tmp_path) == Sample(
            time_seconds=0,
            busy_percent=33.0,
            memory_busy_percent=44.0,
            power_watts=111.0,
            edge_celsius=50.0,
            junction_celsius=60.0,
            memory_celsius=70.0,
            core_clock_hertz=1_234_000_000,
            memory_clock_hertz=999_000_000,
            voltage_volts=0.801,
            fan_rpm=777,
            throttle_reasons=("TEMP_EDGE",),
        )

    def test_a_cut_off_table_takes_nothing_away(self, host: Path) -> None:
        """The files count as if there were no table."""
        write(host, {"gpu_metrics": table(**METRICS)[:100]})

        assert sampled(host) == FULL

    def test_only_the_drivers_own_sensors_count(self, host: Path) -> None:
        """Another folder under `hwmon` with a lower number is not the card's."""
        write(host, {"hwmon/hwmon2/name": "nvme\n", "hwmon/hwmon2/temp1_input": "99000\n"})

        assert sampled(host) == FULL

    def test_sensors_without_another_name_are_nothing(self, host: Path) -> None:
        """Sensors of another driver are not the card's even where it has none."""
        write(host, {f"{HWMON}/name": "k10temp\n"})

        found = sampled(host)

        assert found.edge_celsius is None
        assert found.power_watts is None
        assert found.busy_percent == 97.0

    def test_sensors_are_found_by_label(self, host: Path) -> None:
        """The number of a temperature does not identify it."""
        write(host, {f"{HWMON}/temp1_label": "mem\n", f"{HWMON}/temp3_label": "edge\n"})

        found = sampled(host)

        assert (found.edge_celsius, found.memory_celsius) == (58.0, 51.0)
        assert (found.edge_critical_celsius, found.memory_critical_celsius) == (95.0, 100.0)

    def test_the_first_of_two_sensors_counts(self, host: Path) -> None:
        """A label that comes twice does not replace the first."""
        write(host, {f"{HWMON}/temp4_label": "edge\n", f"{HWMON}/temp4_input": "99000\n"})

        assert sampled(host) == FULL

    def test_old_kernels_have_no_labels(self, host: Path) -> None:
        """Then the first temperature is the edge and the others are unknown."""
        write(host, {f"{HWMON}/temp{number}_label": None for number in (1, 2, 3)})

        found = sampled(host)

        assert (found.edge_celsius, found.junction_celsius, found.memory_celsius) == (51.0, None, None)

    def test_present_power_where_there_is_no_average(self, host: Path) -> None:
        """MI300 and some APUs give the present power only."""
        write(host, {f"{HWMON}/power1_average": None, f"{HWMON}/power1_input": "612000000\n"})

        assert sampled(host).power_watts == 612.0

    def test_average_power_first(self, host: Path) -> None:
        """Where both are there, the average counts."""
        write(host, {f"{HWMON}/power1_input": "612000000\n"})

        assert sampled(host).power_watts == 235.5

    def test_fan_percent_of_the_speed(self, host: Path) -> None:
        """Without a control signal it is the speed's share of the greatest one."""
        write(host, {f"{HWMON}/pwm1": None})

        assert sampled(host).fan_percent == 50.0

    def test_a_fan_that_stands_still(self, host: Path) -> None:
        """0 is a value, not an unknown one."""
        write(host, {f"{HWMON}/pwm1": "0\n", f"{HWMON}/fan1_input": "0\n"})

        found = sampled(host)

        assert (found.fan_rpm, found.fan_percent) == (0, 0.0)

    @pytest.mark.parametrize(
        ("signal", "speed", "fastest", "percent"),
        [
            ("0", "1395", "3100", 45.0),
            ("0", "1395", None, None),
            ("76", "0", "3100", 0.0),
            ("76", "0", None, 0.0),
            ("65", "31", "3100", 1.0),
        ],
    )
    def test_a_fan_that_contradicts_its_signal(
        self, host: Path, signal: str, speed: str, fastest: str | None, percent: float | None
    ) -> None:
        """Its speed is right: it turns without a signal, or stands still in zero-RPM mode."""
        write(host, {f"{HWMON}/pwm1": signal, f"{HWMON}/fan1_input": speed, f"{HWMON}/fan1_max": fastest})

        found = sampled(host)

        assert (found.fan_rpm, found.fan_percent) == (int(speed), percent)

    def test_zero_degrees_and_a_highest_clock_of_zero_are_no_readings(self, host: Path) -> None:
        """That is what the driver gives for a sensor that does not answer, and for levels that it does not know."""
        levels = {"pp_dpm_sclk": "0: 0Mhz *\n", "pp_dpm_mclk": "0: 0Mhz *\n"}
        write(host, {f"{HWMON}/temp1_input": "0\n", f"{HWMON}/temp3_input": "0\n", **levels})

        found = sampled(host)

        assert (found.edge_celsius, found.junction_celsius, found.memory_celsius) == (None, 66.5, None)
        assert (found.core_clock_max_hertz, found.memory_clock_max_hertz) == (None, None)

    def test_padding_is_cut(self, host: Path) -> None:
        """Captures are padded with NUL bytes to 4096."""
        write(host, {name: content.encode().ljust(4096, b"\0") for name, content in FILES.items()})

        assert sampled(host) == FULL


class TestClocks:
    """`pp_dpm_*` in all its forms."""

    @pytest.mark.parametrize(
        ("text", "now", "highest"),
        [
            ("0: 500Mhz \n1: 1700Mhz *\n", 1700, 1700),
            ("0: 500MHz *\n1: 1700MHz\n", 500, 1700),
            ("S: 19Mhz *\n0: 615Mhz\n1: 3100Mhz\n", 19, 3100),
            ("0: 500Mhz\n1: 31Mhz *\n2: 2219Mhz\n", 31, 2219),
            ("0: 500Mhz\n1: 2600Mhz *\n2: 2219Mhz\n", 2600, 2219),
            ("0: 1600Mhz *\n1: 1067Mhz \n2: 400Mhz \n", 1600, 1600),
            ("0: 300Mhz \n1: 1900Mhz \n", None, 1900),
            ("0: 0Mhz *\n", 0, 0),
            ("S: 19Mhz *\n", 19, None),
            ("", None, None),
            ("not supported\n", None, None),
            ("0: 2.5GT/s, x16 619Mhz *\n", None, None),
        ],
        ids=[
            "highest",
            "other spelling",
            "deep sleep",
            "below the list",
            "above the list",
            "falling order",
            "no star",
            "one level",
            "nothing but sleep",
            "empty",
            "words",
            "link levels",
        ],
    )
    def test_lines(self, text: str, now: int | None, highest: int | None) -> None:
        """The star marks the present clock; the highest level is that of the list."""
        mega = 1_000_000

        assert sensors.clocks(text) == (now and now * mega, highest and highest * mega)

    def test_the_star_counts_without_a_sensor(self, host: Path) -> None:
        """The sensor comes first, then the star, then the table."""
        write(host, {f"{HWMON}/freq1_input": None, "gpu_metrics": table(core=1234)})
        assert sampled(host).core_clock_hertz == 800_000_000

        write(host, {"pp_dpm_sclk": "0: 500Mhz\n1: 1700Mhz\n"})
        assert sampled(host).core_clock_hertz == 1_234_000_000


class TestLink:
    """`current_link_*`."""

    @pytest.mark.parametrize(
        ("text", "speed"),
        [("2.5 GT/s PCIe", 2.5), ("32.0 GT/s PCIe", 32.0), ("8 GT/s", 8.0), ("Unknown", None), ("", None)],
    )
    def test_speed(self, text: str, speed: float | None) -> None:
        """The unit is part of the text."""
        assert cards.gigatransfers(text) == speed

    @pytest.mark.parametrize("text", ["0\n", "63\n", "255\n", "-1\n", "Unknown\n"])
    def test_no_link_is_known(self, host: Path, text: str) -> None:
        """The kernel's words for no link are not widths; 63 is what all bits of a dead card are."""
        write(host, {"current_link_width": text})

        assert sampled(host).link_width is None


class TestErrors:
    """`ras/*_err_count`."""

    @pytest.mark.parametrize(
        ("text", "corrected", "uncorrected"),
        [
            ("ue: 1\nce: 2\n", 2, 1),
            ("ue: 1\nce: 2\nde: 9\n", 2, 1),
            ("ce: 2\n", 2, None),
            ("  UE: 1\n", None, None),
            ("ue: many\nce: -1\n", None, None),
            ("Query currently inaccessible\n", None, None),
            ("", None, None),
        ],
    )
    def test_forms(self, text: str, corrected: int | None, uncorrected: int | None) -> None:
        """A block that does not tell is omitted and never 0."""
        expected = tuple(None if count is None else {"umc": count} for count in (corrected, uncorrected))

        assert sensors.errors({"umc": text}) == expected

    def test_one_silent_block_hides_no_other(self, host: Path) -> None:
        """The other blocks still count."""
        write(host, {"ras/umc_err_count": "Query currently inaccessible\n"})

        found = sampled(host)

        assert (found.ecc_corrected, found.ecc_uncorrected) == ({"gfx": 0}, {"gfx": 0})

    def test_no_error_correction(self, host: Path) -> None:
        """A card without it has no counts, which is not the same as none."""
        write(host, {"ras/umc_err_count": None, "ras/gfx_err_count": None})

        found = sampled(host)

        assert (found.ecc_corrected, found.ecc_uncorrected) == (None, None)


class TestSleep:
    """A sleeping GPU is left alone."""

    @pytest.mark.parametrize("status", ["suspended\n", "suspending\n"])
    def test_nothing_else_is_read(self, host: Path, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
        """Any other read would wake it."""
        write(host, {"power/runtime_status": status, "gpu_metrics": table(**METRICS)})
        opened: list[str] = []
        original = os.open

        def recorded(path: str, *arguments: int, **others: int) -> int:
            opened.append(str(path))
            return original(path, *arguments, **others)

        monkeypatch.setattr(os, "open", recorded)

        assert sampled(host) == Sample(0, is_asleep=True)
        assert [name for name in opened if name != str(host / FOLDER)] == [str(host / FOLDER / "power/runtime_status")]

    @pytest.mark.parametrize("status", ["active\n", "resuming\n", "unsupported\n", "", None])
    def test_awake(self, host: Path, status: str | None) -> None:
        """Every other word, and none, means that it may be read."""
        write(host, {"power/runtime_status": status})

        assert sampled(host) == FULL


class TestFailures:
    """Files that fail, lie or go away."""

    @pytest.mark.parametrize("name", ["EBUSY", "EIO", "EOPNOTSUPP", "ENODEV", "EINVAL", "EACCES"])
    def test_a_failing_file_is_one_unknown(self, host: Path, name: str) -> None:
        """The others are still told."""
        assert hasattr(errno, name)
        faults = {f"{FOLDER}/{file}": name for file in ("gpu_busy_percent", f"{HWMON}/power1_average", "gpu_metrics")}
        (host / "rocmlab-faults.json").write_text(json.dumps(faults))

        assert sampled(host) == replace(FULL, busy_percent=None, power_watts=None)

    def test_a_busy_file_is_filled_by_the_table(self, host: Path) -> None:
        """The table knows the load as well."""
        write(host, {"gpu_metrics": table(busy=33)})
        (host / "rocmlab-faults.json").write_text(json.dumps({f"{FOLDER}/gpu_busy_percent": "EBUSY"}))

        assert sampled(host).busy_percent == 33.0

    @pytest.mark.parametrize("name", sorted(FILES))
    def test_a_missing_file_never_stops_the_others(self, host: Path, name: str) -> None:
        """Without any one file there is a Sample, and what is left in it is true."""
        write(host, {name: None})

        found = sampled(host)

        wrong = {
            field
            for field, value in found.as_dict().items()
            if value is not None and value != getattr(FULL, field) and field not in ("ecc_corrected", "ecc_uncorrected")
        }
        fallback = {
            f"{HWMON}/freq1_input": {"core_clock_hertz"},
            f"{HWMON}/name": {"core_clock_hertz"},
            f"{HWMON}/pwm1": {"fan_percent"},
        }
        assert wrong == fallback.get(name, set())
        assert found.vram_total_bytes or name == "mem_info_vram_total"

    def test_the_busy_counter_of_the_link_is_never_read(self, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`pcie_bw` makes its reader wait for a second."""
        write(host, {"pcie_bw": "11886 2528 256\n"})
        opened: list[str] = []
        original = os.open

        def recorded(path: str, *arguments: int, **others: int) -> int:
            opened.append(str(path))
            return original(path, *arguments, **others)

        monkeypatch.setattr(os, "open", recorded)

        sampled(host)

        assert any(name.endswith("gpu_busy_percent") for name in opened)
        assert not any(name.endswith("pcie_bw") for name in opened)

    @pytest.mark.parametrize(
        ("name", "text", "field"),
        [
            ("gpu_busy_percent", "103", "busy_percent"),
            ("gpu_busy_percent", "-1", "busy_percent"),
            ("gpu_busy_percent", "4294967295", "busy_percent"),
            ("gpu_busy_percent", "12 %", "busy_percent"),
            ("gpu_busy_percent", "1_2", "busy_percent"),
            ("gpu_busy_percent", "٣", "busy_percent"),
            ("gpu_busy_percent", "9" * 6000, "busy_percent"),
            ("mem_info_vram_used", "-4096", "vram_used_bytes"),
            ("mem_info_vram_used", "68702699521", "vram_used_bytes"),
            ("mem_info_vram_total", str(1 << 60), "vram_total_bytes"),
            (f"{HWMON}/temp1_input", "-273150", "edge_celsius"),
            (f"{HWMON}/temp1_input", "511000", "edge_celsius"),
            (f"{HWMON}/temp1_crit", "2147483647", "edge_critical_celsius"),
            (f"{HWMON}/temp2_crit", "0", "junction_critical_celsius"),
            (f"{HWMON}/temp3_crit", "-273150", "memory_critical_celsius"),
            (f"{HWMON}/power1_average", "0", "power_watts"),
            (f"{HWMON}/power1_average", "65535000000", "power_watts"),
            (f"{HWMON}/power1_cap", "0", "power_cap_watts"),
            (f"{HWMON}/in0_input", "0", "voltage_volts"),
            (f"{HWMON}/in0_input", "65535", "voltage_volts"),
            (f"{HWMON}/fan1_input", "4294967295", "fan_rpm"),
            (f"{HWMON}/freq2_input", "-1", None),
            ("power_dpm_force_performance_level", "<script>", "performance_level"),
            ("power_dpm_force_performance_level", "a" * 100, "performance_level"),
            ("pcie_replay_count", "-3", "pcie_replays"),
        ],
    )
    def test_what_cannot_be_true_is_unknown(self, host: Path, name: str, text: str, field: str | None) -> None:
        """A value out of range is None, or comes from the next source; nothing else changes."""
        write(host, {name: text})

        assert sampled(host) == (replace(FULL, **{field: None}) if field else FULL)

    def test_rounding_above_a_hundred_is_a_hundred(self, host: Path) -> None:
        """Averages are rounded up by the firmware now and then."""
        write(host, {"gpu_busy_percent": "101\n"})

        assert sampled(host).busy_percent == 100.0

    def test_memory_may_be_full(self, host: Path) -> None:
        """All of it in use is true, more is not."""
        write(host, {"mem_info_vram_used": "68702699520\n"})

        assert sampled(host).vram_used_bytes == 68702699520

    def test_a_vanished_device(self, host: Path) -> None:
        """A card that is gone leaves an empty Sample."""
        gone = replace(DEVICE, pci_address="0000:99:00.0")

        assert sampled(host, gone) == Sample(0)

    def test_a_device_without_an_address(self, host: Path) -> None:
        """Nothing says where to look."""
        assert sampled(host, replace(DEVICE, pci_address=None)) == Sample(0)

    @pytest.mark.parametrize("address", ["../../../etc", "..", "", "a\0b", "0000:03:00.0/../x"])
    def test_an_address_is_no_path(self, host: Path, address: str) -> None:
        """A damaged address leads nowhere."""
        assert sampled(host, replace(DEVICE, pci_address=address)) == Sample(0)

    def test_loops_and_folders_in_place_of_files(self, host: Path) -> None:
        """Each is one unknown."""
        write(host, {"gpu_busy_percent": None, "mem_busy_percent": None})
        (host / FOLDER / "gpu_busy_percent").symlink_to("gpu_busy_percent")
        (host / FOLDER / "mem_busy_percent").mkdir()

        assert sampled(host) == replace(FULL, busy_percent=None, memory_busy_percent=None)

    @pytest.mark.slow
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(
        st.dictionaries(
            st.sampled_from([*sorted(FILES), "gpu_metrics", f"{HWMON}/temp9_input", "ras/sdma_err_count"]),
            st.one_of(
                st.binary(max_size=300),
                st.integers().map(lambda number: str(number).encode()),
                st.sampled_from([b"\xff" * 5000, b"9" * 70000, b"0: 99999999999Mhz *", b"nan", b"1e400", b"\n" * 9]),
                st.binary(min_size=116, max_size=116).map(lambda body: struct.pack("<HBB", 120, 1, 3) + body),
            ),
            max_size=12,
        )
    )
    def test_any_content_is_survived(self, host: Path, content: dict[str, bytes]) -> None:
        """Whatever the files hold, there is a Sample of sane values that JSON can hold."""
        write(host, dict(FILES))
        write(host, {"gpu_metrics": b""} | content)

        found = sampled(host)

        assert json.loads(json.dumps(found.as_dict(), allow_nan=False))
        for field, value in found.as_dict().items():
            if field.endswith("_percent"):
                assert value is None or 0 <= value <= 100
            if field.endswith("_celsius"):
                assert value is None or -100 <= value <= 250
            if field.endswith("_bytes"):
                assert value is None or 0 <= value <= 1 << 50


class TestFolders:
    """Where a device's files are."""

    @pytest.mark.parametrize("node", [{"card_node": "/dev/dri/card12"}, {"render_node": "/dev/dri/renderD131"}])
    def test_by_drm_node(self, tmp_path: Path, node: dict[str, str]) -> None:
        """Where the bus is not shown, the DRM folder leads to the same files."""
        name = Path(next(iter(node.values()))).name
        write(tmp_path, dict(FILES), f"sys/class/drm/{name}/device")

        assert sampled(tmp_path, replace(DEVICE, **node)) == FULL

    def test_the_address_comes_first(self, host: Path) -> None:
        """Numbers of cards change, addresses do not."""
        write(host, {"gpu_busy_percent": "1\n"}, "sys/class/drm/card0/device")

        assert sampled(host, replace(DEVICE, card_node="/dev/dri/card0")) == FULL

    def test_wide_pci_domains(self, tmp_path: Path) -> None:
        """Domains have more than four digits behind some controllers."""
        write(tmp_path, dict(FILES), "sys/bus/pci/devices/10000:e1:00.0")

        assert sampled(tmp_path, replace(DEVICE, pci_address="10000:e1:00.0")) == FULL

    def test_the_first_partition_speaks_for_all(self, host: Path) -> None:
        """Other partitions share the folder, and their sum must not count twice."""
        assert sampled(host, replace(DEVICE, partition=0)) == FULL
        assert sampled(host, replace(DEVICE, partition=3)) == Sample(0)
