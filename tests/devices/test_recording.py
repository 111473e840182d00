"""Files of samples, and what is made of them."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, Sample, discover, recording, sample
from rocmlab.devices.recording import Recorder, read, summarise
from rocmlab.devices.recording_plot import draw, legend
from rocmlab.simulation import Live
from rocmlab.telemetry import model

CARD = Device("rocm", 0, "a <b>card</b>", True, pci_address="0000:03:00.0")
CPU = Device("cpu", 0, "a processor", True)


def write(path: Path, *samples: Sample, device: Device = CARD, end: bool = True) -> Path:
    """Write a file of one device's samples."""
    recorder = Recorder(path, [device], ["python", "train.py"])
    for each in samples:
        recorder.add(recording.device_id(device), each)
    if end:
        recorder.end(3)
    else:
        recorder.close()
    return path


class TestFiles:
    """What is written is read again."""

    def test_everything_known_comes_back(self, tmp_path: Path) -> None:
        """All fields of real Samples, of several devices; what is unknown is not there."""
        live = Live(tmp_path / "host", profile="mixed", busy="waves")
        devices = [device for device in discover(tmp_path / "host", {}) if device.backend == "rocm"]
        recorder = Recorder(tmp_path / "a.jsonl", devices)
        samples = []
        for seconds in (0.0, 5.0):
            live.step(seconds)
            for device in devices:
                samples.append((recording.device_id(device), sample(device, tmp_path / "host")))
                recorder.add(*samples[-1])
        recorder.end(0, {recording.device_id(devices[0]): 12.5, "other": None})

        found = read(tmp_path / "a.jsonl")

        assert found.simulated
        assert (found.exit_code, found.energy_joules) == (0, {recording.device_id(devices[0]): 12.5})
        assert list(found.devices) == [recording.device_id(device) for device in devices]
        turns = {name: iter(lines) for name, lines in found.samples.items()}
        for name, expected in samples:
            line = next(turns[name])
            for field, value in vars(expected).items():
                wanted = list(value) if isinstance(value, tuple) else value
                if value is None or value is False:
                    assert field not in line
                elif isinstance(value, float):
                    assert line[field] == pytest.approx(value, abs=1e-3)
                else:
                    assert line[field] == wanted

    def test_each_line_is_there_at_once(self, tmp_path: Path) -> None:
        """Anyone who reads while it is written sees all but the end."""
        path = write(tmp_path / "a.jsonl", Sample(100.0, busy_percent=5.0), end=False)

        found = read(path)

        assert found.ended is None
        assert [line["busy_percent"] for line in found.samples["0000:03:00.0"]] == [5]

    def test_damage_costs_only_its_lines(self, tmp_path: Path) -> None:
        """Torn by a crash, or of no meaning."""
        path = write(tmp_path / "a.jsonl", Sample(100.0, busy_percent=5.0), Sample(101.0, busy_percent=6.0))
        whole = path.read_bytes()
        path.write_bytes(whole[:-40] + b'\n[1]\n\xff\xfe\n{"device":"other","time_seconds":1}\n{"time_seconds":1}')

        found = read(path)

        assert [line["busy_percent"] for line in found.samples["0000:03:00.0"]] == [5, 6]
        assert found.command == ("python", "train.py")

    def test_what_comes_after_the_end_is_left_out(self, tmp_path: Path) -> None:
        """A reading may come late, from a device that has hung, and an end may come twice."""
        recorder = Recorder(tmp_path / "a.jsonl", [CARD])
        recorder.end(3)
        before = (tmp_path / "a.jsonl").read_bytes()

        recorder.add("0000:03:00.0", Sample(100.0, busy_percent=5.0))
        recorder.end(4)

        assert (tmp_path / "a.jsonl").read_bytes() == before
        assert read(tmp_path / "a.jsonl").exit_code == 3

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
    def test_a_full_disk_is_told_once(self, tmp_path: Path) -> None:
        """The line that does not fit raises; the end then does nothing."""
        recorder = Recorder(tmp_path / "a.jsonl", [CARD])
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), recorder._file.fileno())

        with pytest.raises(OSError, match="No space left"):
            recorder.add("0000:03:00.0", Sample(100.0, busy_percent=5.0))
        recorder.end(3)

        assert read(tmp_path / "a.jsonl").ended is None

    @pytest.mark.parametrize("text", ["", "{}\n", "hello\n", '{"rocmlab_samples": 99, "devices": {}}\n'])
    def test_what_is_no_such_file(self, tmp_path: Path, text: str) -> None:
        """It is rejected, with the reason."""
        (tmp_path / "a.jsonl").write_text(text)

        with pytest.raises(RocmlabError, match="has no samples that this version can read"):
            read(tmp_path / "a.jsonl")

    def test_devices_have_the_names_of_telemetry(self) -> None:
        """The same name everywhere: its address, its partition behind it; without an address what else tells it."""
        devices = [
            CARD,
            CPU,
            Device("rocm", 1, "x", True, pci_address="0000:05:00.0", partition=3),
            Device("cuda", 2, "x", True, unique_id="GPU-1"),
            Device("metal", 0, "x", True),
        ]

        names = ["0000:03:00.0", "cpu", "0000:05:00.0/3", "GPU-1", "metal-0"]
        assert [recording.device_id(device) for device in devices] == names
        assert [model.device_id(device) for device in devices] == names


class TestSummary:
    """A few numbers for each device."""

    def test_means_are_over_time(self, tmp_path: Path) -> None:
        """Two seconds at 100 W, eight at 300 W."""
        path = write(
            tmp_path / "a.jsonl",
            Sample(100.0, busy_percent=0.0, power_watts=100.0, vram_used_bytes=5),
            Sample(102.0, busy_percent=0.0, power_watts=100.0, vram_used_bytes=9),
            Sample(102.000001, busy_percent=50.0, power_watts=300.0),
            Sample(110.0, busy_percent=50.0, power_watts=300.0, vram_used_bytes=7),
        )

        (found,) = summarise(read(path))

        assert (found.seconds, found.max_busy_percent, found.peak_vram_bytes) == (10, 50, 9)
        assert found.mean_busy_percent == pytest.approx(40, rel=0.01)
        assert found.mean_power_watts == pytest.approx(260, rel=0.01)
        assert found.energy_joules == pytest.approx(2600, rel=0.01)

    def test_what_is_unknown_stays_unknown(self, tmp_path: Path) -> None:
        """No reading, one reading, and a device that tells nothing."""
        nothing = summarise(read(write(tmp_path / "a.jsonl")))[0]
        one = summarise(read(write(tmp_path / "b.jsonl", Sample(100.0, power_watts=9.0))))[0]

        assert (nothing.seconds, nothing.mean_busy_percent, nothing.energy_joules) == (0, None, None)
        assert (one.mean_power_watts, one.energy_joules, one.peak_vram_bytes) == (9, None, None)

    def test_the_energy_of_a_gap_alone_is_unknown(self, tmp_path: Path) -> None:
        """Two readings an hour apart: no one looked in between, which is not 0 joules."""
        path = write(tmp_path / "a.jsonl", Sample(100.0, power_watts=90.0), Sample(3700.0, power_watts=90.0))

        (found,) = summarise(read(path))

        assert (found.seconds, found.mean_power_watts, found.energy_joules) == (3600, 90, None)

    def test_the_memory_of_an_apu_is_where_its_models_live(self, tmp_path: Path) -> None:
        """Not its carve-out, in the summary and in the plot; of a file from before `pool` was written it is VRAM."""
        device = replace(CARD, is_apu=True, pool="gtt")
        used = ((1 << 28, 3 << 30), (1 << 29, 5 << 30))
        path = write(
            tmp_path / "a",
            *(Sample(1.0 + at, vram_used_bytes=vram, gtt_used_bytes=gtt) for at, (vram, gtt) in enumerate(used)),
            device=device,
        )
        older = tmp_path / "b"
        older.write_text(path.read_text().replace('"pool":"gtt"', '"other":1'))

        found, of_older = read(path), read(older)

        assert [one.peak_vram_bytes for one in (*summarise(found), *summarise(of_older))] == [5 << 30, 1 << 29]
        assert "memory" in str(draw(found, "a"))
        assert "VRAM" not in str(draw(found, "a"))
        assert "VRAM" in str(draw(of_older, "b"))


class TestPlots:
    """Small pictures."""

    def test_a_line_for_each_device_and_number(self, tmp_path: Path) -> None:
        """It is well-formed, has no script, and says what it is."""
        samples = [
            Sample(100.0 + step, busy_percent=float(step % 100), power_watts=50.0 + step, vram_used_bytes=step << 30)
            for step in range(1000)
        ]
        found = read(write(tmp_path / "a.jsonl", *samples))

        svg = draw(found, "use of <b>")

        assert svg is not None
        tree = ElementTree.fromstring(svg)
        lines = [element for element in tree.iter() if element.tag == "polyline"]
        assert len(lines) == 3
        assert all(20 < len(line.attrib["points"].split()) <= 240 for line in lines)
        heights = [float(point.split(",")[1]) for point in lines[2].attrib["points"].split()]
        assert heights == sorted(heights, reverse=True)
        words = [element.text for element in tree.iter() if element.text]
        assert {"use of <b>", "busy", "VRAM", "power", "17 min"} <= set(words)
        assert legend(found) == [("#3987e5", "a <b>card</b> (0000:03:00.0)")]

    def test_nothing_is_drawn_of_nothing(self, tmp_path: Path) -> None:
        """One reading makes no line, and unknown numbers no panel."""
        assert draw(read(write(tmp_path / "a.jsonl", Sample(1.0, busy_percent=3.0))), "x") is None
        assert draw(read(write(tmp_path / "b.jsonl", Sample(1.0), Sample(2.0))), "x") is None
        one = draw(read(write(tmp_path / "c.jsonl", *(Sample(float(t), power_watts=0.0) for t in range(9)))), "x")
        assert one is not None
        assert one.count("<polyline") == 1

    def test_the_cpu_has_memory_and_no_power(self, tmp_path: Path) -> None:
        """Its own panels."""
        samples = [Sample(float(t), busy_percent=9.0, gtt_used_bytes=3 << 30) for t in range(9)]

        svg = draw(read(write(tmp_path / "a.jsonl", *samples, device=CPU)), "x")

        assert svg is not None
        assert ">memory<" in svg
        assert ">power<" not in svg

    def test_lines_are_json(self, tmp_path: Path) -> None:
        """Any tool can read them."""
        for line in write(tmp_path / "a.jsonl", Sample(1.0, ecc_corrected={"umc": 3})).read_text().splitlines():
            assert isinstance(json.loads(line), dict)
