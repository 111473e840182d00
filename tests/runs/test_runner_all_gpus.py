"""Notebooks for several GPUs get all of one kind, or the CPU where there are too few; others are not kept waiting."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import notebook_files
import pytest
from placing import take
from watching import Watcher

from rocmlab.base.errors import RocmlabError
from rocmlab.batch import layout
from rocmlab.batch.command import main as export
from rocmlab.cli import run_ahead
from rocmlab.cluster.executor.nodes import RemoteNode
from rocmlab.cluster.executor.places import ClusterPlaces
from rocmlab.devices import Device
from rocmlab.kernels.leases import Holder, Leases
from rocmlab.runs.command import main
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.run import run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.spec import ahead, options, resources
from rocmlab.runs.workers import claim
from rocmlab.simulation import write_host

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SEVERAL = ("04_multi_gpu_torch", "05_multi_gpu_keras", "11_multi_node_torch")
REQUEST = {"gpus": "all", "min_gpus": 2}
MASKS = "import os; print('masks', os.environ['HIP_VISIBLE_DEVICES'], os.environ.get('CUDA_VISIBLE_DEVICES'))"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a simulated host with this many GPUs the system's root."""
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    monkeypatch.chdir(tmp_path)

    def make(gpus: int) -> None:
        monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(tmp_path / f"host{gpus}", gpus=gpus)))

    return make


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    """Return the plan of a dry run, by job."""
    assert main([*words, "--dry-run", "--json"]) == 0
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)["jobs"]}


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_notebooks_for_several_gpus_get_all_of_them(
    count: int, host: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All GPUs of the host; with a single one they get the CPU, and the others of the lab get one each as before."""
    host(count)
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(NOTEBOOKS))

    found = planned(capsys, *SEVERAL, "01_mnist_fc", "--gpus", "all", "--kernel", "test-kernel")

    assert [found[name]["gpus"] for name in SEVERAL] == [count if count > 1 else 0] * 3
    assert found["01_mnist_fc"]["gpus"] == 1
    notes = {found[name]["note"] for name in SEVERAL}
    assert notes == ({None} if count > 1 else {"it needs 2 GPUs, this run has 1 GPU"})
    main([*SEVERAL, "--gpus", "all", "--kernel", "test-kernel", "--dry-run"])
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert (f"{count} GPUs" if count > 1 else "CPU: it needs 2 GPUs, this run has 1 GPU") in shown


def test_what_the_command_line_and_a_list_say_wins(
    host: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number of GPUs replaces the notebook's request, its minimum included; `--gpus` limits what `all` are."""
    host(4)
    path = str(notebook_files.write(tmp_path / "several.ipynb", "1", rocmlab=REQUEST))
    (tmp_path / "list.yaml").write_text("- {notebook: several.ipynb, gpus: 3}\n")

    assert planned(capsys, path)["several"]["gpus"] == 4
    assert planned(capsys, path, "--gpus", "0,2")["several"]["gpus"] == 2
    assert planned(capsys, path, "--gpus", "none")["several"]["gpus"] == 0
    assert planned(capsys, path, "--gpus", "1,")["several"]["gpus"] == 0
    assert planned(capsys, path, "--gpus", "1,", "--job-gpus", "all")["several"]["gpus"] == 1
    assert planned(capsys, path, "--job-gpus", "1")["several"]["gpus"] == 1
    assert planned(capsys, "list.yaml")["several"]["gpus"] == 3
    assert planned(capsys, "list.yaml", "--job-gpus", "2")["several"]["gpus"] == 2


@pytest.mark.slow
def test_all_gpus_are_in_the_mask_the_table_and_the_report(
    host: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel's masks name all four, and so do the summary, results.json and report.html."""
    host(4)
    path = notebook_files.write(tmp_path / "several.ipynb", MASKS, rocmlab=REQUEST)

    assert main([str(path), "--gpus", "all", "--share", "share"]) == 0

    (folder,) = (tmp_path / "share/runs").iterdir()
    (job,) = json.loads((folder / "results.json").read_text())["jobs"]
    assert "masks 0,1,2,3" in (folder / "several.log").read_text()
    assert [device["index"] for device in job["devices"]] == [0, 1, 2, 3]
    assert job["warnings"] == []
    assert "GPU 0,1,2,3" in capsys.readouterr().out
    assert "GPU 0,1,2,3" in (folder / "report.html").read_text()


@pytest.mark.long
@pytest.mark.slow
def test_with_one_gpu_it_runs_on_the_cpu_and_the_result_tells_why(
    host: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The GPU is hidden from it, and free for others; the summary and the result give the reason."""
    host(1)
    path = notebook_files.write(tmp_path / "several.ipynb", MASKS, rocmlab=REQUEST)

    assert main([str(path), "--gpus", "all", "--share", "share"]) == 0

    (folder,) = (tmp_path / "share/runs").iterdir()
    (job,) = json.loads((folder / "results.json").read_text())["jobs"]
    assert "masks -1" in (folder / "several.log").read_text()
    assert [device["backend"] for device in job["devices"]] == ["cpu"]
    assert job["warnings"] == ["it ran on the CPU: it needs 2 GPUs, this run has 1 GPU"]
    assert "it needs 2 GPUs, this run has 1 GPU" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_on_nvidia_the_masks_of_cuda_name_all_gpus(cpu: Device) -> None:
    """The same code assigns them; AMD's masks hide whatever they could show."""
    gpus = [Device("cuda", index, "NVIDIA H200", True, pci_address=f"0000:0{index}:00.0") for index in range(2)]

    _, place = take(Slots(gpus, cpu), [Job("a", "/a.ipynb", gpus="all", min_gpus=2)])

    found = place.environment({})
    assert [gpu.index for gpu in place.gpus] == [0, 1]
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_gpus_of_several_kinds_count_by_kind(gpus: list[Device], cpu: Device) -> None:
    """Two cards of one kind are enough next to a third of another; two of different kinds are not."""
    other = replace(gpus[1], name="Radeon RX 7800 XT", gfx="gfx1101")
    job = Job("a", "/a.ipynb", gpus="all", min_gpus=2)

    assert Slots([*gpus, replace(other, index=2)], cpu).wanted(job) == 2
    assert Slots([gpus[0], other], cpu).wanted(job) == 0
    assert Slots([gpus[0], other], cpu).shortage(job) == "it needs 2 GPUs, this run has 1 GPU of one product"
    assert Slots([], cpu).shortage(job) == "it needs 2 GPUs, this run has none"
    assert Slots([gpus[0], other], cpu).wanted(replace(job, is_mixed=True)) == 2


# -- others


def execute(tmp_path: Path, gpus: list[Device], cpu: Device, *names: str) -> Any:
    """Run notebooks that print their masks; those called `all…` request all GPUs, at least two."""
    for name in names:
        more = {"rocmlab": REQUEST} if name.startswith("all") else {}
        notebook_files.write(tmp_path / f"{name}.ipynb", MASKS, **more)
    paths = [tmp_path / f"{name}.ipynb" for name in names]
    jobs = notebook_files.jobs(paths)
    folder = RunFolder.create(tmp_path / "share", "test")
    return run(jobs, folder=folder, slots=Slots(gpus, cpu), display=Watcher())


def masks(done: Any, name: str) -> str:
    """Return the mask that a job's kernel had."""
    return str(re.search(r"masks (\S+)", done.folder.file(name, "log").read_text())[1])  # type: ignore[index]


@pytest.fixture
def three(gpus: list[Device]) -> list[Device]:
    """Three GPUs of one kind."""
    return [*gpus, replace(gpus[1], index=2, pci_address="0000:05:00.0")]


@pytest.mark.long
@pytest.mark.slow
def test_a_gpu_that_somebody_keeps_is_left_out(
    tmp_path: Path, three: list[Device], cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open kernel may hold a GPU for days: after some seconds the notebook begins with the others, and warns."""
    monkeypatch.setattr(claim, "FEWER_SECONDS", 0.3)
    lease = Leases.of_host().take(three[1:2], Holder.here("/notebooks/a.ipynb"))

    done = execute(tmp_path, three, cpu, "all", "one")

    lease.release()
    assert done.is_ok, [result.error for result in done.results]
    assert masks(done, "all") == "0,2"
    assert any("it begins with 2 GPUs of 3: GPU 1 is leased to" in each for each in done.results[0].warnings)
    assert done.results[1].is_ok


@pytest.mark.long
@pytest.mark.slow
def test_a_notebook_that_cannot_have_two_gpus_does_not_stop_the_run(
    tmp_path: Path, gpus: list[Device], cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While someone keeps one of two GPUs it waits for a minute, then computes on the CPU, and the others go on."""
    monkeypatch.setattr(claim, "FEWER_SECONDS", 0.2)
    monkeypatch.setattr(claim, "CPU_SECONDS", 0.5)
    lease = Leases.of_host().take(gpus[:1], Holder.here("/notebooks/a.ipynb"))

    done = execute(tmp_path, gpus, cpu, "all", "one", "all2")

    lease.release()
    assert done.is_ok, [result.error for result in done.results]
    assert [masks(done, name) for name in ("all", "one", "all2")] == ["-1", "1", "-1"]
    why = next(each for each in done.results[0].warnings if "on the CPU" in each)
    assert "it needs 2 GPUs" in why
    assert f"process {os.getpid()}" in why


# -- schema, without a lab, elsewhere


@pytest.mark.parametrize(
    ("requested", "what"),
    [
        ({"gpus": "all", "min_gpus": 0}, "min_gpus = 0"),
        ({"gpus": "all", "min_gpus": "2"}, "min_gpus = '2'"),
        ({"gpus": "all", "min_gpus": True}, "min_gpus = True"),
        ({"gpus": 4, "min_gpus": 2}, "min_gpus = 2 without gpus"),
        ({"min_gpus": 2}, "min_gpus = 2 without gpus"),
        ({"gpus": "all", "ray": "yes"}, "ray = 'yes'"),
    ],
)
def test_a_minimum_that_means_nothing_is_an_error(requested: dict[str, Any], what: str) -> None:
    """It names the field and its value."""
    with pytest.raises(RocmlabError, match=re.escape(what)):
        resources.of({"metadata": {"rocmlab": requested}})


def test_without_a_lab_the_plan_tells_what_it_requests(
    tmp_path: Path,
) -> None:
    """What is known before anything is built: all GPUs, with the minimum; a number given by the user wins."""
    (row,) = ahead.look(options.parser().parse_args(["04_multi_gpu_torch"]), NOTEBOOKS, tmp_path).jobs
    (given,) = ahead.look(
        options.parser().parse_args(["04_multi_gpu_torch", "--job-gpus", "1"]), NOTEBOOKS, tmp_path
    ).jobs

    assert run_ahead._wanted(row) == "all GPUs (2 or more, else the CPU)"
    assert ahead.as_dict(row)["note"] == "2 or more, else the CPU"
    assert run_ahead._wanted(given) == "1 GPU"


def test_without_a_lab_the_plan_says_what_it_cannot_know_of_a_kernel(tmp_path: Path) -> None:
    """How many GPUs `torch-cpu` is for is in the lab's kernelspec; a number given by the user is known."""

    def notes(*words: str) -> str:
        return " ".join(ahead.look(options.parser().parse_args(list(words)), NOTEBOOKS, tmp_path).notes)

    assert "how many GPUs a job with torch-cpu gets" in notes("04_multi_gpu_torch", "--kernel", "torch-cpu")
    assert "torch" not in notes("04_multi_gpu_torch", "--kernel", "torch-cpu", "--job-gpus", "1")
    assert "torch" not in notes("04_multi_gpu_torch", "--kernel", "torch")


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (["--backend", "rocm", "--node-gpus", "8"], 8),
        (["--backend", "rocm", "--node-gpus", "1"], 0),
        (["--backend", "cpu"], 0),
        (["--backend", "rocm", "--job-gpus", "2"], 2),
    ],
)
def test_an_exported_job_gets_all_gpus_of_a_node(
    words: list[str], gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the site says a node has, the CPU if that is fewer than the minimum."""
    share = tmp_path / "share"
    path = notebook_files.write(share / "notebooks/several.ipynb", "1", rocmlab=REQUEST)
    monkeypatch.setenv("ROCMLAB_SHARE", str(share))

    assert export(["slurm", str(path), *words]) == 0

    (folder,) = (share / "runs").iterdir()
    assert [job["gpus"] for job in layout.read(folder).jobs] == [gpus]


def test_on_a_cluster_all_are_all_of_one_node(gpus: list[Device]) -> None:
    """Without a node that has two it begins on a processor; if that node was lost, it waits for another."""
    one, pair = RemoteNode("one", "one", tuple(gpus[:1])), RemoteNode("pair", "pair", tuple(gpus))
    job = Job("a", "/a.ipynb", gpus="all", min_gpus=2)

    small, large = ClusterPlaces([one, replace(one, id="b", name="b")]), ClusterPlaces([one, pair])

    assert (small.wanted(job), large.wanted(job)) == (0, 2)
    assert small.shortage(job) == "it needs 2 GPUs on one node, the largest has 1 GPU"
    assert (small.problem(job), large.problem(job)) == (None, None)
    large.update([one])
    assert large.wanted(job) == 2
    assert take(large, [job]) is None
    assert ClusterPlaces([one, pair], "none").wanted(job) == 0


def test_on_a_cluster_a_notebook_that_trains_with_ray_keeps_no_gpu_from_its_workers(
    gpus: list[Device], cpu: Device
) -> None:
    """On a cluster of one node its workers would wait for ever for GPUs that it has itself; a given number wins."""
    places = ClusterPlaces([RemoteNode("pair", "pair", tuple(gpus))])
    request = resources.of(json.loads((NOTEBOOKS / "11_multi_node_torch.ipynb").read_text()))
    job = Job("a", "/a.ipynb", **request._asdict())

    taken = take(places, [job])

    assert places.problem(job) is None
    assert taken is not None
    assert taken[1].count == 0
    assert Slots(gpus, cpu).wanted(job) == 2
