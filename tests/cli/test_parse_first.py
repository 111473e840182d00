"""Arguments are read and checked before anything is built, installed, started or written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clones import clone

from rocmlab.cli.main import COMMANDS

pytestmark = pytest.mark.slow

RECORDED = (
    "docker",
    "podman",
    "docker-compose",
    "pip",
    "pip3",
    "uv",
    "conda",
    "git",
    "systemctl",
    "nvidia-smi",
    "sudo",
)
ENDS = {"help": (0,), "invalid": (2,), "misspelt": (2,), "dry run": (0, 2)}


@dataclass
class Fresh:
    """A clone in which nothing was ever made, on a machine whose engines and installers only note that they ran."""

    folder: Path
    home: Path
    called: Path  # what the recorders wrote
    environment: dict[str, str]

    def snapshot(self) -> dict[str, tuple[int, int, int]]:
        """Return everything that is there: type and permissions, size, time of the last change."""
        found = {}
        for top in (self.folder, self.home):
            for path in [top, *top.rglob("*")]:
                status = path.lstat()
                found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns)
        return found

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command there, as a user would."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """A fresh clone, and recorders in front of PATH that note a call and fail."""
    top = tmp_path_factory.mktemp("fresh")
    lab = clone(top / "rocmlab")
    called, home = top / "called", top / "home"
    home.mkdir()
    recorders = top / "bin"
    recorders.mkdir()
    for name in RECORDED:
        (recorders / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"{called}"\nexit 1\n')
        (recorders / name).chmod(0o755)
    python = recorders / "python3"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *venv*|*pip*) echo "python3 $*" >>"{called}"; exit 1;; esac\n'
        f'exec "{sys.executable}" -S "$@"\n'
    )
    python.chmod(0o755)
    others = (each for each in os.get_exec_path() if not Path(each, "nvitop").exists())  # that would be run
    environment = {
        "PATH": os.pathsep.join([str(recorders), *others]),
        "HOME": str(home),
        "PYTHONPATH": "src",
        "PYTHONDONTWRITEBYTECODE": "1",  # Python's own cache, which it writes for any program
        "PORT": lab.settings["PORT"],
    }
    return Fresh(lab.folder, home, called, environment)


@pytest.fixture(scope="module")
def answers(fresh: Fresh) -> list[Mapping[str, Any]]:
    """What every command and subcommand did with --help, an invalid option, a misspelt subcommand and --dry-run."""
    before = fresh.snapshot()
    done = fresh.run(sys.executable, "-S", str(Path(__file__).with_name("bare_commands.py")))
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    after = fresh.snapshot()
    found.append({"verb": "", "changed": [path for path in {**before, **after} if before.get(path) != after.get(path)]})
    return found


@pytest.mark.long
@pytest.mark.parametrize("verb", COMMANDS)
def test_a_verb_reads_its_arguments_before_it_acts(verb: str, answers: list[Mapping[str, Any]]) -> None:
    """On a bare Python, in a fresh clone: the right exit code, no file written, no process started, no connection."""
    found = [each for each in answers if each["verb"] == verb]

    wrong = [
        f"{each['words']}: exit code {each['code']}, {each['broken']}\n{each['text'][-800:]}"
        for each in found
        if each["broken"] or each["code"] not in ENDS[each["kind"]] or "Traceback" in each["text"]
    ]

    assert not wrong, "\n".join(wrong)
    assert {each["kind"] for each in found} >= {"help", "invalid"}
    assert all("usage:" in each["text"] for each in found if each["kind"] == "help")


def test_nothing_was_left_or_called(answers: list[Mapping[str, Any]], fresh: Fresh) -> None:
    """After all of them the clone and the home are as they were, and no engine, installer or tool was called."""
    assert answers[-1]["changed"] == []
    assert not fresh.called.exists(), fresh.called.read_text()


def test_sub_verbs_are_found_by_themselves(answers: list[Mapping[str, Any]]) -> None:
    """The table has the subcommands of every kind of parser, and so those of a new verb."""
    called = {(each["verb"], *each["words"]) for each in answers if each["verb"]}

    assert called >= {
        ("datasets", "fetch", "--help"),
        ("cluster", "join", "--help"),
        ("export", "slurm", "--dry-run"),
        ("export", "collect", "--help"),
        ("bench", "multi-gpu", "--help"),
        ("kernels", "install", "--no-such-option"),
        ("monitoring", "upx"),
        ("run", "--dry-run"),
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("run", "09", "--dry-run"), 0, "09_opencl_kernels"),
        (("run", "--dry-run"), 0, "no up-to-date lab found here"),
        (("run", "0"), 2, "0 matches several notebooks"),
        (("run", "09x"), 2, "no such notebook: 09x"),
        (("run", "nothing.yaml"), 2, "no such job list"),
        (("run", "09", "-p", "nope=1"), 2, "it has no parameter nope"),
        (("run", "09", "--list"), 2, "--list with notebooks"),
        (("run", "--list"), 2, "does not build a lab"),
        (("run", "--resume", "last"), 2, "no lab found here"),
        (("run", "09", "--compare", "last"), 2, "no lab found here"),
        (("datasets", "fetch", "mnist"), 2, "no lab found here"),
        (("datasets", "fetch", "mnits"), 2, "did you mean mnist?"),
        (("datasets", "list"), 0, "unknown"),
        (("bench", "runner", "--row", "nope"), 2, "no such row"),
        (("bench", "runner", "--row", "empty_notebook"), 2, "the runner is not installed here"),
        (("export", "collect", "."), 2, "the runner is not installed here"),
        (("export", "slurm", "09x"), 2, "no such notebook: 09x"),
        (("export", "slurm", "--dry-run", "09"), 0, "09_opencl_kernels"),
        (("kernels",), 2, "no lab found here"),
        (("down",), 2, "no lab found here"),
    ],
)
def test_what_is_known_on_the_host_is_said_without_a_lab(
    words: tuple[str, ...], code: int, text: str, fresh: Fresh
) -> None:
    """A wrong name costs no build, a dry run installs nothing, and what needs a lab asks for `make up`."""
    before = fresh.snapshot()

    done = fresh.run("python3", "-m", "rocmlab", *words)

    assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert fresh.snapshot() == before
    assert not fresh.called.exists(), fresh.called.read_text()


def test_make_passes_a_dry_run_on(fresh: Fresh) -> None:
    """`make run-notebooks NOTEBOOKS=09 RUN=--dry-run` prints the plan in a fresh clone."""
    before = fresh.snapshot()

    done = fresh.run("make", "run-notebooks", "NOTEBOOKS=09", "RUN=--dry-run")

    assert done.returncode == 0, done.stderr
    assert "09_opencl_kernels" in done.stdout
    assert fresh.snapshot() == before
    assert not fresh.called.exists()


def test_a_dry_run_as_json_names_what_is_unknown(fresh: Fresh) -> None:
    """The fields are those of a dry run in the lab; what only the lab knows is null."""
    done = fresh.run("python3", "-m", "rocmlab", "run", "09", "01", "--dry-run", "--json", "-p", "seed=1,2")

    plan = json.loads(done.stdout)
    assert done.returncode == 0
    assert [job["name"] for job in plan["jobs"]] == [
        *("09_opencl_kernels-seed=1", "09_opencl_kernels-seed=2", "01_mnist_fc-seed=1", "01_mnist_fc-seed=2")
    ]
    assert plan["slots"] is None
    assert {job["expected_seconds"] for job in plan["jobs"]} == {None}
