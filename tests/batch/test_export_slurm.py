"""An exported run on Slurm itself: it takes the scripts, runs the array, tries again what died, and collects."""

from __future__ import annotations

import json
from pathlib import Path

import notebook_files
import pytest
import slurm_site

from rocmlab.batch.command import main

pytestmark = pytest.mark.oracle

SUBMIT = """
cd "$1"
bash slurm/submit.sh --test-only 2>&1
if bash slurm/submit.sh --test-only --partition=nowhere 2>&1; then exit 1; fi
bash slurm/submit.sh
"""
# Slurm lets two minutes pass before it starts a requeued job again, so that is not waited for.
UNTIL_SETTLED = """
for _ in $(seq 900); do
  if [ -z "$(squeue -h -r -o '%T %r' | grep -v -e BeginTime -e Dependency)" ]; then break; fi
  sleep 0.2
done
scontrol -o show job
"""
UNTIL_EMPTY = """
for _ in $(seq 900); do
  if [ -z "$(squeue -h)" ]; then break; fi
  sleep 0.2
done
scontrol -o show job
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's Slurm, unpacked."""
    if why := slurm_site.missing():
        pytest.skip(why)
    found, why = slurm_site.unpacked(tmp_path_factory.mktemp("slurm"))
    if found is None:
        pytest.skip(why)
    return found


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A share with notebooks that end in different ways."""
    share = tmp_path / "share"
    notebooks = share / "notebooks"
    notebook_files.write(notebooks / "good.ipynb", "# parameters\nx: int = 1", "import rocmlab\nrocmlab.record(x=x)")
    notebook_files.write(notebooks / "bad.ipynb", "1 / 0")
    notebook_files.write(notebooks / "dies.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setenv("ROCMLAB_SHARE", str(share))
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(notebooks))
    monkeypatch.delenv("ROCMLAB_BACKEND", raising=False)
    monkeypatch.chdir(tmp_path)
    return share


def export(share: Path, *words: str) -> Path:
    """Export a run for the CPU and return its folder."""
    assert main(["slurm", *words, "--gpus", "none", "--cpus", "1", "--timeout", "600"]) == 0
    (folder,) = (share / "runs").iterdir()
    return folder


def elements(said: str) -> dict[int, dict[str, str]]:
    """Return what Slurm says of each element of an array."""
    found = {}
    for line in said.splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        if facts.get("ArrayTaskId", "").isdecimal():
            found[int(facts["ArrayTaskId"])] = facts
    return found


@pytest.mark.long
def test_slurm_runs_the_array_and_collects(share: Path, tmp_path: Path, packages: Path) -> None:
    """Every element ends with its notebook's exit code, and the report is there when the last has ended."""
    folder = export(share, "good", "bad", "dies", "--retries", "0", "--parallel", "2")

    said = slurm_site.run(tmp_path / "site", packages, SUBMIT + UNTIL_EMPTY, str(folder))

    assert "to start at" in said
    assert "invalid partition specified: nowhere" in said
    found = elements(said)
    assert {number: facts["ExitCode"] for number, facts in found.items()} == {0: "0:0", 1: "1:0", 2: "138:0"}
    jobs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["jobs"]
    assert {job["name"]: job["status"] for job in jobs} == {"good": "ok", "bad": "failed", "dies": "kernel died"}
    assert (folder / "report.html").exists()


@pytest.mark.long
def test_slurm_tries_again_what_died_and_nothing_else(share: Path, tmp_path: Path, packages: Path) -> None:
    """The last element of an array has the array's own number as its job, and must not take the others along."""
    folder = export(share, "good", "dies", "--retries", "1")

    said = slurm_site.run(tmp_path / "site", packages, SUBMIT + UNTIL_SETTLED, str(folder))

    found = elements(said)
    assert {number: (facts["JobState"], facts["Restarts"]) for number, facts in found.items()} == {
        0: ("COMPLETED", "0"),
        1: ("PENDING", "1"),
    }
