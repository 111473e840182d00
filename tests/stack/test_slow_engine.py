"""An engine that fails or answers too late: nothing is stopped, removed or forgotten because of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from test_docker import lab as docker_lab
from test_podman import lab as podman_lab

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import busy, homes, rescue
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.docker import DockerLab

ID = "abcdef0123456789"
# One container of an earlier version, with one file in its layer. Which command fails is written in the file `fails`,
# as its first words; `after NAME COMMAND` lets it fail from then on.
PROGRAM = f"""#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >>calls
while read -r words; do
  case "$*" in "$words"*) echo "context deadline exceeded" >&2; exit 1;; esac
done <fails
[ -e "after-$1" ] && cat "after-$1" >>fails
case "$1" in
  ps) case "$*" in *oneoff=True*) ;; *) echo {ID};; esac;;
  inspect) case "$*" in
    *Restarting*) echo false;;
    *StartedAt*Env*) printf '2026-01-01T00:00:0%s.1Z\\nPATH=/bin\\n' "$(cat starts)";;
    *StartedAt*) echo "{ID} $(cat starts)";;
    *Hostname*) echo inside;;
    *RestartCount*) echo 0;;
    *Labels*) echo;;
    *) echo PATH=/bin;;
  esac;;
  diff) printf 'C /home/jovyan\\nA /home/jovyan/notes.txt\\n';;
  cp) echo saved >"$3";;
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
        (folder / "starts").write_text("1")
        self.fail()

    def fail(self, *words: str) -> None:
        """Let commands that begin so fail from now on."""
        (self.folder / "fails").write_text("".join(f"{each}\n" for each in words))

    def fail_after(self, command: str, words: str) -> None:
        """Let commands that begin so fail once another one was run."""
        (self.folder / f"after-{command}").write_text(f"{words}\n")

    def calls(self, word: str) -> list[str]:
        """Return the commands that began so."""
        return [line for line in (self.folder / "calls").read_text().splitlines() if line.split()[0] == word]


@pytest.fixture
def docker(tmp_path: Path) -> Stub:
    """Docker's command."""
    return Stub(tmp_path / "bin", "docker")


@pytest.fixture
def lab(docker: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DockerLab:
    """A Docker lab whose container is that of an earlier version."""
    (tmp_path / ".rocmlab").mkdir()
    environment = {"PATH": f"{docker.folder}:/bin:/usr/bin"}
    return docker_lab(tmp_path, environment, monkeypatch, COMPOSE_PROJECT_NAME="x", METRICS_TOKEN="m", SHARE="share")


def take(lab: ContainerLab) -> list[str]:
    """Take the earlier container's files, and return what is said."""
    said: list[str] = []
    rescue.take(lab.engine, lab.query, lab.program, ID, lab.settings.state, said.append)
    return said


def kept(lab: ContainerLab) -> list[Path]:
    """Return what was taken, and drafts."""
    state = lab.settings.state
    return [*(state / homes.OLD).glob("*"), *state.glob("old-home.*")]


class TestRescue:
    """Files in the layer of an earlier container, which is removed afterwards."""

    def test_an_engine_that_answers_gives_the_files(self, lab: DockerLab) -> None:
        """The container is stopped, and the file is kept."""
        said = take(lab)

        assert [path.read_text() for each in kept(lab) for path in each.iterdir()] == ["saved\n"]
        assert len(said) == 1

    @pytest.mark.parametrize("command", ["inspect", "diff", "stop", "cp"])
    def test_each_question_without_an_answer_is_an_error(self, lab: DockerLab, docker: Stub, command: str) -> None:
        """Or the container would be removed with the files in it."""
        docker.fail(command)

        with pytest.raises(RocmlabError, match="deadline"):
            take(lab)

        assert kept(lab) == []

    def test_the_second_look_is_no_empty_one(self, lab: DockerLab, docker: Stub) -> None:
        """The engine fails after the container was stopped: nothing is said to be kept."""
        docker.fail_after("stop", "diff")

        with pytest.raises(RocmlabError, match="deadline"):
            take(lab)

        assert kept(lab) == []

    def test_what_removes_the_container_gives_up_before(self, lab: DockerLab, docker: Stub) -> None:
        """`docker ps` fails: `down` and `up` end with an error, and Compose is not called."""
        docker.fail("ps")

        with pytest.raises(RocmlabError, match="does not answer"):
            lab.stop(print)
        with pytest.raises(RocmlabError, match="does not answer"):
            lab._rescue(print)

        assert docker.calls("compose") == []

    def test_what_could_not_be_moved_is_not_taken_again(self, lab: DockerLab, docker: Stub) -> None:
        """The share is full: each `make up` tries to move what is there; a container that ran again is taken again."""
        take(lab)
        assert take(lab) == []
        assert len(kept(lab)) == len(docker.calls("cp")) == 1

        (docker.folder / "starts").write_text("2")
        take(lab)

        assert len(kept(lab)) == 2


class TestRunning:
    """A lab that runs, which no one has said may end."""

    def test_a_token_that_cannot_be_read_is_no_other_token(self, lab: DockerLab, docker: Stub) -> None:
        """Or a slow engine would make a new container."""
        lab._bring_up()
        docker.fail("exec")
        lab._bring_up()

        assert [line for line in docker.calls("compose") if "--force-recreate" in line] == []

    def test_a_container_without_files_of_tokens_is_made_anew(self, lab: DockerLab, docker: Stub) -> None:
        """That of an earlier version has its token in the environment."""
        program = docker.folder / "docker"
        program.write_text(program.read_text().replace("printf 't\\nm\\n'", 'shift 4; "$@"'))

        lab._bring_up()

        assert "--force-recreate" in docker.calls("compose")[0]

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
        monkeypatch.setattr("rocmlab.stack.rescue.take", lambda *_: None)

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
        monkeypatch.setattr("rocmlab.stack.rescue.take", lambda *_: None)
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
