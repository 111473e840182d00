"""`rocmlab doctor` as a command: exit codes, JSON, repairs, and nothing but the standard library."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hosts import Gpu, make_host

from rocmlab import doctor
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import doctor as verb
from rocmlab.cli import main
from rocmlab.doctor import checks
from rocmlab.doctor.model import skip


@pytest.fixture
def clone(tmp_path: Path, repository: Path) -> Path:
    """A project folder with the files that planning reads."""
    folder = tmp_path / "clone"
    shutil.copytree(repository / "docker", folder / "docker")
    shutil.copy(repository / "compose.yaml", folder)
    (folder / "notebooks").mkdir()
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A simulated host with two GPUs."""
    return make_host(tmp_path / "host", Gpu(1, 0x0300, 128), Gpu(2, 0x0600, 129, unique_id=7))


def run(repository: Path, folder: Path, root: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the doctor on a bare interpreter, without any engine in reach."""
    environment = {"PATH": "/nowhere", "HOME": str(folder), "PYTHONPATH": str(repository / "src")}
    return subprocess.run(
        [sys.executable, "-S", "-m", "rocmlab", "doctor", *words],
        cwd=folder,
        env={**environment, "ROCMLAB_ROOT": str(root), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_healthy_simulated_host(repository: Path, clone: Path, root: Path) -> None:
    """SIMULATED is said, and nothing stops the lab; no colours in a pipe."""
    done = run(repository, clone, root, "--no-frameworks")

    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "SIMULATED" in done.stdout.splitlines()[0]
    assert "What stops the lab" not in done.stdout
    assert "\x1b" not in done.stdout


def test_a_fault_is_exit_code_2_and_json_has_everything(repository: Path, clone: Path, root: Path) -> None:
    """Evidence, why and fix of every finding; the reason of every check that does not apply."""
    (root / "dev/dri/renderD129").chmod(0)

    done = run(repository, clone, root, "--json", "--no-frameworks")

    found = json.loads(done.stdout)
    assert (done.returncode, found["exit_code"], found["simulated"], found["side"]) == (2, 2, True, "host")
    closed = next(one for one in found["findings"] if one["check"] == "dev.perm")
    assert closed["status"] == "blocks"
    assert "renderD129" in closed["problem"]["what"]
    assert closed["evidence"]
    assert all(one["reason"] for one in found["findings"] if one["status"] in ("not applicable", "unknown"))
    assert {node["path"] for node in found["nodes"]} == {"/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129"}


@pytest.mark.slow
def test_only_and_quick(repository: Path, clone: Path, root: Path) -> None:
    """One check, several, the blocking ones, and a typo."""
    only = json.loads(run(repository, clone, root, "--json", "--only", "igpu,shm", "--only", "rebar").stdout)
    quick = json.loads(run(repository, clone, root, "--json", "--quick").stdout)
    wrong = run(repository, clone, root, "--only", "igup")

    assert [one["check"] for one in only["findings"]] == ["shm", "igpu", "rebar"]
    assert "dev.perm" in {one["check"] for one in quick["findings"]}
    assert "gpu.answers" not in {one["check"] for one in quick["findings"]}
    assert (wrong.returncode, "unknown check: igup" in wrong.stderr) == (2, True)


def test_the_list(repository: Path, clone: Path, root: Path) -> None:
    """Every check in a line."""
    done = run(repository, clone, root, "--list")

    assert done.returncode == 0
    assert any(line.startswith("dev.perm ") for line in done.stdout.splitlines())


def test_the_inside_is_looked_at_from_inside(repository: Path, clone: Path, root: Path) -> None:
    """Where ROCMLAB_RUNTIME is set, as in the image, only this side is looked at."""
    inside = {"ROCMLAB_RUNTIME": "docker", "ROCMLAB_BACKEND": "cpu"}

    done = run(repository, clone, root, "--json", "--no-frameworks", **inside)

    found = json.loads(done.stdout)
    assert found["side"] == "container"
    assert {one["side"] for one in found["findings"]} == {"container"}
    assert next(one for one in found["findings"] if one["check"] == "docker.snap")["reason"] == "checked on the host"


class TestFix:
    """`--fix` asks, and without a terminal says what it would do."""

    @pytest.fixture
    def stale(self, clone: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A `.env` of another machine, in a lab that uses Docker."""
        (clone / ".env").write_text("RENDER_GID=61777\nVIDEO_GID=61778\nMY_OWN=1\n")
        docker = clone / "docker-stand-in/docker"
        docker.parent.mkdir()
        info = '{"ServerVersion": "28.5.2", "OperatingSystem": "Test", "DockerRootDir": "/nowhere", "Runtimes": {}}'
        docker.write_text(f"#!/bin/sh\ncase $1 in compose) echo 2.40.3;; info) echo '{info}';; *) exit 1;; esac\n")
        docker.chmod(0o755)
        return clone

    def words(self, stale: Path) -> dict[str, str]:
        """The environment in which the stand-in is found."""
        return {"PATH": f"{stale}/docker-stand-in:/usr/bin:/bin"}

    def test_without_a_terminal_it_says_what_it_would_do(self, repository: Path, stale: Path, root: Path) -> None:
        """And does nothing."""
        before = (stale / ".env").read_text()

        done = run(repository, stale, root, "--fix", "--only", "env.stale", **self.words(stale))

        assert "would rewrite RENDER_GID and VIDEO_GID in .env" in done.stdout, done.stdout + done.stderr
        assert (stale / ".env").read_text() == before
        assert done.returncode == 1

    def test_with_yes_it_mends_and_looks_again(self, repository: Path, stale: Path, root: Path) -> None:
        """The exit code is that of the repaired machine; a user's lines stay."""
        done = run(repository, stale, root, "--fix", "--yes", "--only", "env.stale", **self.words(stale))

        text = (stale / ".env").read_text()
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"RENDER_GID={os.stat(root / 'dev/kfd').st_gid}" in text
        assert "MY_OWN=1" in text

    def test_json_tells_what_was_repaired(self, repository: Path, stale: Path, root: Path) -> None:
        """On standard output there is nothing but JSON."""
        done = run(repository, stale, root, "--json", "--fix", "--yes", "--only", "env.stale", **self.words(stale))

        assert json.loads(done.stdout)["repaired"] == ["rewrite RENDER_GID and VIDEO_GID in .env"]

    def test_a_person_is_asked(
        self, stale: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`n` leaves everything, `y` fixes."""
        monkeypatch.chdir(stale)
        monkeypatch.setenv("ROCMLAB_ROOT", str(root))
        monkeypatch.setenv("PATH", self.words(stale)["PATH"])
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        asked: list[str] = []

        def answer(word: str) -> None:
            monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or word)

        answer("n")
        assert main(["doctor", "--fix", "--only", "env.stale"]) == 1
        assert "RENDER_GID=61777" in (stale / ".env").read_text()
        answer("y")
        assert main(["doctor", "--fix", "--only", "env.stale"]) == 0
        assert "rewrite RENDER_GID" in asked[0]


def test_what_needs_root_is_printed_and_never_run(repository: Path, clone: Path, root: Path, tmp_path: Path) -> None:
    """A `sudo` that would tell on us is not called, `--yes` or not."""
    (root / "dev/dri/renderD129").chmod(0)
    sudo = tmp_path / "bin/sudo"
    sudo.parent.mkdir()
    sudo.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    sudo.chmod(0o755)

    done = run(repository, clone, root, "--fix", "--yes", "--only", "dev.perm", PATH=str(sudo.parent), RUNTIME="native")

    assert "needs root, run it yourself: sudo usermod -aG render $USER" in done.stdout
    assert not (tmp_path / "called").exists()
    assert done.returncode == 2


def test_outside_a_project_it_still_looks(repository: Path, tmp_path: Path, root: Path) -> None:
    """From any folder: the source tree it runs from is its project."""
    done = run(repository, tmp_path, root, "--json", "--no-frameworks")

    assert json.loads(done.stdout)["findings"]


@pytest.mark.slow
def test_a_wrong_number_is_a_usage_error(repository: Path, clone: Path, root: Path) -> None:
    """Not a traceback."""
    for word in ("0", "-3", "x", "nan", "1e99"):
        done = run(repository, clone, root, f"--time-limit={word}")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), word
        assert f"{word!r} is not a number of seconds" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", ""], "--only '' does not name a check"),
        (["--only", ","], "--only ',' does not name a check"),
        (["--only", "igpu", "--only", " , "], "--only ' , ' does not name a check"),
        (["--yes"], "`--yes` requires `--fix`"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(words: list[str], said: str) -> None:
    """In a sentence, before anything is looked at."""
    with pytest.raises(RocmlabError, match=re.escape(said)) as caught:
        verb.main("doctor", words)

    assert caught.value.exit_code == 2


def test_looking_again_is_done_with_the_same_eyes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits, user and groups are those of the first look; what was gathered is not."""
    seen = []
    check = replace(checks.BY_ID["igpu"], probe=lambda situation: seen.append(situation) or skip("looked"))
    monkeypatch.setitem(checks.BY_ID, "igpu", check)
    before = doctor.Situation(root, operation_limit_seconds=7.0, limit_seconds=3.0, uid=4711, groups=frozenset({5}))
    gathered = before.passed
    found = doctor.Report(before, tuple(check.run(before)))

    verb._again(found, found.findings[0])

    first, second = seen
    assert second is not first
    assert second == first
    assert (second.operation_limit_seconds, second.uid, second.groups) == (7.0, 4711, frozenset({5}))
    assert second.passed is not gathered


@pytest.mark.slow
def test_a_plan_that_fails_is_the_first_thing_said(repository: Path, clone: Path, tmp_path: Path) -> None:
    """`--quick` too: what `make up` would refuse; an engine that no one asked for stops nothing meanwhile."""
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    info = '{"ServerVersion": "28.5.2", "OperatingSystem": "Test", "version": "28.5.2"}'
    docker.write_text(f"#!/bin/sh\ncase $1 in info) echo '{info}';; *) exit 1;; esac\n")  # no Compose
    docker.chmod(0o755)
    path = f"{docker.parent}:/usr/bin:/bin"
    nowhere = tmp_path / "nonexistent"

    quick = run(repository, clone, nowhere, "--quick", "--json", PATH=path)
    native = run(repository, clone, nowhere, "--no-frameworks", "--json", PATH=path, RUNTIME="native")
    either = run(repository, clone, nowhere, "--no-frameworks", "--json", PATH=path)
    engine = run(repository, clone, nowhere, "--no-frameworks", "--json", PATH=path, RUNTIME="docker")

    assert quick.returncode == 2, quick.stderr
    blocking = [one for one in json.loads(quick.stdout)["findings"] if one["status"] == "blocks"]
    assert [one["check"] for one in blocking] == ["lab.plan"]
    assert f"ROCMLAB_ROOT={nowhere}" in blocking[0]["problem"]["what"]
    statuses = []
    for done in (native, either, engine):
        findings = {one["check"]: one for one in json.loads(done.stdout)["findings"]}
        statuses.append(findings["compose.version"]["status"])
    assert statuses == ["not applicable", "warns", "blocks"]


def test_up_stops_with_the_problem_before_anything_is_written(repository: Path, clone: Path, root: Path) -> None:
    """A closed node: what, why and fix as of any error, and no `.env`."""
    (root / "dev/dri/renderD129").chmod(0)
    environment = {"PATH": "/nowhere", "HOME": str(clone), "PYTHONPATH": str(repository / "src")}

    done = subprocess.run(
        [sys.executable, "-S", "-m", "rocmlab", "up"],
        cwd=clone,
        env={**environment, "ROCMLAB_ROOT": str(root), "RUNTIME": "native", "PORT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert not (clone / ".env").exists()
