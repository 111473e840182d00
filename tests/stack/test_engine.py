"""What is found out about the engine; its answers are recorded ones, given by a small program named docker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocmlab.stack import engine

INFO = {  # as `docker info --format '{{json .}}'` prints it
    "ServerVersion": "28.5.2",
    "OperatingSystem": "Ubuntu 24.04",
    "DockerRootDir": "/var/lib/docker",
    "SecurityOptions": ["name=seccomp"],
    "Runtimes": {"runc": {}},
    "ClientInfo": {"Context": "default"},
}


def docker(
    folder: Path, *, info: str, compose: str = "2.40.3", code: int = 0, error: str = "", endpoint: str = ""
) -> dict[str, str]:
    """Put a `docker` into a folder that answers with recorded words; return the environment that finds only it."""
    program = folder / "docker"
    program.write_text(
        "#!/bin/sh\n"
        f"[ \"$1\" = compose ] && {{ [ -n '{compose}' ] && echo '{compose}' && exit 0; exit 1; }}\n"
        f"[ \"$1\" = context ] && echo '{endpoint}' && exit 0\n"
        # A client fails over a field that it does not know, and which it knows depends on its age.
        '[ "$1" = info ] && [ "$3" != "{{json .}}" ] && { echo "can\'t evaluate field in type info" >&2; exit 1; }\n'
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

    @pytest.mark.parametrize(
        ("plugin", "found"),
        [
            ({"Name": "compose", "Version": "v2.40.3"}, ""),
            ({"Name": "compose", "Version": "v2.20.0"}, "Docker Compose v2.20.0 is too old"),
            ({"Name": "compose", "Version": "v2.40.3", "Err": "cannot be run"}, "`docker compose` is missing"),
            ({"Name": "buildx", "Version": "v0.20"}, "`docker compose` is missing"),
        ],
    )
    def test_the_plugin_that_the_engines_answer_lists_is_not_asked(
        self, tmp_path: Path, plugin: dict[str, str], found: str
    ) -> None:
        """Each call takes a tenth of a second; one that is not listed, or that cannot be run, is asked."""
        facts = {**INFO, "ClientInfo": {"Context": "default", "Plugins": [plugin]}}

        problem = engine.probe(docker(tmp_path, info=json.dumps(facts), compose="")).problem

        assert (problem.what if problem else "") == found

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
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock",
                "does not answer",
                "systemctl start docker",
            ),
            ("Cannot connect to the Docker daemon at tcp://host:2375", "on another machine", "docker context use"),
            (
                "Cannot connect to the Docker daemon at unix:///home/me/.docker/desktop/docker.sock",
                "Docker Desktop is chosen, and it is not running",
                "docker context use default",
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
        found = engine.probe(docker(tmp_path, info=json.dumps({**INFO, "ServerVersion": "20.10.24+dfsg1"})))

        assert not found.is_usable
        assert "20.10.24+dfsg1 is too old" in str(found.problem)

    @pytest.mark.parametrize(
        ("endpoint", "is_remote", "is_desktop"),
        [
            ("tcp://box:2376", True, False),
            ("ssh://me@box", True, False),
            ("tcp://127.0.0.1:2375", False, False),
            ("unix:///var/run/docker.sock", False, False),
            ("unix:///home/me/.docker/desktop/docker.sock", False, True),
        ],
    )
    def test_the_context_says_where_the_engine_is(
        self, tmp_path: Path, endpoint: str, is_remote: bool, is_desktop: bool
    ) -> None:
        """`docker context use box` is as remote as DOCKER_HOST; the client is requested the endpoint only then."""
        facts = json.dumps({**INFO, "ClientInfo": {"Context": "box"}})

        found = engine.probe(docker(tmp_path, info=facts, endpoint=endpoint))

        assert (found.context, found.endpoint) == ("box", endpoint)
        assert (found.is_remote, found.is_desktop) == (is_remote, is_desktop)
        assert (found.lab_problem() is not None) is is_remote

    def test_the_default_context_costs_no_second_question(self, tmp_path: Path) -> None:
        """An `inspect` would fail here, and is not tried."""
        found = engine.probe(docker(tmp_path, info=json.dumps(INFO), endpoint="tcp://never"))

        assert (found.endpoint, found.is_remote) == ("", False)

    @pytest.mark.parametrize("root", ["/var/snap/docker/common/var-lib-docker", "/var/lib/docker"])
    def test_the_snap_is_recognised(self, tmp_path: Path, root: str) -> None:
        """By the engine's folder, and by the command, which is a link to `snap` itself."""
        environment = docker(tmp_path, info=json.dumps({**INFO, "DockerRootDir": root}))
        if root == "/var/lib/docker":
            (tmp_path / "docker").rename(tmp_path / "snap")
            (tmp_path / "docker").symlink_to(tmp_path / "snap")

        found = engine.probe(environment)

        assert found.is_snap
        assert "snap package" in str(found.device_problem())
        assert found.lab_problem() is None

    def test_podman_under_dockers_name_is_no_docker(self, tmp_path: Path) -> None:
        """The package podman-docker answers to `docker`, and knows neither our question nor Compose."""
        words = "Emulate Docker CLI using podman. Create /etc/containers/nodocker to quiet msg."

        found = engine.probe(docker(tmp_path, info="", code=125, error=words) | {"DOCKER_HOST": "unix:///podman.sock"})

        assert (found.is_usable, found.problem) == (False, None)

    @pytest.mark.parametrize(
        ("folders", "expected"), [(["/etc/cdi", "/var/run/cdi"], True), ([], False), (None, False)]
    )
    def test_cdi_is_known_by_its_folders(self, tmp_path: Path, folders: list[str] | None, expected: bool) -> None:
        """An engine with the feature off, or older than it, names none."""
        found = engine.probe(docker(tmp_path, info=json.dumps({**INFO, "CDISpecDirs": folders})))

        assert (found.cdi_problem() is None) is expected
        assert (found.cdi_problem() is None) is expected

    def test_desktop_rootless_and_remote_are_recognised(self, tmp_path: Path) -> None:
        """The three kinds that cannot pass a GPU as it is are distinguished."""
        facts = {**INFO, "OperatingSystem": "Docker Desktop", "SecurityOptions": ["name=rootless"]}

        found = engine.probe(docker(tmp_path, info=json.dumps(facts)) | {"DOCKER_HOST": "ssh://box"})

        assert found.is_desktop
        assert found.is_rootless
        assert found.is_remote
