"""Training over a cluster, without Ray: who takes part, which masks they get, and the function of the only worker."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import rocmlab
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node.session import Node
from rocmlab.training import network
from rocmlab.training.cluster import Team, connection, team, worker
from rocmlab.training.cluster.team import kinds, masks


def node(name, is_alive=True, **resources):
    """Return a node with these resources."""
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    return Node(name, name, "192.0.2.1", is_alive, name == "head", gpus, cpus, resources, {})


def gpu(name, host="a", backend="rocm"):
    """Return what a worker reports about its device."""
    return {"backend": backend, "name": name, "index": 0, "pci": None, "simulated": False, "node": host}


def test_all_gpus_of_the_most_common_kind_train_together():
    """A node with another kind, and one that is dead, take no part; each worker asks for its kind."""
    nodes = [
        node("head", CPU=8, GPU=2, gfx1100=2),
        node("b", CPU=64, GPU=4, gfx942=4),
        node("c", CPU=64, GPU=8, gfx942=8),
        node("dead", is_alive=False, CPU=64, GPU=8, gfx1100=8),
    ]

    found = team(nodes)

    assert found == Team(12, True, "gfx942", ("b", "c"))
    assert found.resources() == {"GPU": 1, "gfx942": 1}
    assert found.alone().workers == 1
    assert "12 workers" in found.sentence()


def test_nodes_that_do_not_tell_the_kind_count_together():
    """NVIDIA's have no gfx; the workers compare names themselves."""
    nodes = [node("head", CPU=8, GPU=1), node("b", CPU=8, GPU=1)]

    assert kinds(nodes) == {None: 2}
    assert team(nodes, "gpu") == Team(2, True, None, ("head", "b"))
    assert team(nodes, "gpu").resources() == {"GPU": 1}


def test_one_gpu_is_no_team():
    """`auto` then takes the CPU, which is reported, and `gpu` is an error with its fix."""
    nodes = [node("head", CPU=2, GPU=1, gfx1100=1), node("b", CPU=1, GPU=1, gfx942=1)]

    found = team(nodes, "auto", 3)

    assert found == Team(3, False, None, ("head", "b"))
    assert found.resources() == {"CPU": 1}
    assert "CPU" in found.sentence()
    with pytest.raises(RocmlabError, match="of one kind"):
        team(nodes, "gpu")


@pytest.mark.parametrize(("device", "workers"), [("cpu", 3), ("cpu", 0), ("tpu", 1)])
def test_what_no_cluster_can_give_is_rejected(device, workers):
    """More workers than cores would be waited for without end."""
    with pytest.raises(RocmlabError):
        team([node("head", CPU=2)], device, workers)


def test_workers_of_one_node_see_each_others_gpus_and_no_other():
    """The masks are the union of what Ray gave on that node, in the order of the indices."""
    granted = [("a", ["3"]), ("b", ["0"]), ("a", ["1"]), ("c", [])]

    assert masks(granted) == [(1, 3), (0,), (1, 3), ()]


def test_gpus_of_different_kinds_are_rejected_by_the_workers():
    """A sum over them hangs or fails."""
    with pytest.raises(RocmlabError, match="different kinds"):
        worker.described([gpu("AMD Instinct MI300X"), gpu("AMD Radeon PRO W7900", "b")])


def test_only_workers_that_share_a_cpu_are_simulated():
    """A whole machine is not a simulation of itself, and a GPU never one."""
    shared = worker.described([gpu("EPYC", "a", "cpu"), gpu("EPYC", "a", "cpu"), gpu("Xeon", "b", "cpu")])
    gpus = worker.described([gpu("MI300X"), gpu("MI300X")])

    assert [one["simulated"] for one in shared] == [True, True, False]
    assert [one["simulated"] for one in gpus] == [False, False]


@pytest.mark.parametrize(("count", "workers"), [(256, 2), (256, 3), (5, 8), (1, 1)])
def test_the_parts_of_a_batch_are_the_batch(count, workers, monkeypatch):
    """Each sample belongs to one worker, and no part is larger than another by more than one sample."""
    parts = []
    for number in range(workers):
        monkeypatch.setattr(worker, "rank", lambda number=number: (number, workers))
        parts.append(list(range(count))[worker.part(count)])

    assert [sample for part in parts for sample in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_only_worker_begins_again_when_it_is_lost(tmp_path):
    """Without Ray there is no process to kill: the function is restarted as often as allowed, and not more."""
    begun = []

    def train(options):
        begun.append((options["seed"], *worker.rank()))
        if len(begun) <= options["deaths"]:
            worker.die()
        return {"begun": len(begun)}

    assert worker.alone(train, {"seed": 1, "deaths": 2}, tmp_path / "new", max_failures=2) == {"begun": 3}
    assert begun == [(1, 0, 1)] * 3
    begun.clear()
    with pytest.raises(worker.Lost):
        worker.alone(train, {"seed": 1, "deaths": 3}, tmp_path, max_failures=2)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the interfaces")
def test_the_interface_of_an_address_is_found():
    """The loopback has 127.0.0.1, and an address of the documentation's block belongs to no one."""
    assert network.interface("127.0.0.1") == "lo"
    assert network.interface("203.0.113.77") is None
    assert network.interface("2001:db8::77") is None
    assert network.loopback() == "lo"


def test_the_nodes_start_this_interpreter_with_its_paths(monkeypatch):
    """Ray hands the interpreter to a shell, so a blank in its path must not split it; masks are not handed on."""
    monkeypatch.setattr(sys, "executable", "/opt/my lab/bin/python")
    monkeypatch.setenv("PYTHONPATH", "/opt/src")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")

    made = connection.runtime_environment()

    assert shlex.split(made["py_executable"]) == ["/opt/my lab/bin/python"]
    assert made["env_vars"]["PYTHONPATH"] == "/opt/src"
    assert not {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} & set(made["env_vars"])


def test_masks_are_those_of_before_behind_the_start(monkeypatch):
    """Ray reads the masks of this process when it starts; a notebook's own must not change by that."""
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,3")

    with connection._masks({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"}):
        assert (os.environ["HIP_VISIBLE_DEVICES"], os.environ["CUDA_VISIBLE_DEVICES"]) == ("3", "3")

    assert os.environ["HIP_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


BARE = """
import sys
from rocmlab.base.errors import RocmlabError
from rocmlab.training import cluster
heavy = {"ray", "torch", "numpy", "pandas", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
assert not cluster.is_installed()
try:
    cluster.connect()
except RocmlabError as error:
    print(error.problem.fix if hasattr(error, "problem") else error)
"""


def test_without_ray_the_error_names_what_installs_it():
    """A Python without any package imports the package, which reports that Ray Train is missing and how to get it."""
    env = {"PYTHONPATH": str(Path(rocmlab.__file__).parents[1]), "PATH": os.environ["PATH"]}

    done = subprocess.run(
        [sys.executable, "-S", "-c", BARE], env=env, capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert "make cluster-up" in done.stdout
