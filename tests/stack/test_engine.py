"""What is found out about the engine; its answers are recorded ones, given by a small program named docker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocmlab.stack import engine

INFO = {
    "version": "28.5.2",
    "os": "Ubuntu 24.04",
    "root": "/var/lib/docker",
    "security": ["name=seccomp"],
    "runtimes": {"runc": {}},
}


def docker(folder: Path, *, info: str, compose: str = "2.40.3", code: int = 0, error: str = "") -> dict[str, str]:
    """Put a `docker` into a folder that answers with recorded words; return the environment that finds only it."""
    program = folder / "docker"
    program.write_text(
        "#!/bin/sh\n"
        f"[ \"$1\" = compose ] && {{ [ -n '{compose}' ] && echo '{compose}' && exit 0; exit 1; }}\n"
        f"echo '{info}'; echo '{error}' >&2; exit {code}\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:/bin:/usr/bin"}


class TestProbe:
    """Usable, absent, or down: and why."""

    def test_no_client_is_no_engine(self, tmp_path: Path) -> None:
        """A host without the `docker` command has no engine and no problem."""
        found = engine.probe({"PATH": str(tmp_path)})

        assert (found.is_usable, found.problem) == (False, None)

    def test_an_engine_that_answers_is_usable(self, tmp_path: Path) -> None:
        """Its version and its runtimes are known from then on."""
        found = engine.probe(docker(tmp_path, info=json.dumps(INFO)))

        assert (found.is_usable, found.version, found.runtimes) == (True, "28.5.2", ("runc",))

    def test_a_client_alone_is_no_engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A client whose daemon is not even installed counts as no engine, so that the native lab is used."""
        monkeypatch.setattr(engine, "UNITS", ())
        words = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
        environment = docker(tmp_path, info="{}", code=1, error=words) | {"PATH": f"{tmp_path}:/bin"}
        monkeypatch.setattr(
            engine.shutil, "which", lambda name, path=None: str(tmp_path / name) if name == "docker" else None
        )

        found = engine.probe(environment)

        assert (found.is_usable, found.problem) == (False, None)

    @pytest.mark.parametrize(
        ("error", "what", "fix"),
        [
            (
                "permission denied while trying to connect to the Docker daemon socket",
                "may not be used by this user",
                "usermod",
            ),
            (
                "Cannot connect to the Docker daemon at tcp://host:2375",
                "does not answer",
                "systemctl start docker",
            ),
        ],
    )
    def test_an_engine_that_refuses_is_a_problem(self, tmp_path: Path, error: str, what: str, fix: str) -> None:
        """The problem quotes the engine and says what to type."""
        environment = docker(tmp_path, info="{}", code=1, error=error) | {"DOCKER_HOST": "tcp://host:2375"}

        found = engine.probe(environment)

        assert found.problem is not None
        assert what in found.problem.what
        assert error in found.problem.why
        assert fix in found.problem.fix

    @pytest.mark.parametrize(("compose", "what"), [("", "is missing"), ("1.29.2", "too old"), ("2.20.0", "too old")])
    def test_compose_must_be_there_and_new_enough(self, tmp_path: Path, compose: str, what: str) -> None:
        """Without a Compose that knows !reset and !override the files cannot work."""
        found = engine.probe(docker(tmp_path, info=json.dumps(INFO), compose=compose))

        assert not found.is_usable
        assert what in str(found.problem)

    def test_an_old_engine_is_told_before_the_build_fails(self, tmp_path: Path) -> None:
        """Engines before 25 do not know what the Dockerfile needs."""
        found = engine.probe(docker(tmp_path, info=json.dumps({**INFO, "version": "20.10.24+dfsg1"})))

        assert not found.is_usable
        assert "20.10.24+dfsg1 is too old" in str(found.problem)

    def test_desktop_rootless_and_remote_are_recognised(self, tmp_path: Path) -> None:
        """The three kinds that cannot pass a GPU as it is are told apart."""
        facts = {**INFO, "os": "Docker Desktop", "security": ["name=rootless"]}

        found = engine.probe(docker(tmp_path, info=json.dumps(facts)) | {"DOCKER_HOST": "ssh://box"})

        assert found.is_desktop
        assert found.is_rootless
        assert found.is_remote
