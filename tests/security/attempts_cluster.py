"""Someone in the network of a cluster of two nodes, or with an account on one of them, who does not know the token."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import grpc
import psutil
import strangers
from attempts import Attempt, Group
from attempts_sockets import listeners
from cluster_nodes import Cluster
from strangers import Did

from rocmlab.cluster.node import ports

WRONG = "0" * 64
TIMEOUT_SECONDS = 10.0
PLAIN = "import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))"
START_ACTOR = """
import ray, time
ray.init(log_to_driver=False, namespace="rocmlab")
@ray.remote(num_cpus=0)
class Actor:
    def ready(self): return 1
actors = [Actor.options(lifetime="detached", name=f"attack{number}").remote() for number in range(2)]
ray.get([each.ready.remote() for each in actors])
print(2)
"""
CALLS = {  # by the offset from a node's first port
    0: (
        "NodeInfoGcsService/GetAllNodeInfo",
        "NodeInfoGcsService/RegisterNode",
        "NodeInfoGcsService/DrainNode",
        "NodeInfoGcsService/UnregisterNode",
        "InternalKVGcsService/InternalKVKeys",
        "InternalKVGcsService/InternalKVGet",
        "InternalKVGcsService/InternalKVPut",
        "InternalKVGcsService/InternalKVDel",
        "JobInfoGcsService/AddJob",
        "JobInfoGcsService/GetAllJobInfo",
        "ActorInfoGcsService/RegisterActor",
        "ActorInfoGcsService/CreateActor",
        "ActorInfoGcsService/KillActorViaGcs",
        "ActorInfoGcsService/ListNamedActors",
        "NodeResourceInfoGcsService/GetAllAvailableResources",
        "WorkerInfoGcsService/GetAllWorkerInfo",
        "TaskInfoGcsService/GetTaskEvents",
        "PlacementGroupInfoGcsService/CreatePlacementGroup",
        "RuntimeEnvGcsService/PinRuntimeEnvURI",
        "autoscaler.AutoscalerStateService/DrainNode",
    ),
    1: (
        "NodeManagerService/RequestWorkerLease",
        "NodeManagerService/ShutdownRaylet",
        "NodeManagerService/DrainRaylet",
        "NodeManagerService/GetNodeStats",
        "NodeManagerService/PinObjectIDs",
    ),
    2: ("ObjectManagerService/Push", "ObjectManagerService/Pull"),
    4: (
        "ReporterService/GetTraceback",
        "ReporterService/CpuProfiling",
        "ReporterService/MemoryProfiling",
        "ReporterService/ReportOCMetrics",
        "LogService/ListLogs",
        "LogService/StreamLog",
    ),
}
OF_WORKERS = ("PushTask", "GetObjectStatus", "KillActor", "Exit", "CancelTask", "LocalGC", "GetCoreWorkerStats")
DASHBOARD = (
    "/api/jobs/",
    "/api/version",
    "/api/cluster_status",
    "/nodes?view=summary",
    "/nodes/x",
    "/logs/",
    "/api/v0/tasks",
    "/api/v0/actors",
    "/api/v0/logs",
    "/api/v0/nodes",
    "/api/packages/gcs/x.zip",
    "/api/serve/applications/",
    "/api/actors/kill?actor_id=x",
    "/worker/traceback?pid=1",
    "/worker/cpu_profile?pid=1",
    "/memory_profile?pid=1",
    "/api/profile",
    "/api/snapshot",
    "/api/component_activities",
    "/timezone",
)
OF_AGENTS = (
    "/",
    "/logs",
    "/logs/raylet.out",
    "/api/job_agent/jobs/",
    "/api/ray/version",
    "/api/serve/applications/",
    "/metrics",
)
JOB = json.dumps({"entrypoint": "touch /tmp/attack-job"}).encode()
SUBMIT = (
    "ray.scripts.scripts",
    "job",
    "submit",
    "--no-wait",
    "--",
    "true",
)  # ray.init() and `ray start`: tests/cluster


@dataclass
class ClusterTarget:
    """Two nodes, and the token that they have."""

    cluster: Cluster
    name: str = "cluster"

    @cached_property
    def numbers(self) -> list[dict[str, range]]:
        """The ports of each node, the head's first."""
        return [ports.numbers(node.port) for node in self.cluster.nodes]

    @property
    def dashboard(self) -> int:
        """The head's."""
        return self.numbers[0]["dashboard"].start

    def processes(self) -> list[psutil.Process]:
        """Return all of both nodes."""
        return [process for node in self.cluster.nodes for process in node.family()]

    def end_actors(self) -> None:
        """End what was started to be attacked, and that alone: where one of Ray's agents ends, its node does, too."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::Actor"):
                    process.kill()

    @cached_property
    def worker_ports(self) -> list[int]:
        """Where processes that compute listen; two are started for it."""
        assert self.cluster.answer(START_ACTOR) == 2
        wide = [port for numbers in self.numbers for port in numbers["workers"]]
        return sorted({port for kind, (_, port) in _inet(self) if kind == "tcp" and port in wide})


def _inet(target: ClusterTarget) -> list[tuple[str, tuple[str, int]]]:
    return [(kind, address) for kind, address in listeners(target.processes()) if kind != "unix"]


# -- gRPC --------------------------------------------------------------------------------------------------------------


def _call(address: str, name: str, token: str | None) -> str:
    """Call a method with an empty message, and return the code of the answer."""
    metadata = [("authorization", f"Bearer {token}")] if token is not None else None
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(f"/ray.rpc.{name}")(b"", timeout=TIMEOUT_SECONDS, metadata=metadata)
        except grpc.RpcError as err:
            return str(err.code().name)  # type: ignore[attr-defined]
    return "OK"


def _control_calls(target: ClusterTarget) -> str | None:
    code = _call(
        f"{target.cluster.address}:{target.cluster.port}", "NodeInfoGcsService/GetAllNodeInfo", target.cluster.token
    )
    return None if code == "OK" else f"the right token is refused: {code}"


def _calls(target: ClusterTarget) -> Iterator[Attempt]:
    where: list[tuple[int, str]] = []
    for number, node in enumerate(target.cluster.nodes):
        for offset, names in CALLS.items():
            where += [(node.port + offset, name) for name in names if number == 0 or offset]
    where += [(port, f"CoreWorkerService/{name}") for port in target.worker_ports for name in OF_WORKERS]
    for port, name in where:
        for said, token in (("no token", None), ("a wrong token", WRONG)):
            yield Attempt(f"{name} at port {port} with {said}", partial(_called, target, port, name, token))
    for token in ("", target.cluster.token[:-1], target.cluster.token.upper(), "null", "a" * 4000):
        called = partial(_called, target, target.cluster.port, CALLS[0][0], token)
        yield Attempt(f"GetAllNodeInfo with the token {token[:8]!r}…", called)


def _called(target: ClusterTarget, port: int, name: str, token: str | None) -> str | None:
    code = _call(f"{target.cluster.address}:{port}", name, token)
    return None if code in ("UNAUTHENTICATED", "UNAVAILABLE") else f"it answered {code}"


# -- HTTP --------------------------------------------------------------------------------------------------------------


def _http(url: str, headers: dict[str, str], body: bytes | None = None, method: str | None = None) -> int:
    request = urllib.request.Request(url, data=body, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as err:
        with err:
            return err.code
    except (OSError, http.client.HTTPException):
        return 0


def _control_http(target: ClusterTarget) -> str | None:
    right = {"Authorization": f"Bearer {target.cluster.token}"}
    code = _http(f"http://127.0.0.1:{target.dashboard}/api/jobs/", right)
    return None if code == 200 else f"the right token is refused: {code}"


def _requests(target: ClusterTarget) -> Iterator[Attempt]:
    kinds = {
        "no token": {},
        "a wrong one": {"Authorization": f"Bearer {WRONG}"},
        "a cookie": {"Cookie": f"ray-authentication-token={WRONG}", "X-Ray-Authorization": f"Bearer {WRONG}"},
    }
    base = f"http://127.0.0.1:{target.dashboard}"
    for kind, headers in kinds.items():
        for path in DASHBOARD:
            yield Attempt(f"dashboard {path} with {kind}", partial(_asked, base + path, headers))
        yield Attempt(f"submit a job with {kind}", partial(_asked, f"{base}/api/jobs/", headers, JOB))
        for number, node in enumerate(target.cluster.nodes):
            agent = f"http://{target.cluster.address}:{target.numbers[number]['agent over HTTP'].start}"
            for path in OF_AGENTS:
                yield Attempt(f"agent {number} {path} with {kind}", partial(_asked, agent + path, headers))
            submit = partial(_asked, f"{agent}/api/job_agent/jobs/", headers, JOB)
            yield Attempt(f"submit to agent {number} with {kind}", submit)
            environment = f"http://{target.cluster.address}:{node.port + 3}"
            for path in ("/get_or_create_runtime_env", "/delete_runtime_env_if_possible", "/get_runtime_envs_info"):
                yield Attempt(
                    f"environments {number} {path} with {kind}", partial(_asked, environment + path, headers, b"{}")
                )
    for method in ("PUT", "DELETE", "PATCH"):
        for path in ("/api/jobs/x", "/api/packages/gcs/x.zip", "/api/serve/applications/"):
            yield Attempt(f"{method} {path}", partial(_asked, base + path, {}, b"{}", method))
    yield Attempt("a job of ours has run", lambda: "it has" if Path("/tmp/attack-job").exists() else None)


def _asked(url: str, headers: dict[str, str], body: bytes | None = None, method: str | None = None) -> str | None:
    code = _http(url, headers, body, method)
    return f"status {code}" if code in range(1, 400) else None


# -- Ray's own programs, the ports, and a second user ------------------------------------------------------------------


def _control_programs(target: ClusterTarget) -> str | None:
    found = target.cluster.answer(PLAIN)
    return None if found == 2 else f"with the token there are {found} nodes"


def _programs(target: ClusterTarget) -> Iterator[Attempt]:
    given = {"RAY_AUTH_TOKEN_PATH": "", "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
    yield Attempt("ray.init() without a token", partial(_connected, target, {**given, "RAY_AUTH_MODE": "disabled"}))
    wrong = {**given, "RAY_AUTH_TOKEN": WRONG, "RAY_ADDRESS": f"http://127.0.0.1:{target.dashboard}"}
    yield Attempt("ray job submit with a wrong token", partial(_submitted, target, wrong))


def _connected(target: ClusterTarget, more: dict[str, str]) -> str | None:
    code, text, _ = target.cluster.program(PLAIN, **more)
    return text if code == 0 else None


def _submitted(target: ClusterTarget, more: dict[str, str]) -> str | None:
    environment = {name: value for name, value in target.cluster.environment(**more).items() if value}
    command = [sys.executable, "-m", *SUBMIT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout[-200:] if done.returncode == 0 else None


def _control_ports(target: ClusterTarget) -> str | None:
    assert target.worker_ports
    found = [port for kind, (_, port) in _inet(target)]
    return None if target.cluster.port in found else "the head's own port is not seen"


def _ports(target: ClusterTarget) -> Iterator[Attempt]:
    allowed = {port for numbers in target.numbers for each in numbers.values() for port in each}
    for kind, (host, port) in sorted(set(_inet(target))):
        yield Attempt(f"{kind} {host}:{port} is in no table", partial(_unknown, host, port, allowed))
    for port in (10001, 44217, 44227, 8076, 8077, 52365, 6380, *(node.port + 6 for node in target.cluster.nodes)):
        if port not in allowed:
            yield Attempt(f"Ray's usual port {port}", partial(_listens, target, port))
    yield Attempt("the dashboard from the network", partial(_listens, target, target.dashboard))


def _unknown(host: str, port: int, allowed: set[int]) -> str | None:
    return None if port in allowed or host in ("127.0.0.1", "::1") else "it listens there"


def _listens(target: ClusterTarget, port: int) -> str | None:
    """Return whether a process of the cluster takes connections of the network at a port."""
    ours = any(
        each == port and host not in ("127.0.0.1", "::1") for kind, (host, each) in _inet(target) if kind == "tcp"
    )
    with socket.socket() as client:
        client.settimeout(2)
        return "it is open" if ours and client.connect_ex((target.cluster.address, port)) == 0 else None


def _control_user(target: ClusterTarget) -> str | None:
    token = str(target.cluster.nodes[0].folder / "token")
    own = strangers.act([("read", token)], 0)[0]
    top = strangers.act([("listing", str(target.cluster.folder))])[0]
    return None if own.text and top.text else f"the folders are not reached: {own.error} {top.error}"


def _user(target: ClusterTarget) -> Iterator[Attempt]:
    actions: list[tuple[str, str]] = []
    for node in target.cluster.nodes:
        for name in ("token", "ray"):
            actions += [("read", str(node.folder / name)), ("overwrite", str(node.folder / name))]
        actions += [(kind, str(node.folder / "attack")) for kind in ("create", "link")]
        actions += [("listing", str(node.folder)), ("mode", str(node.folder)), ("rename", str(node.folder))]
    for (kind, address), _ in sorted(listeners(target.processes()).items(), key=str):
        if kind == "unix":
            actions.append(("unix", address))
    for path in Path("/dev/shm").glob("plasma*"):
        actions += [("read", str(path)), ("overwrite", str(path))]
    for (kind, name), did in zip(actions, strangers.act(actions), strict=True):
        yield Attempt(f"{kind} {name}", partial(_did, did))
    for process in target.processes():
        pid = str(process.pid)
        tries = [("read", f"/proc/{pid}/environ"), ("memory", pid), ("trace", pid), ("send_signal", pid)]
        for (kind, _), did in zip(tries, strangers.act(tries), strict=True):
            yield Attempt(f"{kind} {process.name()} {pid}", partial(_did, did))
        line = " ".join(process.cmdline())
        yield Attempt(f"the token in the arguments of {process.name()} {pid}", partial(_has, target, line))


def _did(did: Did) -> str | None:
    return None if did.text is None else f"got {did.text[:80]!r}"


def _has(target: ClusterTarget, text: str) -> str | None:
    return "there it is" if target.cluster.token in text else None


ONLY = ("cluster",)
GROUPS = (
    Group("Ray's gRPC services", "a call is answered", _control_calls, _calls, ONLY),
    Group("Ray over HTTP", "it is read, or runs a job", _control_http, _requests, ONLY),
    Group("Ray's own programs", "they connect or submit", _control_programs, _programs, ONLY),
    Group("ports of the nodes", "one more is open to the network", _control_ports, _ports, ONLY),
    Group("a second user of a node", "the token, a socket or memory", _control_user, _user, ONLY),
)
