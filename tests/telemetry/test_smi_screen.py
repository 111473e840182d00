"""The screen of `rocmlab smi`: what it shows of a host, at every width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rocmlab.devices import Device, Sample, discover, sample
from rocmlab.simulation import write_host
from rocmlab.telemetry import smi, smi_cells, smi_text
from rocmlab.telemetry.model import GpuProcess, Owner, device_id
from rocmlab.telemetry.smi import View

WIDTHS = (40, 50, 64, 80, 100, 120, 140, 200)


def _view(root: Path, processes: Sequence[GpuProcess] | None = (), mask: str | None = None, **changes: Any) -> View:
    """Look at a simulated host, as with HIP_VISIBLE_DEVICES=mask."""
    environment = {} if mask is None else {"HIP_VISIBLE_DEVICES": mask}
    rows = [
        {**device.as_dict(), "id": device_id(device), "sample": sample(device, root).as_dict()}
        for device in discover(root, environment)
    ]
    found = None if processes is None else [process.as_dict() for process in processes]
    return replace(View(1_800_000_000.0, rows, found, simulated_root=str(root)), **changes)


def _made(device: Device, reading: Sample) -> View:
    """Return a view of one device that no simulated host has."""
    return View(0.0, [{**device.as_dict(), "id": device_id(device), "sample": reading.as_dict()}], [])


def _text(view: View, columns: int = 200, rows: int | None = None) -> list[str]:
    return smi_text.paint(smi.screen(view, columns, rows), coloured=False)


def _row(lines: Sequence[str], begin: str) -> str:
    return next(line for line in lines if line.startswith(begin))


RADEON = Device("rocm", 0, "AMD Radeon RX 7900 XTX", True, pci_address="0000:03:00.0", smi_index=3)
PROCESS = GpuProcess(
    "0000:03:00.0", 4711, 4711, "python3", "/opt/venv/bin/python3 train.py", "anna", vram_bytes=3 << 30
)
PROBLEM = {"what": "/" + "p" * 150, "why": "because " * 30, "fix": "sudo something " * 12 + "\n" + "x" * 150}
KERNEL = Owner("kernel", "work/deep/folder/train.ipynb", "1234", "torch-gpu0", "idle", 1800.0)


class TestDevices:
    """The table."""

    @pytest.mark.parametrize(
        "host",
        [
            {"profile": "radeon"},
            {"profile": "instinct", "busy": "training"},
            {"profile": "instinct", "partition": "cpx"},
            {"profile": "apu"},
            {"profile": "mixed", "faults": ["asleep:1", "degraded-link:0"]},
            {"profile": "instinct", "gpus": 3, "faults": ["ecc", "unreadable-node:1", "lost:2"]},
        ],
        ids=lambda host: "-".join(str(value) for value in host.values()),
    )
    def test_no_line_is_wider_than_the_screen(self, tmp_path: Path, host: dict[str, Any]) -> None:
        """Every GPU has its line at every width, and a number of GiB is never cut."""
        root = write_host(tmp_path / "host", **host)
        view = _view(root, [replace(PROCESS, device=device_id(discover(root, {})[0]), owner=KERNEL)])

        for columns in WIDTHS:
            lines = smi.screen(view, columns)

            text = smi_text.paint(lines, coloured=False)
            assert max(map(smi_text.line_width, lines)) <= columns
            assert max(map(smi_text.line_width, smi.screen(replace(view, problems=[PROBLEM]), columns, 60))) <= columns
            assert "SIMULATED" in text[0]
            assert len([line for line in text if line.startswith("HIP")]) >= 2
            assert not any("Gi…" in line or "G…" in line for line in text)

    def test_both_numbers_of_a_gpu_are_shown(self, tmp_path: Path) -> None:
        """HIP's order is not that of rocm-smi, which users mix up."""
        root = write_host(tmp_path / "host", profile="instinct")

        lines = _text(_view(root), 80)

        assert lines[2].split()[:2] == ["GPU", "SMI"]
        numbers = [line.split()[1:3] for line in lines if line.startswith("HIP")]
        assert [int(hip) for hip, _ in numbers] == list(range(8))
        assert sorted(int(rank) for _, rank in numbers) == list(range(8))
        assert numbers[0] == ["0", "2"]

    def test_values_are_those_of_the_sample(self) -> None:
        """Of one instant, in the units that people use."""
        reading = Sample(
            0.0,
            busy_percent=97.0,
            vram_used_bytes=int(20.5 * 2**30),
            vram_total_bytes=24 << 30,
            power_watts=293.4,
            power_cap_watts=303.0,
            junction_celsius=91.6,
            edge_celsius=71.0,
            core_clock_hertz=2_498_000_000,
            memory_clock_hertz=1_249_000_000,
            fan_percent=85.0,
            memory_celsius=80.0,
            memory_busy_percent=60.0,
            link_width=16,
            link_speed_gts=16.0,
            throttle_reasons=(),
            ecc_corrected={"umc": 0},
        )

        lines = _text(_made(RADEON, reading))

        title, row = lines[1].split(), lines[2]
        assert "junction" in title
        for word in ("HIP 0", "Radeon RX 7900 XTX", "92°C", "293/303W", "97%", "20.5/24.0 GiB", "2498/1249", "85%"):
            assert word in row
        for word in ("0000:03:00.0", "80°C", "60%", "x16 16GT/s", " no ", " 0 "):
            assert word in row

    def test_a_column_that_no_card_reports_is_left_out(self) -> None:
        """And what one card does not report while another does is `-`, never 0."""
        full = Sample(0.0, busy_percent=0.0, vram_used_bytes=0, vram_total_bytes=1 << 34, fan_percent=0.0)
        other = replace(RADEON, index=1, pci_address="0000:04:00.0")
        rows = [
            {**device.as_dict(), "id": device_id(device), "sample": reading.as_dict()}
            for device, reading in ((RADEON, full), (other, Sample(0.0, busy_percent=3.0)))
        ]

        lines = _text(View(0.0, rows, []))

        title = lines[1]
        assert "fan" in title
        for word in ("power", "junction", "edge", "temp", "ECC", "PCIe ", "throttled", "MHz"):
            assert word not in title
        assert "0.0/16.0 GiB" in lines[2]
        assert " 0%" in lines[2]
        assert lines[3].split().count("-") == 2
        assert "3%" in lines[3]

    def test_an_apu_shows_the_memory_where_models_live(self, tmp_path: Path) -> None:
        """GTT, and reports it; a discrete card next to it does not."""
        lines = _text(_view(write_host(tmp_path / "host", profile="mixed")), 100)

        assert "memory" in lines[2]
        assert _row(lines, "HIP 1").endswith("/15.0 GiB GTT")
        assert _row(lines, "HIP 0").endswith("/24.0 GiB")

    @pytest.mark.parametrize(
        ("used", "total", "text"),
        [(1, 4, "1.0/4.0 GiB"), (1, None, "1.0 GiB in use"), (None, 4, "4.0 GiB in all"), (0, None, "0.0 GiB in use")],
    )
    def test_memory_of_which_only_a_part_is_known(self, used: int | None, total: int | None, text: str) -> None:
        """What is not known leaves no gap."""
        sizes = [None if count is None else count << 30 for count in (used, total)]
        reading = Sample(0.0, busy_percent=3.0, vram_used_bytes=sizes[0], vram_total_bytes=sizes[1])

        assert _row(
            _text(_made(Device("rocm", 0, "card", True, pci_address="0000:03:00.0"), reading)), "HIP 0"
        ).endswith(text)

    def test_an_apu_with_a_large_part_of_its_own_shows_that(self) -> None:
        """As firmware can be told to reserve most of the memory for the GPU."""
        reading = Sample(0.0, vram_used_bytes=1 << 33, vram_total_bytes=96 << 30, gtt_total_bytes=16 << 30)

        assert _text(_made(replace(RADEON, is_apu=True), reading))[2].endswith("8.0/96.0 GiB")

    def test_temperatures_of_different_sensors_are_told_apart(self, tmp_path: Path) -> None:
        """An APU has only an edge sensor."""
        lines = _text(_view(write_host(tmp_path / "host", profile="mixed")), 80)

        assert "°C j" in _row(lines, "HIP 0")
        assert "°C e" in _row(lines, "HIP 1")
        assert "  j: junction (the hotspot), e: edge" in lines

    def test_a_sleeping_card_says_so(self, tmp_path: Path) -> None:
        """In the place of its values."""
        lines = _text(_view(write_host(tmp_path / "host", gpus=2, busy="50", faults=["asleep:1"])), 80)

        assert _row(lines, "HIP 1").endswith("asleep")
        assert "50%" in _row(lines, "HIP 0")

    def test_a_card_that_does_not_answer_leaves_the_others_lines(self, tmp_path: Path) -> None:
        """The problem below says what to do."""
        view = _view(write_host(tmp_path / "host", gpus=2, busy="50"))
        name = view.devices[1]["id"]
        view = replace(
            view,
            devices=[view.devices[0], {**view.devices[1], "sample": Sample(0.0).as_dict()}, *view.devices[2:]],
            hung=[name],
            problems=[{"what": f"{name} does not answer", "why": "it hangs", "fix": "sudo dmesg\nrestart"}],
        )

        lines = _text(view, 80)

        assert _row(lines, "HIP 1").endswith("does not answer")
        assert "50%" in _row(lines, "HIP 0")
        assert lines[-4:] == [
            f"problem: {name} does not answer", "  why: it hangs", "  fix: sudo dmesg", "       restart"
        ]  # fmt: skip

    def test_what_needs_somebody_is_shown_at_every_width(self, tmp_path: Path) -> None:
        """In a column, or below the table where that has no room."""
        root = write_host(tmp_path / "host", profile="instinct", gpus=2, faults=["degraded-link:1", "ecc:0"])
        view = _view(root)
        view.devices[1]["sample"]["throttle_reasons"] = ("TEMP_HOTSPOT",)

        for columns in WIDTHS[1:]:
            text = " ".join(" ".join(_text(view, columns)).split())

            assert "x8 of x16 32GT/s !" in text
            assert "2 ue" in text or "2 uncorrected" in text
            assert "TEMP_HOTSPOT" in text

    def test_partitions_share_a_line_below_their_gpu(self, tmp_path: Path) -> None:
        """Only the first has sensors; they are those of the whole GPU."""
        root = write_host(tmp_path / "host", profile="instinct", gpus=2, partition="cpx", busy="50")

        lines = _text(_view(root), 140)

        assert [line.split()[1] for line in lines if line.startswith("HIP")] == ["0", "1-7", "8", "9-15"]
        assert "7 more partitions, 24.0 GiB each, with the sensors of the GPU above" in _row(lines, "HIP 1-7")

    @pytest.mark.parametrize(
        ("mask", "numbers", "hidden"),
        [
            ("0,2,5", ["0", "1", "2", "3-4", "5", "6-7"], "HIP 1, 3-4, 6-7"),
            ("7,3", ["0", "1-2", "3", "4-6", "7"], "HIP 0, 1-2, 4-6"),
        ],
    )
    def test_hidden_partitions_have_lines_of_their_own(
        self, tmp_path: Path, mask: str, numbers: list[str], hidden: str
    ) -> None:
        """A line is of usable partitions or of hidden ones, in order below the GPU's sensors; all hidden are named."""
        root = write_host(tmp_path / "host", profile="instinct", gpus=1, partition="cpx", busy="50")

        lines = _text(_view(root, mask=mask), 140)

        assert [line.split()[1] for line in lines if line.startswith("HIP")] == numbers
        assert [line.split()[2] for line in lines if line.startswith("HIP")] == numbers
        assert f"  {hidden}: not usable: hidden by HIP_VISIBLE_DEVICES={mask}" in lines
        assert not any("no reading" in line for line in lines)

    def test_a_gpu_without_a_driver_has_no_reading(self, tmp_path: Path) -> None:
        """The PCIe link, which belongs to the bus, is not one."""
        lines = _text(_view(write_host(tmp_path / "host", gpus=1, faults=["no-driver"])), 140)

        assert "no reading" in _row(lines, "HIP -")

    def test_a_gpu_that_cannot_be_used_says_why(self, tmp_path: Path) -> None:
        """Its values are shown all the same; HIP has no number for it, so its address names it."""
        root = write_host(tmp_path / "host", gpus=3, faults=["unreadable-node:1"])  # which stops KFD for all of them

        lines = _text(_view(root), 80)

        own = [line.split(": not usable: ")[0].strip() for line in lines if ": not usable: " in line]
        assert own == ["0000:03:00.0, 0000:09:00.0", "0000:06:00.0"]
        assert len([line for line in lines if line.startswith("HIP -")]) == 3

    def test_only_the_cpu_is_one_sentence(self, tmp_path: Path) -> None:
        """With what it does, and without a table."""
        (tmp_path / "sys").mkdir()
        view = _view(tmp_path)
        view.devices[0]["sample"].update(busy_percent=37.0, gtt_used_bytes=8 << 30, gtt_total_bytes=64 << 30)

        lines = _text(view, 100)

        assert lines[-1] == "No GPU here, only the CPU: CPU, busy 37%, memory 8.0 of 64.0 GiB in use."
        assert len(lines) == 3

    def test_nvidia_counts_as_cuda_does(self) -> None:
        """Its one temperature is no edge, and its memory no GTT."""
        device = Device("cuda", 1, "NVIDIA H100 80GB HBM3", True, pci_address="0000:1b:00.0", smi_index=1)
        reading = Sample(0.0, busy_percent=12.0, edge_celsius=41.0, vram_used_bytes=1 << 30, vram_total_bytes=80 << 30)

        lines = _text(_made(device, reading), 80)

        assert lines[1].split() == ["GPU", "SMI", "product", "temp", "busy", "VRAM"]
        assert lines[2].startswith("CUDA 1  1    H100 80GB HBM3")
        assert "41°C" in lines[2]


class TestProcesses:
    """The table of processes."""

    def _lines(self, *processes: GpuProcess, columns: int = 100) -> list[str]:
        view = _made(RADEON, Sample(0.0, busy_percent=1.0))
        lines = _text(replace(view, processes=[process.as_dict() for process in processes]), columns)
        return lines[lines.index("") + 1 :]

    def test_a_process_belongs_to_its_notebook(self) -> None:
        """With the kernel and what that does."""
        title, row = self._lines(replace(PROCESS, compute_units_percent=87.2, owner=KERNEL))

        assert title.split() == ["GPU", "PID", "user", "VRAM", "CU%", "belongs", "to"]
        assert row == "HIP 0  4711  anna  3.0 GiB  87%  work/deep/folder/train.ipynb · kernel torch-gpu0, idle 30 min"

    @pytest.mark.parametrize(
        ("owner", "text"),
        [
            (replace(KERNEL, kernel_state="busy", idle_seconds=None), "train.ipynb · kernel torch-gpu0, busy"),
            (Owner("job", "a.ipynb", run="2026-night", job="a lr=0.1"), "a.ipynb · job a lr=0.1, run 2026-night"),
            (Owner("container", container="0123456789ab"), "python3 train.py · container 0123456789ab"),
            (Owner("process"), "  python3 train.py"),  # where its program lies tells nothing
            (None, "python3 train.py"),
            (replace(KERNEL, is_estimated=True), "idle 30 min, estimated"),
        ],
    )
    def test_what_else_it_may_belong_to(self, owner: Owner | None, text: str) -> None:
        """A job of a run, a container, nothing known; what was inferred reports it."""
        assert self._lines(replace(PROCESS, owner=owner), columns=160)[1].endswith(text)

    def test_a_long_path_keeps_its_end_and_the_state(self) -> None:
        """The name of the notebook tells more than its folders."""
        long = replace(KERNEL, notebook="very/" * 30 + "train.ipynb")

        row = self._lines(replace(PROCESS, owner=long), columns=60)[1]

        assert len(row) <= 60
        assert "/train.ipynb · idle 30 min" in row
        assert "…" in row

    def test_the_largest_of_each_gpu_comes_first(self) -> None:
        """GPUs in the order of the table above."""
        small = replace(PROCESS, pid=1, vram_bytes=80 << 20)

        rows = self._lines(small, PROCESS)[1:]

        assert ["3.0 GiB" in rows[0], "80 MiB" in rows[1]] == [True, True]

    def test_inside_a_container_both_numbers_are_shown(self) -> None:
        """The one that `kill` takes here, and the driver's; a guess is marked."""
        guess = replace(PROCESS, local_pid=57, is_estimated=True)
        unseen = replace(PROCESS, pid=4800, local_pid=None)

        title, first, second = self._lines(guess, unseen)

        assert title.split()[:4] == ["GPU", "PID", "host", "PID"]
        assert first.split()[2:4] == ["~57", "4711"]
        assert second.split()[2:4] == ["-", "4800"]
        assert "host PID" in self._lines(unseen)[0]

    def test_no_process_and_not_knowing_are_different(self) -> None:
        """An empty list is not the same as no list; of AMD GPUs it lacks those with little memory."""
        view = _made(RADEON, Sample(0.0))
        nvidia = _made(replace(RADEON, backend="cuda"), Sample(0.0))

        assert _text(view)[-1] == "no process has 64 MiB or more of a GPU"
        assert _text(nvidia)[-1] == "no process uses a GPU"
        assert _text(replace(view, processes=None))[-1] == "what runs on the GPUs is not known"

    @pytest.mark.parametrize(
        "name", ["a\x1b[2J\nb", "x\u202egpj.ipynb", "<script>" * 1200, "笔记本" * 80, "e\u0301" * 200]
    )
    def test_names_are_text_of_a_known_width(self, name: str) -> None:
        """No name steers the terminal, however long or odd it is, and none is wider than the screen."""
        odd = replace(PROCESS, user=name, command=name, owner=replace(KERNEL, notebook=name, kernel_name=name))
        view = replace(_made(RADEON, Sample(0.0, busy_percent=1.0)), processes=[odd.as_dict()])

        lines = smi.screen(view, 80)

        assert max(map(smi_text.line_width, lines)) <= 80
        assert all(text.isprintable() for line in lines for text, _ in line)

    def test_a_low_window_leaves_processes_out_first(self) -> None:
        """And counts them."""
        many = [replace(PROCESS, pid=number).as_dict() for number in range(50)]
        view = replace(_made(RADEON, Sample(0.0, busy_percent=1.0)), processes=many)

        lines = _text(view, 80, 12)

        assert len(lines) == 12
        assert lines[-1] == "… 44 more processes"
        assert lines[2].startswith("HIP 0")


class TestColours:
    """Levels, and what a terminal can show."""

    @pytest.mark.parametrize(
        ("celsius", "critical", "level"), [(60, 110, "good"), (96, 110, "warn"), (106, 110, "bad"), (96, None, "bad")]
    )
    def test_heat_is_judged_by_what_the_card_calls_critical(
        self, celsius: float, critical: float | None, level: str
    ) -> None:
        """96 degrees are nothing for a hotspot, and much for a card that tells no limit."""
        reading = Sample(0.0, junction_celsius=celsius, junction_critical_celsius=critical).as_dict()

        assert smi_cells.main_temperature(reading) == (f"{celsius:.0f}°C", level)

    def test_full_memory_is_red_and_work_is_not(self) -> None:
        """A GPU that works is well; one whose memory is full is about to fail."""
        device = RADEON.as_dict()
        shares = {
            share: smi_cells.memory_level(device, {"vram_used_bytes": share, "vram_total_bytes": 100})
            for share in (10, 90, 99)
        }

        assert shares == {10: "good", 90: "warn", 99: "bad"}
        assert [smi_cells.busy_level(value) for value in (None, 0.0, 40.0, 99.0)] == ["dim", "dim", "cool", "good"]

    def test_a_plain_terminal_gets_plain_letters(self, tmp_path: Path) -> None:
        """Of the same width, so that columns still stand below each other."""
        lines = smi.screen(_view(write_host(tmp_path / "host", busy="50"), host="büro"), 100)

        plain = smi_text.paint(lines, coloured=False, plain=True)

        assert all(line.isascii() for line in plain)
        assert [len(line) for line in plain] == [len(line) for line in smi_text.paint(lines, coloured=False)]
        assert "##" in _row(plain, "HIP 0")

    def test_colours_do_not_change_the_text(self, tmp_path: Path) -> None:
        """Every code is closed on its line."""
        import re

        lines = smi.screen(_view(write_host(tmp_path / "host", busy="50")), 100)

        coloured = smi_text.paint(lines, coloured=True)

        assert [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in coloured] == smi_text.paint(
            lines, coloured=False
        )
        assert all(line.count("\x1b[") == 2 * line.count("\x1b[0m") for line in coloured)

    @pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99, 1.0, 1.7, None])
    def test_a_bar_always_has_its_width(self, share: float | None) -> None:
        """A little shows as a little, and nothing as nothing."""
        filled, empty = smi_text.bar(share, 10)

        assert len(filled + empty) == 10
        assert bool(filled) == bool(share)
