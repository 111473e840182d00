"""The GPU panel's half in the server: a real jupyter_server, a simulated host, real kernels with leases."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import nbformat
import pytest
from kernel_hosts import Host, simulated_host
from panel_servers import TOKEN, Page, Reads, Server, wait

from rocmlab.kernels.leases import Holder
from rocmlab.lab.server import page
from rocmlab.lab.server.broadcast import MAX_VIEWERS
from rocmlab.simulation import write_host
from rocmlab.stack import live, settings

pytestmark = pytest.mark.slow

FIRST, SECOND = "0000:03:00.0", "0000:06:00.0"
DELAY = "power/autosuspend_delay_ms"  # a long one: the GPU is read for viewers alone
BUSY = "rocmlab/api/history?seconds=900&metrics=busy_percent"
GETS = ("api/devices", "api/history", "api/stream", "api/kernels", "api/cluster", "api/packages", "metrics")


class Lab:
    """One server and the host that it is on."""

    def __init__(self, host: Host, root: Path, server: Server) -> None:
        self.host, self.root, self.server = host, root, server

    def file(self, address: str, name: str) -> Path:
        """Return a file of a GPU."""
        return self.root / "sys/bus/pci/devices" / address / name

    def holders(self) -> list[str | None]:
        """Return which notebook leases each GPU."""
        return self.host.holders()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server below a base URL; tests of this module share it, and shut down what they start."""
    folder = tmp_path_factory.mktemp("panel")
    with pytest.MonkeyPatch.context() as patch, simulated_host(folder, patch) as host:
        host.offer()
        server = Server(host, base_url="/x/y/", has_jupyterlab=True, IDLE_GPU_WARNING_SECONDS="1")
        try:
            yield Lab(host, folder / "host", server.up())
        finally:
            server.stop()


@pytest.fixture
def lab(running: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """That server; no kernel is left behind, and no process on a GPU, which the next kernel would avoid."""
    monkeypatch.setenv("ROCMLAB_ROOT", str(running.root))
    yield running
    for process in (running.root / "sys/class/kfd/kfd/proc").iterdir():
        shutil.rmtree(process)
    for kernel in running.server.json("api/kernels"):
        running.server.json(f"api/kernels/{kernel['id']}", "DELETE", status=204)
    wait(lambda: running.holders() == [None, None])


def test_devices_have_ids_and_say_that_they_are_simulated(lab: Lab) -> None:
    """Each is described whole, and called as samples call it."""
    found = lab.server.json("rocmlab/api/devices")

    assert found["simulated"] is True
    assert [device["id"] for device in found["devices"]] == [FIRST, SECOND, "cpu"]
    assert found["devices"][0]["name"] == "AMD Radeon RX 7900 XTX"
    assert all(device["simulated"] for device in found["devices"])


def test_without_a_cluster_there_is_nothing_about_one(lab: Lab) -> None:
    """The list of devices reports it, so that no page asks; who asks all the same is told how there would be one."""
    assert lab.server.json("rocmlab/api/devices")["is_in_cluster"] is False
    assert "make cluster-up" in lab.server.json("rocmlab/api/cluster", status=404)["fix"]


@pytest.mark.parametrize("path", GETS)
def test_nothing_is_told_without_the_token(lab: Lab, path: str) -> None:
    """Every route is behind Jupyter's authentication."""
    assert lab.server.request(f"rocmlab/{path}", token=None)[0] == 403
    assert lab.server.request(f"rocmlab/{path}", token="x" * 32)[0] == 403


def test_who_is_not_logged_in_is_sent_to_the_login(lab: Lab) -> None:
    """The page and its files are no exception."""
    status, headers, _ = lab.server.request("rocmlab/", token=None)

    assert status == 302
    assert headers["location"].startswith("/x/y/login?")
    assert lab.server.request("rocmlab/index.js", token=None)[0] == 302


def test_a_cookie_alone_does_nothing_to_kernels(lab: Lab) -> None:
    """An action needs a POST, and with a cookie the XSRF token; another origin is rejected."""
    kernel = lab.server.notebook("xsrf.ipynb", "torch")["kernel"]["id"]
    cookies = lab.server.request(f"rocmlab/api/kernels?token={TOKEN}", token=None)[1]["set-cookie"]
    login = re.search(r"username-[^=]+=(?:\"[^\"]*\"|[^;]*)", cookies)[0]
    path = f"rocmlab/api/kernels/{kernel}/shutdown"

    assert lab.server.request("rocmlab/api/kernels", token=None, Cookie=login)[0] == 200
    assert lab.server.request(path, "POST", token=None, Cookie=login)[0] == 403
    assert lab.server.request(path, "POST", token=None, Cookie=f"{login}; _xsrf=a", X_XSRFToken="b")[0] == 403
    assert lab.server.request(path)[0] == 405
    assert lab.server.request("rocmlab/api/stream", token=None, Cookie=login, Origin="http://evil.example")[0] == 404
    assert lab.holders() == ["xsrf.ipynb", None]

    token = re.search(r"_xsrf=([^;]+)", lab.server.request("login", token=None)[1]["set-cookie"])[1]
    cookie = f"{login}; _xsrf={token}"
    assert lab.server.request(path, "POST", token=None, Cookie=cookie, X_XSRFToken=token)[0] == 200
    assert lab.holders() == [None, None]


def test_a_change_in_the_tree_is_in_the_next_snapshot(lab: Lab) -> None:
    """What the driver's file says is what viewers get, a second later at most but for the machine's own slowness."""
    with lab.server.stream() as events:
        events.first("snapshot", lambda snapshot: snapshot["samples"][FIRST]["busy_percent"] == 0)
        lab.file(FIRST, "gpu_busy_percent").write_text("73\n")
        events.first("snapshot", lambda snapshot: snapshot["samples"][FIRST]["busy_percent"] == 73)
        lab.file(FIRST, "gpu_busy_percent").write_text("0\n")

    assert events.answer.headers["X-Accel-Buffering"] == "no"
    assert events.answer.headers["Content-Type"].startswith("text/event-stream")
    assert events.answer.headers["Cache-Control"] == "no-store"


def test_a_kernel_is_known_by_its_notebook_and_follows_a_rename(lab: Lab) -> None:
    """State, lease and list of kernels name the path that the notebook has now."""
    session = lab.server.notebook("before.ipynb", "torch")
    kernel = session["kernel"]["id"]
    with lab.server.stream() as events:
        events.first("state", lambda state: [lease["notebook"] for lease in state["leases"]] == ["before.ipynb"])
        renamed = {"path": "below/after.ipynb", "name": "after.ipynb", "type": "notebook"}
        lab.server.json(f"api/sessions/{session['id']}", "PATCH", renamed)
        state = events.first("state", lambda state: state["leases"][0]["notebook"] == "below/after.ipynb")

    assert lab.holders() == ["before.ipynb", None]  # what the kernel was started with stays next to its lock
    assert state["leases"][0]["kernel_id"] == kernel
    (row,) = lab.server.json("rocmlab/api/kernels")
    assert row == {**row, "kernel_id": kernel, "notebook": "below/after.ipynb", "kernel_name": "torch"}
    assert row["devices"] == [FIRST]
    assert row["since"] == state["leases"][0]["started"]
    assert Path(f"/proc/{row['pid']}").exists()


def test_what_a_notebook_costs_is_counted_without_a_page_and_told_to_each(lab: Lab) -> None:
    """Two pages after each other get the same beginning and more time; a kernel for the CPU costs nothing."""
    kernel = lab.server.notebook("costs.ipynb", "torch")["kernel"]["id"]
    lab.server.notebook("free.ipynb", "torch-cpu")

    def told() -> dict:
        def is_told(state: dict) -> bool:
            return any(row["kernel_ids"] == [kernel] and row["energy_joules"] for row in state["costs"])

        with lab.server.stream() as events:
            rows = events.first("state", is_told)["costs"]
        assert "free.ipynb" not in {row["notebook"] for row in rows}
        return next(row for row in rows if row["notebook"] == "costs.ipynb")

    first = told()
    second = told()
    lab.server.json(f"rocmlab/api/kernels/{kernel}/shutdown", "POST")
    with lab.server.stream() as events:
        ended = events.first("state", lambda state: not any(row["kernel_ids"] for row in state["costs"]))["costs"]

    assert (first["is_whole"], first["is_shared"], first["amount"]) == (True, False, None)
    assert first["since_seconds"] == second["since_seconds"]
    assert first["gpu_seconds"] <= second["gpu_seconds"]
    assert second["energy_joules"] <= next(row for row in ended if row["notebook"] == "costs.ipynb")["energy_joules"]


def test_a_restarted_kernel_keeps_its_lease_and_one_that_is_shut_down_does_not(lab: Lab) -> None:
    """Both as JupyterLab's own menu does it: the session goes with the kernel, and viewers hear of it."""
    session = lab.server.notebook("a.ipynb", "torch")
    kernel = session["kernel"]["id"]
    (before,) = lab.server.json("rocmlab/api/kernels")

    lab.server.json(f"rocmlab/api/kernels/{kernel}/restart", "POST")
    (after,) = lab.server.json("rocmlab/api/kernels")
    assert after["pid"] != before["pid"]
    assert lab.holders() == ["a.ipynb", None]

    with lab.server.stream() as events:
        events.first("state", lambda state: state["leases"])
        lab.server.json(f"rocmlab/api/kernels/{kernel}/shutdown", "POST")
        events.first("state", lambda state: not state["kernels"] and not state["leases"])
    assert lab.holders() == [None, None]
    assert lab.server.json("api/sessions") == []


def test_a_kernel_without_a_session_is_shut_down_too(lab: Lab) -> None:
    """Such as one that a script started."""
    kernel = lab.server.json("api/kernels", "POST", {"name": "torch"}, status=201)["id"]

    lab.server.json(f"rocmlab/api/kernels/{kernel}/shutdown", "POST")

    assert lab.server.json("rocmlab/api/kernels") == []


def test_an_interrupt_reaches_the_cell(lab: Lab) -> None:
    """A busy kernel is idle again, with the process that it had."""
    kernel = lab.server.notebook("busy.ipynb", "torch")["kernel"]["id"]
    with lab.server.execute(kernel, "import time\ntime.sleep(600)"):
        wait(lambda: lab.server.json("rocmlab/api/kernels")[0]["state"] == "busy")
        (before,) = lab.server.json("rocmlab/api/kernels")
        assert before["idle_seconds"] is None
        time.sleep(1)  # the cell runs a moment after its kernel says busy

        lab.server.json(f"rocmlab/api/kernels/{kernel}/interrupt", "POST")

        wait(lambda: lab.server.json("rocmlab/api/kernels")[0]["state"] == "idle")
    (after,) = lab.server.json("rocmlab/api/kernels")
    assert after["pid"] == before["pid"]
    assert after["idle_seconds"] >= 0


@pytest.mark.parametrize("action", ["interrupt", "restart", "shutdown"])
def test_an_unknown_kernel_is_not_found(lab: Lab, action: str) -> None:
    """The answer says what, why and what to do."""
    found = lab.server.json(f"rocmlab/api/kernels/00000000-dead/{action}", "POST", status=404)

    assert found["what"] == found["message"] == "kernel 00000000-dead not found"
    assert found["why"]
    assert found["fix"]


def test_a_kernel_that_holds_memory_and_does_nothing_is_named(lab: Lab) -> None:
    """After the time of the setting: notebook, memory, and the setting that shuts such kernels down."""
    session = lab.server.notebook("idle.ipynb", "torch")
    with lab.server.execute(session["kernel"]["id"], "1"):
        wait(lambda: lab.server.json("rocmlab/api/kernels")[0]["state"] == "idle")
    (row,) = lab.server.json("rocmlab/api/kernels")
    gpu = next(each for each in lab.host.devices if each.pci_address == FIRST)
    process = lab.root / f"sys/class/kfd/kfd/proc/{row['pid']}"
    process.mkdir()
    (process / f"vram_{gpu.kfd_id}").write_text(f"{3 << 30}\n")

    with lab.server.stream() as events:
        state = events.first("state", lambda state: any(each["vram_bytes"] for each in state["idle_holders"]))
        snapshot = events.first("snapshot", lambda snapshot: snapshot["processes"])

    (holder,) = state["idle_holders"]
    assert holder["vram_bytes"] == 3 << 30
    assert holder["what"].startswith("idle.ipynb holds 3.0 GiB of GPU memory")
    assert "CULL_IDLE_GPU_KERNELS_SECONDS" in holder["fix"]
    (found,) = [each for each in snapshot["processes"] if each["pid"] == row["pid"]]
    assert found["owner"]["notebook"] == "idle.ipynb"
    assert found["owner"]["kernel_id"] == row["kernel_id"]


def test_nothing_is_read_while_nobody_looks(lab: Lab) -> None:
    """Counted by the kernel, of a GPU that would be kept awake: one a second for viewers, none before and after."""
    lab.file(FIRST, DELAY).write_text("60000\n")
    with closing(Reads(lab.file(FIRST, "gpu_busy_percent"))) as reads:
        wait(lambda: reads.during(2) == 0)  # what was being read may still be
        assert reads.during(3) == 0
        with lab.server.stream() as events:
            events.first("snapshot")
            assert reads.during(4) > 0
        wait(lambda: reads.during(2.5) == 0)


@pytest.mark.long
def test_what_a_gpu_did_before_the_first_page_is_there(host: Host, tmp_path: Path) -> None:
    """Someone else used it, so it was awake; the one that sleeps was not touched, and no one has asked anything yet."""
    cards = tmp_path / "host/sys/bus/pci/devices"
    (cards / SECOND / "power/runtime_status").write_text("suspended\n")
    (cards / FIRST / "gpu_busy_percent").write_text("77\n")
    with closing(Reads(cards / SECOND / "gpu_busy_percent")) as sleeping:
        server = Server(host).up()
        try:
            wait(lambda: server.json(BUSY)["series"])
            found = server.json(BUSY)["series"]
            assert sleeping.count() == 0
        finally:
            server.stop()

    assert found == {FIRST: {"busy_percent": [77.0]}}
    assert "Traceback" not in server.log


def test_many_viewers_have_one_sampler(lab: Lab) -> None:
    """200 get the same snapshots, and the files are read as often as for one; there is a limit, which is told."""
    with closing(Reads(lab.file(FIRST, "gpu_busy_percent"))) as reads, ExitStack() as stack:
        viewers = [stack.enter_context(lab.server.stream()) for _ in range(200)]
        for viewer in viewers:
            viewer.first("snapshot")
            viewer.first("state")
        assert 0 < reads.during(5) <= 10
        first = viewers[0].first("snapshot", lambda snapshot: snapshot["time_seconds"] > time.time() - 0.5)
        viewers[-1].first("snapshot", lambda snapshot: snapshot["time_seconds"] >= first["time_seconds"])
        for _ in range(MAX_VIEWERS - 200):
            stack.enter_context(lab.server.stream())
        refused = lab.server.json("rocmlab/api/stream", status=503)
    assert f"{MAX_VIEWERS} pages" in refused["what"]
    wait(lambda: lab.server.request("rocmlab/api/devices")[0] == 200)


def test_metrics_are_sampled_for_each_scrape(lab: Lab) -> None:
    """With a bearer token, in the format that is requested; what no one watches is read for that alone."""
    lab.server.notebook("scraped.ipynb", "torch")
    with closing(Reads(lab.file(FIRST, "gpu_busy_percent"))) as reads:
        lab.file(FIRST, DELAY).write_text("60000\n")
        wait(lambda: reads.during(2) == 0)  # what an earlier test watched is old
        lab.file(FIRST, "gpu_busy_percent").write_text("41\n")
        status, headers, text = lab.server.request("rocmlab/metrics", token=None, Authorization=f"Bearer {TOKEN}")
        lab.file(FIRST, "gpu_busy_percent").write_text("0\n")
        assert 0 < reads.count() <= 3

    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    busy = [line for line in text.splitlines() if line.startswith("rocmlab_gpu_busy_ratio") and FIRST in line]
    assert [float(line.split()[-1]) for line in busy] == [0.41]
    assert "scraped.ipynb" in text
    accept = "application/openmetrics-text; version=1.0.0"
    assert lab.server.request("rocmlab/metrics", Accept=accept)[2].endswith("# EOF\n")
    assert "gpu_gfx_activity" in lab.server.request("rocmlab/metrics?names=amd")[2]
    assert "rocmlab" in lab.server.json("rocmlab/metrics?names=nvidia", status=400)["fix"]


def test_history_has_what_was_watched(lab: Lab) -> None:
    """One list of times for each device, and a list of values of the same length for each metric."""
    with lab.server.stream() as events:
        begin = events.first("snapshot")["time_seconds"]
        events.first("snapshot", lambda snapshot: snapshot["time_seconds"] > begin + 1.5)

    found = lab.server.json("rocmlab/api/history?seconds=60")
    assert len(found["times"][FIRST]) >= 2
    assert {len(values) for values in found["series"][FIRST].values()} == {len(found["times"][FIRST])}
    assert found["series"][FIRST]["vram_total_bytes" if "vram_total_bytes" in found["series"][FIRST] else "power_watts"]
    one = lab.server.json("rocmlab/api/history?metrics=power_watts")
    assert set(one["series"][SECOND]) == {"power_watts"}
    for wrong in ("seconds=-1", "seconds=nan", "seconds=x", "metrics=charm"):
        assert lab.server.json(f"rocmlab/api/history?{wrong}", status=400)["why"]


def test_the_page_or_what_is_missing(lab: Lab) -> None:
    """With the built files: the page, its configuration and all that it links to; without: how to build them."""
    status, headers, text = lab.server.request("rocmlab/")
    assert lab.server.request("rocmlab")[1]["location"] == "/x/y/rocmlab/"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    if not (page.FOLDER / "index.html").is_file():
        assert status == 404
        assert "scripts/build-frontend" in text
        return
    config = json.loads(re.search(r'id="jupyter-config-data" type="application/json">(.*?)</script>', text, re.S)[1])
    assert config == {"baseUrl": "/x/y/", "rocmlabUrl": "/x/y/rocmlab/", "token": TOKEN}
    linked = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert linked
    for link in linked:
        status, headers, _ = lab.server.request("rocmlab/" + link.removeprefix("./"))
        assert status == 200, link
        assert "script-src 'self'" in headers["content-security-policy"]


def test_no_file_outside_the_page_is_served(lab: Lab) -> None:
    """Whatever a path tries."""
    for path in ("../__init__.py", "..%2f__init__.py", "__init__.py", "%2e%2e/handlers.py", ".hidden.js"):
        assert lab.server.request(f"rocmlab/{path}")[0] in (403, 404)


def test_problems_come_from_the_doctor(host: Host, tmp_path: Path) -> None:
    """A card with half its lanes, and one whose driver hangs: it does not stop the other's samples, nor the server."""
    root = write_host(tmp_path / "broken", gpus=2, faults=["degraded-link:0", "hang:1"])
    server = Server(host, ROCMLAB_ROOT=str(root)).up()
    try:
        with server.stream() as events:
            state = events.first("state", lambda state: any(each["check"] for each in state["problems"]))
            snapshot = events.first("snapshot", lambda snapshot: snapshot["samples"].get(FIRST))
    finally:
        seconds = server.stop()

    assert any(FIRST in each["what"] and "lanes" in each["what"] for each in state["problems"])
    assert all({"what", "why", "fix", "check", "status"} == set(each) for each in state["problems"])
    assert snapshot["samples"][FIRST]["busy_percent"] == 0
    assert seconds < 10  # a second, on a machine that does nothing else


def test_a_server_without_gpus_works(host: Host, tmp_path: Path) -> None:
    """There is the CPU, and no error."""
    root = tmp_path / "plain"
    (root / "proc").mkdir(parents=True)
    server = Server(host, ROCMLAB_ROOT=str(root)).up()
    try:
        assert "cpu" in [device["id"] for device in server.json("rocmlab/api/devices")["devices"]]
        with server.stream() as events:
            events.first("snapshot")
    finally:
        server.stop()


@pytest.mark.long
def test_a_server_whose_telemetry_is_broken_starts_and_each_view_says_why(host: Host, tmp_path: Path) -> None:
    """The sampler cannot be imported; kernels and leases are shown all the same."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/sitecustomize.py").write_text("import sys\nsys.modules['rocmlab.telemetry.hub'] = None\n")
    host.offer()
    server = Server(host, PYTHONPATH=f"{tmp_path / 'broken'}:{os.environ['PYTHONPATH']}").up()
    try:
        session = server.notebook("a.ipynb", "torch")
        for path in ("metrics", "api/history"):
            assert "rocmlab.telemetry.hub" in server.json(f"rocmlab/{path}", status=503)["why"]
        with server.stream() as events:
            state = events.first("state", lambda state: state["problems"] and state["leases"])
        server.json(f"rocmlab/api/kernels/{session['kernel']['id']}/shutdown", "POST")
    finally:
        server.stop()

    assert state["problems"][0]["what"] == "the GPUs cannot be sampled"
    assert [lease["notebook"] for lease in state["leases"]] == ["a.ipynb"]


def test_a_server_that_is_watched_ends_at_once(host: Host) -> None:
    """Viewers hold nothing up, and nothing is left in the log."""
    server = Server(host).up()
    with server.stream() as slow, server.stream() as events:
        events.first("snapshot")
        seconds = server.stop()
        assert slow.answer.read() is not None

    assert seconds < 10
    for word in ("Traceback", "Task was destroyed", "never retrieved"):
        assert word not in server.log


def test_vanished_viewers_are_let_go(host: Host) -> None:
    """Connections that break silently do not keep the sampler going."""
    server = Server(host).up()
    root = host.prefix.parent / "host"
    try:
        with closing(Reads(root / "sys/bus/pci/devices" / FIRST / "gpu_busy_percent")) as reads:
            for _ in range(20):
                connection = http.client.HTTPConnection("127.0.0.1", server.port)
                connection.request("GET", "/rocmlab/api/stream", headers={"Authorization": f"token {TOKEN}"})
                connection.sock.close()
            with server.stream() as events:
                events.first("snapshot")
            wait(lambda: reads.during(2.5) == 0)
    finally:
        server.stop()

    assert "Traceback" not in server.log


def test_a_kernel_that_nobody_ever_talked_to_is_idle_since_its_start(lab: Lab) -> None:
    """Started over REST, it says `starting` for ever, and holds its GPU all the same."""
    kernel = lab.server.json("api/kernels", "POST", {"name": "torch"}, status=201)["id"]

    with lab.server.stream() as events:
        state = events.first("state", lambda state: state["idle_holders"])

    (row,) = lab.server.json("rocmlab/api/kernels")
    (holder,) = state["idle_holders"]
    assert row["state"] == "starting"
    assert row["starting_since_seconds"] == row["idle_since_seconds"]
    assert row["queue"] is None
    assert row["idle_seconds"] > 1
    assert holder["kernel_id"] == row["kernel_id"] == kernel
    assert holder["devices"] == row["devices"] != []
    assert 0 < time.time() - row["idle_since_seconds"] < 600


def test_a_kernel_on_a_gpu_that_nothing_can_reserve_is_told_from_one_on_the_cpu(host: Host) -> None:
    """On WSL2, imitated: all GPUs are behind one node, and there is no lease."""
    host.offer()
    root = host.prefix.parent / "host"
    shutil.rmtree(root / "sys")
    shutil.rmtree(root / "dev")
    (root / "dev").mkdir()
    (root / "dev/dxg").touch()
    server = Server(host).up()
    try:
        for name in ("torch", "torch-cpu"):
            server.json("api/kernels", "POST", {"name": name}, status=201)
        rows = {row["kernel_name"]: row for row in server.json("rocmlab/api/kernels")}
    finally:
        server.stop()

    assert {name: row["is_gpu_shared"] for name, row in rows.items()} == {"torch": True, "torch-cpu": False}
    assert [row["since"] for row in rows.values()] == [None, None]


def test_a_kernel_that_waits_for_a_gpu_has_its_place_in_the_queue(lab: Lab) -> None:
    """It is neither idle nor starting: how many wait for GPUs of this host, and how many of them are before it."""
    leases, gpus = lab.host.leases, lab.host.devices
    lease = leases.take(gpus, Holder.here("other.ipynb"))
    assert lease
    with ExitStack() as ended:
        ended.callback(lease.release)
        ended.enter_context(closing(leases.join(gpus, 2, Holder.here("before.ipynb"))))
        kernel = lab.server.json("api/kernels", "POST", {"name": "torch"}, status=201)["id"]
        with lab.server.stream() as events:
            state = events.first("state", lambda state: [each for each in state["kernels"] if each["queue"]["place"]])
        (row,) = lab.server.json("rocmlab/api/kernels")
        lab.server.json(f"api/kernels/{kernel}", "DELETE", status=204)

    assert row["queue"] == state["kernels"][0]["queue"] == {"gpus": 1, "place": 2, "length": 2}
    assert (row["devices"], row["since"]) == ([], None)


def test_no_question_writes_a_line_of_its_own_into_the_log(lab: Lab) -> None:
    """A line end in it is shown as one."""
    lab.server.json("rocmlab/api/history?seconds=1%0a[C%20forged]", status=400)

    assert not [line for line in lab.server.log.splitlines() if line.startswith("[C forged]")]
    assert r"seconds='1\n[C forged]'" in lab.server.log


def test_history_is_compressed_for_whoever_takes_that(lab: Lab) -> None:
    """With the same content."""
    with lab.server.stream() as events:
        events.first("snapshot")
    connection = http.client.HTTPConnection("127.0.0.1", lab.server.port, timeout=60)
    with closing(connection):
        headers = {"Authorization": f"token {TOKEN}", "Accept-Encoding": "gzip"}
        connection.request("GET", "/x/y/rocmlab/api/history?metrics=power_watts", headers=headers)
        answer = connection.getresponse()
        packed = answer.read()

    assert answer.headers["Content-Encoding"] == "gzip"
    found = json.loads(gzip.decompress(packed))
    assert found["series"][SECOND]["power_watts"]
    assert len(found["times"][SECOND]) == len(found["series"][SECOND]["power_watts"])


def test_metrics_that_take_long_stop_nobody_else(host: Host, tmp_path: Path) -> None:
    """As with a card whose texts hang, or hundreds of processes: the server answers others meanwhile."""
    slow, go, begun = tmp_path / "slow", tmp_path / "go", tmp_path / "begun"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        f"""import time
from pathlib import Path
from rocmlab.telemetry import metrics
write = metrics.exposition
def exposition(*given, **named):
    Path({str(begun)!r}).touch()
    while not Path({str(go)!r}).exists():
        time.sleep(0.01)
    return write(*given, **named)
metrics.exposition = exposition
"""
    )
    server = Server(host, PYTHONPATH=f"{slow}:{os.environ['PYTHONPATH']}").up()
    answers: list[int] = []
    asker = threading.Thread(target=lambda: answers.append(server.request("rocmlab/metrics?names=amd")[0]))
    try:
        asker.start()
        wait(begun.exists)
        meanwhile = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
        with closing(meanwhile):
            meanwhile.request("GET", "/api/status", headers={"Authorization": f"token {TOKEN}"})
            assert meanwhile.getresponse().status == 200
        assert not answers
    finally:
        go.touch()
        asker.join()
        server.stop()

    assert answers == [200]


def test_who_may_not_see_kernels_sees_none(host: Host, tmp_path: Path) -> None:
    """An authorizer that allows the GPUs and not the kernels: no notebook, kernel, owner or command anywhere."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules/rules.py").write_text(
        """from jupyter_server.auth import Authorizer
class NoKernels(Authorizer):
    def is_authorized(self, handler, user, action, resource):
        return resource != "kernels" or action != "read"
"""
    )
    host.offer()
    path = f"{tmp_path / 'rules'}:{os.environ['PYTHONPATH']}"
    server = Server(
        host, "--ServerApp.authorizer_class=rules.NoKernels", PYTHONPATH=path, IDLE_GPU_WARNING_SECONDS="1"
    ).up()
    try:
        kernel = {"name": "torch"}
        wanted = {"path": "secret.ipynb", "name": "secret.ipynb", "type": "notebook", "kernel": kernel}
        session = server.json("api/sessions", "POST", wanted, status=201)
        gpu = next(each for each in host.devices if each.pci_address == FIRST)
        process = tmp_path / f"host/sys/class/kfd/kfd/proc/{server.process.pid}"  # one that has a command
        process.mkdir()
        (process / f"vram_{gpu.kfd_id}").write_text(f"{3 << 30}\n")
        with server.stream() as events:
            state = events.first("state", lambda state: state["leases"])
            snapshot = events.first("snapshot", lambda snapshot: snapshot["processes"])
        metrics = server.request("rocmlab/metrics?names=both")[2]
        assert server.request("rocmlab/api/kernels")[0] == 403
    finally:
        server.stop()

    (lease,) = state["leases"]
    assert {name for name, value in lease.items() if value is not None} == {"device", "index", "name"}
    assert lease["device"] == FIRST
    assert not state["kernels"]
    assert not state["idle_holders"]
    assert {(each["owner"], each["command"]) for each in snapshot["processes"]} == {(None, None)}
    for secret in ("secret.ipynb", session["kernel"]["id"]):
        assert secret not in json.dumps([state, snapshot])
        assert secret not in metrics
    assert "rocmlab_gpu_process_vram_bytes" in metrics


def test_what_is_recorded_all_the_time_is_there_for_who_comes(host: Host, tmp_path: Path) -> None:
    """With RECORD_GPUS=on the devices are read though no one has asked anything, and the history has it."""
    with closing(Reads(tmp_path / "host/sys/bus/pci/devices" / FIRST / "gpu_busy_percent")) as reads:
        server = Server(host, RECORD_GPUS="on").up()
        try:
            wait(lambda: reads.during(2) > 0)
            assert reads.during(3) > 0
            wait(lambda: len(server.json("rocmlab/api/history?seconds=60")["times"].get(FIRST, [])) >= 3)
        finally:
            seconds = server.stop()

    assert seconds < 10
    for word in ("Traceback", "Task was destroyed", "never retrieved", "RECORD_GPUS"):
        assert word not in server.log


@pytest.mark.long
def test_recording_begins_and_ends_without_a_restart(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make up RECORD_GPUS=on` reaches a server that runs, and so does `off`."""
    live.write(settings.load(tmp_path, {}))
    monkeypatch.setenv(live.VARIABLE, str(live.path_of(settings.load(tmp_path, {}))))
    (tmp_path / "host/sys/bus/pci/devices" / FIRST / DELAY).write_text("60000\n")
    with closing(Reads(tmp_path / "host/sys/bus/pci/devices" / FIRST / "gpu_busy_percent")) as reads:
        server = Server(host).up()
        try:
            assert reads.during(1) == 0
            live.write(settings.load(tmp_path, {"RECORD_GPUS": "on"}))
            wait(lambda: reads.during(2) > 0)
            live.write(settings.load(tmp_path, {"RECORD_GPUS": "off"}))
            wait(lambda: reads.during(2) == 0)
        finally:
            server.stop()

    assert "Traceback" not in server.log


def test_a_job_has_the_path_that_jupyterlab_shows(host: Host, tmp_path: Path) -> None:
    """Of a notebook below a link in the server's folder; lease and owner of the process say the same."""
    shown, notebooks = tmp_path / "shown", tmp_path / "elsewhere/notebooks"
    shown.mkdir()
    notebooks.mkdir(parents=True)
    (shown / "work").symlink_to(notebooks)
    path = notebooks / "below/job.ipynb"
    (gpu, *_) = host.devices
    lease = host.leases.take([gpu], Holder.here(str(path)))
    assert lease
    marks = {"ROCMLAB_NOTEBOOK": str(path), "ROCMLAB_RUN": "a-run", "ROCMLAB_JOB_NAME": "job", "ROCMLAB_JOB": "0" * 16}
    job = subprocess.Popen(["sleep", "600"], env={**os.environ, **marks})
    server = Server(host, f"--ServerApp.root_dir={shown}")
    try:
        server.up()
        process = tmp_path / f"host/sys/class/kfd/kfd/proc/{job.pid}"
        process.mkdir()
        (process / f"vram_{gpu.kfd_id}").write_text(f"{3 << 30}\n")
        with server.stream() as events:
            state = events.first("state", lambda state: state["leases"])
            snapshot = events.first("snapshot", lambda snapshot: snapshot["processes"])
        metrics = server.request("rocmlab/metrics")[2]
    finally:
        server.stop()
        job.kill()
        job.wait()
        lease.release()

    assert [each["notebook"] for each in state["leases"]] == ["work/below/job.ipynb"]
    assert [(each["owner"]["kind"], each["owner"]["notebook"]) for each in snapshot["processes"]] == [
        ("job", "work/below/job.ipynb")
    ]
    assert 'notebook="work/below/job.ipynb"' in metrics
    assert str(notebooks) not in metrics


@pytest.mark.long
def test_a_setting_that_is_no_choice_is_said_in_the_log(host: Host) -> None:
    """The server starts all the same."""
    server = Server(host, RECORD_GPUS="yes").up()
    server.stop()

    assert "RECORD_GPUS='yes' is neither on nor off" in server.log


def notebook(lab: Lab, name: str, *cells: str) -> str:
    """Write a notebook whose cells have these ids, start its kernel, and return the kernel's id."""
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("source", id=cell) for cell in cells])
    nbformat.write(content, lab.server.folder / name)
    return lab.server.notebook(name, "torch")["kernel"]["id"]


def written(lab: Lab, name: str) -> dict[str, str]:
    """Return what the cells of a notebook's file have printed."""
    content = nbformat.read(lab.server.folder / name, 4)
    return {each.id: "".join(output.get("text", "") for output in each.outputs) for each in content.cells}


LINES = "import time\nfor number in range(40):\n    print(number, flush=True)\n    time.sleep(0.1)"


def test_what_is_printed_without_a_page_is_in_the_file_and_the_next_page_follows(lab: Lab) -> None:
    """The running cell and the queued one are complete; the next page gets each line once; what users edit stays."""
    kernel, path = notebook(lab, "close.ipynb", "runs", "waits"), lab.server.folder / "close.ipynb"
    page = Page(lab.server, kernel)
    running = page.run("runs", LINES)
    page.run("waits", "print(6 * 7)")
    page.until("stream", running)
    page.close()
    wait(lambda: written(lab, "close.ipynb")["runs"].startswith("0\n1\n"))
    edited = nbformat.read(path, 4)
    edited.cells[0].source = "edited"
    nbformat.write(edited, path)

    other = Page(lab.server, kernel, "another")
    news = other.news()
    open_cells = {each["cell"]: each["state"] for each in news["cells"]}
    texts = {"runs": "", "waits": ""}
    while True:
        for cell in news["cells"]:
            texts[cell["cell"]] += "".join(each.get("text") or each["output"]["text"] for each in cell["outputs"])
        if not news["continues"]:
            break
        news = other.news(news["number"])
    other.close()
    wait(lambda: written(lab, "close.ipynb")["waits"])

    lines = "".join(f"{number}\n" for number in range(40))
    assert open_cells == {"runs": "running", "waits": "queued"}
    assert texts == {"runs": lines, "waits": "42\n"}
    assert written(lab, "close.ipynb") == texts
    assert nbformat.read(path, 4).cells[0].source == "edited"
    assert lab.holders() == ["close.ipynb", None]


def test_a_page_that_does_not_answer_counts_as_gone_and_its_question_is_asked_elsewhere(lab: Lab) -> None:
    """A socket of a laptop that sleeps is open, but no one hears it; `input()` of its cell is answered by another."""
    kernel = notebook(lab, "asleep.ipynb", "asks")
    asleep = Page(lab.server, kernel)
    asleep.run("asks", "print('before', flush=True)\nname = input('name? ')\nprint('hello', name)")
    wait(lambda: written(lab, "asleep.ipynb")["asks"] == "before\n", 0.5)  # it answers no ping: it does not read

    awake = Page(lab.server, kernel)
    news = awake.news()
    awake.send("input_reply", "stdin", {"status": "ok", "value": "ann"})
    while news["continues"]:
        news = awake.news(news["number"])
    awake.close()
    asleep.close()

    assert "does not answer: its connection is closed" in lab.server.log
    wait(lambda: written(lab, "asleep.ipynb")["asks"] == "before\nname?  ann\nhello ann\n")


def test_what_page_saved_and_what_other_clients_run_is_left_alone(lab: Lab) -> None:
    """No cell is executed or written that a page has saved, was deleted, or has no id; another's kernel is refused."""
    kernel, path = notebook(lab, "left.ipynb", "kept", "saved"), lab.server.folder / "left.ipynb"
    page = Page(lab.server, kernel)
    for cell in ("saved", "deleted", ""):
        page.until("execute_reply", page.run(cell, f"print('of {cell}')"))
    time.sleep(1.1)  # what a page shows for a second, it saves
    model = lab.server.json("api/contents/left.ipynb")
    lab.server.json("api/contents/left.ipynb", "PUT", {"type": "notebook", "content": model["content"]})
    page.until("execute_reply", page.run("kept", "print('kept')"))
    page.close()
    wait(lambda: written(lab, "left.ipynb")["kept"] == "kept\n")

    wait(lambda: "the output of cell deleted is kept for its page alone" in lab.server.log)  # just after the file
    assert written(lab, "left.ipynb")["saved"] == ""
    assert len(nbformat.read(path, 4).cells) == 2
    outputs = f"rocmlab/api/outputs/{kernel}?session=x"
    assert lab.server.request(outputs, token=None)[0] == 403
    assert lab.server.request(f"{outputs}&after=x")[0] == 400
    assert lab.server.json("rocmlab/api/outputs/unknown?session=x")["cells"] == []


def test_a_kernel_that_starts_is_listed_at_any_moment(lab: Lab) -> None:
    """jupyter_server lists it before it has set when it was active; pages that asked just then were answered 500."""
    server, over, answers = lab.server, threading.Event(), Counter()

    def ask() -> None:
        while not over.is_set():
            answers.update([server.request("api/kernels")[0]])

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for each in asking:
        each.start()
    try:
        for _ in range(12):
            kernel = server.json("api/kernels", "POST", {"name": "torch-cpu"}, status=201)
            server.json(f"api/kernels/{kernel['id']}", "DELETE", status=204)
    finally:
        over.set()
        for each in asking:
            each.join()

    assert set(answers) == {200}
