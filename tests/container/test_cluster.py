"""Three labs in containers with addresses of their own, one Ray cluster: it loses a worker, then its head; strangers.

Each has two simulated GPUs. The notebooks need no framework: each notes where it ran, and with which GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import clients
import nbformat
import pytest
from clones import Clone, clone
from containers import docker, watched_container
from hosts import Gpu, make_host
from second_user import open_to_others

from rocmlab.cluster.node import ports

# In each run tests/cluster, tests/runs/test_runner_remote.py and tests/security try the same on the loopback.
pytestmark = [pytest.mark.container, pytest.mark.cluster, pytest.mark.long("a cluster of containers")]
REQUIREMENTS = Path(__file__).parents[2] / "requirements"
NOTEBOOKS = 12
# One process asks until so many nodes are alive: importing Ray takes seconds of CPU time.
ALIVE = """
import sys, time
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import session
wanted, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while True:
    try:
        count = sum(node.is_alive for node in session.nodes())
    except RocmlabError:
        count = 0  # there is no cluster to ask, yet
    if count == wanted or time.monotonic() > end:
        break
    time.sleep(0.2)
print(count)
"""
# Notes its beginning and its end in one file, in one write each: how often each notebook really ran, and where.
CELL = """
import os, socket, time
def note(what):
    line = f"{what} {name} {socket.gethostname()} {os.environ.get('HIP_VISIBLE_DEVICES')}\\n"
    file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(file, line.encode())
    os.close(file)
note("begin")
time.sleep(seconds)
note("end")
"""


@dataclass
class Cluster:
    """A head and two workers, each driven by `make` in a clone of its own."""

    labs: dict[str, Clone]  # by what the test calls them; the head first
    share: Path  # the folder all of them have as their share

    def container(self, name: str, *, running_only: bool = True) -> str:
        """Return the id of a lab's container."""
        label = f"label=com.docker.compose.project={self.labs[name].env['COMPOSE_PROJECT_NAME']}"
        return docker("ps", "--quiet", "--no-trunc", "--filter", label, *([] if running_only else ["--all"])).strip()

    def hostname(self, name: str) -> str:
        """Return the name that a container gives itself."""
        return self.container(name, running_only=False)[:12]

    def run(self, name: str, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start `rocmlab run` in a lab."""
        given = [f"--env={variable}={value}" for variable, value in environment.items()]
        command = ["docker", "exec", *given, self.container(name), "start.sh", "rocmlab", "run", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def alive(self, wanted: int = -1, timeout_seconds: float = 0) -> int:
        """Return how many nodes are alive for a program of the head, which waits so long until these are."""
        command = ["docker", "exec", self.container("head"), "start.sh", "/opt/rocmlab/bin/python", "-c", ALIVE]
        words = [str(wanted), str(timeout_seconds)]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=400, check=False)
        counts = re.findall(r"^\d+$", done.stdout, re.MULTILINE)  # Ray warns on stdout, too
        return int(counts[-1]) if counts and not done.returncode else 0

    def wait_for(self, nodes: int, timeout_seconds: float = 120) -> None:
        """Wait until so many nodes are alive."""
        until(lambda: self.alive(nodes, timeout_seconds) == nodes, f"{nodes} nodes", timeout_seconds)

    def notes(self, run: str) -> list[list[str]]:
        """Return what the notebooks of a run noted: what, name, host, mask."""
        path = self.share / f"{run}.notes"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def folder(self, run: str) -> Path:
        """Return the folder of the newest run of this name: a test that is repeated has run before."""
        return max(self.share.glob(f"runs/*-{run}"))

    def results(self, run: str) -> dict:
        """Return results.json of the run of this name."""
        return json.loads((self.folder(run) / "results.json").read_text())


def until(is_so: Callable[[], bool], what: str, timeout_seconds: float = 120) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        assert time.monotonic() < deadline, f"after {timeout_seconds} s still not: {what}"
        time.sleep(0.2)


def write_notebooks(share: Path, run: str, count: int = NOTEBOOKS, seconds: float = 2.0) -> str:
    """Write the notebooks of a run into the share, and return the folder as the labs see it."""
    folder = share / "jobs" / run
    folder.mkdir(parents=True)
    for number in range(count):
        name = f"job{number:02}"
        settings = f"name, notes, seconds = {name!r}, '/home/jovyan/share/{run}.notes', {seconds}"
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(settings + CELL)],
            metadata={"kernelspec": {"name": "torch", "display_name": "torch", "language": "python"}},
        )
        nbformat.write(notebook, folder / f"{name}.ipynb")
    for path in (share, share / "jobs", folder, *folder.iterdir()):
        path.chmod(0o777 if path.is_dir() else 0o644)
    return f"/home/jovyan/share/jobs/{run}"


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    """A Docker network of the test's own, in which containers find each other by address and by name."""
    name = f"rocmlab-test-{os.getpid()}-cluster"
    docker("network", "create", name)
    yield name
    docker("network", "rm", name)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated host with two GPUs, readable for everybody as `rocmlab simulate` writes it."""
    root = make_host(
        tmp_path_factory.mktemp("simulated"), *(Gpu(number, number << 8, 127 + number) for number in (1, 2))
    )
    open_to_others(root)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o666)
    return root


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, base_image: str, network: str, host: Path) -> Iterator[Cluster]:
    """`make cluster-up` on the head, and the line it prints on both workers."""
    share = tmp_path_factory.mktemp("share")
    share.chmod(0o777)
    labs = {}
    for name in ("head", "one", "two"):
        labs[name] = clone(
            tmp_path_factory.mktemp(name) / "rocmlab",
            BASE_IMAGE=base_image,
            COMPOSE_PROJECT_NAME=f"rocmlab-test-{os.getpid()}-{name}",
            RUNTIME="docker",
            ROCMLAB_ROOT=str(host),
            SHARE=str(share),
            SHM_SIZE="256mb",
            CLUSTER_NETWORK=network,
        )
    try:
        printed = labs["head"].make("cluster-up").stdout
        joining = re.search(r"make cluster-join HEAD=(\S+) CLUSTER_TOKEN=(\S+)", printed)
        assert joining, printed
        head, token = joining.groups()
        with ThreadPoolExecutor() as pool:
            workers = (labs["one"], labs["two"])
            list(pool.map(lambda lab: lab.make("cluster-join", HEAD=head, CLUSTER_TOKEN=token), workers))
        found = Cluster(labs, share)
        found.wait_for(3)
        yield found
    finally:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda lab: lab.make("clean", succeeds=False), labs.values()))


def noted(cluster: Cluster, run: str, what: str = "end") -> Counter[str]:
    """Return how often each notebook of a run came to its end, or to its beginning."""
    return Counter(name for said, name, *_ in cluster.notes(run) if said == what)


def check_done_once(cluster: Cluster, run: str, lost: set[str], printed: str) -> list[dict]:
    """Make sure that every notebook is done, and ran again only if it was lost; return the report's jobs.

    One that is killed between its last line and the end of its job has noted its end, and is run again.
    """
    jobs = cluster.results(run)["jobs"]
    assert [job["status"] for job in jobs] == ["ok"] * NOTEBOOKS, printed
    assert len(noted(cluster, run)) == NOTEBOOKS
    for what in ("begin", "end"):
        assert {name for name, count in noted(cluster, run, what).items() if count > 1} <= lost, cluster.notes(run)
    journal = [json.loads(line) for line in (cluster.folder(run) / "journal.jsonl").read_text().splitlines()]
    for job in jobs:
        events = [each for each in journal if each.get("job") == job["name"]]
        fine = [each for each in events if each["event"] == "job finished" and each["result"]["status"] == "ok"]
        assert fine == events[-1:], events  # once, and nothing after it
    return jobs


def test_a_worker_that_dies_half_way(cluster: Cluster) -> None:
    """All finish, those that were done are not repeated, and the report says where each ran and what was lost."""
    folder = write_notebooks(cluster.share, "worker")
    lost = cluster.hostname("two")
    others = {cluster.hostname("head"), cluster.hostname("one")}
    run = cluster.run("head", "--engine", "ray", folder, "--name", "worker")

    until(lambda: noted(cluster, "worker").total() >= NOTEBOOKS // 3, "a third of the notebooks")
    docker("kill", cluster.container("two"))
    printed, _ = run.communicate(timeout=300)

    assert run.returncode == 0, printed
    messages = {job["name"]: [each["message"] for each in job["attempts"]] for job in cluster.results("worker")["jobs"]}
    again = {name for name, each in messages.items() if each}
    jobs = check_done_once(cluster, "worker", again, printed)
    assert {message for each in messages.values() for message in each} == {f"node {lost} was lost"}
    ends = {name: (where, mask) for what, name, where, mask in cluster.notes("worker") if what == "end"}
    for job in jobs:
        (device,) = job["devices"]
        assert (device["node"], str(device["index"])) == ends[job["name"]], job
    assert others <= {where for where, _ in ends.values()} <= others | {lost}
    report = (cluster.folder("worker") / "report.html").read_text()
    assert all(name in report for name in others)
    assert "SIMULATED" in report


def test_a_lab_that_comes_back_is_a_node_again(cluster: Cluster) -> None:
    """`make up` brings the killed container back, and its node joins without another word."""
    cluster.labs["two"].make("up")

    cluster.wait_for(3)


def test_the_head_is_lost(cluster: Cluster) -> None:
    """The run ends with exit code 1 and a sentence; with the head back, `--resume` does what is left and no more."""
    folder = write_notebooks(cluster.share, "head", seconds=6.0)
    # Ray gives the head a minute to come back, in which the workers go on: all would be done by then.
    patience = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10"}
    run = cluster.run("one", "--engine", "ray", folder, "--name", "head", **patience)
    until(lambda: noted(cluster, "head").total() >= NOTEBOOKS // 4, "a quarter of the notebooks")

    docker("kill", cluster.container("head"))
    printed, _ = run.communicate(timeout=240)

    assert run.returncode == 1, printed
    lost = {job["name"] for job in cluster.results("head")["jobs"] if job["status"] != "ok"}
    assert lost
    assert "head" in printed
    assert "--resume" in printed
    assert "Traceback" not in printed
    cluster.labs["head"].make("cluster-up")
    cluster.wait_for(3, 240)
    resumed = cluster.run("one", "--resume", "last")
    printed, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, printed
    check_done_once(cluster, "head", lost, printed)


class TestLab:
    """A lab that is a node."""

    def test_ray_is_added_and_nothing_else_changed(self, cluster: Cluster) -> None:
        """One version in the lab's environment and PyTorch's, none next to TensorFlow; the rest is as the locks say."""
        versions = json.loads(docker("exec", cluster.container("head"), "cat", "/etc/rocmlab-build.json"))["versions"]
        locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", (REQUIREMENTS / "lab.txt").read_text(), re.MULTILINE))

        assert versions["lab"]["ray"] == versions["torch"]["ray"]
        assert "ray" not in versions["tensorflow"]
        assert {"pyarrow", "torch"} <= set(versions["torch"])
        assert {name: versions["lab"][name] for name in locked if name in versions["lab"]}.items() <= locked.items()

    def test_training_over_the_nodes_listens_where_the_table_says(self, cluster: Cluster) -> None:
        """Ray on its ports, the data sockets on the node's own address, and nothing else outside the loopback."""
        cluster.wait_for(3)
        with contextlib.ExitStack() as stack:
            watches = {
                name: stack.enter_context(watched_container(cluster.container(name))) for name in ("head", "one", "two")
            }
            few = ("quick=true", "device=cpu", "workers=3", "samples=2560", "epochs=2", "kill_in=0")
            words = [word for each in few for word in ("-p", each)]
            run = cluster.run("head", "11_multi_node_torch", "--name", "train", *words)
            printed, _ = run.communicate(timeout=900)

        assert run.returncode == 0, printed
        (job,) = cluster.results("train")["jobs"]
        assert (job["recorded"]["ray"], job["recorded"]["acceptance"]["ok"]) == ("cluster", True), job
        table = {number for span in ports.numbers().values() for number in span} | {8888}
        data = [one for found in watches.values() for one in found if one.port not in table]
        assert data, "gloo listens while it trains"
        for name, found in watches.items():
            inspected = json.loads(docker("inspect", cluster.container(name)))[0]["NetworkSettings"]["Networks"]
            (address,) = {network["IPAddress"] for network in inspected.values()}
            others = [one for one in found if one.port not in table]
            assert {one.address for one in others} <= {address}, list(map(str, others))
            assert all(one.port >= 32768 for one in others), list(map(str, others))

    def test_a_notebook_uses_the_cluster_without_a_word_of_setup(self, cluster: Cluster) -> None:
        """`ray.init()` in the kernel `torch` finds it, token included, which no process shows on its command line."""
        code = "import ray; ray.init(log_to_driver=False); print('nodes', sum(n['Alive'] for n in ray.nodes()))"
        lab = cluster.labs["one"]
        server = clients.Server(f"127.0.0.1:{lab.port}", lab.env["JUPYTER_TOKEN"])

        printed = server.execute("torch", code)
        commands = docker("exec", cluster.container("one"), "ps", "-ewwo", "args")

        assert "nodes 3" in printed
        assert "raylet" in commands
        assert lab.env["CLUSTER_TOKEN"] not in commands

    def test_the_object_store_fits_into_shared_memory(self, cluster: Cluster) -> None:
        """SHM_SIZE is the limit: Ray would otherwise put its objects on the disk."""
        program = "cat /proc/$(pgrep --exact raylet)/maps | grep -m 1 plasma; df -B1 --output=size /dev/shm"
        maps, _, size = docker("exec", cluster.container("one"), "start.sh", "bash", "-c", program).splitlines()

        assert "/dev/shm/plasma" in maps
        assert int(size) == 256 << 20

    def test_stopping_ends_the_node_in_order(self, cluster: Cluster) -> None:
        """`docker stop` is within its grace, nothing is killed, and the head knows that the node is gone."""
        container = cluster.container("two")

        docker("stop", container)

        assert docker("inspect", "--format", "{{.State.ExitCode}}", container).strip() == "0"
        cluster.wait_for(2, 30)


@pytest.mark.parametrize("token", ["", "0" * 64])
def test_a_stranger_can_do_nothing(cluster: Cluster, network: str, token: str) -> None:
    """A container of the same network, with the same Ray, and without the token or with another: all is rejected."""
    program = (Path(__file__).parent / "units/stranger.py").read_text()
    head = cluster.container("head")
    address = docker("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", head).strip()
    image = docker("inspect", "--format", "{{.Image}}", head).strip()
    before = cluster.alive()
    assert before, "there is a cluster to get into"

    said = docker(
        *("run", "--rm", "--interactive", f"--network={network}", "--shm-size=256m", "--entrypoint=setpriv", image),
        *("--reuid=1000", "--regid=100", "--clear-groups", "/opt/rocmlab/bin/python", "-", address, "6379", token),
        text=program,
        timeout_seconds=600,
    )

    came = json.loads(said.splitlines()[-1])
    assert {name: what for name, what in came.items() if not what.startswith("refused")} == {}
    assert 0 < cluster.alive() <= before  # a node that another test killed may be forgotten meanwhile
