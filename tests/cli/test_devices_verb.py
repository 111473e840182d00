"""`rocmlab devices`: the table, the JSON, and its end when the hardware hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hosts import Gpu, make_host

from rocmlab.cli import guard
from rocmlab.cli import main as cli
from rocmlab.cli.table import device_lines, table_lines
from rocmlab.errors import RocmlabError

LINK = {
    "current_link_width": "8\n",
    "max_link_width": "16\n",
    "current_link_speed": "8.0 GT/s PCIe\n",
    "max_link_speed": "16.0 GT/s PCIe\n",
    "revision": "0xc8\n",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with a card in a narrow slot, an APU, and a card that was not passed."""
    host = make_host(
        tmp_path / "host",
        Gpu(1, 0x8300, 128, files=LINK),
        Gpu(2, 0xC500, 129, 110501, 0x1586, vram_bytes=1 << 29, files={"mem_info_gtt_total": "66571993088\n"}),
        Gpu(3, 0x0300, 130, files={**LINK, "current_link_width": "16\n"}),
        absent=(130,),
    )
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCMLAB_ROOT", str(host))
    return host


def _table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli(["devices"]) == 0
    return capsys.readouterr().out.splitlines()


class TestTable:
    """What a person sees."""

    def test_a_wide_table_has_one_line_a_device(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everything stands in a column, a title above it, and why a GPU is not usable on a line of its own."""
        lines = _table(capsys, monkeypatch, 180)

        assert lines[0].startswith("SIMULATED: read from")
        assert lines[1].split() == (
            [
                "GPU",
                "SMI",
                "PCI",
                "address",
                "render",
                "node",
                "gfx",
                "product",
                "CUs",
                "memory",
                "PCIe",
                "link",
                "driver",
                "usable",
            ]
        )
        assert "  ".join(lines[2].split()) == "  ".join(
            [
                "HIP",
                "0",
                "1",
                "0000:83:00.0",
                "renderD128",
                "gfx1100",
                "AMD",
                "Radeon",
                "RX",
                "7900",
                "XTX",
                "96",
                "24.0",
                "GiB",
                "x8",
                "of",
                "x16,",
                "8",
                "of",
                "16",
                "GT/s",
                "!",
                "amdgpu",
                "6.12.0-test",
                "yes",
            ]
        )
        assert "62.0 GiB GTT" in lines[3]
        assert lines[4].startswith("HIP -  0    0000:03:00.0")
        assert lines[5].strip() == "not usable: /dev/dri/renderD130 is not here"
        assert lines[6].startswith("CPU")
        assert lines[-1].startswith("! fewer PCIe lanes")

    @pytest.mark.parametrize("columns", [80, 100, 120, 160, 200])
    def test_no_line_is_wider_than_the_screen(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
    ) -> None:
        """What has no room in a column stands below its device, or once for all; nothing is lost."""
        lines = _table(capsys, monkeypatch, columns)[1:]

        assert max(map(len, lines)) <= columns
        text = " ".join(lines)
        for word in ("HIP 0", "0000:83:00.0", "renderD128", "gfx1100", "96", "24.0 GiB", "x8 of x16", "6.12.0-test"):
            assert word in text

    def test_what_is_the_same_for_every_gpu_is_said_once(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Eight lines with the same driver tell nothing."""
        text = "\n".join(_table(capsys, monkeypatch, 100))

        assert text.count("amdgpu 6.12.0-test") == 1
        assert "every GPU: CUs 96; driver amdgpu 6.12.0-test" in text

    def test_a_slower_link_alone_is_no_fault(self) -> None:
        """Idle cards lower the speed; lanes do not come and go."""
        device = {
            "backend": "rocm",
            "index": 0,
            "name": "GPU",
            "is_usable": True,
            "link_width": 16,
            "link_width_max": 16,
        }

        line = table_lines([{**device, "link_speed_gts": 2.5, "link_speed_max_gts": 16.0}])[1]

        assert "x16, 2.5 of 16 GT/s" in line
        assert "!" not in line

    def test_the_short_form_is_for_other_verbs(self) -> None:
        """Short rows, such as those a container reports, are enough for it."""
        rows = [
            {"backend": "rocm", "index": 0, "name": "A", "is_usable": True, "simulated": True},
            {"backend": "cpu", "index": 0, "name": "B", "is_usable": True},
        ]

        assert device_lines(rows) == ["HIP 0  A  SIMULATED", "CPU    B"]
        assert device_lines([]) == []
        assert table_lines([]) == []

    def test_a_sample_is_a_line_below(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The CPU's memory in use, for one."""
        monkeypatch.setenv("COLUMNS", "160")

        assert cli(["devices", "--sample"]) == 0
        assert "memory 24.4 of 62.5 GiB" in capsys.readouterr().out


class TestJson:
    """What a program reads."""

    def test_it_has_everything(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """All fields of every device, whether simulated, and the problems."""
        assert cli(["devices", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)

        assert set(found) == {"simulated", "devices", "problems"}
        assert found["simulated"] is True
        assert [device["pci_address"] for device in found["devices"]] == [
            "0000:83:00.0",
            "0000:c5:00.0",
            "0000:03:00.0",
            None,
        ]
        assert found["devices"][0]["link_width_max"] == 16
        assert "sample" not in found["devices"][0]

    def test_samples_are_added_where_asked(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Each device has its own, in base units."""
        assert cli(["devices", "--json", "--sample"]) == 0
        found = json.loads(capsys.readouterr().out)

        assert all(device["sample"]["time_seconds"] > 0 for device in found["devices"])
        assert found["devices"][0]["sample"]["vram_total_bytes"] == 25753026560

    def test_a_problem_has_its_three_parts(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A damaged topology is said in JSON and on the screen, and is no error."""
        (root / "sys/class/kfd/kfd/topology/nodes/7").mkdir()

        assert cli(["devices", "--json"]) == 0
        problem = json.loads(capsys.readouterr().out)["problems"][0]
        assert cli(["devices"]) == 0
        screen = capsys.readouterr().out

        assert set(problem) == {"what", "why", "fix"}
        assert f"problem: {problem['what']}" in screen

    def test_only_the_cpu_is_no_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A host without GPUs is a host."""
        monkeypatch.setenv("ROCMLAB_ROOT", str(tmp_path))

        assert cli(["devices", "--json"]) == 0
        assert [device["backend"] for device in json.loads(capsys.readouterr().out)["devices"]] == ["cpu"]

    def test_an_unknown_option_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        """With the usage, and exit code 2; --help explains."""
        with pytest.raises(SystemExit) as refused:
            cli(["devices", "--jsn"])
        with pytest.raises(SystemExit) as helped:
            cli(["devices", "--help"])

        assert (refused.value.code, helped.value.code) == (2, 0)
        assert "--sample" in capsys.readouterr().out


class TestHang:
    """A driver that does not answer."""

    def test_the_command_ends_and_names_the_file(self, root: Path, repository: Path) -> None:
        """After five seconds, with exit code 2 and a Problem, although the read never returns."""
        name = "sys/devices/pci0000:00/0000:83:00.0/mem_info_vram_total"
        (root / "rocmlab-faults.json").write_text(json.dumps({name: "hang"}))
        started = time.monotonic()

        done = subprocess.run(
            [sys.executable, "-m", "rocmlab", "devices"],
            env={**os.environ, "PYTHONPATH": str(repository / "src")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.returncode == 2
        assert 4.5 < time.monotonic() - started < 20
        assert done.stdout == ""
        assert "0000:83:00.0" in done.stderr
        assert "mem_info_vram_total took longer than 5 seconds" in done.stderr
        assert "why: the GPU or its driver hangs" in done.stderr

    def test_work_that_ends_gives_its_text(self) -> None:
        """However long it is."""
        assert guard.within(20, lambda: "x" * 500_000) == "x" * 500_000

    def test_an_error_of_the_work_is_the_callers(self) -> None:
        """With its parts and its exit code."""

        def work() -> str:
            raise RocmlabError("what", "why", "fix", exit_code=1)

        with pytest.raises(RocmlabError) as caught:
            guard.within(20, work)

        assert (caught.value.problem.what, caught.value.problem.fix, caught.value.exit_code) == ("what", "fix", 1)

    def test_work_that_dies_is_an_error(self) -> None:
        """As when the driver's library crashes the process."""
        with pytest.raises(RocmlabError, match="could not be read"):
            guard.within(20, lambda: os._exit(3))  # type: ignore[func-returns-value]

    def test_what_hangs_is_left_behind(self) -> None:
        """The caller goes on, and the child is told to end."""
        with pytest.raises(RocmlabError, match=r"took longer than 0.2 seconds"):
            guard.within(0.2, lambda: time.sleep(600) or "")
