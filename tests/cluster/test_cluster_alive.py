"""A real cluster of two nodes: who is in it, which GPUs a task gets, what nodes say, and who is kept out."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from cluster_nodes import STORE_BYTES, Cluster, ClusterNode

from rocmlab.base import confidential
from rocmlab.cluster.node import ports

pytestmark = pytest.mark.cluster

ENVIRONMENTS = """
import json, os
from rocmlab.cluster.node import probe, session

session.connect()
def environment():
    return dict(os.environ)
print(json.dumps(list(probe.on_every_node(environment, timeout_seconds=120).values())))
"""
LOOK = """
import json, os, ray, subprocess, sys, tempfile, time
from rocmlab.cluster.node import overview, probe, session

session.connect()

@ray.remote(num_gpus=1, num_cpus=0, max_calls=0)
def gpu():
    found = session.granted()
    time.sleep(2)  # so that each needs a GPU of its own
    devices = [(each.index, each.gfx, each.simulated) for each in found]
    return [ray.get_runtime_context().get_node_id(), subprocess.run(["false"]).returncode, devices]

@ray.remote(resources={"cpu_place": 1}, num_cpus=0)
def without():
    return [ray.get_runtime_context().get_node_id(), len(session.granted())]

@ray.remote(num_cpus=0)
class _HelperActor:  # as Ray Train leaves one behind
    def answer(self):
        return 1
helper = _HelperActor.remote()
ray.get(helper.answer.remote())
asked = [gpu.options(resources={gfx: 1}).remote() for gfx in ("gfx942", "gfx942", "gfx1100", "gfx1100")]
tasks = ray.get(asked)
seen = tempfile.mkdtemp() + "/seen"

@ray.remote(num_gpus=1, num_cpus=0)
def until_seen():
    while not os.path.exists(seen):
        time.sleep(0.1)

late = until_seen.options(name="a job").remote()
while not any(each["tasks"] for each in probe.on_every_node(probe.facts, timeout_seconds=120).values()):
    time.sleep(0.2)
told = overview.look(timeout_seconds=120)
open(seen, "w").close()
ray.get(late)

def hang():
    time.sleep(600)
def fail():
    raise ValueError("no such thing")
def refuse():
    from rocmlab.base.errors import RocmlabError
    raise RocmlabError("what", "why", "fix")
silent = probe.on_every_node(hang, timeout_seconds=3)
failed = probe.on_every_node(fail, timeout_seconds=120)
refused = probe.on_every_node(refuse, timeout_seconds=120)
print(json.dumps({
    "nodes": [vars(each) for each in session.nodes()],
    "tasks": tasks,
    "without": ray.get([without.remote(), without.remote()]),
    "told": told,
    "silent": [str(each) for each in silent.values()],
    "failed": [str(each) for each in failed.values()],
    "refused": [each.problem.what for each in refused.values()],
    "namespace": ray.get_runtime_context().namespace,
}))
"""
CONNECT = "from rocmlab.cluster.node import session; session.connect(); print('{}')"
PLAIN = "import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))"


@pytest.fixture(scope="module")
def alive(shared_cluster: Cluster) -> Cluster:
    """The two nodes, which tests/security may have attacked before."""
    return shared_cluster


@pytest.fixture(scope="module")
def seen(alive: Cluster) -> dict[str, Any]:
    """What one program sees of it."""
    found: dict[str, Any] = alive.answer(LOOK)
    return found


def test_the_nodes_are_listed_head_first_with_gpus_resources_and_labels(seen: dict[str, Any]) -> None:
    """A job can be placed by gfx, and everyone can see what is simulated."""
    head, joined = seen["nodes"]

    assert (head["is_head"], joined["is_head"]) == (True, False)
    assert (head["gpus"], joined["gpus"], head["cpus"]) == (2, 2, 2)
    assert (head["resources"]["gfx1100"], joined["resources"]["gfx942"]) == (2, 2)
    assert head["resources"]["cpu_place"] == joined["resources"]["cpu_place"] == 1
    assert head["labels"]["rocmlab.simulated"] == "true"
    assert head["labels"]["rocmlab.backend"] == "rocm"
    assert seen["namespace"] == "rocmlab"


def test_a_node_starts_no_process_without_work(alive: Cluster) -> None:
    """By itself Ray starts one for each CPU as soon as the first program connects: of 100 MB, on a server 128."""
    assert not alive.idle_workers


def test_a_task_gets_the_gpu_whose_number_ray_gave(seen: dict[str, Any]) -> None:
    """Every GPU is given once, of the kind that was requested, and Ray's ids are the indices of HIP."""
    given = [(node, device[0], device[1]) for node, *_, devices in seen["tasks"] for device in devices]
    head, joined = (node["id"] for node in seen["nodes"])

    assert sorted(given) == sorted(
        [(head, 0, "gfx1100"), (head, 1, "gfx1100"), (joined, 0, "gfx942"), (joined, 1, "gfx942")]
    )
    assert all(device[2] for *_, devices in seen["tasks"] for device in devices), "simulated is told"


def test_a_task_without_gpus_takes_a_cpu_place(seen: dict[str, Any]) -> None:
    """It is given none, though it sees the node's."""
    assert [count for _, count in seen["without"]] == [0, 0]


def test_a_worker_learns_how_its_children_ended(seen: dict[str, Any]) -> None:
    """Ray's workers ignore SIGCHLD, so that every exit code would be 0; `granted` puts that right."""
    assert {after for _, after, _ in seen["tasks"]} == {1}


def test_each_node_says_what_it_has_and_runs(seen: dict[str, Any]) -> None:
    """Devices, leases, versions and the running task are listed, Ray's own helpers are not; nothing is unknown."""
    told = seen["told"]

    assert [len([each for each in node["devices"] if each["backend"] == "rocm"]) for node in told["nodes"]] == [2, 2]
    assert [len(node["leases"]) for node in told["nodes"]] == [2, 2]
    assert [node["problems"] for node in told["nodes"]] == [[], []]
    assert [task for node in told["nodes"] for task in node["tasks"]] == ["a job"]
    assert {node["versions"]["ray"] for node in told["nodes"]} == {"2.60.0"}
    assert told["simulated"] is True
    assert told["is_head"] is True
    assert told["warnings"] == []


def test_clocks_of_one_machine_agree_within_what_is_told(seen: dict[str, Any]) -> None:
    """The offset is 0 here, up to the time that the question took."""
    for node in seen["told"]["nodes"]:
        assert abs(node["clock_offset_seconds"]) <= node["clock_uncertainty_seconds"] + 0.005


def test_a_node_that_is_silent_or_fails_has_an_error_in_its_place(seen: dict[str, Any]) -> None:
    """So status shows the others."""
    assert ["did not answer within 3 s" in text for text in seen["silent"]] == [True, True]
    assert ["no such thing" in text for text in seen["failed"]] == [True, True]
    assert seen["refused"] == ["what", "what"]


@pytest.mark.long
def test_the_cluster_verb_shows_it_to_a_person_and_as_json(alive: Cluster) -> None:
    """Inside the lab, as the host's `make cluster-status` asks it."""
    token = {"RAY_AUTH_TOKEN_PATH": str(alive.nodes[0].folder / "token"), "RAY_AUTH_MODE": "token"}
    inside = alive.environment(RAY_ADDRESS=alive.head, ROCMLAB_RUNTIME="native", **token)
    words = [sys.executable, "-m", "rocmlab", "cluster", "status"]

    def ask(*more: str) -> str:
        command = [*words, *more]
        return subprocess.run(command, env=inside, capture_output=True, text=True, timeout=300, check=True).stdout

    with ThreadPoolExecutor() as pool:
        first, second = pool.submit(ask), pool.submit(ask, "--json")
    shown, told = first.result(), second.result()

    assert shown.startswith("SIMULATED")
    assert f"cluster at {alive.head}: 2 nodes, 4 GPUs" in shown
    assert shown.count("gfx942") == 2
    assert len(json.loads(told)["nodes"]) == 2


def test_ray_init_without_words_finds_the_cluster(alive: Cluster) -> None:
    """The lab's environment says where it is and how to get in."""
    assert alive.answer(PLAIN) == 2


def test_a_task_is_given_no_secret(alive: Cluster) -> None:
    """A notebook that asks Ray's workers for their environment sees where the token is, and no token."""
    inside = alive.answer(ENVIRONMENTS)

    assert len(inside) == 2
    for environment in inside:
        assert not set(confidential.NAMES) & set(environment)
        assert alive.token not in environment.values()
        assert "RAY_AUTH_TOKEN_PATH" in environment


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended; a zombie is one, too
        return ""


def test_no_secret_is_in_a_command_line_or_in_a_workers_environment(alive: Cluster) -> None:
    """Any user of a machine can list command lines, and a notebook need not know more than where the token lies."""
    family = [process for node in alive.nodes for process in node.family()]
    raylets = [process for process in family if process.name() == "raylet"]

    assert len(raylets) == 2
    assert not [process for process in family if alive.token in _command(process)]
    assert not [process for process in raylets if alive.token in process.environ().values()]
    assert [(node.folder / "token").stat().st_mode & 0o777 for node in alive.nodes] == [0o600, 0o600]


# -- who is kept out --------------------------------------------------------------------------------------------------

WRONG = "0" * 64


def test_a_node_without_the_token_cannot_join(alive: Cluster) -> None:
    """Nor with a wrong one: it is told so in words, and no node appears."""
    refused = {
        alive.start(CLUSTER_TOKEN=WRONG): "rejects this machine's token",
        alive.start(CLUSTER_TOKEN=""): "CLUSTER_TOKEN is missing",
    }
    for extra in refused:
        alive.nodes.remove(extra)

    for extra, why in refused.items():
        assert extra.process.wait(120) == 2
        said = extra.log.read_text()
        assert why in said
        assert "Traceback" not in said
    assert alive.answer(PLAIN) == 2


def test_rays_own_start_cannot_join_either(alive: Cluster, tmp_path: Path) -> None:
    """Neither without a token nor with a wrong one. Nothing of ours stands in between: it is the head that refuses."""
    wrong = tmp_path / "token"
    wrong.write_text(WRONG)
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={alive.head}", "--num-cpus=1", "--block"]
    words += [f"--object-store-memory={STORE_BYTES}"]

    def start(mode: str) -> subprocess.CompletedProcess[str]:
        environment = alive.environment(RAY_AUTH_MODE=mode, RAY_AUTH_TOKEN_PATH=str(wrong))
        command = [*words, f"--temp-dir={alive.folder}/{mode[0]}"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)

    with ThreadPoolExecutor() as pool:  # each waits for most of its time
        for done in pool.map(start, ("disabled", "token")):
            assert done.returncode != 0
            assert "InvalidAuthToken" in done.stdout + done.stderr
    assert alive.answer(PLAIN) == 2


def test_a_program_without_the_token_cannot_connect(alive: Cluster) -> None:
    """Nor with a wrong one: neither through us, which says it in words, nor through Ray alone."""
    without = ({"RAY_AUTH_TOKEN": WRONG}, {"RAY_AUTH_MODE": "disabled"})

    with ThreadPoolExecutor() as pool:  # each waits for most of its time
        ours = [pool.submit(alive.program, CONNECT, RAY_AUTH_TOKEN_PATH="", **given) for given in without]
        rays = [pool.submit(alive.program, PLAIN, RAY_AUTH_TOKEN_PATH="", **given) for given in without]

    for code, _, said in (each.result() for each in ours):
        assert code != 0
        assert "rejects this machine's token" in said
    for code, _, said in (each.result() for each in rays):
        assert code != 0
        assert "InvalidAuthToken" in said


def test_a_program_whose_head_is_gone_or_is_none_is_told_so(alive: Cluster) -> None:
    """Within seconds, and not by Ray, which would end the process."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        gone = alive.program(CONNECT, RAY_ADDRESS=f"127.0.0.1:{deaf.getsockname()[1]}")

    assert gone[0] != 0
    assert "cannot be reached" in gone[2]


def _listening(cluster: Cluster) -> dict[tuple[str, int], str]:
    """Return where processes of the cluster listen, and which."""
    found = {}
    for node in cluster.nodes:
        for process in node.family():
            with contextlib.suppress(psutil.Error):
                for each in process.net_connections("tcp"):
                    if each.status == psutil.CONN_LISTEN:
                        found[each.laddr.ip, each.laddr.port] = process.name()
    return found


def test_nodes_listen_on_the_ports_of_the_table_and_nowhere_else(alive: Cluster) -> None:
    """What docs/cluster.md says is all there is: no client server, no metrics, the dashboard on the loopback."""
    allowed = {number for node in alive.nodes for each in ports.numbers(node.port).values() for number in each}
    dashboard = ports.numbers(alive.port)["dashboard"].start

    found = _listening(alive)

    assert {port for _, port in found} <= allowed
    assert {address for address, port in found if port == dashboard} == {"127.0.0.1"}
    for node in alive.nodes:
        of_head = {each.name for each in ports.TABLE if each.is_of_head} if node.port != alive.port else set()
        fixed = {each.name: node.port + each.offset for each in ports.TABLE if each.count == 1}
        assert {name for name, port in fixed.items() if port in {number for _, number in found}} == set(fixed) - of_head


def _http(url: str, body: bytes | None = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as err:
        with err:
            return err.code


def test_http_answers_nobody_without_the_token(alive: Cluster) -> None:
    """Neither the dashboard and its jobs API, nor a node's agents, to read or to submit."""
    own = ports.numbers(alive.port)
    dashboard = f"http://127.0.0.1:{own['dashboard'].start}"
    agent = f"http://{alive.address}:{own['agent over HTTP'].start}"
    environments = f"http://{alive.address}:{own['runtime environment agent'].start}"
    read = ["/api/jobs/", "/nodes?view=summary", "/api/cluster_status", "/api/version", "/logs/", "/api/v0/tasks"]
    job = json.dumps({"entrypoint": "true"}).encode()

    codes = {path: _http(dashboard + path) for path in read}
    codes |= {f"agent{path}": _http(agent + path) for path in ("/", "/logs", "/api/job_agent/jobs/")}
    codes["submit"] = _http(f"{dashboard}/api/jobs/", job)
    codes["submit to the agent"] = _http(f"{agent}/api/job_agent/jobs/", job)
    codes["environment"] = _http(f"{environments}/get_or_create_runtime_env", b"{}")

    assert set(codes.values()) == {401}, codes


CALLS = """
import grpc, json, ray, sys
from rocmlab.cluster.node import session

session.connect()

@ray.remote(num_cpus=0)
class Actor:
    def ready(self): return 1

actor = Actor.remote()
ray.get(actor.ready.remote())
first, workers = FIRST, WORKERS
calls = [
    (first, "NodeInfoGcsService/GetAllNodeInfo"), (first, "NodeInfoGcsService/RegisterNode"),
    (first, "InternalKVGcsService/InternalKVKeys"), (first, "JobInfoGcsService/AddJob"),
    (first + 1, "NodeManagerService/RequestWorkerLease"), (first + 1, "NodeManagerService/ShutdownRaylet"),
    (first + 2, "ObjectManagerService/Push"), (first + 2, "ObjectManagerService/Pull"),
    (first + 4, "ReporterService/GetTraceback"), (first + 4, "LogService/ListLogs"),
]
import psutil
raylets = [each for each in psutil.process_iter(["name"]) if each.info["name"] == "raylet"]
ours = [each for each in raylets if RAYLET in " ".join(each.cmdline())]
listening = [each.laddr.port for one in ours for child in one.children() for each in child.net_connections("tcp")
             if each.status == "LISTEN" and any(each.laddr.port in range(*span) for span in workers)]
for port in listening:
    calls += [(port, f"CoreWorkerService/{name}") for name in ("PushTask", "GetObjectStatus", "KillActor")]
answers = {}
for port, name in calls:
    with grpc.insecure_channel(f"ADDRESS:{port}") as channel:
        try:
            channel.unary_unary(f"/ray.rpc.{name}")(b"", timeout=60)
            answers[f"{port} {name}"] = "OK"
        except grpc.RpcError as err:
            answers[f"{port} {name}"] = err.code().name
print(json.dumps({"answers": answers, "workers": len(listening)}))
"""


def test_no_service_of_a_node_answers_a_call_without_the_token(alive: Cluster) -> None:
    """Head, node manager, object manager, agent, and the processes that compute: each refuses."""
    spans = [ports.numbers(node.port)["workers"] for node in alive.nodes]  # Ray starts the actor on any node
    text = CALLS.replace("FIRST", str(alive.port)).replace("WORKERS", str([(each.start, each.stop) for each in spans]))

    found = alive.answer(text.replace("RAYLET", repr(str(alive.folder))).replace("ADDRESS", alive.address))

    assert found["workers"] >= 1, "the actor's process listens"
    assert set(found["answers"].values()) == {"UNAUTHENTICATED"}, found["answers"]


# -- how it ends ------------------------------------------------------------------------------------------------------


def _wait_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    return psutil.wait_procs(processes, timeout=60)[1]


def test_a_node_that_is_told_to_end_leaves_nothing(alive: Cluster) -> None:
    """Its exit code is 0, its processes are gone, and so is its record; the head continues."""
    extra = alive.start()
    alive.nodes.remove(extra)
    extra.wait()
    family = extra.family()

    code = extra.end()

    assert code == 0
    assert _wait_gone(family) == []
    assert "left the cluster" in extra.log.read_text()
    assert extra.record is None
    assert alive.answer(PLAIN) >= 2


@pytest.mark.long
@pytest.mark.parametrize("victim", ["raylet", "agent", "supervisor"])
def test_a_node_that_dies_says_so_and_leaves_nothing(alive: Cluster, victim: str) -> None:
    """The death of the raylet, or of an agent with which it ends, is told; the supervisor's takes all of Ray along."""
    extra: ClusterNode = alive.start()
    alive.nodes.remove(extra)
    extra.wait()
    family = extra.family()
    raylet = next(process for process in family if process.name() == "raylet")
    agent = next(each for each in raylet.children() if "DashboardAgent" in " ".join(each.cmdline()))

    {"raylet": raylet, "agent": agent, "supervisor": psutil.Process(extra.process.pid)}[victim].kill()
    code = extra.process.wait(60)

    assert _wait_gone(family) == []
    if victim != "supervisor":
        assert code == 1
        assert "Ray node exited unexpectedly" in extra.log.read_text()
        assert extra.record is not None
        assert extra.record.state == "failed"
    else:
        assert code == -signal.SIGKILL


def test_a_second_node_on_the_same_ports_is_refused_in_words(alive: Cluster) -> None:
    """It names the ports, and the first one continues."""
    extra = alive.start(CLUSTER_PORT=str(alive.nodes[1].port))
    alive.nodes.remove(extra)

    code = extra.process.wait(120)

    assert code == 2
    assert f"node manager {alive.nodes[1].port + 1}" in extra.log.read_text()
    deadline = time.monotonic() + 30
    while alive.nodes[1].process.poll() is None and time.monotonic() < deadline:
        if alive.answer(PLAIN) >= 2:
            return
    pytest.fail("the first one has ended")
