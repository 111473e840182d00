"""`rocmlab serve`: a process that answers /metrics, of a simulated host whose values move."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from test_metrics_exposition import of, series

from rocmlab.cli.main import main
from rocmlab.devices import roots
from rocmlab.simulation import Live, write_host
from rocmlab.telemetry import metrics_server, metrics_source, observer
from rocmlab.telemetry.metrics_server import MAX_AT_A_TIME, Exposition, MetricsServer
from rocmlab.telemetry.metrics_source import MetricsSource

pytestmark = pytest.mark.slow


@contextmanager
def serving(root: Path, *words: str, **more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `rocmlab serve` on a free port, and give its address host:port and the process."""
    environment = {**os.environ, "ROCMLAB_ROOT": str(root), **more}
    command = [sys.executable, "-m", "rocmlab", "serve", "--port", "0", *words]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://([\d.]+:\d+)/metrics", line)
        assert address, line + process.communicate()[1]
        yield address[1], process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def ask(address: str, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    """Return status, content type and body."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read()
    finally:
        connection.close()


def test_names_can_be_chosen_for_one_request(tmp_path: Path) -> None:
    """As with the lab's metrics; names that do not exist are an error."""
    write_host(tmp_path / "host")
    with serving(tmp_path / "host") as (address, _):
        assert b"gpu_gfx_activity" in ask(address, "/metrics?names=amd")[2]
        assert b"gpu_gfx_activity" not in ask(address)[2]
        assert ask(address, "/metrics?names=foo")[0] == 400


def test_each_scrape_is_a_new_sample(tmp_path: Path) -> None:
    """What changes in the tree is in the next answer; energy grows; it says how many GPUs, and that they are none."""
    live = Live(tmp_path / "host", busy="0:10,1:90")
    hot = next((tmp_path / "host").glob("sys/devices/*/*/*/hwmon/hwmon2/temp2_input"))
    with serving(tmp_path / "host") as (address, process):
        before = series(ask(address)[2])
        while not of(before, "rocmlab_gpu_energy_joules_total", gpu="1"):  # which needs two samples
            before = series(ask(address)[2])
        hot.write_text("108000\n")
        after = before
        while of(after, "rocmlab_gpu_temperature_celsius", gpu="0", sensor="junction") != [108]:
            after = series(ask(address)[2])
        energy = [of(found, "rocmlab_gpu_energy_joules_total", gpu="1")[0] for found in (before, after)]

        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert len(live.host.gpus) == 2
    assert of(before, "rocmlab_gpu_busy_ratio", gpu="1", simulated="1") == [0.9]
    assert 0 <= energy[0] <= energy[1]


def test_it_says_what_it_serves(tmp_path: Path) -> None:
    """The page names the metrics; other paths lead there; HEAD has no body."""
    with serving(write_host(tmp_path / "host")) as (address, _):
        assert ask(address, "/")[0] == 200
        assert b'href="metrics"' in ask(address, "/")[2]
        assert ask(address, "/else")[0] == 404
        assert ask(address, method="POST")[0] == 501
        status, kind, body = ask(address, method="HEAD")
        modern = ask(address, Accept="application/openmetrics-text; version=1.0.0")

    assert (status, body) == (200, b"")
    assert kind.startswith("text/plain")
    assert modern[1].startswith("application/openmetrics-text")
    assert modern[2].endswith(b"# EOF\n")


def test_amds_names_are_a_switch(tmp_path: Path) -> None:
    """By option, or by the setting; the option wins."""
    root = write_host(tmp_path / "host", gpus=1, busy="steady")

    with serving(root, "--names", "amd", GPU_METRICS_NAMES="rocmlab") as (address, _):
        chosen = series(ask(address)[2])
    with serving(root, GPU_METRICS_NAMES="both") as (address, _):
        both = series(ask(address)[2])

    assert of(chosen, "gpu_gfx_activity") == [97]
    assert not any(name.startswith("rocmlab_") for name, _ in chosen)
    assert of(both, "gpu_gfx_activity") == [97]
    assert of(both, "rocmlab_gpu_busy_ratio") == [0.97]


def test_a_token_is_demanded_where_one_is_given(tmp_path: Path) -> None:
    """As Prometheus sends it, or as Jupyter's clients do; anything else is rejected."""
    root = write_host(tmp_path / "host")
    (tmp_path / "token").write_text("geheim\n")

    with serving(root, "--token-file", str(tmp_path / "token")) as (address, _):
        allowed = [ask(address, Authorization=f"{kind} geheim")[0] for kind in ("Bearer", "token")]
        refused = [ask(address, Authorization=text)[0] for text in ("Bearer geheim2", "Bearer", "", "Basic geheim")]
        without = ask(address)

    assert allowed == [200, 200]
    assert refused == [401] * 4
    assert without[0] == 401
    assert b"rocmlab" not in without[2]


def test_a_name_that_leads_here_is_refused(tmp_path: Path) -> None:
    """On the loopback only loopback names are answered: a web page cannot read the notebooks' names by DNS tricks."""
    with serving(write_host(tmp_path / "host")) as (address, _):
        port = address.partition(":")[2]
        allowed = [ask(address, Host=f"{name}:{port}")[0] for name in ("localhost", "127.0.0.1", "[::1]")]
        refused = [ask(address, Host=name)[0] for name in (f"evil.example:{port}", "192.0.2.1", "")]

    assert allowed == [200] * 3
    assert refused == [403] * 3


def test_an_open_address_is_warned_of(tmp_path: Path) -> None:
    """Anyone who reaches it can read it; names of any kind are answered there."""
    with serving(write_host(tmp_path / "host"), "--address", "0.0.0.0") as (address, process):
        answered = ask(f"127.0.0.1:{address.partition(':')[2]}", Host="gpuhost:9417")[0]
        process.terminate()
        assert process.stderr is not None
        said = process.stderr.read()

    assert answered == 200
    assert "--token-file" in said


def test_a_port_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The error names another port; the exit code is 2."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(tmp_path / "host")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        code = main(["serve", "--port", str(port)])

    said = capsys.readouterr().err
    assert code == 2
    assert f"error: port {port} on 127.0.0.1 is not available\n  why: another program listens on it" in said
    assert "rocmlab serve --port" in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--address", "192.0.2.1"], "port 9417 on 192.0.2.1 is not available"),
        (["--token-file", "/nowhere/token"], "--token-file /nowhere/token cannot be read"),
        (["--token-file", "/dev/null"], "--token-file /dev/null contains no token"),
    ],
)
def test_what_cannot_be_had_is_named(words: list[str], what: str, capsys: pytest.CaptureFixture) -> None:
    """An address that is not ours, a token that is not there."""
    assert main(["serve", *words]) == 2
    assert f"error: {what}" in capsys.readouterr().err


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The error says how to install it for this very Python, and where else the metrics are."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    assert main(["serve"]) == 2

    said = capsys.readouterr().err
    assert f"fix: {sys.executable} -m pip install prometheus_client" in said
    assert "rocmlab/metrics" in said


def test_wrong_names_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """A setting that names no metrics is not ignored."""
    monkeypatch.setenv("GPU_METRICS_NAMES", "nvidia")

    assert main(["serve"]) == 2
    assert "choose one of: rocmlab, amd, both" in capsys.readouterr().err


class TestFeed:
    """What the server says while cards go."""

    def test_a_card_that_goes_is_down_and_the_others_count_on(self, tmp_path: Path) -> None:
        """It stays in the list as down; the energy of the other does not begin again."""
        live = Live(tmp_path / "host", gpus=2, busy="steady", faults=["vanish:0:5"])
        gone, stays = (gpu.address for gpu in live.host.gpus)
        source = MetricsSource(tmp_path / "host")
        before = series(source.exposition()[0])
        while not of(before, "rocmlab_gpu_energy_joules_total", pci=stays):
            before = series(source.exposition()[0])

        live.step(6)
        source.observer.find()
        after = series(source.exposition()[0])
        source.observer.close()

        assert of(before, "rocmlab_gpu_up", pci=gone) == of(before, "rocmlab_gpu_up", pci=stays) == [1]
        assert of(after, "rocmlab_gpu_up", pci=gone) == [0]
        assert of(after, "rocmlab_gpu_up", pci=stays) == [1]
        assert of(after, "rocmlab_gpus") == [1]
        energy = [of(found, "rocmlab_gpu_energy_joules_total", pci=stays)[0] for found in (before, after)]
        assert 0 < energy[0] <= energy[1]

    def test_processes_that_hang_cost_the_gpus_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A file of KFD never answers: processes are unknown, the GPUs are reported, and later requests do not wait."""
        monkeypatch.setattr(observer, "PROCESSES_SECONDS", 0.5)
        root = write_host(tmp_path / "host", gpus=2, busy="50")
        source = MetricsSource(root)
        source.observer.find()
        before = series(source.exposition()[0])
        copies = root.glob("sys/class/kfd/kfd/proc/*/sdma_*")
        files = {str(file.resolve().relative_to(root.resolve())): "hang" for file in copies}

        (root / roots.FAULTS_FILE).write_text(json.dumps(files))
        source.observer.find()
        answers = [series(source.exposition()[0]) for _ in range(3)]

        assert of(before, "rocmlab_gpu_process_vram_bytes")
        for found in answers:
            assert of(found, "rocmlab_gpu_up") == [1, 1]
            assert of(found, "rocmlab_gpu_process_vram_bytes") == []
        assert [record.getMessage() for record in caplog.records] == [
            "could not read the processes on the GPUs: no answer within 0.5 s; continuing without it"
        ]
        source.observer.close()

    def test_partitions_go_with_their_card_or_with_its_mode(self, tmp_path: Path) -> None:
        """Those of another mode are not listed any more; those of a card that is missing are down, and not usable."""
        root = write_host(tmp_path / "host", profile="instinct", gpus=1, partition="cpx")
        source = MetricsSource(root, "both")

        def count() -> list[float]:
            source.observer.find()
            found = series(source.exposition()[0])
            names = ("rocmlab_gpus", "rocmlab_gpu_up", "rocmlab_gpu_usable", "gpu_nodes_total", "gpu_health")
            assert len(of(found, "rocmlab_gpu_info")) == len(of(found, "rocmlab_gpu_usable"))
            return [sum(of(found, name)) for name in names]

        divided = count()
        write_host(root, profile="instinct", gpus=1, partition="spx")
        whole = count()
        write_host(root, profile="instinct", gpus=1, partition="cpx")
        count()
        write_host(root, profile="instinct", gpus=1, partition="cpx", faults=["vanish:0"])
        missing = count()
        gone = series(source.exposition()[0])
        source.observer.close()

        assert (divided, whole, missing) == ([8, 1, 8, 8, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0])
        assert of(gone, "rocmlab_gpu_up") == of(gone, "rocmlab_gpu_usable") == [0] * 8

    def test_two_who_ask_at_a_time_get_one_sample(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second answer within a moment is of the same instant, so that many who ask do not read many times."""
        monkeypatch.setattr(metrics_source, "FRESH_SECONDS", 3600.0)  # a moment, however slow this machine is
        source = MetricsSource(write_host(tmp_path / "host"))
        source.observer.find()

        first, second = (series(source.exposition()[0]) for _ in range(2))
        source.observer.close()

        assert of(first, "rocmlab_sample_time_seconds") == of(second, "rocmlab_sample_time_seconds")

    def test_the_process_on_a_gpu_is_there(self, tmp_path: Path) -> None:
        """What KFD lists of the simulated host, with its memory."""
        source = MetricsSource(Live(tmp_path / "host", gpus=1, busy="steady").folder)

        found = series(source.exposition()[0])
        source.observer.close()

        assert of(found, "rocmlab_gpu_process_vram_bytes", gpu="0")[0] > 1e9


@contextmanager
def listening(exposition: Exposition) -> Iterator[tuple[MetricsServer, str]]:
    """Run a server in this process, and give it and its address host:port."""
    server = MetricsServer("127.0.0.1", 0, exposition)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server, ":".join(map(str, server.server_address[:2]))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refused(server: MetricsServer) -> bytes:
    """Return what comes at once to a client that has sent nothing yet."""
    with socket.create_connection(server.server_address[:2], timeout=60) as connection:
        return connection.makefile("rb").read()


class TestServer:
    """The server itself, with an exposition of the test's own."""

    def test_a_failure_is_a_500_and_no_end(self, caplog: pytest.LogCaptureFixture) -> None:
        """Prometheus sees the target as down; the reason is in the log, not in the answer."""

        def fails(accept: str, names: str | None) -> tuple[bytes, str]:
            raise RuntimeError("the reason")

        server = MetricsServer("127.0.0.1", 0, fails)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            answers = [ask(":".join(map(str, server.server_address[:2]))) for _ in range(2)]
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

        assert [status for status, _, _ in answers] == [500, 500]
        assert not any(b"the reason" in body for _, _, body in answers)
        assert "the reason" in caplog.text

    def test_more_than_it_can_take_are_told_so(self) -> None:
        """Slow answers hold places; the next who asks is rejected at once and has no thread that waits."""
        go, waiting = threading.Event(), threading.Semaphore(0)

        def slow(accept: str, names: str | None) -> tuple[bytes, str]:
            waiting.release()
            go.wait(60)
            return b"", "text/plain"

        with listening(slow) as (server, address):
            askers = [threading.Thread(target=ask, args=(address,)) for _ in range(MAX_AT_A_TIME)]
            try:
                for asker in askers:
                    asker.start()
                for _ in askers:
                    assert waiting.acquire(timeout=60)
                before = threading.active_count()
                answers = [refused(server) for _ in range(5)]
                assert threading.active_count() == before
            finally:
                go.set()
                for asker in askers:
                    asker.join()
            assert ask(address)[0] == 200

        assert b"HTTP/1.0 503" in answers[0]
        assert answers == [answers[0]] * 5

    def test_connections_that_drip_have_no_more_threads_and_one_deadline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A byte now and then keeps none of them alive: they are closed, and who asks then is answered."""
        monkeypatch.setattr(metrics_server, "SECONDS_FOR_A_REQUEST", 2.0)
        with listening(lambda accept, names: (b"", "text/plain")) as (server, address), ExitStack() as stack:
            before = threading.active_count()
            began = time.monotonic()
            dripping = [stack.enter_context(socket.create_connection(server.server_address[:2])) for _ in range(60)]
            most = 0
            while dripping:
                for each in list(dripping):
                    try:
                        each.sendall(b"G")
                    except OSError:  # the server has closed it
                        dripping.remove(each)
                most = max(most, threading.active_count() - before)
                assert time.monotonic() - began < 60
                time.sleep(0.1)
            assert 0 < most <= MAX_AT_A_TIME
            assert time.monotonic() - began >= 1.9
            assert ask(address)[0] == 200
