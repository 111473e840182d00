"""The real nvitop, gpustat and nvitop-exporter, unchanged, on simulated hosts with AMD GPUs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import waiting
from clones import free_port

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import nvitop
from rocmlab.devices import Device, discover, sample
from rocmlab.simulation import GpuUse, Live, write_host
from rocmlab.stack import project as projects
from rocmlab.telemetry.seam import programs
from rocmlab.telemetry.seam.gpus import PID_LIMIT

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 120  # of a program on a slow machine
CONTROL = re.compile(rb"\x1b(\[[0-9;?]*[ -/]*[@-~]|[()][0-9A-Za-z]|[=>78])|\x0f|\x0e")
KERNEL = "0c0ffee0-1234-4321-abcd-0123456789ab"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def words(repository: Path) -> tuple[list[str], dict[str, str]]:
    """What runs rocmlab, and its environment."""
    environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "LANG": "C.UTF-8", "COLUMNS": "140"}
    return [sys.executable, "-m", "rocmlab"], environment


@pytest.fixture
def run(words: tuple[list[str], dict[str, str]], tmp_path: Path) -> Run:
    """Runs the command line on a host."""
    command, environment = words

    def rocmlab(root: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**environment, "ROCMLAB_ROOT": str(root), **more},
            timeout=LIMIT_SECONDS,
            check=False,
        )

    return rocmlab


def gpus(root: Path) -> list[Device]:
    """Return the AMD GPUs of a host."""
    return [device for device in discover(root) if device.backend == "rocm"]


def tool(name: str) -> str:
    """Return the path of a program next to this Python, or skip."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        pytest.skip(f"no {name} next to this Python: python3 -m pip install {name}")
    return str(path)


def rows(table: str) -> list[str]:
    """Return the two lines of each GPU in nvitop's table, joined."""
    lines = [line for line in table.splitlines() if line.startswith("│")]
    starts = [at for at, line in enumerate(lines) if re.match(r"│ +\d+  \S", line) and "C " not in line[:16]]
    return [lines[at] + lines[at + 1] for at in starts]


@pytest.fixture
def kernel() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a kernel of JupyterLab whose notebook has an unfriendly name."""
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    connection = f"/nowhere/kernel-{KERNEL}.json"
    with subprocess.Popen(
        [sys.executable, "-c", code, "ipykernel_launcher", "-f", connection],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "JPY_SESSION_NAME": "work/train \x1b]0;x\x07 <b>\u202e.ipynb"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


@pytest.mark.long
@pytest.mark.parametrize("profile", ["radeon", "instinct", "apu", "mixed"])
def test_nvitop_prints_every_gpu(run: Run, tmp_path: Path, profile: str) -> None:
    """In HIP's order, with the values of the sampler."""
    root = write_host(tmp_path / "host", profile=profile, busy="training")

    done = run(root, "nvitop", "-1", "--no-unicode")

    assert done.returncode == 0, done.stderr
    table = rows(done.stdout.replace("|", "│"))
    found = gpus(root)
    assert len(table) == len(found)
    for number, (device, row) in enumerate(zip(found, table, strict=True)):
        now = sample(device, root)
        hottest = now.edge_celsius if now.junction_celsius is None else now.junction_celsius
        assert re.match(rf"│ +{number}  ", row)
        assert f"0000{device.pci_address}".upper() in row
        assert f" {round(hottest or 0)}C " in row
        assert f" {round(now.power_watts or 0)}W / " in row
        assert f" {round(now.busy_percent or 0)}% " in row
    assert "SIMULATED" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "ERROR" not in done.stdout + done.stderr


def test_nvitop_shows_what_is_asleep_gone_or_hangs_as_unknown(run: Run, tmp_path: Path) -> None:
    """And the others as they are; a card that is gone before the start is not there."""
    faults = ["asleep:0", "vanish:1", "eio:3", "hang:4"]
    root = write_host(tmp_path / "host", gpus=6, busy="50", faults=faults)

    done = run(root, "nvitop", "-1", "--no-unicode")

    assert done.returncode == 0, done.stderr
    table = rows(done.stdout.replace("|", "│"))
    assert len(table) == 5
    assert table[0].count("N/A / N/A") == 2  # watts and memory; nvitop would show the host's memory
    assert " 50% " in table[1]
    assert " 50% " in table[4]


def test_nvitop_shows_the_parts_of_a_gpu(run: Run, tmp_path: Path) -> None:
    """The first has the sensors; the others do not get the memory of the host instead."""
    root = write_host(tmp_path / "host", profile="instinct", gpus=1, partition="cpx", busy="60")

    done = run(root, "nvitop", "-1", "--ascii")

    table = rows(done.stdout.replace("|", "│"))
    assert len(table) == 8
    assert " 60% " in table[0]
    assert [row.count("N/A / N/A") for row in table] == [0] + [2] * 7


def test_nvitop_shows_a_process_with_its_memory_and_units(
    run: Run, tmp_path: Path, kernel: subprocess.Popen[bytes]
) -> None:
    """By its notebook, whose name does the terminal no harm; its user and times are its own."""
    Live(tmp_path / "host", busy="50", processes=[GpuUse(kernel.pid, vram_bytes=3 << 30, cu_occupancy=24)])

    done = run(tmp_path / "host", "nvitop", "-1", "--no-unicode", COLUMNS="200")

    (line,) = (line for line in done.stdout.splitlines() if re.search(rf"\b{kernel.pid} C ", line))
    assert "3072MiB" in line
    assert re.search(r"MiB +25 +0 ", line)
    assert re.search(r"train .\]0;x. <b>.\.ipynb", line)  # what steers a terminal is replaced
    assert f'.ipynb" {sys.executable} -c' in line
    assert "\x1b]" not in done.stdout
    assert "\u202e" not in done.stdout


def test_made_up_processes_are_shown_and_cannot_be_ended(run: Run, tmp_path: Path) -> None:
    """They have a command, and a number that no process of this machine has."""
    root = write_host(tmp_path / "host", busy="training")

    done = run(root, "nvitop", "-1", "--no-unicode", COLUMNS="140")

    lines = [line for line in done.stdout.splitlines() if "python3 train.py" in line]
    assert len(lines) == 2
    assert all(int(re.search(r" (\d+) C ", line)[1]) > PID_LIMIT for line in lines)  # type: ignore[index]


class Terminal:
    """A program on a real terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 140, 0, 0))
        environment = {name: text for name, text in environment.items() if name not in ("LINES", "COLUMNS")}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self.text = ""

    def wait_for(self, *fragments: str) -> None:
        """Read until all of these have been on the screen since the last call."""
        self.text, raw = "", b""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not all(fragment in self.text for fragment in fragments):
            assert time.monotonic() < deadline, f"{fragments} not in {self.text[-4000:]}"
            if waiting.readable(self._own, 1.0):
                try:
                    raw += os.read(self._own, 65536)
                except OSError:
                    pytest.fail(f"it has ended: {self.text[-4000:]}")
                self.text = CONTROL.sub(b"", raw).decode("utf-8", "replace")

    def press(self, key: str) -> None:
        """Type."""
        os.write(self._own, key.encode())

    def close(self) -> None:
        """End the program."""
        self.process.kill()
        self.process.wait()
        os.close(self._own)


def test_the_full_screen_lives(words: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    """Nvitop draws itself on a terminal, follows the values of a host that changes, and ends when asked to."""
    live = Live(tmp_path / "host", gpus=4, busy="10")
    live.step(60)
    command, environment = words
    terminal = Terminal(
        [*command, "nvitop", "-m", "full", "--ascii", "--interval", "1"],
        {**environment, "ROCMLAB_ROOT": str(tmp_path / "host"), "TERM": "linux"},
    )
    try:
        terminal.wait_for("Driver Version:", "SIMULATED", "RX 7900 XTX", "10%", "Processes:", "train.py")
        live = Live(tmp_path / "host", gpus=4, busy="99")
        live.step(120)
        terminal.wait_for("99")
        terminal.press("q")
        assert terminal.process.wait(LIMIT_SECONDS) == 0
    finally:
        terminal.close()


@pytest.mark.long
def test_a_card_that_leaves_does_not_end_nvitop(words: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    """Its values become N/A on the running screen."""
    live = Live(tmp_path / "host", gpus=2, busy="50", faults=["vanish:1:10"])
    command, environment = words
    terminal = Terminal(
        [*command, "nvitop", "-m", "compact", "--ascii", "--interval", "1"],
        {**environment, "ROCMLAB_ROOT": str(tmp_path / "host"), "TERM": "linux"},
    )
    try:
        terminal.wait_for("50%", "Processes:", "train.py")
        live.step(11)
        terminal.wait_for("N/A")
        terminal.press("q")
        assert terminal.process.wait(LIMIT_SECONDS) == 0
    finally:
        terminal.close()


def test_a_script_uses_the_api_of_nvitop(run: Run, tmp_path: Path, kernel: subprocess.Popen[bytes]) -> None:
    """Its Device class gives the sampler's values, and plain command lines unless notebooks were requested."""
    use = GpuUse(kernel.pid, gpu=3, vram_bytes=5 << 30, cu_occupancy=152)
    Live(tmp_path / "host", profile="instinct", busy="50", processes=[use])
    script = tmp_path / "watch.py"
    script.write_text(
        "import json\n"
        "from nvitop import Device\n"
        "found = []\n"
        "for device in Device.all():\n"
        "    row = {'name': device.name(), 'used': device.memory_used(), 'total': device.memory_total(),\n"
        "           'busy': device.gpu_utilization(), 'watts': device.power_usage() / 1000,\n"
        "           'celsius': device.temperature(), 'clock': device.sm_clock(), 'errors': \n"
        "           device.total_volatile_uncorrected_ecc_errors(), 'fan': str(device.fan_speed())}\n"
        "    row['processes'] = {pid: [p.gpu_memory(), p.gpu_sm_utilization(), p.command(), p.username()]\n"
        "                        for pid, p in device.processes().items()}\n"
        "    found.append(row)\n"
        "print(json.dumps(found))\n"
    )

    plain = run(tmp_path / "host", "nvml-exec", "--", sys.executable, str(script))
    named = run(tmp_path / "host", "nvml-exec", "--notebooks", "--", sys.executable, str(script))

    assert plain.returncode == 0, plain.stderr
    found = json.loads(plain.stdout)
    for device, row in zip(gpus(tmp_path / "host"), found, strict=True):
        now = sample(device, tmp_path / "host")
        assert row["name"] == f"SIMULATED {device.name}"
        assert (row["used"], row["total"]) == (now.vram_used_bytes, now.vram_total_bytes)
        assert row["busy"] == round(now.busy_percent or 0)
        assert row["watts"] == round((now.power_watts or 0) * 1000) / 1000
        assert row["celsius"] == round(now.junction_celsius or 0)
        assert row["clock"] == round((now.core_clock_hertz or 0) / 1e6)
        assert row["errors"] == 0
        assert row["fan"] == "N/A"
    vram, units, command, user = found[3]["processes"][str(kernel.pid)]
    assert (vram, units) == (5 << 30, 50)
    assert command.startswith(sys.executable)
    assert user
    renamed = json.loads(named.stdout)[3]["processes"][str(kernel.pid)][2]
    assert "train" in renamed.partition(sys.executable)[0]
    assert renamed.endswith(command[len(sys.executable) :])


@pytest.mark.long
def test_gpustat_prints_every_gpu(run: Run, tmp_path: Path, kernel: subprocess.Popen[bytes]) -> None:
    """Its JSON has the sampler's values and the process."""
    path = tool("gpustat")
    use = GpuUse(kernel.pid, gpu=1, vram_bytes=2 << 30)
    Live(tmp_path / "host", profile="mixed", busy="50", processes=[use])
    root = tmp_path / "host"

    done = run(root, "nvml-exec", "--", path, "--json")
    text = run(root, "nvml-exec", "--", path, "-cupF", "--no-color")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["gpus"]
    for device, row in zip(gpus(root), found, strict=True):
        now = sample(device, root)
        hottest = now.edge_celsius if now.junction_celsius is None else now.junction_celsius
        assert row["index"] == device.index
        assert row["name"] == f"SIMULATED {device.name}"
        assert row["temperature.gpu"] == round(hottest or 0)
        assert row["utilization.gpu"] == round(now.busy_percent or 0)
        assert row["power.draw"] == int(now.power_watts or 0)
        assert row["fan.speed"] == (None if now.fan_percent is None else round(now.fan_percent))
    (process,) = found[1]["processes"]
    assert (process["pid"], process["gpu_memory_usage"]) == (kernel.pid, 2048)
    assert text.returncode == 0, text.stderr
    assert text.stdout.count("SIMULATED AMD") == 3


def test_gpustat_tells_of_a_lost_card(words: tuple[list[str], dict[str, str]], tmp_path: Path) -> None:
    """It has a line of its own for that, and continues."""
    path = tool("gpustat")
    live = Live(tmp_path / "host", gpus=2, busy="50", faults=["vanish:1:10"])
    command, environment = words
    terminal = Terminal(
        [*command, "nvml-exec", "--", path, "--interval", "1", "--no-color"],
        {**environment, "ROCMLAB_ROOT": str(tmp_path / "host"), "TERM": "linux"},
    )
    try:
        terminal.wait_for("RX 7900 XTX")
        live.step(11)
        terminal.wait_for("GPU is lost")
    finally:
        terminal.close()


def test_the_exporter_serves_metrics_that_follow_the_host(
    words: tuple[list[str], dict[str, str]], tmp_path: Path
) -> None:
    """A scrape has every GPU, and the next one what has changed since."""
    path = tool("nvitop-exporter")
    live = Live(tmp_path / "host", profile="instinct", busy="10")
    live.step(60)
    port = free_port()
    command, environment = words
    process = subprocess.Popen(
        [*command, "nvml-exec", "--", path, "--port", str(port), "--interval", "0.5"],
        stderr=subprocess.PIPE,
        env={**environment, "ROCMLAB_ROOT": str(tmp_path / "host")},
    )
    try:
        first = _scraped(port, process, lambda busy: busy == [10.0] * 8)
        live = Live(tmp_path / "host", profile="instinct", busy="90")
        live.step(120)
        second = _scraped(port, process, lambda busy: busy == [90.0] * 8)
    finally:
        process.kill()
        process.communicate()

    watts = {text: re.findall(r"^gpu_power_usage_W\{.*\} (\S+)$", text, re.MULTILINE) for text in (first, second)}
    assert [float(number) for number in watts[second]] == [
        round((sample(device, tmp_path / "host").power_watts or 0) * 1000) / 1000 for device in gpus(tmp_path / "host")
    ]
    assert watts[first] != watts[second]
    assert 'devicename="SIMULATED AMD Instinct MI300X OAM"' in first


def _scraped(port: int, process: subprocess.Popen[bytes], is_it: Callable[[list[float]], bool]) -> str:
    """Scrape until the load of the GPUs is as it should be."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + LIMIT_SECONDS
    text = ""
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        try:
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_SECONDS) as answer:
                text = answer.read().decode()
        except OSError:
            text = ""
        busy = re.findall(r"^gpu_utilization_Percentage\{.*\} (\S+)$", text, re.MULTILINE)
        if is_it([float(number) for number in busy]):
            return text
        time.sleep(0.2)  # no event tells of a scrape that would be different
    pytest.fail(f"not as expected:\n{text[:4000]}")


def test_without_nvitop_and_without_a_lab_it_says_what_to_do(tmp_path: Path, repository: Path) -> None:
    """On a bare Python, installed where no project is."""
    shutil.copytree(repository / "src/rocmlab", tmp_path / "site/rocmlab", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-S", "-m", "rocmlab", "nvitop"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.path.dirname(shutil.which("sh") or "/bin/sh"), "PYTHONPATH": str(tmp_path / "site")},
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert done.returncode == 2
    assert "error: nvitop not found" in done.stderr
    assert "fix: make up, and then make top; or without the lab: python3 -m pip install nvitop" in done.stderr


@pytest.mark.parametrize("is_running", [True, False])
def test_without_nvitop_it_runs_in_the_lab(monkeypatch: pytest.MonkeyPatch, is_running: bool) -> None:
    """Where the lab runs in a container; the words go along."""
    handed: list[list[str]] = []
    lab = SimpleNamespace(is_running=lambda: is_running, run=lambda words: handed.append(words) or 3)
    monkeypatch.setattr(projects, "find", lambda: Path("nowhere"))
    monkeypatch.setattr(projects, "reopen", lambda folder: SimpleNamespace(lab=lab))
    monkeypatch.setattr(programs, "is_module_here", lambda name: False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ROCMLAB_ROOT", raising=False)

    if is_running:
        assert nvitop.main("nvitop", ["-1", "--ascii"]) == 3
        assert handed == [["nvitop", "-1", "--ascii"]]
    else:
        with pytest.raises(RocmlabError, match="nvitop not found"):
            nvitop.main("nvitop", ["-1"])
