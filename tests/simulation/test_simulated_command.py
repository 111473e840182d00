"""`rocmlab simulate`, and other commands on what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rocmlab.cli.main import main

SOURCES = str(Path(__file__).parents[2] / "src")


def command(*arguments: str | Path) -> list[str]:
    """The command line in a process of its own."""
    return [sys.executable, "-m", "rocmlab", *map(str, arguments)]


def environment(root: Path | None = None) -> dict[str, str]:
    """What a child process gets."""
    found = {**os.environ, "PYTHONPATH": SOURCES}
    return {**found, "ROCMLAB_ROOT": str(root)} if root else found


class TestSimulate:
    """Writing from the command line."""

    def test_devices_on_it_say_simulated(self, tmp_path: Path) -> None:
        """The printed line can be pasted, and its output cannot be taken for this machine's."""
        assert main(["simulate", str(tmp_path / "host"), "--gpus", "3", "--busy", "0:95"]) == 0
        text, data = (
            subprocess.run(
                command("devices", *more),
                env=environment(tmp_path / "host"),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for more in ((), ("--json",))
        )

        assert "SIMULATED" in text
        found = json.loads(data)
        assert found["simulated"] is True
        assert [device["simulated"] for device in found["devices"] if device["backend"] == "rocm"] == [True] * 3

    def test_the_page_shows_what_is_printed(self, tmp_path: Path) -> None:
        """The commands of its first example give the text below them."""
        page = (Path(SOURCES).parent / "docs/simulate.md").read_text()
        shown = page.partition("```console\n")[2].partition("```")[0].replace("/tmp/host", "HOST")
        printed = ""
        for line in (line for line in shown.splitlines() if line.startswith("$ ")):
            root, _, words = line[2:].replace("HOST", str(tmp_path)).partition("scripts/rocmlab ")
            done = subprocess.run(
                command(*words.split()),
                env={**environment(tmp_path if root else None), "COLUMNS": "100"},
                capture_output=True,
                text=True,
                check=True,
            )
            printed += f"{line}\n{done.stdout}"

        assert printed.replace(str(tmp_path), "HOST").strip() == shown.strip()

    @pytest.mark.slow
    def test_live_ends_after_its_seconds(self, tmp_path: Path) -> None:
        """Values have moved by then."""
        write = command("simulate", tmp_path, "--live", "--seconds", "0.6", "--interval", "0.1", "--gpus", "1")

        subprocess.run(write, env=environment(), capture_output=True, check=True, timeout=20)

        table = next((tmp_path / "sys/devices").rglob("gpu_metrics")).read_bytes()
        assert int.from_bytes(table[32:40], "little") > 600 * 10**9  # the driver's clock, in ns

    @pytest.mark.slow
    def test_live_ends_at_ctrl_c_without_a_traceback(self, tmp_path: Path) -> None:
        """The host stays as it is then."""
        child = subprocess.Popen(
            command("simulate", tmp_path, "--live"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=10)

        assert child.returncode == 0
        assert b"Traceback" not in errors
        assert (tmp_path / "dev/kfd").exists()

    def test_live_says_when_its_folder_is_taken_away(self, tmp_path: Path) -> None:
        """Another writer in the same folder is a Problem and not a traceback."""
        write = command("simulate", tmp_path / "host", "--live", "--interval", "0.1", "--busy", "waves")
        child = subprocess.Popen(write, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        (tmp_path / "host/sys").rename(tmp_path / "gone")
        _, errors = child.communicate(timeout=10)

        assert child.returncode == 2
        assert b"is gone" in errors
        assert b"Traceback" not in errors

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--gpus", "99"], "1 to 64"),
            (["--fault", "nonsense"], "choose one of: vanish"),
            (["--busy", "sometimes"], "--busy training"),
            (["--partition", "cpx"], "--profile instinct"),
            (["--product", "rx1"], "rx7900xtx"),
            (["--gpus", "2", "--busy", "0:50,99:1"], "GPU 99 not found"),
            (["--gpus", "2", "--busy", "0:50,0:1"], "named twice"),
        ],
    )
    def test_errors_say_what_would_be_possible(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
    ) -> None:
        """Exit code 2 and a fix."""
        assert main(["simulate", str(tmp_path / "host"), *arguments]) == 2
        assert words in capsys.readouterr().err

    @pytest.mark.parametrize("below", ["", "more/of/it"])
    def test_a_file_is_no_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str) -> None:
        """It is named and kept, and what to do is said."""
        (tmp_path / "file").write_text("mine")

        assert main(["simulate", str(tmp_path / "file" / below)]) == 2
        errors = capsys.readouterr().err
        assert f"{tmp_path}/file is not a folder" in errors
        assert "fix: name a new folder" in errors
        assert (tmp_path / "file").read_text() == "mine"

    def test_a_link_that_leads_nowhere_is_no_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Nothing is made at its other end."""
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")

        assert main(["simulate", str(tmp_path / "link")]) == 2
        assert "broken link" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["host", "--seconds", "1"], "--seconds is for --live"),
            (["host", "--interval", "1"], "--interval is for --live"),
            ([""], "an empty name is not a folder"),
        ],
    )
    def test_what_would_do_nothing_is_refused(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        words: str,
    ) -> None:
        """An empty name would be the current folder."""
        monkeypatch.chdir(tmp_path)

        assert main(["simulate", *arguments]) == 2
        assert words in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_live_ends_in_time_whatever_the_interval(self, tmp_path: Path) -> None:
        """The last pause is as short as the time that is left."""
        began = time.monotonic()

        assert main(["simulate", str(tmp_path), "--live", "--seconds", "0.3", "--interval", "600"]) == 0
        assert time.monotonic() - began < 30

    @pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan", "1e300"])
    def test_times_are_above_zero(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: str) -> None:
        """A usage error before anything is written."""
        assert main(["simulate", str(tmp_path / "host"), "--live", "--seconds", seconds]) == 2
        assert "--seconds" in capsys.readouterr().err
        assert not (tmp_path / "host").exists()

    def test_real_nodes_need_the_right_to_make_them(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the system refuses, it is said which option to leave out."""

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "mknod", refuse)

        assert main(["simulate", str(tmp_path / "host"), "--nodes"]) == 2
        assert "omit --nodes" in capsys.readouterr().err
