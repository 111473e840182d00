"""Any command, recorded: it does what it would do alone."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rocmlab.devices.recording import read
from rocmlab.simulation import write_host

TIMEOUT_SECONDS = 60.0
SOURCE = Path(__file__).parents[2] / "src"


def arguments(*words: str) -> list[str]:
    """Return a whole command line."""
    return [sys.executable, "-m", "rocmlab", "record", *words]


def environment(root: Path | None = None) -> dict[str, str]:
    """Return the environment of a command that looks at a host."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "ROCMLAB_ROOT": str(root or "/")}


def record(folder: Path, *words: str, root: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        arguments(*words),
        cwd=folder,
        env=environment(root),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with two GPUs."""
    return write_host(tmp_path / "host", gpus=2, busy="0:80,1:20")


class TestCommands:
    """What the command sees and returns."""

    @pytest.mark.parametrize(("words", "code"), [("exit 0", 0), ("exit 41", 41), ("kill -9 $$", 137), ("kill $$", 143)])
    def test_its_exit_code_is_ours(self, tmp_path: Path, host: Path, words: str, code: int) -> None:
        """A signal counts as in a shell; the file reports it too."""
        done = record(tmp_path, "--output", "a.jsonl", "--", "sh", "-c", words, root=host)

        assert done.returncode == code
        assert read(tmp_path / "a.jsonl").exit_code == code

    def test_it_has_stdin_stdout_and_its_arguments(self, tmp_path: Path, host: Path) -> None:
        """Nothing of ours is on its output; options behind its name are its own."""
        done = subprocess.run(
            arguments(
                "--output", "a.jsonl", sys.executable, "-c", "import sys; print(sys.argv[1:], input())", "--json"
            ),
            cwd=tmp_path,
            env=environment(host),
            input="hello\n",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )

        assert done.stdout == "['--json'] hello\n"

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
    def test_signals_are_passed_on(self, tmp_path: Path, host: Path, number: signal.Signals) -> None:
        """The command decides what they mean; then comes the summary."""
        program = (
            "import signal, sys, time\n"
            f"signal.signal({int(number)}, lambda *_: sys.exit(9))\n"
            "print('ready', flush=True)\n"
            "while True: time.sleep(0.1)"  # a signal just before a sleep is handled only after it
        )
        with subprocess.Popen(
            arguments("--output", "a.jsonl", "--", sys.executable, "-c", program),
            cwd=tmp_path,
            env=environment(host),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)

            _, said = process.communicate(timeout=TIMEOUT_SECONDS)

        assert process.returncode == 9
        assert "mean busy" in said
        assert read(tmp_path / "a.jsonl").exit_code == 9

    @pytest.mark.slow
    def test_the_keyboard_interrupts_it_once(self, tmp_path: Path, host: Path) -> None:
        """Ctrl-C reaches the command by its terminal; it is not sent a second time, and the terminal is its own."""
        program = (
            "import signal, sys, time\n"
            "count = []\n"
            "signal.signal(2, lambda *_: count.append(1))\n"
            "print('ready', sys.stdin.isatty(), flush=True)\n"
            "end = time.monotonic() + 60\n"
            "while not count and time.monotonic() < end: time.sleep(0.01)\n"
            "time.sleep(0.5)\n"
            "print('interrupted', len(count), flush=True)"
        )
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(tmp_path)
            os.execvpe(
                sys.executable,
                arguments("--output", "a.jsonl", "--", sys.executable, "-c", program),
                environment(host),
            )
        seen = b""
        end = time.monotonic() + TIMEOUT_SECONDS
        is_sent = False
        while b"samples:" not in seen and time.monotonic() < end:
            try:
                seen += os.read(terminal, 4096)
            except OSError:
                break
            if b"ready True" in seen and not is_sent:
                is_sent = True
                os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
        os.close(terminal)

        assert b"interrupted 1" in seen
        assert os.waitstatus_to_exitcode(status) == 0

    @pytest.mark.parametrize(("command", "code"), [("no-such-program", 127), ("/etc/passwd", 126)])
    def test_what_cannot_be_run(self, tmp_path: Path, host: Path, command: str, code: int) -> None:
        """The codes are those of a shell, and no file is left."""
        done = record(tmp_path, "--output", "a.jsonl", command, root=host)

        assert done.returncode == code
        assert f"error: {command} cannot be run" in done.stderr
        assert not (tmp_path / "a.jsonl").exists()

    @pytest.mark.parametrize("words", [[], ["--"], ["--interval", "0", "true"], ["--interval", "nan", "true"]])
    def test_usage(self, tmp_path: Path, words: list[str]) -> None:
        """What is missing or impossible is said."""
        assert record(tmp_path, *words).returncode == 2


class TestResults:
    """What it leaves."""

    @pytest.mark.slow
    def test_a_table_a_file_and_a_page(self, tmp_path: Path, host: Path) -> None:
        """Each says that the host is simulated; the page is whole and has no script."""
        title = "<script>alert(1)</script>"

        words = ("--output", "a.jsonl", "--html", "a.html", "--interval", "0.05", "--", "sh", "-c", "sleep 1", title)
        done = record(tmp_path, *words, root=host)

        assert done.returncode == 0
        lines = done.stderr.splitlines()
        assert lines[0].startswith("SIMULATED")
        assert " ".join(lines[1].split()) == "device seconds mean busy max busy peak memory mean W energy J"
        assert lines[2].startswith("AMD Radeon RX 7900 XTX 0000:03:00.0")
        assert "80 %" in lines[2]
        assert "20 %" in lines[3]
        assert lines[-1] == "samples: a.jsonl"
        found = read(tmp_path / "a.jsonl")
        assert found.simulated
        assert found.command == ("sh", "-c", "sleep 1", title)
        assert all(len(samples) >= 3 for samples in found.samples.values())
        assert all(sample["junction_celsius"] > 20 for samples in found.samples.values() for sample in samples)
        page = (tmp_path / "a.html").read_text()
        HTMLParser().feed(page)
        assert "SIMULATED" in page
        assert "<script" not in page
        assert page.count("<polyline") == 6

    @pytest.mark.slow
    def test_gpus_that_hang_cost_the_others_no_sample(self, tmp_path: Path) -> None:
        """Three of four do, and the command ends at once: the fourth has been read."""
        root = write_host(tmp_path / "host", gpus=4, busy="50", faults=["hang:0", "hang:1", "hang:2"])

        done = record(tmp_path, "--output", "a.jsonl", "--json", "--", "true", root=root)

        assert done.returncode == 0
        assert [one["mean_busy_percent"] for one in json.loads(done.stderr[done.stderr.index("{") :])["devices"]] == [
            *[None] * 3,
            50,
        ]

    @pytest.mark.slow
    def test_as_json(self, tmp_path: Path, host: Path) -> None:
        """For programs, on stderr, as stdout is the command's."""
        done = record(tmp_path, "--json", "--output", "a.jsonl", "--interval", "0.1", "sleep", "0.5", root=host)

        found = json.loads(done.stderr)

        assert done.stdout == ""
        assert (found["simulated"], found["exit_code"], found["command"]) == (True, 0, ["sleep", "0.5"])
        assert [device["mean_busy_percent"] for device in found["devices"]] == [80, 20]
        assert found["devices"][0]["energy_joules"] > 0

    def test_without_a_gpu_the_cpu_is_recorded(self, tmp_path: Path) -> None:
        """And it reports it."""
        (tmp_path / "host/sys").mkdir(parents=True)
        (tmp_path / "host/proc").mkdir()
        (tmp_path / "host/proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")

        done = record(tmp_path, "--output", "a.jsonl", "true", root=tmp_path / "host")

        assert done.returncode == 0
        assert "no GPU reports anything: the CPU is recorded" in done.stderr
        assert read(tmp_path / "a.jsonl").samples["cpu"][0]["gtt_used_bytes"] == 600 * 1024

    def test_a_name_by_the_time(self, tmp_path: Path, host: Path) -> None:
        """Where none is given, a new file lies here."""
        record(tmp_path, "true", root=host)

        (found,) = tmp_path.glob("rocmlab-*Z.samples.jsonl")
        assert read(found).exit_code == 0

    def test_a_file_that_cannot_be_written(self, tmp_path: Path, host: Path) -> None:
        """Nothing is run then."""
        done = record(tmp_path, "--output", "nowhere/a.jsonl", "--", "touch", "ran", root=host)

        assert done.returncode == 2
        assert "error: nowhere/a.jsonl cannot be written" in done.stderr
        assert not (tmp_path / "ran").exists()

    @pytest.mark.skipif(sys.platform != "linux", reason="a device that is no ordinary file")
    def test_what_is_no_file_is_not_replaced(self, tmp_path: Path, host: Path) -> None:
        """A FIFO, such as a device, stays what it is."""
        os.mkfifo(tmp_path / "pipe")

        done = record(tmp_path, "--output", "pipe", "--", "touch", "ran", root=host)

        assert done.returncode == 2
        assert "it is not an ordinary file" in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["host", "pipe"]

    @pytest.mark.parametrize("command", ["/nonexistent", "/etc/passwd"])
    def test_an_earlier_recording_outlives_a_command_that_cannot_be_run(
        self, tmp_path: Path, host: Path, command: str
    ) -> None:
        """Mistyped, it costs nothing and leaves nothing; a command that runs replaces what a link names."""
        record(tmp_path, "--output", "keep.jsonl", "--", "sh", "-c", "exit 3", root=host)
        (tmp_path / "link.jsonl").symlink_to("keep.jsonl")
        before = (tmp_path / "keep.jsonl").read_bytes()

        failed = record(tmp_path, "--output", "link.jsonl", "--", command, root=host)

        assert failed.returncode in (126, 127)
        assert (tmp_path / "keep.jsonl").read_bytes() == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["host", "keep.jsonl", "link.jsonl"]
        record(tmp_path, "--output", "link.jsonl", "--", "sh", "-c", "exit 4", root=host)
        assert read(tmp_path / "keep.jsonl").exit_code == 4
        assert sorted(path.name for path in tmp_path.iterdir()) == ["host", "keep.jsonl", "link.jsonl"]

    def test_it_has_its_name_while_it_grows(self, tmp_path: Path, host: Path) -> None:
        """Anyone who looks meanwhile finds it, and its readings."""
        look = "until [ $(wc -l < a.jsonl) -gt 2 ]; do sleep 0.05; done; cp a.jsonl seen.jsonl"

        done = record(tmp_path, "--output", "a.jsonl", "--interval", "0.05", "--", "sh", "-c", look, root=host)

        assert done.returncode == 0, done.stderr
        assert any(read(tmp_path / "seen.jsonl").samples.values())

    @pytest.mark.slow
    def test_a_full_disk_costs_samples_and_no_exit_code(self, tmp_path: Path, host: Path) -> None:
        """It is said once, and the table is of what there is."""
        words = shlex.join(
            arguments("--json", "--output", "a.jsonl", "--interval", "0.05", "--", "sh", "-c", "sleep 2; exit 5")
        )

        done = subprocess.run(
            ["bash", "-c", f"ulimit -f 4; PYTHONDONTWRITEBYTECODE=1 exec {words}"],
            cwd=tmp_path,
            env=environment(host),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )

        assert done.returncode == 5, done.stderr
        warning, table = done.stderr.split("\n", 1)
        assert warning == "no more samples are written: a.jsonl: File too large"
        found = json.loads(table)
        assert found["exit_code"] == 5
        assert found["devices"][0]["mean_busy_percent"] == 80
        assert (tmp_path / "a.jsonl").stat().st_size <= 4096

    def test_a_command_that_deletes_the_samples_keeps_its_exit_code(self, tmp_path: Path, host: Path) -> None:
        """What happened is said."""
        deleting = "until rm a.jsonl 2>/dev/null; do sleep 0.1; done; exit 6"
        done = record(tmp_path, "--output", "a.jsonl", "--", "sh", "-c", deleting, root=host)

        assert done.returncode == 6
        assert done.stderr == "the samples cannot be read: a.jsonl: No such file or directory\n"
