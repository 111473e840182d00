"""An engine that fails or answers too late: nothing is stopped, removed or forgotten because of it."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest
from engine_words import container, image, published
from test_docker import lab as docker_lab
from test_podman import lab as podman_lab

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import busy, sockets
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.docker import DockerLab

ID = "abcdef0123456789"
# One container. Which command fails is written in the file `fails`, as its first words.
PROGRAM = f"""#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >>calls
while read -r words; do
  case "$*" in "$words"*) echo "context deadline exceeded" >&2; exit 1;; esac
done <fails
case "$1" in
  ps) case "$*" in *oneoff=True*) ;; *) echo {ID};; esac;;
  inspect) cat inspected;;
  image) echo '{image()}';;
  compose) case "$*" in *"config --hash"*) cat hash;; esac;;
  exec) case "$*" in *"-o pid="*) echo "1 0 -1 tini";; *python*) echo '[]';; *) printf 't\\nm\\n';; esac;;
esac
"""


class Stub:
    """An engine's command that answers with recorded words."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / name).write_text(PROGRAM)
        (folder / name).chmod(0o755)
        (folder / "calls").touch()
        (folder / "inspected").write_text(container(ID, labels={"com.docker.compose.config-hash": "known"}))
        (folder / "hash").write_text("lab another")
        self.fail()

    def fail(self, *words: str) -> None:
        """Let commands that begin so fail from now on."""
        (self.folder / "fails").write_text("".join(f"{each}\n" for each in words))

    def calls(self, word: str) -> list[str]:
        """Return the commands that began so."""
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.split()[0] == word]


@pytest.fixture
def docker(tmp_path: Path) -> Stub:
    """Docker's command."""
    return Stub(tmp_path / "bin", "docker")


@pytest.fixture
def lab(docker: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerLab:
    """A Docker lab whose container runs."""
    (tmp_path / ".rocmlab").mkdir()
    environment = {"PATH": f"{docker.folder}:/bin:/usr/bin"}
    return docker_lab(tmp_path, environment, monkeypatch, COMPOSE_PROJECT_NAME="x", METRICS_TOKEN="m", SHARE="share")


class TestHome:
    """A container of a development version, in whose own layer the home is."""

    def test_it_is_not_removed(self, lab: DockerLab, docker: Stub) -> None:
        """`down` and `up` end with an error that names the command which copies the files out."""
        (docker.folder / "inspected").write_text(container(ID, env=["PATH=/bin"]))

        for remove in (lab.stop, lab.start):
            with pytest.raises(RocmlabError, match="not on the share") as caught:
                remove(print)

        assert f"docker cp {ID[:12]}:/home/jovyan" in caught.value.problem.fix
        assert docker.calls("compose") == []

    @pytest.mark.parametrize("command", ["ps", "inspect"])
    def test_what_removes_the_container_gives_up_before(self, lab: DockerLab, docker: Stub, command: str) -> None:
        """The engine does not answer: `down` ends with an error, and Compose is not called."""
        docker.fail(command)

        with pytest.raises(RocmlabError, match="does not answer"):
            lab.stop(print)

        assert docker.calls("compose") == []


class TestRunning:
    """A lab that runs, which no one has said may end."""

    def test_a_token_that_cannot_be_read_is_no_other_token(self, lab: DockerLab, docker: Stub) -> None:
        """Or a slow engine would make a new container."""
        lab._bring_up()
        docker.fail("exec")
        lab._bring_up()

        assert [line for line in docker.calls("compose") if "--force-recreate" in line] == []

    @pytest.mark.parametrize(("wanted", "is_current"), [("lab known", True), ("lab another", False), ("", False)])
    def test_one_that_is_current_costs_no_call_of_compose(
        self, lab: DockerLab, docker: Stub, wanted: str, is_current: bool
    ) -> None:
        """It would find nothing to do, which takes it a third of a second."""
        (docker.folder / "hash").write_text(wanted)

        lab._bring_up()

        assert any(" up " in line for line in docker.calls("compose")) is not is_current

    def test_a_container_without_files_of_tokens_is_made_anew(self, lab: DockerLab, docker: Stub) -> None:
        """That of an earlier version has its token in the environment."""
        program = docker.folder / "docker"
        program.write_text(program.read_text().replace("printf 't\\nm\\n'", 'shift 4; "$@"'))

        lab._bring_up()

        assert "--force-recreate" in docker.calls("compose")[-1]

    def test_a_current_lab_is_described_once(self, lab: DockerLab, docker: Stub) -> None:
        """`make up` asks for its container, its image and its configuration in many places, and the engine is slow."""
        (docker.folder / "hash").write_text("lab known")
        labels = {"com.docker.compose.config-hash": "known"}
        (docker.folder / "inspected").write_text(container(ID, ports=published(lab.port), labels=labels))

        assert lab.is_current()
        lab._bring_up()
        lab.describe(ID)
        lab._publishes_port()
        lab._check_owner()
        lab._check_home()

        asked = [line.split()[0] for line in (docker.folder / "calls").read_text().splitlines()]
        assert sorted(asked) == ["compose", "exec", "image", "inspect", "ps"]

    def test_settings_that_have_changed_are_compared_again(self, lab: DockerLab, docker: Stub) -> None:
        """Compose reads `.env` and the overlay, which this process has just written."""
        (docker.folder / "hash").write_text("lab known")
        before = lab.is_current()
        lab.settings.env_path.write_text("NEW=1\n")
        (docker.folder / "hash").write_text("lab another")

        assert before
        assert not lab.is_current()

    def test_who_listens_is_asked_anew(self, lab: DockerLab, docker: Stub) -> None:
        """What was published a second ago may be another program's now, and the answer decides who gets the token."""
        with socket.create_server(("127.0.0.1", 0)) as found:
            lab.port = found.getsockname()[1]
            (docker.folder / "inspected").write_text(container(ID, ports=published(lab.port)))
            before = lab._publishes_port()
            (docker.folder / "inspected").write_text(container(ID))

            assert before
            assert lab.holder().kind == sockets.OTHER

    def test_one_that_is_restarted_again_and_again_is_noticed(self, lab: DockerLab, docker: Stub) -> None:
        """Since it was first asked: one that the engine has restarted long ago lives."""
        lives = lab._watch()
        (docker.folder / "inspected").write_text(container(ID, restarts=3))
        before = lives()
        (docker.folder / "inspected").write_text(container(ID, restarts=4))

        assert before
        assert not lives()

    def test_one_that_restarts_itself_while_nothing_is_done_runs_on(
        self, lab: DockerLab, docker: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`make up` looked at it, it crashed and comes up again: it is not removed because it is another start."""
        (docker.folder / "hash").write_text("lab known")
        assert lab.is_current()
        labels = {"com.docker.compose.config-hash": "known"}
        (docker.folder / "inspected").write_text(container(ID, restarts=1, labels=labels))
        monkeypatch.setattr("rocmlab.stack.server.wait", lambda *_: False)
        monkeypatch.setattr("rocmlab.stack.server.is_free", lambda _: True)

        with pytest.raises(RocmlabError, match="the lab runs and does not answer"):
            lab.start(print)

        assert not [line for line in docker.calls("compose") if " down " in line]

    def test_one_that_comes_up_again_since_the_last_look_has_its_own_port(
        self, lab: DockerLab, docker: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The engine started it again after a crash, while `make up` looked: the port is no other program's."""
        (docker.folder / "hash").write_text("lab known")
        assert lab.is_current()  # and publishes no port, as long as it does not run
        labels = {"com.docker.compose.config-hash": "known"}
        (docker.folder / "inspected").write_text(container(ID, ports=published(lab.port), labels=labels))
        monkeypatch.setattr("rocmlab.stack.server.wait", lambda *_: False)
        monkeypatch.setattr("rocmlab.stack.server.is_free", lambda _: False)

        with pytest.raises(RocmlabError, match="the lab runs and does not answer"):
            lab.start(print)

    def test_the_port_of_one_that_is_being_started_again_is_its_own(
        self, lab: DockerLab, docker: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The engine opens the port first, and describes it later; `make up` waits for the lab."""
        (docker.folder / "hash").write_text("lab known")
        labels = {"com.docker.compose.config-hash": "known"}
        (docker.folder / "inspected").write_text(container(ID, is_restarting=True, labels=labels))
        monkeypatch.setattr("rocmlab.stack.server.wait", lambda *_: False)
        monkeypatch.setattr("rocmlab.stack.server.is_free", lambda _: False)

        assert lab.holds_port()
        with pytest.raises(RocmlabError, match="did not start"):
            lab.start(print)

    def test_a_restart_since_the_last_look_is_seen(self, lab: DockerLab, docker: Stub) -> None:
        """Whether a program could not run in it because of that decides what is done."""
        before = lab.is_running() and not lab.describe(ID).is_restarting
        (docker.folder / "inspected").write_text(container(ID, is_restarting=True))

        assert before
        assert lab.is_restarting()

    def test_what_is_no_description_is_an_error(self, lab: DockerLab, docker: Stub) -> None:
        """What is no description is an error, and not a container or an image that is missing."""
        (docker.folder / "inspected").write_text("{}")
        program = docker.folder / "docker"
        program.write_text(program.read_text().replace(image(), "{}"))

        for question in (lambda: lab.describe(ID), lambda: lab.image_id("x")):
            with pytest.raises(RocmlabError, match="does not describe"):
                question()

    @pytest.mark.parametrize("command", ["ps", "inspect"])
    def test_podman_removes_nothing_that_it_cannot_look_at(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        """Whether the container is current is not known."""
        podman = Stub(tmp_path / "bin", "podman")
        monkeypatch.setenv("PATH", f"{podman.folder}:/bin:/usr/bin")
        podman.fail(command)

        with pytest.raises(RocmlabError, match="does not answer"):
            podman_lab(tmp_path)._bring_up()

        assert podman.calls("rm") == []

    def test_a_lab_of_an_earlier_call_is_not_stopped(
        self, lab: DockerLab, docker: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It runs unchanged and does not answer: an error with FORCE=1 as the way out, which stops and starts it."""
        monkeypatch.setattr("rocmlab.stack.server.wait", lambda *_: False)
        monkeypatch.setattr("rocmlab.stack.server.is_free", lambda _: True)

        with pytest.raises(RocmlabError, match="the lab runs and does not answer") as caught:
            lab.start(print)
        assert "FORCE=1" in caught.value.problem.fix
        assert not [line for line in docker.calls("compose") if " down " in line]

        with pytest.raises(RocmlabError):  # the stub's lab stays as it is
            lab.start(print, force=True)
        assert [line for line in docker.calls("compose") if " down " in line]

    def test_an_engine_that_refuses_leaves_the_lab_that_ran(
        self, lab: DockerLab, docker: Stub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`compose up` fails and has not touched it; what it has started is removed."""
        monkeypatch.setattr("rocmlab.stack.server.is_free", lambda _: True)
        docker.fail(f"compose --project-directory {lab.settings.project} --progress quiet up")

        with pytest.raises(RocmlabError, match="could not start"):
            lab.start(print)
        untouched = [line for line in docker.calls("compose") if " down " in line]
        lab._undo("another container")

        assert untouched == []
        assert [line for line in docker.calls("compose") if " down " in line]


class TestBusy:
    """What runs in a lab."""

    @pytest.fixture(autouse=True)
    def _without_a_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No kernel: the lab's server reports it."""
        monkeypatch.setattr(ContainerLab, "ask", lambda *_, **__: (200, []))

    def test_an_idle_lab_is_known(self, lab: DockerLab) -> None:
        """Nothing runs, and nothing is unknown."""
        assert busy.find(lab) == busy.Found()

    @pytest.mark.parametrize("command", ["ps", "exec", "ps --quiet --no-trunc --filter label=com.docker.compose.proje"])
    def test_an_engine_that_fails_makes_it_unknown(self, lab: DockerLab, docker: Stub, command: str) -> None:
        """Never "nothing runs": that would stop a training unasked."""
        docker.fail(command)

        found = busy.find(lab)

        assert "does not answer" in found.unknown
        assert "deadline" in found.unknown

    def test_an_image_without_our_interpreter_is_known(self, lab: DockerLab, docker: Stub) -> None:
        """It has no runs of ours, and perhaps no `ps`."""
        program = docker.folder / "docker"
        program.write_text(program.read_text().replace('exec) case "$*"', 'exec) exit 127; case "$*"'))

        assert busy.find(lab) == busy.Found()

    def test_up_does_not_take_it_for_a_lab_that_is_down(self, lab: DockerLab, docker: Stub) -> None:
        """Whether `make up` restarts it is an error then, before anything is written."""
        docker.fail("ps")

        with pytest.raises(RocmlabError, match="does not answer"):
            lab.is_known_to_run()


def test_the_stub_answers(docker: Stub) -> None:
    """Its words are those that the tests rely on."""
    done = subprocess.run([docker.folder / "docker", "ps"], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ID
