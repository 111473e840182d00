"""`rocmlab record`: any command, and what the devices do meanwhile.

The command has the terminal to itself. Signals that another process sends to this one are passed on to it; those of the
keyboard reach it anyway.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.base.formatting import aligned
from rocmlab.cli.devices import use_remembered_root
from rocmlab.cli.main import command_parser, seconds
from rocmlab.devices import Device, survey, system_root
from rocmlab.devices import recording as recordings
from rocmlab.devices.recording import Recorder, Summary
from rocmlab.telemetry.sampler import Sampler

PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
FROM_A_PROCESS = 0  # `si_code` of kill(2)
SIGNALLED = 128  # exit code of a command that a signal ended, as shells count
NOT_FOUND, NOT_RUN = 127, 126
LAST_SECONDS = 5.0  # how long the end waits for a device that hangs
MIN_INTERVAL, MAX_INTERVAL = 0.05, 3600.0
GIBIBYTE = 2.0**30


def main(name: str, arguments: Sequence[str]) -> int:
    """Run a command, sample the devices while it runs, and return its exit code."""
    parser = build_parser(name)
    chosen = parser.parse_args(arguments)
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        parser.error("name a command: rocmlab record -- python train.py")
    use_remembered_root()
    path = chosen.output or Path(time.strftime("rocmlab-%Y%m%dT%H%M%SZ.samples.jsonl", time.gmtime()))
    path = Path(os.path.realpath(path)) if path.is_symlink() else path  # what it names is replaced, not the link
    root = system_root()
    devices = _devices(root)
    with _recorder(path, devices, command) as recorder:
        code, energy = _run(command, Sampler(devices, root), recorder, chosen.interval, path)
        try:
            recorder.end(code, energy)
        except OSError as err:
            _say(f"the end of the samples is not written: {recorder.path}: {err.strerror}")
    try:
        _tell(recorder.path, code, chosen.html, as_json=chosen.json)
    except (OSError, RocmlabError) as err:  # what ran may have deleted it, or written another
        why = err.problem.what if isinstance(err, RocmlabError) else f"{recorder.path}: {err.strerror}"
        _say(f"the samples cannot be read: {why}")
    return code


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab record`."""
    parser = command_parser(
        command, usage="rocmlab record [options] [--] COMMAND …", example="--html page.html -- python train.py"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="file for the samples (default: named by the time, in this folder)"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page with plots")
    interval = seconds(MIN_INTERVAL, MAX_INTERVAL)
    parser.add_argument(
        "--interval", metavar="SECONDS", type=interval, default=1.0, help="time between two samples (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON, on stderr like the table")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run, with its arguments")
    return parser


def _devices(root: Path) -> list[Device]:
    """Return what is worth recording: the GPUs that can be used, else all that there are, else the CPU."""
    found, _ = survey(root)
    gpus = [device for device in found if device.backend in ("rocm", "cuda")]
    if gpus:
        return [device for device in gpus if device.is_usable] or gpus
    print("no GPU reports anything: the CPU is recorded", file=sys.stderr)
    return [device for device in found if device.backend == "cpu"]


@contextlib.contextmanager
def _recorder(path: Path, devices: Sequence[Device], command: Sequence[str]) -> Iterator[Recorder]:
    """Begin the file under another name in its folder; if it still has that in the end, nothing was run: delete it."""
    temporary = path.with_name(f".rocmlab-record-{os.urandom(8).hex()}")
    is_begun = False
    try:
        try:
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "it is not an ordinary file")
            recorder = Recorder(temporary, devices, command)
        except OSError as err:
            raise RocmlabError(
                f"{path} cannot be written", err.strerror or str(err), "choose another file: --output FILE"
            ) from err
        yield recorder
        is_begun = True
    finally:
        if not is_begun:
            temporary.unlink(missing_ok=True)


def _tell(path: Path, code: int, page: Path | None, *, as_json: bool) -> None:
    """Write the page and print the table, of what the file holds.

    Raises:
        OSError: it cannot be read.
        RocmlabError: it has become another file.
    """
    recording = replace(recordings.read(path), exit_code=code)  # the file may have no end
    if page:
        _write_page(recording, page)
    summary = recordings.summarise(recording)
    _say(_as_json(path, recording, summary) if as_json else _as_text(path, recording, summary))


def _say(text: str) -> None:
    """Print on stderr if that can be: it may be a file on a disk that is full, and the command's exit code is kept."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _run(
    command: Sequence[str], sampler: Sampler, recorder: Recorder, interval_seconds: float, path: Path
) -> tuple[int, dict[str, float | None]]:
    """Run the command and record; return its exit code, and the energy of each device."""
    over = threading.Event()
    energy: dict[str, float | None] = {}

    def sample() -> None:
        due = time.monotonic()
        has_room = True
        while True:
            is_last = over.is_set()
            snapshot = sampler.read()
            energy.update(snapshot.energy_joules)
            if has_room:
                has_room = _add(recorder, snapshot.samples)
            if is_last:
                return
            due = max(due + interval_seconds, time.monotonic())
            over.wait(due - time.monotonic())

    with _signals() as (masked, before):
        process = _start(command, before)
        _place(recorder, path)
        thread = threading.Thread(target=sample, name="rocmlab-record", daemon=True)
        thread.start()
        status = _wait(process, masked)
        over.set()
        thread.join(LAST_SECONDS)
    if not thread.is_alive():
        sampler.close()
    return (SIGNALLED - status if status < 0 else status), dict(energy)  # a thread that hangs may come back


def _place(recorder: Recorder, path: Path) -> None:
    """Give the file its name, now that there is something to record."""
    try:
        recorder.move(path)
    except OSError as err:
        _say(f"the samples are in {recorder.path}, as {path} cannot be replaced: {err.strerror}")


def _add(recorder: Recorder, samples: Any) -> bool:  # noqa: ANN401  by device
    """Write samples; return whether there was room for them."""
    try:
        for device, sample in samples.items():
            recorder.add(device, sample)
    except OSError as err:
        _say(f"no more samples are written: {recorder.path}: {err.strerror}")
        return False
    return True


@contextlib.contextmanager
def _signals() -> Iterator[tuple[set[signal.Signals], set[Any]]]:
    """Hold back the signals that are passed on, in threads to come too; give those, and what was held back before."""
    names = [*PASSED_ON, "SIGCHLD"]
    wanted = {signal.Signals[name] for name in names if hasattr(signal, name)}
    chain = signal.signal(signal.SIGCHLD, lambda number, frame: None)  # an ignored one would not be noticed
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        yield wanted, set(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, chain)


def _start(command: Sequence[str], before: set[Any]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before) and None)
    except OSError as err:
        raise RocmlabError(
            f"{shlex.join(command)} cannot be run",
            err.strerror or str(err),
            "check the name of the command and its PATH",
            exit_code=NOT_FOUND if isinstance(err, FileNotFoundError) else NOT_RUN,
        ) from err


def _wait(process: subprocess.Popen[bytes], masked: set[signal.Signals]) -> int:
    """Pass signals on until the command has ended; return what `Popen.returncode` is then."""
    while (status := process.poll()) is None:
        number, is_sent = _next_signal(masked)
        if number != signal.SIGCHLD and is_sent:
            process.send_signal(number)
    return status


def _next_signal(masked: set[signal.Signals]) -> tuple[int, bool]:
    """Wait for a signal; return it, and whether a process has sent it to us and not the keyboard to all."""
    if hasattr(signal, "sigwaitinfo"):
        found = signal.sigwaitinfo(masked)
        return found.si_signo, found.si_code <= FROM_A_PROCESS
    number = signal.sigwait(masked)  # macOS does not tell where it comes from
    return number, number not in (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH)


def _as_json(path: Path, recording: recordings.Recording, summary: Sequence[Summary]) -> str:
    return json.dumps(
        {
            "simulated": recording.simulated,
            "command": list(recording.command or ()),
            "exit_code": recording.exit_code,
            "file": os.fspath(path),
            "devices": [vars(one) for one in summary],
        },
        indent=1,
    )


def _as_text(path: Path, recording: recordings.Recording, summary: Sequence[Summary]) -> str:
    """Return a table; columns without a known value are omitted."""
    heads = ("device", "seconds", "mean busy", "max busy", "peak memory", "mean W", "energy J")
    rows = [
        (
            f"{one.name} {one.device}" if one.device != "cpu" else one.name,
            f"{one.seconds:.1f}",
            _number(one.mean_busy_percent, "{:.0f} %"),
            _number(one.max_busy_percent, "{:.0f} %"),
            _number(None if one.peak_vram_bytes is None else one.peak_vram_bytes / GIBIBYTE, "{:.1f} GiB"),
            _number(one.mean_power_watts, "{:.0f}"),
            _number(one.energy_joules, "{:.0f}"),
        )
        for one in summary
    ]
    lines = ["SIMULATED: the samples are those of a simulated host"] if recording.simulated else []
    return "\n".join([*lines, *aligned(rows, heads, at_the_right=True), f"samples: {path}"])


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _write_page(recording: recordings.Recording, path: Path) -> None:
    from rocmlab.cli.record_page import render

    try:
        path.write_text(render(recording), encoding="utf-8", errors="backslashreplace")
    except OSError as err:
        _say(f"the page {path} cannot be written: {err.strerror}")
