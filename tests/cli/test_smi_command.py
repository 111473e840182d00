"""`rocmlab smi`: its forms of output, its choice of devices, its questions to the lab, and its end when a GPU hangs."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import waiting
from clones import free_port
from hosts import make_host
from intruders import intruder

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import main as cli
from rocmlab.cli import smi_lab, smi_look
from rocmlab.devices import discover, sample
from rocmlab.simulation import GpuUse, write_host
from rocmlab.stack import container_port, sockets

DEADLINE_SECONDS = 60.0
TOKEN = "0123456789abcdef"
KERNEL_ID = "6f9f0d9e-5c7b-4f43-9e8c-0a1b2c3d4e5f"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with an APU and two cards, and no project around it."""
    host = write_host(tmp_path / "host", profile="mixed", busy="0:40,1:70,2:90")
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCMLAB_ROOT", str(host))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    return host


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli(["smi", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


class TestForms:
    """Screen, JSON and CSV."""

    def test_the_screen_is_plain_text_where_it_is_no_terminal(
        self, root: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It says SIMULATED first, and has no codes."""
        assert cli(["smi"]) == 0

        lines = capsys.readouterr().out.splitlines()
        assert lines[0].strip() == f"SIMULATED: read from {root}, not from this machine"[:98].strip() or "…" in lines[0]
        assert [line[:5] for line in lines[3:6]] == ["HIP 0", "HIP 1", "HIP 2"]
        assert "\x1b" not in "".join(lines)

    @pytest.mark.parametrize(("arguments", "no_color", "is_coloured"), [
        (["--color", "always"], "", True),
        (["--color", "always"], "1", True),
        (["--color", "never"], "", False),
        (["--color", "auto"], "", False),
    ])  # fmt: skip
    def test_colour_is_as_asked(
        self,
        root: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        arguments: list[str],
        no_color: str,
        is_coloured: bool,
    ) -> None:
        """A flag goes before NO_COLOR; without one a file gets none."""
        monkeypatch.setenv("NO_COLOR", no_color)

        assert cli(["smi", *arguments]) == 0

        assert ("\x1b[" in capsys.readouterr().out) == is_coloured

    def test_json_has_everything_at_one_instant(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The values are those of `rocmlab devices --sample`, read by this call; processes are those of the driver."""
        began = time.time()
        found = _json(capsys)
        ended = time.time()

        assert set(found) == {"simulated", "time_seconds", "devices", "processes", "kernels", "problems"}
        assert found["simulated"] is True
        assert found["kernels"] is None
        for device, row in zip(discover(root, {}), found["devices"], strict=True):
            assert row["index"] == device.index
            expected = sample(device, root).as_dict()
            ours = dict(row["sample"])
            for reading in (ours, expected):
                reading.pop("time_seconds")
                if device.backend == "cpu":
                    reading.pop("busy_percent")  # the difference of two readings
            assert ours == json.loads(json.dumps(expected))
        times = [row["sample"]["time_seconds"] for row in found["devices"]]
        assert began <= min(times) <= max(times) <= ended
        assert {process["device"] for process in found["processes"]} <= {row["id"] for row in found["devices"]}
        assert len(found["processes"]) == 3

    def test_csv_has_a_line_for_each_device(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Names carry units; unknown is empty and not 0; numbers are whole."""
        assert cli(["smi", "--csv"]) == 0

        text = capsys.readouterr().out
        rows = list(csv.DictReader(io.StringIO(text)))
        assert text.splitlines()[0].startswith("time_seconds,id,backend,index,smi_index,pci_address,")
        assert [row["index"] for row in rows] == ["0", "1", "2", "0"]
        assert [row["busy_percent"] for row in rows[:3]] == ["40", "70", "90"]
        assert rows[1]["fan_percent"] == ""
        assert rows[0]["simulated"] == "true"
        assert int(rows[0]["vram_total_bytes"]) == discover(root, {})[0].vram_bytes
        assert rows[0]["throttle_reasons"] in ("none", "PPT0")
        assert float(rows[0]["time_seconds"]) > 1e9

    @pytest.mark.slow
    def test_a_host_without_gpus_is_one_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """And no error; on this machine itself the CPU's use is in it."""
        (tmp_path / "sys").mkdir()
        monkeypatch.setenv("ROCMLAB_ROOT", str(tmp_path))
        monkeypatch.setenv("COLUMNS", "200")

        assert cli(["smi"]) == 0
        assert "No GPU here, only the CPU" in capsys.readouterr().out
        monkeypatch.setenv("ROCMLAB_ROOT", "/")
        assert cli(["smi", "--devices", "cpu"]) == 0
        assert "busy " in capsys.readouterr().out

    def test_an_impossible_request_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        """With exit code 2, and what was probably meant."""
        for arguments in (["--watch", "0"], ["--watch", "x"], ["--json", "--csv"], ["--jsn"]):
            assert cli(["smi", *arguments]) == 2
        assert "did you mean --json?" in capsys.readouterr().err


class TestChoice:
    """`--devices`."""

    @pytest.mark.parametrize(
        ("chosen", "expected"),
        [("0,2", [0, 2]), ("0000:C1:00.0", [1]), (" 2 , 0001:03:00.0 ", [2]), ("", [0, 1, 2, 0])],
    )
    def test_by_hip_index_or_address(
        self, root: Path, capsys: pytest.CaptureFixture[str], chosen: str, expected: list[int]
    ) -> None:
        """Only these are read, and only their processes are shown."""
        found = _json(capsys, "--devices", chosen)

        assert [row["index"] for row in found["devices"]] == expected
        names = {row["id"] for row in found["devices"]}
        assert {process["device"] for process in found["processes"]} <= names

    def test_one_that_is_not_there_is_an_error(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It says which there are."""
        assert cli(["smi", "--devices", "0,7"]) == 2

        said = capsys.readouterr().err
        assert "device 7 not found" in said
        assert "0000:c1:00.0" in said


class TestHang:
    """A GPU whose driver does not answer."""

    @pytest.mark.slow
    def test_the_others_are_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The line of that one and a problem report it, and the exit code does."""
        root = write_host(tmp_path / "host", gpus=3, busy="50", faults=["hang:1"])
        monkeypatch.setenv("ROCMLAB_ROOT", str(root))
        monkeypatch.setenv("COLUMNS", "100")
        began = time.monotonic()

        assert cli(["smi"]) == 2

        text = capsys.readouterr().out
        assert time.monotonic() - began < 30
        rows = [line for line in text.split("\n\n")[0].splitlines() if line.startswith("HIP")]
        assert ["50%" in row for row in rows] == [True, False, True]
        assert next(line for line in text.splitlines() if line.startswith("HIP 1")).endswith("does not answer")
        assert "(0000:06:00.0) does not answer" in text
        assert "fix: see `sudo dmesg" in text

    @pytest.mark.slow
    def test_most_gpus_hang(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Six of eight: the two others are still shown, well before the child is given up."""
        faults = [f"hang:{place}" for place in range(6)]
        root = write_host(tmp_path / "host", profile="instinct", gpus=8, busy="50", faults=faults)
        monkeypatch.setenv("ROCMLAB_ROOT", str(root))

        assert cli(["smi", "--json"]) == 2

        found = json.loads(capsys.readouterr().out)
        watts = [device["sample"]["power_watts"] for device in found["devices"] if device["backend"] == "rocm"]
        assert [value is None for value in watts] == [*[True] * 6, False, False]

    @pytest.mark.slow
    def test_a_host_that_cannot_be_looked_at_ends_the_command(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With the file that hangs, as `rocmlab devices` does."""
        address = "sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total"
        real = os.path.relpath(os.path.realpath(root / address), root)
        (root / "rocmlab-faults.json").write_text(json.dumps({real: "hang"}))
        monkeypatch.setattr("rocmlab.cli.smi_reader.LIMIT_SECONDS", 1.0)

        assert cli(["smi"]) == 2

        assert "mem_info_vram_total took longer than 1 seconds" in capsys.readouterr().err

    def test_a_defect_in_the_child_is_shown(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With its traceback, and not as silence."""

        def fail(*_: object) -> None:
            raise ValueError("on purpose")

        monkeypatch.setattr(smi_look.Look, "view", fail)

        assert cli(["smi"]) == 2

        assert "ValueError: on purpose" in capsys.readouterr().err


class TestStream:
    """`--watch` where the output is not a terminal."""

    def _start(self, repository: Path, root: Path, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "ROCMLAB_ROOT": str(root)}
        command = [sys.executable, "-m", "rocmlab", "smi", "--watch", "0.1", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _read(self, process: subprocess.Popen[str], count: int) -> list[str]:
        assert process.stdout is not None
        lines: list[str] = []
        while len(lines) < count:
            assert waiting.readable(process.stdout, DEADLINE_SECONDS)
            line = process.stdout.readline()
            assert line
            lines.append(line)
        return lines

    def test_a_line_of_json_for_each_look(self, root: Path, repository: Path) -> None:
        """Their times grow; Ctrl-C ends it silently and with exit code 0."""
        process = self._start(repository, root, "--json")

        first, second = (json.loads(line) for line in self._read(process, 2))
        process.send_signal(2)
        rest, said = process.communicate(timeout=DEADLINE_SECONDS)

        assert first["time_seconds"] < second["time_seconds"]
        assert second["devices"][0]["energy_joules"] > 0
        assert (process.returncode, said) == (0, "")
        assert all(json.loads(line) for line in rest.splitlines())

    def test_csv_is_appended_below_one_header(self, root: Path, repository: Path) -> None:
        """A line for each device and look, each with its time."""
        process = self._start(repository, root, "--csv", "--devices", "0,1")

        lines = self._read(process, 5)
        process.terminate()
        process.communicate(timeout=DEADLINE_SECONDS)

        rows = list(csv.DictReader(lines))
        assert [row["index"] for row in rows] == ["0", "1", "0", "1"]
        assert float(rows[0]["time_seconds"]) < float(rows[2]["time_seconds"])

    def test_a_block_of_text_for_each_look(self, root: Path, repository: Path) -> None:
        """With an empty line between them and no codes; a reader that goes away ends it."""
        process = self._start(repository, root)
        assert process.stdout is not None

        text = "".join(self._read(process, 40))
        process.stdout.close()

        assert text.count("SIMULATED") >= 2
        assert "\x1b" not in text
        assert process.wait(timeout=DEADLINE_SECONDS) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()


class _Lab(ThreadingHTTPServer):
    """A server that answers as the lab does, or badly."""

    daemon_threads = True
    answer: bytes = b"[]"
    status: int = 200
    may_answer: threading.Event
    asked: list[tuple[str, str]]


class _Handler(BaseHTTPRequestHandler):
    server: _Lab

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Authorization"]))
        self.server.may_answer.wait(60)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        with suppress(BrokenPipeError):  # the one who asked has gone
            self.wfile.write(self.server.answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Lab]:
    """A lab that `make up` has started from the current folder."""
    server = _Lab(("127.0.0.1", 0), _Handler)
    server.asked, server.may_answer = [], threading.Event()
    server.may_answer.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    project = tmp_path / "project"
    (project / "docker").mkdir(parents=True)
    (project / "docker/Dockerfile").touch()
    (project / "compose.yaml").touch()
    port = server.server_address[1]
    (project / ".env").write_text(f"PORT={port}\nJUPYTER_TOKEN={TOKEN}\nROCMLAB_RUNTIME=docker\n")
    (project / ".rocmlab").mkdir()
    container_port.confirm(project / ".rocmlab", port, sockets.listeners(port) or ())  # as the engine would have
    monkeypatch.chdir(project)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class TestLab:
    """The question to the running lab."""

    def test_without_a_gpu_the_lab_is_not_queried(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No process can use one: a silent lab would delay each reading for nothing."""
        queried: list[str] = []
        monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
        monkeypatch.setattr(smi_lab, "kernels", lambda: queried.append("the lab"))

        smi_look.Look(make_host(tmp_path / "host"), list, queries_lab=False).view()

        assert queried == []

    def test_its_kernels_are_asked_for_with_its_token(self, lab: _Lab) -> None:
        """At the address of the project."""
        lab.answer = json.dumps([{"kernel_id": "1"}, "nonsense"]).encode()

        assert smi_lab.kernels() == [{"kernel_id": "1"}]
        assert lab.asked == [("/rocmlab/api/kernels", f"token {TOKEN}")]

    @pytest.mark.parametrize(("status", "answer"), [(403, b"[]"), (200, b"<html>"), (200, b"{}"), (200, b"[" * 9999)])
    def test_a_strange_answer_is_none(self, lab: _Lab, status: int, answer: bytes) -> None:
        """Such as that of another server on this port, or of an older lab."""
        lab.status, lab.answer = status, answer

        assert smi_lab.kernels() is None

    def test_a_slow_lab_is_left_after_a_second(self, lab: _Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        """Silently."""
        monkeypatch.setattr(smi_lab.get, "__defaults__", (0.2,))
        lab.may_answer.clear()
        began = time.monotonic()

        found = smi_lab.kernels()
        seconds = time.monotonic() - began
        lab.may_answer.set()

        assert found is None
        assert seconds < 30  # of 60

    def test_no_lab_is_none(self, lab: _Lab) -> None:
        """No project, one that was never started, and one that is stopped."""
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            stopped = f"PORT={closed.getsockname()[1]}\nJUPYTER_TOKEN=x\nROCMLAB_RUNTIME=docker\n"
            for text in ("", "PORT=x\nJUPYTER_TOKEN=x\nROCMLAB_RUNTIME=docker\n", stopped):
                Path(".env").write_text(text)

                assert smi_lab.kernels() is None

    def test_another_users_listener_is_not_asked(
        self, lab: _Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither on the host nor inside the lab, where a stale note of the server is left."""
        port = free_port()
        Path(".env").write_text(f"PORT={port}\nJUPYTER_TOKEN={TOKEN}\nROCMLAB_RUNTIME=native\n")
        with intruder(port, tmp_path) as other:
            assert smi_lab.kernels() is None

            note = {"port": port, "base_url": "/", "token": TOKEN}
            (tmp_path / "jpserver-12.json").write_text(json.dumps(note))
            monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
            monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
            assert smi_lab.kernels() is None
            assert other.received == ""

    def test_inside_the_lab_its_own_server_is_asked(
        self, lab: _Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By the note that the server leaves for its owner, base URL included."""
        note = {"port": lab.server_address[1], "base_url": "/user/anna/", "token": "inner"}
        (tmp_path / "jpserver-12.json").write_text(json.dumps(note))
        monkeypatch.setenv("ROCMLAB_RUNTIME", "docker")
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))

        assert smi_lab.kernels() == []
        assert lab.asked == [("/user/anna/rocmlab/api/kernels", "token inner")]

    def test_without_a_runtime_folder_no_note_is_believed(
        self, lab: _Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Least of all one that lies in the folder in which someone happens to work."""
        (tmp_path / "jpserver-12.json").write_text(json.dumps({"port": lab.server_address[1], "token": "theirs"}))
        monkeypatch.setenv("ROCMLAB_RUNTIME", "docker")
        monkeypatch.chdir(tmp_path)
        for folder in (None, ""):
            monkeypatch.delenv("JUPYTER_RUNTIME_DIR", raising=False)
            if folder is not None:
                monkeypatch.setenv("JUPYTER_RUNTIME_DIR", folder)

            assert smi_lab.kernels() is None
        assert lab.asked == []

    def test_json_has_what_the_lab_says(self, root: Path, lab: _Lab, capsys: pytest.CaptureFixture[str]) -> None:
        """And null where it says nothing, as the other tests see."""
        os.chdir(root.parent / "project")
        lab.answer = json.dumps([{"kernel_id": "1", "notebook": "a.ipynb"}]).encode()

        assert _json(capsys)["kernels"] == [{"kernel_id": "1", "notebook": "a.ipynb"}]


@pytest.fixture
def pretending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A real kernel and a process with the environment of a job, which pretend to use the two GPUs of a host."""
    names = {"JPY_SESSION_NAME": str(tmp_path / "old.ipynb")}
    job = {
        "ROCMLAB_NOTEBOOK": "notebooks/01_train.ipynb",
        "ROCMLAB_RUN": "20260101T000000Z-night",
        "ROCMLAB_JOB_NAME": "a",
    }
    connection = str(tmp_path / f"kernel-{KERNEL_ID}.json")
    commands = [(["-m", "ipykernel_launcher", "-f", connection], names), (["-c", "input()", "train"], job)]
    started = [
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **more},
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for words, more in commands
    ]
    uses = [GpuUse(process.pid, gpu, (3 - gpu) << 30, 48) for gpu, process in enumerate(started)]
    monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(tmp_path / "host", gpus=2, processes=uses)))
    monkeypatch.setenv("COLUMNS", "140")
    yield started
    for process in started:
        process.kill()
        process.communicate()


class TestOwners:
    """What the processes on the GPUs belong to."""

    def test_each_process_has_its_notebook(
        self,
        pretending: list[subprocess.Popen[bytes]],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Without a lab it is the name that the notebook had when its kernel was started."""
        monkeypatch.chdir(tmp_path)

        assert cli(["smi"]) == 0

        rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.partition("\n\n")[2].splitlines()[1:]]
        kernel, job = (row[2] for row in rows)
        assert [process.pid for process in pretending] == [int(row[2].split()[0]) for row in rows]
        assert "3.0 GiB" in kernel
        assert "old.ipynb" in kernel
        assert job.endswith("notebooks/01_train.ipynb · job a, run 20260101T000000Z-night")

    def test_a_running_lab_knows_more(
        self, pretending: list[subprocess.Popen[bytes]], lab: _Lab, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The new name of a renamed notebook, and what its kernel does; process ids in a container do not matter."""
        kernel = {"kernel_id": KERNEL_ID, "pid": 17, "notebook": "new.ipynb", "kernel_name": "torch"}
        lab.answer = json.dumps([{**kernel, "state": "idle", "idle_seconds": 1800.0}]).encode()

        assert cli(["smi"]) == 0

        assert "new.ipynb · kernel torch, idle 30 min" in capsys.readouterr().out


def test_a_missing_device_is_only_an_error_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that vanishes while it is watched is no longer shown, and the others are."""
    root = write_host(tmp_path / "host", gpus=2, busy="50")
    monkeypatch.setattr(smi_look, "SURVEY_SECONDS", 0.0)
    look = smi_look.Look(root, lambda found: [device for device in found if device.backend == "rocm"], False)
    assert len(look.view()["devices"]) == 2
    write_host(root, gpus=2, busy="50", faults=["vanish:1"])

    assert [row["pci_address"] for row in look.view()["devices"]] == ["0000:03:00.0"]

    def refuse(found: object) -> Any:
        raise RocmlabError("what", "why", "fix")

    with pytest.raises(RocmlabError):
        smi_look.Look(root, refuse, False).view()
