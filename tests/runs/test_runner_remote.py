"""Notebooks on a real Ray cluster: two nodes on this machine, each with a simulated host of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import notebook_files
import psutil
import pytest
import ray_nodes
from ray_nodes import RayNodes
from watching import eventually

pytestmark = pytest.mark.cluster

RUN_SECONDS = 180.0
WHERE = "import os, rocmlab\nrocmlab.record(node=os.environ['ROCMLAB_NODE'], hip=os.environ['HIP_VISIBLE_DEVICES'])"

WHOSE = """
from pathlib import Path
from rocmlab.devices import discover
from rocmlab.kernels.leases import Leases
gpus = [each for each in discover() if each.backend == 'rocm' and each.is_usable]
titles = []
for folder in Path('/proc').glob('[0-9]*'):
    try:
        titles.append((folder / 'cmdline').read_text().strip('\\0 '))
    except OSError:
        pass
tasks = [title for title in titles if title.startswith('ray::rocmlab pair')]
rocmlab.record(owner=Leases.of_host().held(gpus)[gpus[0]].owner, task=tasks[0])
"""


@dataclass
class Lab:
    """A machine of the cluster from which runs are started."""

    cluster: RayNodes
    folder: Path
    names: list[str] = field(default_factory=list)

    def write(self, name: str, *cells: str, **metadata: object) -> str:
        """Write a notebook; return its path."""
        return str(notebook_files.write(self.folder / "notebooks" / f"{name}.ipynb", *cells, **metadata))

    def start(self, *words: str, share: str | None = None, **environment: str) -> subprocess.Popen[str]:
        """Start `rocmlab run --engine ray`."""
        engine = [] if "--resume" in words else ["--engine", "ray"]
        command = [sys.executable, "-m", "rocmlab", "run", *engine]
        return subprocess.Popen(
            [*command, "--share", share or str(self.folder / "share"), *words],
            env={**self.cluster.client, "ROCMLAB_RUNTIME": "native", **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, share: str | None = None, **environment: str) -> tuple[int, str]:
        """Run to the end; return the exit code and what was printed."""
        process = self.start(*words, share=share, **environment)
        try:
            said, _ = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            pytest.fail(f"it did not end:\n{said}")
        return process.returncode, said

    def results(self, name: str) -> dict:
        """Return the results of a run."""
        return json.loads((self.run_folder(name) / "results.json").read_text(encoding="utf-8"))

    def run_folder(self, name: str) -> Path:
        """Return the folder of the run of that name."""
        found = [path for path in (self.folder / "share/runs").glob(f"*-{name}") if path.is_dir()]
        assert len(found) == 1, found
        return found[0]

    def journal(self, name: str) -> list[dict]:
        """Return the journal of a run."""
        path = self.run_folder(name) / "journal.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]


def by_name(results: dict) -> dict[str, dict]:
    """Return the jobs by their names."""
    return {job["name"]: job for job in results["jobs"]}


def of_jobs() -> list[psutil.Process]:
    """Return the processes that belong to a job: kernels and what they started."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        environment = process.info["environ"] or {}
        is_ours = environment.get("ROCMLAB_NODE") and environment.get("ROCMLAB_JOB")
        if is_ours and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.fixture(scope="module")
def cluster(kernel: str) -> Iterator[RayNodes]:
    """A head and another node; both have the test kernel."""
    with ray_nodes.started(os.environ) as found:
        found.add("head")
        found.wait()
        found.add("second")
        found.wait()
        yield found


@pytest.fixture
def lab(cluster: RayNodes, tmp_path: Path) -> Lab:
    """This machine, which belongs to the cluster."""
    return Lab(cluster, tmp_path)


def test_jobs_run_on_both_nodes_with_the_gpus_that_ray_gave(lab: Lab) -> None:
    """Each notebook sees one GPU of its node; ends of every kind are reported as on one machine."""
    busy = ["import time; time.sleep(4)"] * 2  # until a busy machine has started workers on the second node
    names = [lab.write(f"w{number}", *busy, WHERE) for number in range(4)]
    names.append(lab.write("pair", WHERE, WHOSE, rocmlab={"gpus": 2}))
    names.append(lab.write("none", WHERE, rocmlab={"gpus": 0}))
    names.append(lab.write("fails", "1/0"))
    sleep = "try: time.sleep(600)\nexcept KeyboardInterrupt:\n    rocmlab.record(woken=True)\n    raise"
    names.append(lab.write("slow", "import rocmlab, time", sleep))
    names.append(lab.write("dies", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    names.append(lab.write("big", "1", rocmlab={"gpus": 3}))
    names.append(
        lab.write(
            "env",
            "import os\nassert not [n for n in os.environ if n in ('RAY_JOB_ID', 'RAY_RAYLET_PID')]",
            "assert os.environ['RAY_AUTH_MODE'] == 'token'",
        )
    )

    code, said = lab.run(*names, "--cell-timeout", "5", "--name", "both", ROCMLAB_USER="ada")

    results = lab.results("both")
    jobs = by_name(results)
    assert code == 1, said
    ends = {name: job["status"] for name, job in jobs.items()}
    assert ends == {
        **dict.fromkeys(["w0", "w1", "w2", "w3", "pair", "none", "env"], "ok"),
        "fails": "failed",
        "slow": "timeout",
        "dies": "kernel died",
        "big": "not run",
    }, said
    for name in ("w0", "w1", "w2", "w3", "pair", "none"):
        devices, recorded = jobs[name]["devices"], jobs[name]["recorded"]
        assert {device["node"] for device in devices} == {recorded["node"]}
        masks = [str(device["index"]) for device in devices if device["backend"] == "rocm"]
        assert recorded["hip"] == (",".join(masks) or "-1")
    assert {jobs[f"w{number}"]["recorded"]["node"] for number in range(4)} == {"head", "second"}
    assert len(jobs["pair"]["devices"]) == 2
    assert jobs["pair"]["recorded"]["owner"] == "ada", "on the node as well"
    assert jobs["pair"]["recorded"]["task"] == "ray::rocmlab pair of ada", "as the cluster's status shows it"
    assert jobs["none"]["devices"][0]["backend"] == "cpu"
    assert jobs["slow"]["recorded"] == {"woken": True}, "its cell was interrupted, though Ray's processes block SIGINT"
    assert len(jobs["dies"]["attempts"]) == 1
    assert all(jobs[name]["simulated"] for name in ("w0", "pair"))
    assert "on second" in (lab.run_folder("both") / "report.html").read_text(encoding="utf-8")
    assert set(jobs["w0"]["files"]) == {"notebook", "html", "log", "samples"}


@pytest.mark.long
def test_kernels_are_forked_on_every_node_and_learn_how_their_children_ended(lab: Lab) -> None:
    """Ray's processes ignore SIGCHLD and hand that on: a fork server would not see its first kernel end."""
    home = Path(os.environ["JUPYTER_PATH"])
    notebook_files.write_kernel(home / "kernels/warm-kernel", sys.executable, ["json"])
    cell = (
        "import os, pathlib, rocmlab, subprocess\n"
        "parent = pathlib.Path(f'/proc/{os.getppid()}/cmdline').read_text().split('\\0')\n"
        "rocmlab.record(parent=parent[1], code=subprocess.run(['sh', '-c', 'exit 7']).returncode)"
    )
    names = [lab.write(f"w{number}", cell, "import time; time.sleep(1)", kernel="warm-kernel") for number in range(12)]

    code, said = lab.run(*names, "--name", "warm")

    assert code == 0, said
    for job in lab.results("warm")["jobs"]:
        assert job["warnings"] == [], job["name"]
        assert job["recorded"]["parent"].endswith("forkserver/server.py")
        assert job["recorded"]["code"] == 7


def test_files_come_home_where_the_run_folder_is_not_shared(lab: Lab) -> None:
    """A node that has another folder of that name runs the job in a scratch folder and hands its files over."""
    lab.write("large", "import base64, os\nprint(base64.b64encode(os.urandom(6_000_000)).decode())", WHERE)
    here = "/proc/self/cwd"  # which is another folder for each process that does not work here

    code, said = lab.run(f"{here}/notebooks/large.ipynb", "--name", "away", share=f"{here}/share")

    jobs = by_name(lab.results("away"))
    folder = lab.run_folder("away")
    assert code == 0, said
    assert set(jobs["large"]["files"]) == {"notebook", "html", "log", "samples"}
    assert (folder / "large.ipynb").stat().st_size > 8_000_000
    assert json.loads((folder / "large.ipynb").read_text())["metadata"]["papermill"]["exception"] is None
    assert "scratch folder" in " ".join(jobs["large"]["warnings"])
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert eventually(lambda: not list(Path(lab.cluster.temporary).glob("rocmlab-run-*")), 30)


@pytest.mark.long
def test_an_exchange_brings_them_home_too(lab: Lab, tmp_path: Path) -> None:
    """Files that are left at an address that both reach are fetched and removed there."""
    pytest.importorskip("fsspec")
    lab.write("small", "print('hello')", WHERE)
    here, exchange = "/proc/self/cwd", tmp_path / "exchange"
    words = (f"{here}/notebooks/small.ipynb", "--name", "left", "--exchange", f"file://{exchange}")

    code, said = lab.run(*words, share=f"{here}/share")

    assert code == 0, said
    assert "hello" in (lab.run_folder("left") / "small.log").read_text()
    assert not [path for path in exchange.rglob("*") if path.is_file()]


@pytest.mark.long
def test_results_come_home_where_the_exchange_fails(lab: Lab, tmp_path: Path) -> None:
    """It did when the run began; hours later its node cannot write it, and Ray brings the files."""
    pytest.importorskip("fsspec")
    exchange = tmp_path / "exchange"
    lab.write(
        "spoils",
        f"import os\nos.rename({str(exchange)!r}, {str(exchange)!r} + '-gone')",
        f"open({str(exchange)!r}, 'w')",
    )
    here = "/proc/self/cwd"
    words = (f"{here}/notebooks/spoils.ipynb", "--name", "spoiled", "--exchange", f"file://{exchange}")

    code, said = lab.run(*words, share=f"{here}/share")

    (job,) = lab.results("spoiled")["jobs"]
    assert code == 0, said
    assert set(job["files"]) == {"notebook", "html", "log", "samples"}
    assert "came through Ray" in " ".join(job["warnings"])


def test_results_that_cannot_be_delivered_are_kept_on_the_node(lab: Lab) -> None:
    """The run folder does not take one of them: the job ended as it did, and the result says where the file is."""
    runs = lab.folder / "share/runs"
    lab.write("ends", f"import pathlib\n(next(pathlib.Path({str(runs)!r}).glob('*-kept')) / 'ends.log').mkdir()")
    here = "/proc/self/cwd"

    code, said = lab.run(f"{here}/notebooks/ends.ipynb", "--name", "kept", share=f"{here}/share")

    (job,) = lab.results("kept")["jobs"]
    assert code == 0, said
    assert (job["status"], job["error"]) == ("ok", None)
    assert job["seconds"] is not None
    (told,) = [each for each in job["warnings"] if "could not be brought into the run folder" in each]
    found = re.search(r"ends\.log could not .*: copy them from node (head|second), where they are in '(.*)'", told)
    assert found, told
    kept = Path(found[2])
    assert sorted(path.name for path in kept.iterdir()) == ["ends.ipynb", "ends.log", "ends.samples.jsonl"]
    assert (lab.run_folder("kept") / "ends.ipynb").is_file(), "what can be delivered is"
    shutil.rmtree(kept.parent.parent)


def test_an_interrupted_run_saves_and_leaves_no_process(lab: Lab) -> None:
    """Ctrl-C stops what runs in order, on every node; what waits in Ray is not run."""
    sleep = "import time\nprint('asleep')\ntry: time.sleep(600)\nfinally:\n    time.sleep(1)\n    print('woken')"
    names = [lab.write(f"s{number}", sleep) for number in range(6)]

    process = lab.start(*names, "--name", "stopped")
    assert eventually(lambda: len(cells_begun(lab, "stopped")) >= 4, 90), "four jobs run on two nodes"
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)

    jobs = by_name(lab.results("stopped"))
    assert process.returncode == 1, said
    assert sorted(job["status"] for job in jobs.values()) == ["killed"] * 4 + ["not run"] * 2, said
    for job in jobs.values():
        if job["status"] == "killed":
            saved = json.loads((lab.run_folder("stopped") / job["files"]["notebook"]).read_text())
            assert "asleep" in json.dumps(saved)
            assert "woken" in json.dumps(saved), "it had time to end in order"
    assert eventually(lambda: not of_jobs(), 20), of_jobs()


@pytest.mark.long
def test_a_runner_that_is_killed_leaves_no_process(lab: Lab) -> None:
    """Neither does SIGKILL of the runner itself: its child ends with it, and Ray ends the tasks."""
    names = [lab.write(f"k{number}", "import time; time.sleep(600)") for number in range(2)]

    process = lab.start(*names, "--name", "killed")
    assert eventually(lambda: len(of_jobs()) >= 2 and len(cells_begun(lab, "killed")) >= 2, 90)
    process.kill()
    process.communicate(timeout=60)

    assert eventually(lambda: not of_jobs(), 30), of_jobs()


@pytest.mark.long
def test_a_node_that_is_lost_costs_no_job(lab: Lab) -> None:
    """What ran there runs again elsewhere, what had ended does not, and the report says why."""
    third = lab.cluster.add("third")
    lab.cluster.wait()
    log = lab.folder / "ends.txt"
    mark = f"open({str(log)!r}, 'a').write({{0!r}} + ' ')"
    cell = "import os, time\ntime.sleep(60 if os.environ['ROCMLAB_NODE'] == 'third' else 1)"
    names = [lab.write(f"n{number}", cell, mark.format(f"n{number}")) for number in range(9)]

    process = lab.start(*names, "--name", "lost", "--retries", "0")
    assert eventually(lambda: cells_begun(lab, "lost", "third"), 90)
    third.kill()
    said, _ = process.communicate(timeout=RUN_SECONDS)

    jobs = by_name(lab.results("lost"))
    moved = [job for job in jobs.values() if job["attempts"]]
    assert process.returncode == 0, said
    assert {job["status"] for job in jobs.values()} == {"ok"}
    assert sorted(log.read_text().split()) == sorted(jobs), "each has run to its end once"
    assert moved
    for job in moved:
        assert job["attempts"][0]["devices"][0]["node"] == "third"
        assert "third was lost" in job["attempts"][0]["message"]
        assert job["devices"][0]["node"] != "third"
    retried = [event["job"] for event in lab.journal("lost") if event["event"] == "job retried"]
    assert sorted(retried) == sorted(job["name"] for job in moved)


@pytest.mark.long
def test_jobs_that_wait_for_a_node_that_is_lost_go_elsewhere(lab: Lab) -> None:
    """A node is chosen for each that wants several GPUs; one that had not begun there has no attempt to its name."""
    third = lab.cluster.add("fourth")
    lab.cluster.wait()
    cell = "import os, time\ntime.sleep(60 if os.environ['ROCMLAB_NODE'] == 'fourth' else 1)"
    names = [lab.write(f"p{number}", cell, rocmlab={"gpus": 2}) for number in range(6)]

    process = lab.start(*names, "--name", "pairs", "--retries", "0")
    assert eventually(lambda: cells_begun(lab, "pairs", "fourth"), 90)
    third.kill()
    said, _ = process.communicate(timeout=RUN_SECONDS)

    jobs = by_name(lab.results("pairs"))
    assert process.returncode == 0, said
    assert {job["status"] for job in jobs.values()} == {"ok"}
    assert [len(job["attempts"]) for job in jobs.values() if job["attempts"]] == [1], "the one that ran there"
    assert {job["devices"][0]["node"] for job in jobs.values()} == {"head", "second"}


@pytest.mark.long
def test_a_node_with_a_second_mask_is_refused(kernel: str, tmp_path: Path) -> None:
    """ROCR_VISIBLE_DEVICES would number the GPUs again; without any other node there is no run, and no folder."""
    with ray_nodes.started(os.environ) as cluster:
        cluster.add("masked", ROCR_VISIBLE_DEVICES="0")
        cluster.wait()
        lab = Lab(cluster, tmp_path)

        code, said = lab.run(lab.write("a", "1"), "--name", "masked")

    assert code == 2
    assert "ROCR_VISIBLE_DEVICES=0" in said
    assert "unset ROCR_VISIBLE_DEVICES" in said
    assert not list((tmp_path / "share").glob("runs/*"))


@pytest.mark.long
def test_the_loss_of_the_head_ends_the_run_in_words_and_it_can_be_resumed(lab: Lab, kernel: str) -> None:
    """The runner lives on, says what has become of each job, and a new cluster finishes what is left."""
    log, gate = lab.folder / "ends.txt", lab.folder / "gate"
    wait = (  # whichever is first ends, those after it wait
        f"import pathlib, time\nlog, gate = pathlib.Path({str(log)!r}), pathlib.Path({str(gate)!r})\n"
        "while log.exists() and not gate.exists(): time.sleep(0.1)"
    )
    names = [lab.write(name, wait, f"log.open('a').write('{name} ')") for name in ("one", "two", "three")]
    with ray_nodes.started(os.environ) as cluster:
        cluster.add("head", gpus=1)
        cluster.wait()
        dying = Lab(cluster, lab.folder)
        with dying.start(*names, "--name", "headless") as process:
            try:
                assert eventually(lambda: log.exists() and len(cells_begun(lab, "headless")) == 2, 150), log.exists()
                begun = cells_begun(lab, "headless")
                cluster.nodes[0].kill()
                said, _ = process.communicate(timeout=120)
            finally:
                process.kill()

    jobs = by_name(lab.results("headless"))
    assert process.returncode == 1, said
    assert "the cluster was lost" in said
    first = log.read_text().strip()
    (going,) = begun - {first}
    (waiting,) = jobs.keys() - {first, going}
    assert (jobs[first]["status"], jobs[waiting]["status"]) == ("ok", "not run"), said
    # Ray tells first that the head was lost as a node (a second attempt then waits), or that the cluster was lost.
    assert jobs[going]["status"] == ("not run" if jobs[going]["attempts"] else "killed"), said

    gate.touch()
    code, said = lab.run("--resume", lab.run_folder("headless").name)

    jobs = by_name(lab.results("headless"))
    assert code == 0, said
    assert sorted(log.read_text().split()) == ["one", "three", "two"]
    assert re.search("the cluster was lost|node head was lost", jobs[going]["attempts"][0]["message"])


def test_without_ray_or_a_cluster_a_sentence_says_what_to_do(tmp_path: Path, kernel: str) -> None:
    """Nothing has run, and no run folder is left."""
    notebook = notebook_files.write(tmp_path / "a.ipynb", "1")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import sys, importlib.abc\n"
        "class Hide(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'ray': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    usual = {**os.environ, "ROCMLAB_RUNTIME": "native", "TMPDIR": str(tmp_path)}
    usual = {name: value for name, value in usual.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-m", "rocmlab", "run", "--engine", "ray", "--share", str(tmp_path), str(notebook)]

    without_ray = {**usual, "PYTHONPATH": f"{hidden}:{usual['PYTHONPATH']}"}
    lacking = subprocess.run(command, env=without_ray, capture_output=True, text=True, timeout=60, check=False)
    alone = subprocess.run(command, env=usual, capture_output=True, text=True, timeout=60, check=False)

    assert lacking.returncode == 2
    assert 'pip install "rocmlab[cluster]"' in lacking.stderr
    assert alone.returncode == 2
    assert "make cluster-up" in alone.stderr
    assert not (tmp_path / "runs").exists()


def cells_begun(lab: Lab, name: str, node: str = "") -> set[str]:
    """Return the jobs of a run whose kernel runs code, as their logs say, of those on a node."""
    found = list((lab.folder / "share/runs").glob(f"*-{name}"))
    if not found:
        return set()
    begun = {path.stem for path in found[0].glob("*.log") if "--- cell" in path.read_text(errors="replace")}
    on = {
        event["job"]
        for event in lab.journal(name)
        if event["event"] == "job started" and event["devices"][0]["node"].startswith(node)
    }
    return begun & on
