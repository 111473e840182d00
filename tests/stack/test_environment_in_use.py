"""A native environment that something runs in is not changed silently, and is there after a failed replacement."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clones import NEEDS_NATIVE_PYTHON, Clone, clone, furnish, without_docker

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import cluster, stopping
from rocmlab.stack import environment, making, requirements
from rocmlab.stack.environment import Environment

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone without an engine, whose environment was made from other requirements than there are now."""
    found = clone(tmp_path_factory.mktemp("in-use") / "rocmlab")
    found.environment["PATH"] = without_docker(found.environment["PATH"])
    found.environment["PIP_NO_INDEX"] = "1"  # an error here must not become an hour of downloads
    furnish(found)
    with (found.folder / "requirements/native.txt").open("a") as file:
        file.write("# another version\n")
    return found


@contextmanager
def run_under_way(folder: Path) -> Iterator[None]:
    """Be a headless run on the share, in a process of this machine."""
    runs = folder / "share/runs/2026-01-01T000000Z-going"
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / "journal.jsonl").open("w") as journal:
        event = {"event": "run started", "pid": os.getpid(), "host": socket.gethostname(), "jobs": [{}]}
        print(json.dumps(event), file=journal, flush=True)
        fcntl.flock(journal, fcntl.LOCK_EX)
        yield


@pytest.mark.long
@pytest.mark.parametrize("verb", ["run-notebooks", "up", "build"])
def test_a_run_keeps_its_environment_from_being_changed(lab: Clone, verb: str) -> None:
    """No server runs; the run is named, with the ways out, and nothing was installed."""
    before = (lab.folder / ".venv/rocmlab-environment.json").read_text()

    with run_under_way(lab.folder):
        done = lab.make(verb, succeeds=False)

    assert done.returncode == 2
    assert f"error: make {verb} changes the environment of the lab, and 1 task runs in it" in done.stdout
    assert "the headless run 2026-01-01T000000Z-going" in done.stdout
    assert f"make {verb} FORCE=1" in done.stdout
    assert "installing" not in done.stdout
    assert (lab.folder / ".venv/rocmlab-environment.json").read_text() == before


def make_offline(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the CPU's environment where nothing can be installed."""

    def fail(*_: object) -> None:
        raise RocmlabError("installing failed", "no network")

    monkeypatch.setitem(environment.NEEDED_BYTES, "cpu", 1)
    monkeypatch.setattr(requirements, "install", fail)
    making.make(Environment(project, "cpu", sys.executable, ""), lambda _: None)


def present(folder: Path) -> None:
    """Make something that looks like a whole environment for another backend."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").touch()
    (folder / "rocmlab-made").touch()
    (folder / "rocmlab-environment.json").write_text('{"backend": "cuda"}')


@pytest.mark.long
@NEEDS_NATIVE_PYTHON
@pytest.mark.parametrize("is_link", [False, True])
def test_an_environment_is_kept_until_the_new_one_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_link: bool
) -> None:
    """Offline, another backend cannot be installed: the one before is in its place again."""
    real = tmp_path / (".rocmlab/environments/one" if is_link else ".venv")
    present(real)
    if is_link:
        (tmp_path / ".venv").symlink_to(".rocmlab/environments/one")
    (tmp_path / "requirements").mkdir()
    for name in ("native", "uv"):
        (tmp_path / f"requirements/{name}.txt").write_text("")

    with pytest.raises(RocmlabError, match="installing failed"):
        make_offline(tmp_path, monkeypatch)

    assert (tmp_path / ".venv").is_symlink() == is_link
    assert (tmp_path / ".venv/rocmlab-environment.json").read_text() == '{"backend": "cuda"}'
    assert [path.name for path in (tmp_path / ".rocmlab/environments").iterdir()] == ["one"] * is_link


@pytest.mark.long
@NEEDS_NATIVE_PYTHON
def test_an_environment_that_was_kept_returns_after_a_sudden_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was switched off in the middle: the next try begins with the one before."""
    present(tmp_path / ".rocmlab/environments/replaced")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/rocmlab-made").touch()
    (tmp_path / "requirements").mkdir()
    for name in ("native", "uv"):
        (tmp_path / f"requirements/{name}.txt").write_text("")

    with pytest.raises(RocmlabError, match="installing failed"):
        make_offline(tmp_path, monkeypatch)

    assert (tmp_path / ".venv/rocmlab-environment.json").read_text() == '{"backend": "cuda"}'


def test_leaving_a_cluster_waits_for_what_computes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With WHEN=idle; without, it is rejected."""
    answers = [["a on b"], ["a on b"], []]
    monkeypatch.setattr(stopping, "LOOK_AGAIN_SECONDS", 0.01)

    with pytest.raises(RocmlabError, match="1 task runs on this machine"):
        cluster.wait_or_refuse(stopping.Consent(), False, lambda: answers.pop(0))
    cluster.wait_or_refuse(stopping.Consent(waits=True), False, lambda: answers.pop(0))

    assert answers == []
    assert capsys.readouterr().out.count("a on b") == 1
