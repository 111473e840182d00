"""What a failed upgrade or rollback puts back, and what a rollback needs: real git, and an engine that is a script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import engine_words
import pytest
from clones import REPOSITORY

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import lab as verbs
from rocmlab.cli import upgrade
from rocmlab.stack import process, source, versions
from rocmlab.stack import project as projects
from rocmlab.stack.docker import DockerLab

ENV = """ROCMLAB_BACKEND=cpu
ROCMLAB_RUNTIME=docker
ROCMLAB_IMAGE=rocmlab:cpu
COMPOSE_FILE=compose.yaml
COMPOSE_PROJECT_NAME=lab
JUPYTER_TOKEN=token
METRICS_TOKEN=other
PORT=8888
SHARE=./share
"""
DOCKER = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
*" down "*) [ ! -e {log}.refuses ] || {{ echo "the daemon does not answer"; exit 1; }} ;;
"image inspect"*-previous) [ ! -e {log}.gone ] || exit 1; echo '{previous}' ;;
"image inspect"*) echo '{present}' ;;
"inspect "*) echo '{container}' ;;
"ps "*) echo container ;;
esac
"""
WORDS = {
    "previous": engine_words.image("sha256:previous"),
    "present": engine_words.image("sha256:present", **{"rocmlab.inputs": "of-another-source"}),
    "container": engine_words.container(),
}
CHILD = """
import pathlib, time
try:
    print("going", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    pathlib.Path("put-back").touch()
    raise SystemExit(1)
"""


def git(folder: Path, *words: str) -> str:
    """Run git as some person."""
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone one commit behind, whose lab runs in a container, as the engine says."""
    origin, user = tmp_path / "origin", tmp_path / "user"
    (origin / "docker").mkdir(parents=True)
    git(origin, "init", "--quiet", "--initial-branch", "main")
    for name in ("compose.yaml", "docker/Dockerfile"):
        (origin / name).write_text((REPOSITORY / name).read_text())
    (origin / ".gitignore").write_text(".env\n.rocmlab\n")
    (origin / "program.py").write_text("1\n")
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "--message", "first")
    subprocess.run(["git", "clone", "--quiet", str(origin), str(user)], check=True)
    (origin / "program.py").write_text("2\n")
    git(origin, "commit", "--quiet", "--all", "--message", "second")
    (user / ".env").write_text(ENV)
    (user / ".rocmlab").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(DOCKER.format(log=tmp_path / "log", **WORDS))
    (tmp_path / "bin/docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(user)
    return user


def remember(folder: Path, current: str, previous: str = "", **facts: str) -> None:
    """Write down which versions the lab ran."""
    settings = projects.reopen(folder).settings
    known = versions.Version("1", previous, **{"runtime": "docker", "image": "sha256:previous", **facts})
    versions.write(
        settings, versions.Version("2", current, "docker", "sha256:present"), known if previous or facts else None
    )


def failing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let the other version's command fail in the middle; return what is started afterwards."""
    did: list[Any] = []

    def child(command: Any, *, env: Any, cwd: Path) -> int:
        words, where = command[3:], cwd
        if words == ["up"] and did:
            did.append("up")
            return 0
        did.append(words)
        (where / ".rocmlab" / upgrade.SWITCHED).touch()
        (where / ".rocmlab/versions.json").write_text("{}")
        return 1

    monkeypatch.setattr(process, "attach", child)
    monkeypatch.setattr(projects, "plan", projects.reopen)  # the engine that is a script could run no lab
    monkeypatch.setattr(DockerLab, "start", lambda *_, **__: did.append("start"))
    return did


def log(folder: Path) -> str:
    """Return what the engine was told."""
    return (folder.parent / "log").read_text()


def test_a_step_that_fails_keeps_no_other_one_from_being_put_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine cannot stop the new lab: it is said; checkout, records and images are back, the lab is started."""
    first = source.head(folder)
    remember(folder, first)
    known = (folder / ".rocmlab/versions.json").read_text()
    (folder.parent / "log.refuses").touch()
    did = failing(folder, monkeypatch)

    with pytest.raises(RocmlabError, match="not all of the previous version could be put back"):
        upgrade.main("upgrade", [])

    assert "the lab could not be stopped: " in capsys.readouterr().out
    assert source.head(folder) == first
    assert (folder / ".rocmlab/versions.json").read_text() == known
    assert "tag sha256:present rocmlab:cpu\ntag sha256:previous rocmlab:cpu-previous" in log(folder)
    assert did[1:] == ["start"]


def test_a_checkout_that_was_not_moved_stays_with_its_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a `git pull` the upgrade uses what is checked out; where it fails, edits are where they were."""
    remember(folder, source.head(folder))
    git(folder, "pull", "--quiet")
    pulled = source.head(folder)
    (folder / "program.py").write_text("mine\n")
    did = failing(folder, monkeypatch)

    with pytest.raises(RocmlabError, match="the previous version is restored"):
        upgrade.main("upgrade", [])

    assert source.head(folder) == pulled
    assert (folder / "program.py").read_text() == "mine\n"
    assert sorted(path.name for path in folder.glob("program*")) == ["program.py"]
    assert did[1:] == ["start"]  # the image that is kept, and nothing is built


def test_what_was_changed_meanwhile_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edit made while the new version was built lies next to the file when the checkout goes back."""
    remember(folder, source.head(folder))
    failing(folder, monkeypatch)
    child = process.attach

    def edits(command: Any, *, env: Any, cwd: Path) -> int:
        (folder / "program.py").write_text("mine\n")
        return child(command, env=env, cwd=cwd)

    monkeypatch.setattr(process, "attach", edits)

    with pytest.raises(RocmlabError, match="is restored"):
        upgrade.main("upgrade", [])

    (kept,) = folder.glob("program-yours-*.py")
    assert kept.read_text() == "mine\n"
    assert f"your changed program.py is kept as {kept.name}" in capsys.readouterr().out
    assert (folder / "program.py").read_text() == "1\n"


@pytest.mark.slow
def test_ctrl_c_lets_the_other_version_put_back_what_it_began(tmp_path: Path) -> None:
    """It needs longer than a moment for that, and is waited for."""
    (tmp_path / "src/rocmlab").mkdir(parents=True)
    (tmp_path / "src/rocmlab/__main__.py").write_text(CHILD)
    program = "import sys; from pathlib import Path; from rocmlab.cli import upgrade; "
    program += "sys.exit(40 + upgrade._rocmlab(Path(sys.argv[1]), ['up']))"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "going\n"
    time.sleep(0.3)

    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)

    assert process.returncode == 41
    assert (tmp_path / "put-back").exists()


@pytest.mark.parametrize(
    ("facts", "what", "fix"),
    [
        ({"runtime": "native", "image": ""}, "ran in another runtime", "make up RUNTIME=native"),
        ({"image": "sha256:other"}, "the image of the previous version is missing", "make up RUNTIME=docker"),
    ],
)
def test_a_rollback_that_is_not_possible_stops_nothing_and_is_not_offered(
    folder: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, str], what: str, fix: str
) -> None:
    """The error names what to do instead; the lab continues."""
    remember(folder, source.head(folder), source.head(folder), **facts)

    with pytest.raises(RocmlabError, match=what) as caught:
        upgrade.main("rollback", ["--force"])
    verbs.status(projects.reopen(folder), as_json=False)

    assert fix in caught.value.problem.fix
    assert " down " not in log(folder)
    assert "previous   1" in (shown := capsys.readouterr().out)
    assert "make rollback" not in shown


def test_a_rollback_that_is_possible_is_offered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The previous image is here, in the same runtime."""
    remember(folder, source.head(folder), source.head(folder))

    verbs.status(projects.reopen(folder), as_json=False)

    assert "(make rollback)" in capsys.readouterr().out


def test_a_rollback_that_cannot_stop_the_lab_puts_everything_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error reports it, and the present lab is started again."""
    remember(folder, source.head(folder), source.head(folder))
    (folder.parent / "log.refuses").touch()
    did = failing(folder, monkeypatch)

    with pytest.raises(RocmlabError, match="the previous version does not start"):
        upgrade.main("rollback", ["--force"])

    assert "tag sha256:present rocmlab:cpu\n" in log(folder)
    assert did == ["start"]


def test_clean_forgets_the_versions_that_it_removes(folder: Path) -> None:
    """Both images are gone, so there is nothing to return to."""
    remember(folder, source.head(folder), source.head(folder))

    verbs.clean(projects.reopen(folder))

    assert versions.read(projects.reopen(folder).settings) == (None, None)


def test_the_environment_of_another_backend_is_not_that_of_the_previous_version(folder: Path, tmp_path: Path) -> None:
    """`make rollback` would replace it."""
    text = ENV.replace("RUNTIME=docker", "RUNTIME=native")
    (folder / ".env").write_text(text)
    environment = tmp_path / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").touch()
    previous = versions.Version("1", source.head(folder), "native", environment=str(environment))
    found = []
    for backend in ("cuda", "cpu"):
        (environment / "rocmlab-environment.json").write_text(json.dumps({"backend": backend}))
        found.append(versions.obstacle(projects.reopen(folder), previous))

    assert found[0] is not None
    assert "the environment of the previous version is missing" in str(found[0])
    assert found[1] is None
