"""A real cluster of two simulated machines, as the panel's server and the doctor inside a lab see it.

The tests of the real cluster share it and are in an order: its worker dies, then its head.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clones import free_port
from cluster_pairs import WAIT_SECONDS, Pair, pair
from kernel_hosts import simulated_host
from panel_servers import Server

from rocmlab.devices import discover
from rocmlab.kernels.leases import Holder, Leases
from rocmlab.lab.server import cluster, cluster_reader
from rocmlab.lab.server.cluster import Cluster

NODE = {"id": "a", "simulated": True, "devices": [{"lease": {"notebook": "n.ipynb", "owner": "ann", "host": "h"}}]}


class Real:
    """Both nodes, a server in the head's lab, and what the doctor says there."""

    def __init__(self, both: Pair, server: Server) -> None:
        self.pair = both
        self.server = server

    def told(self, is_it: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Return the first answer of the panel's server that is what is waited for."""
        end = time.monotonic() + WAIT_SECONDS
        while not is_it(found := self.server.json("rocmlab/api/cluster")):
            assert time.monotonic() < end, found
            time.sleep(0.5)
        return found

    def findings(self, *ids: str) -> dict[str, dict[str, Any]]:
        """Return what the doctor finds in the head's lab, by check."""
        words = [sys.executable, "-m", "rocmlab", "doctor", "--json", "--side", "container", "--no-frameworks"]
        done = subprocess.run(
            [*words, "--only", ",".join(f"cluster.{id}" for id in ids)],
            env={**self.pair.head.environment, "ROCMLAB_BACKEND": "rocm", "ROCMLAB_RUNTIME": "native"},
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        return {one["check"].partition(".")[2]: one for one in json.loads(done.stdout)["findings"]}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A cluster whose nodes have shares of their own, and a server in the head's lab."""
    folder = tmp_path_factory.mktemp("cluster")
    with (
        pytest.MonkeyPatch.context() as patch,
        simulated_host(folder, patch) as host,
        pair(is_share_common=False) as both,
    ):
        given = both.head.environment
        names = [name for name in given if name.startswith(("CLUSTER", "RAY_", "ROCMLAB_"))]
        server = Server(host, **{name: given[name] for name in names})
        try:
            yield Real(both, server.up())
        finally:
            server.stop()


@pytest.mark.cluster
def test_the_panel_shows_both_nodes_and_who_has_their_gpus(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its GPUs, the head first; a lease is shown on the node where it is, and all is SIMULATED."""
    worker = real.pair.worker.environment
    monkeypatch.setenv("ROCMLAB_ROOT", worker["ROCMLAB_ROOT"])
    device = next(each for each in discover() if each.index == 1)
    lease = Leases.of_host(worker, Path(worker["ROCMLAB_ROOT"])).take([device], Holder.here("train.ipynb"))
    assert lease is not None

    told = real.told(lambda found: found["nodes"])

    lease.release()
    assert real.server.json("rocmlab/api/devices")["is_in_cluster"] is True
    assert (told["state"], told["simulated"], told["problem"]) == ("alive", True, None)
    assert told["address"] == real.pair.head.environment["RAY_ADDRESS"]
    head, other = told["nodes"]
    assert [head["address"], other["address"]] == [real.pair.head.address, real.pair.worker.address]
    assert [head["is_head"], head["is_here"], other["is_head"], other["is_here"]] == [True, True, False, False]
    assert all(
        node["is_alive"] and node["simulated"] and node["cpus"] == 2 and node["gpus"] == 2 for node in told["nodes"]
    )
    assert [[one["gfx"] for one in node["devices"]] for node in told["nodes"]] == [["gfx1100"] * 2] * 2
    assert [one["lease"] and one["lease"]["notebook"] for one in head["devices"]] == [None, None]
    assert [one["lease"] and one["lease"]["notebook"] for one in other["devices"]] == [None, "train.ipynb"]
    assert all(one["busy_percent"] is not None and one["memory_total_bytes"] > 1 << 34 for one in head["devices"])


@pytest.mark.cluster
def test_the_doctor_compares_the_nodes(real: Real) -> None:
    """On one machine clocks and versions agree; shares of their own are noted."""
    found = real.findings(
        "token", "address", "ports", "head", "node", "lost", "links", "clock", "versions", "share", "disk", "gfx"
    )

    statuses = {name: one["status"] for name, one in found.items()}
    assert statuses.pop("disk") in ("ok", "warns")  # this machine's
    assert statuses == dict.fromkeys(
        ("token", "address", "ports", "head", "node", "lost", "links", "clock", "versions", "share", "gfx"), "ok"
    ), found
    assert f"({real.pair.worker.address}) has its own" in found["share"]["reason"]
    assert found["gfx"]["reason"] == ""
    assert len(found["clock"]["evidence"]) == 2
    assert "reaches 1 other" in found["links"]["evidence"][0]
    assert not list(Path(real.pair.head.environment["ROCMLAB_SHARE"]).glob(".rocmlab-doctor-*"))


@pytest.mark.long
@pytest.mark.cluster
def test_a_worker_that_dies_is_lost(real: Real) -> None:
    """Panel and doctor name it; the head lives on."""
    real.pair.worker.die()

    told = real.told(lambda found: any(not node["is_alive"] for node in found["nodes"]))

    assert [(node["address"], node["is_alive"]) for node in told["nodes"]] == [
        (real.pair.head.address, True),
        (real.pair.worker.address, False),
    ]
    found = real.findings("node", "lost")
    assert found["node"]["status"] == "ok"
    assert found["lost"]["status"] == "warns"
    assert f"({real.pair.worker.address}) was lost" in found["lost"]["problem"]["what"]


@pytest.mark.long
@pytest.mark.cluster
def test_a_head_that_dies_is_said_in_words(real: Real) -> None:
    """The nodes are shown as they were, the server answers at once all the while, and its reader has ended."""
    real.pair.head.die()
    slowest = 0.0

    def is_lost(found: dict[str, Any]) -> bool:
        nonlocal slowest
        begin = time.monotonic()
        real.server.json("api/status")
        slowest = max(slowest, time.monotonic() - begin)
        return found["state"] == "lost"

    told = real.told(is_lost)

    assert told["problem"]["what"] == f"the head of the cluster at {told['address']} is lost"
    assert "nothing listens on that port" in told["problem"]["why"]
    assert "make cluster-up" in told["problem"]["fix"]
    assert len(told["nodes"]) == 2
    assert told["age_seconds"] > 0
    assert slowest < 10.0
    found = real.findings("head", "node", "lost")
    assert found["head"]["status"] == "warns"
    assert "nothing listens" in found["head"]["problem"]["why"]
    assert found["node"]["reason"] == "the same as cluster.head (container)"  # and is not said twice
    assert found["lost"]["reason"] == "the cluster could not be queried, see cluster.node"


def script(folder: Path, text: str) -> list[str]:
    """Return the command of a reader that a test has written."""
    path = folder / "reader.py"
    path.write_text(f"import json, os, sys, time\n{text}")
    return [sys.executable, str(path)]


def member(port: int) -> dict[str, str]:
    """Return the environment of a worker whose head has this port."""
    return {**os.environ, "CLUSTER": f"127.0.0.1:{port}", "RAY_ADDRESS": f"127.0.0.1:{port}"}


async def until(found: Cluster, state: str) -> dict[str, Any]:
    """Ask until the cluster is in this state."""
    end = time.monotonic() + 60
    while (told := await found.now())["state"] != state:
        assert time.monotonic() < end, told
        await asyncio.sleep(0.05)
    return told


@pytest.mark.slow
def test_a_reader_that_hangs_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer comes within the short wait; where nothing listens at the head, it is said long before the limit."""
    monkeypatch.setattr(cluster, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(cluster, "LATE_SECONDS", 0.5)

    async def scenario() -> None:
        found = Cluster(member(port := free_port()), script(tmp_path, "time.sleep(600)"))
        begin = time.monotonic()
        told = await found.now()
        assert (told["state"], told["nodes"], told["age_seconds"]) == ("starting", [], None)
        assert time.monotonic() - begin < 60  # of 600
        told = await until(found, "lost")
        assert told["problem"]["what"] == f"the head of the cluster at 127.0.0.1:{port} is lost"
        await found.close()

    asyncio.run(scenario())


def test_many_viewers_cost_one_look(tmp_path: Path) -> None:
    """However often is asked, the reader is asked once in four seconds."""
    count = tmp_path / "count"
    answer = f"""
for line in sys.stdin:
    open({str(count)!r}, "a").write("x")
    print(json.dumps({{"nodes": [{NODE!r}]}}), flush=True)
"""

    async def scenario() -> None:
        found = Cluster(member(free_port()), script(tmp_path, answer))
        await until(found, "alive")
        for told in await asyncio.gather(*(found.now() for _ in range(50))):
            assert told["nodes"] == [NODE]
            assert told["simulated"] is True
        assert count.read_text() == "x"
        await found.close()

    asyncio.run(scenario())


def test_a_reader_that_dies_and_one_that_talks_nonsense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are said; after a while a new one is started, and what it says counts again."""
    monkeypatch.setattr(cluster, "RETRY_SECONDS", 0.1)
    mark = tmp_path / "mark"
    answer = f"""
tries = len(open({str(mark)!r}).read()) if os.path.exists({str(mark)!r}) else 0
open({str(mark)!r}, "a").write("x")
sys.stdin.readline()
if tries < 2:
    print("no JSON" if tries else "", end="")
    sys.exit(3)
print(json.dumps({{"nodes": [{NODE!r}]}}), flush=True)
sys.stdin.readline()
"""

    async def scenario() -> None:
        found = Cluster(member(free_port()), script(tmp_path, answer))
        assert "is lost" in (await until(found, "lost"))["problem"]["what"]
        assert (await until(found, "alive"))["nodes"] == [NODE]
        assert mark.read_text() == "xxx"
        await found.close()

    asyncio.run(scenario())


def test_what_ray_refuses_is_passed_on(tmp_path: Path) -> None:
    """The reader's own problem, such as a wrong token, is shown as it is."""
    problem = {"what": "the head rejects this machine's token", "why": "another cluster's", "fix": "take the line"}
    answer = f"sys.stdin.readline()\nprint(json.dumps({{'problem': {problem!r}}}), flush=True)\nsys.stdin.readline()"

    async def scenario() -> None:
        found = Cluster(member(free_port()), script(tmp_path, answer))
        told = await until(found, "lost")
        assert {name: told["problem"][name] for name in problem} == problem
        await found.close()

    asyncio.run(scenario())


def test_who_may_not_read_kernels_sees_no_names() -> None:
    """That a GPU is leased is told, and not by whom."""
    told = cluster.without_users({"state": "alive", "nodes": [NODE, {**NODE, "devices": None}]})

    assert told["nodes"][0]["devices"] == [{"lease": {"notebook": None, "owner": None, "host": None}}]
    assert told["nodes"][1]["devices"] is None


def listed(name: str, *, alive: bool = True, reason: int = 2, address: str | None = None) -> dict[str, Any]:
    """Return a node as Ray lists it."""
    resources = {"CPU": 4.0, "GPU": 2.0, "cpu_place": 1.0} if alive else {}
    return {
        "NodeID": name,
        "NodeManagerHostname": name,
        "NodeManagerAddress": address or name,
        "NodeManagerPort": 6380,
        "Alive": alive,
        "DeathReason": 0 if alive else reason,
        "Resources": resources,
        "Labels": {"rocmlab.simulated": "true"},
    }


def test_the_lost_are_shown_and_those_that_left_are_not() -> None:
    """One that was told to end, and one that came back, are no loss; of a hundred the last are shown."""
    nodes = [listed("b"), listed("left", alive=False, reason=1), listed("old", alive=False, address="b")]

    assert [node["id"] for node in cluster_reader.rows(nodes, {}, {}, "b")] == ["b"]
    many = [*nodes, *(listed(f"lost{number:03}", alive=False) for number in range(100))]
    assert [node["id"] for node in cluster_reader.rows(many, {}, {}, "b")] == [
        "b",
        *(f"lost{n:03}" for n in range(92, 100)),
    ]


def test_what_ray_has_given_away_is_counted() -> None:
    """Ray leaves out of what is free whatever is used up; unknown is unknown."""
    row = cluster_reader.row(listed("a"), {}, {"CPU": 4.0, "GPU": 1.0}, "a")

    assert (row["gpus_given"], row["jobs_without_gpu"]) == (1, 1)
    assert cluster_reader.row(listed("a"), {}, None, "a")["gpus_given"] is None
    assert row["simulated"] is True  # by its label, until it has answered
