"""`rocmlab devices`: the table, the JSON, and its end when the hardware hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hosts import Gpu, make_host, with_descriptors

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import guard
from rocmlab.cli import main as cli
from rocmlab.cli.table import device_lines, problem_lines, table_lines
from rocmlab.simulation import write_host

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


@pytest.fixture
def project(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder, which is the current one, with a lab on that host."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "compose.yaml").touch()
    (folder / ".env").write_text(f"PORT=1\nROCMLAB_ROOT={root}\n")
    monkeypatch.chdir(folder)
    return folder


class TestRememberedHost:
    """`make up ROCMLAB_ROOT=…` is remembered in `.env`, and `rocmlab devices` shows the host that the lab shows."""

    @pytest.mark.parametrize("verb", ["devices", "cdi"])
    def test_the_simulated_host_of_the_project_is_shown(
        self, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
    ) -> None:
        """It says SIMULATED, as with the variable."""
        monkeypatch.delenv("ROCMLAB_ROOT")

        assert cli([verb]) == 0

        printed = capsys.readouterr()
        assert "SIMULATED" in printed.out + printed.err
        assert "0000:83:00.0" in printed.out

    @pytest.mark.parametrize("missing", ["compose.yaml", ".env"])
    def test_elsewhere_this_machine_is_shown(
        self, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
    ) -> None:
        """A `.env` of something else says nothing about rocmlab; and where the variable is set, it is what counts."""
        monkeypatch.setenv("ROCMLAB_ROOT", "")
        assert cli(["devices"]) == 0
        (project / missing).unlink()
        monkeypatch.delenv("ROCMLAB_ROOT")
        assert cli(["devices"]) == 0

        assert "SIMULATED" not in capsys.readouterr().out

    @pytest.mark.parametrize(("line", "loads"), [("PORT=1", False), ("ROCMLAB_ROOT=/", True)])
    def test_settings_are_loaded_only_where_they_matter(
        self, repository: Path, project: Path, line: str, loads: bool
    ) -> None:
        """They cost as much as the whole answer."""
        (project / ".env").write_text(f"{line}\n")
        program = "import sys; from rocmlab.cli import main; main(['devices']); print('rocmlab.stack' in sys.modules)"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROCMLAB_")}
        environment |= {"PYTHONPATH": str(repository / "src")}

        done = subprocess.run(
            [sys.executable, "-c", program], cwd=project, env=environment, capture_output=True, text=True, check=True
        )

        assert done.stdout.splitlines()[-1] == str(loads)


def _table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert cli(["devices"]) == 0
    return capsys.readouterr().out.splitlines()


class TestTable:
    """What a user sees."""

    def test_a_wide_table_has_one_line_a_device(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everything stands in a column, a title above it; a short reason too."""
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
        assert lines[4].strip() == "GTT 62.0 GiB, where frameworks allocate; VRAM 0.5 GiB"
        assert lines[5].startswith("HIP -  0    0000:03:00.0")
        assert lines[5].endswith("  no: /dev/dri/renderD130 is missing")
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

    def test_a_reason_that_all_share_is_said_once(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not below each GPU; one that only some have stands with these."""
        assert "\n".join(_table(capsys, monkeypatch, 80)).count("not usable: ") == 1
        (root / "dev/kfd").unlink()

        lines = _table(capsys, monkeypatch, 80)

        assert lines[-2] == "every GPU: not usable: /dev/kfd is missing"
        assert "\n".join(lines).count("/dev/kfd") == 1

    @pytest.mark.parametrize("columns", [40, 50, 59])
    def test_a_narrow_screen_leaves_names_whole(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
    ) -> None:
        """They stand below the devices, the CPU's too."""
        text = "\n".join(_table(capsys, monkeypatch, columns))

        assert "AMD Radeon RX 7900 XTX" in text
        assert ".." not in text
        assert "CPU;" in text or "       CPU" in text

    def test_problems_fit_the_screen_and_fixes_can_be_pasted(self) -> None:
        """Words wrap; commands and paths stay on their lines."""
        fix = "sudo something --with " + "a" * 90 + "\nand a second line"
        lines = problem_lines({"what": "/" + "p" * 99, "why": "because " * 30, "fix": fix}, 80)

        assert "/" + "p" * 99 in " ".join(lines)
        assert [line for line in lines if len(line) > 80 and "ppp" not in line] == ["  fix: " + fix.split("\n")[0]]
        assert lines[-1] == "       and a second line"

    def test_the_screens_width_reaches_problems(
        self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As those of a damaged topology."""
        properties = root / "sys/class/kfd/kfd/topology/nodes/1/properties"
        kept = [line for line in properties.read_text().splitlines() if not line.startswith(("simd_per", "device_id"))]
        properties.write_text("\n".join(kept))

        lines = _table(capsys, monkeypatch, 60)

        assert any(line.startswith("problem: ") for line in lines)
        assert max(len(line) for line in lines[1:] if "fix: " not in line) <= 60

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

    def test_the_short_form_is_for_other_commands(self) -> None:
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
        """A damaged topology is said in JSON and on the screen, and is not an error."""
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
        """With exit code 2 and what was probably meant; --help explains."""
        with pytest.raises(SystemExit) as helped:
            cli(["devices", "--help"])

        assert (cli(["devices", "--jsn"]), helped.value.code) == (2, 0)
        shown = capsys.readouterr()
        assert "did you mean --json?" in shown.err
        assert "--sample" in shown.out


class TestHang:
    """A driver that does not answer."""

    @pytest.mark.slow
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

    @pytest.mark.slow
    @pytest.mark.parametrize("as_json", [True, False])
    def test_one_hung_gpu_leaves_the_others_rows(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
    ) -> None:
        """Its own sample is unknown, the Problem names it, and the exit code says that something is wrong."""
        monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(tmp_path, gpus=3, busy="50", faults=["hang:1"])))
        monkeypatch.setattr("rocmlab.cli.devices.LIMIT_SECONDS", 3.0)

        assert cli(["devices", "--sample", *(["--json"] if as_json else [])]) == 2
        out = capsys.readouterr().out

        if as_json:
            found = json.loads(out)
            samples = [device["sample"] for device in found["devices"]]
            assert [sample and sample["busy_percent"] for sample in samples] == [50, None, 50, None]
            assert samples[1] is None
            assert ["0000:06:00.0" in problem["what"] for problem in found["problems"]] == [True]
        else:
            assert out.count("busy 50 %") == 2
            assert "HIP 1" in out
            assert "problem: reading" in out
            assert "took longer" in out

    @pytest.mark.slow
    def test_pieces_of_work_are_done_at_once(self) -> None:
        """What one makes, raises or never ends does not touch the others."""
        began = time.monotonic()

        def fail() -> str:
            raise RocmlabError("what", "why", "fix")

        slow, quick, failed, died = guard.each_within(
            1.0, [lambda: time.sleep(600) or "", lambda: "text", fail, lambda: os._exit(3)]
        )

        assert quick == "text"
        assert "took longer than 1 seconds" in str(slow)
        assert str(failed).startswith("what")
        assert "could not be read" in str(died)
        assert time.monotonic() - began < 20

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
        """The caller continues, and the child is told to end."""
        with pytest.raises(RocmlabError, match=r"took longer than 0.2 seconds"):
            guard.within(0.2, lambda: time.sleep(600) or "")

    @pytest.mark.parametrize("command", [["devices", "--sample"], ["smi"]])
    def test_descriptors_beyond_those_of_select_are_waited_for(
        self, root: Path, repository: Path, command: list[str]
    ) -> None:
        """`select` takes none from 1024 on, and a process may inherit as many."""
        done = subprocess.run(
            with_descriptors("-m", "rocmlab", *command),
            env={**os.environ, "PYTHONPATH": str(repository / "src")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert (done.returncode, done.stderr) == (0, "")
