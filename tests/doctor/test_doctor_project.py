"""The project folder: what stops a plan, and files that describe another machine."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from situations import Looker, QuietLab, fires, silent, skipped

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.doctor.model import BLOCKS, CONTAINER, WARNS
from rocmlab.doctor.situation import Situation
from rocmlab.lab.server.look import problems
from rocmlab.stack import envfile


def test_what_stops_the_plan_is_said(look: Looker) -> None:
    """In the plan's own words."""
    problem = Problem("GPUS=7: GPU 7 not found", "usable: 0", "use all")

    assert fires(look(plan_problem=problem), "lab.plan", BLOCKS).problem == problem
    assert "backend rocm" in silent(look(), "lab.plan").evidence[0]


@pytest.mark.parametrize(
    "lines",
    [
        "    group_add:\n      - render\n",
        "    group_add:\n    - video\n    - ${RENDER_GID}\n",
        '    group_add: ["44", "render"]\n',
        "    group_add: !override\n      # the GPU's\n      - 'render'\n",
    ],
)
def test_groups_by_name(look: Looker, lines: str) -> None:
    """In any style of YAML; the variable in its place makes it silent."""
    look.folder.mkdir()
    compose = look.folder / "compose.yaml"
    compose.write_text(f"services:\n  lab:\n{lines}    ports: [render]\n")

    found = fires(look(), "groupname", BLOCKS)
    assert "by name" in found.problem.what
    assert "${RENDER_GID}" in found.problem.fix

    compose.write_text(compose.read_text().replace("- video", "- 44").replace("render", "${RENDER_GID:?make up}"))
    silent(look(), "groupname")


def test_the_projects_own_files_have_numbers(look: Looker, repository: Path) -> None:
    """All overlays included."""
    files = ["compose.yaml", *(str(path.relative_to(repository)) for path in repository.glob("docker/compose.*.yaml"))]
    look.folder = repository
    look.values = {"COMPOSE_FILE": ":".join(files)}

    silent(look(), "groupname")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which someone else listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_a_taken_port(look: Looker, taken: int) -> None:
    """Another program's port stops the lab; the running lab's own does not."""
    look.values = {"PORT": str(taken)}

    assert "make up PORT=" in fires(look(), "port", BLOCKS).problem.fix

    look.lab.running = True
    assert "the lab's own" in silent(look(), "port").evidence[0]


def test_a_free_port(look: Looker) -> None:
    """The fix, applied: another port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        look.values = {"PORT": str(probe.getsockname()[1])}

    silent(look(), "port")


def test_a_full_disk(look: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What preparing would refuse stops; a disk that is nearly full warns; room makes it silent."""
    look.lab = QuietLab(full=RocmlabError("the disk has 3 GB free", "60 GB are needed", "docker system prune"))
    assert fires(look(), "disk", BLOCKS).problem.what == "the disk has 3 GB free"

    look.lab = QuietLab(engine_root=str(look.root))
    free = 4_000_000_000
    monkeypatch.setattr("rocmlab.doctor.checks.project.shutil.disk_usage", lambda _: type("U", (), {"free": free}))
    assert "4.0 GB free" in fires(look(), "disk", WARNS).problem.what

    monkeypatch.undo()
    monkeypatch.setattr("rocmlab.doctor.checks.project.SPARE_BYTES", 1)
    silent(look(), "disk")


class TestStale:
    """`.env` of another machine, and the one repair that doctor makes itself."""

    def test_numbers_of_another_machine_are_rewritten(self, look: Looker) -> None:
        """The repair writes the groups of the nodes here, keeps every other line, and the check is silent."""
        look.env_file(RENDER_GID="61777", VIDEO_GID="61778", PORT="9000", MY_OWN="kept")

        found = fires(look(), "env.stale", WARNS)
        assert "RENDER_GID=61777" in found.problem.what
        assert found.repair is not None
        assert "RENDER_GID" in found.repair.what

        found.repair.apply()

        values = envfile.parse((look.folder / ".env").read_text())
        assert values["RENDER_GID"] == str(os.stat(look.root / "dev/dri/renderD128").st_gid)
        assert (values["PORT"], values["MY_OWN"]) == ("9000", "kept")
        silent(look(), "env.stale")

    def test_a_line_of_a_persons_own_is_named_as_such(self, look: Looker) -> None:
        """It was chosen manually, and `make up` alone would keep it; the repair does what was agreed to."""
        look.env_file(RENDER_GID="61777", VIDEO_GID="44")
        (look.folder / ".rocmlab").mkdir()
        (look.folder / ".rocmlab/written.json").write_text('{"RENDER_GID": "109", "VIDEO_GID": "44"}')

        found = fires(look(), "env.stale", WARNS)
        assert "take RENDER_GID out of .env" in found.problem.fix
        assert "yourself" in found.problem.why

        found.repair.apply()
        silent(look(), "env.stale")

    def test_before_the_first_make_up_nothing_is_stale(self, look: Looker) -> None:
        """There is no `.env`."""
        assert ".env does not exist" in skipped(look(), "env.stale")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_with_little_room(look: Looker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real disk of 1 MB the inside of a lab warns, which the panel shows; with the setting 0 it does not."""
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        monkeypatch.setenv("ROCMLAB_SHARE", str(small / "made/later"))

        found = fires(Situation(root=look.root, side=CONTAINER), "disk.low", WARNS)
        shown = [each for each in problems(look.root) if each["check"] == "disk.low"]

        assert "GB free" in found.problem.what
        assert "make clean RUNS=30d" in found.problem.fix
        assert [each["what"] for each in shown] == [found.problem.what]
        monkeypatch.setenv("MIN_FREE_DISK_GB", "0.0001")
        silent(Situation(root=look.root, side=CONTAINER), "disk.low")
        monkeypatch.setenv("MIN_FREE_DISK_GB", "0")
        assert "MIN_FREE_DISK_GB=0" in skipped(Situation(root=look.root, side=CONTAINER), "disk.low")
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


def test_a_notify_that_cannot_work(look: Looker) -> None:
    """Malformed, or a program that the lab does not have: a warning that does not show it; unset is no question."""
    assert skipped(look(), "notify") == "NOTIFY is not set"
    look.chosen = {"NOTIFY": "ftp://host/secret"}
    assert "secret" not in str(fires(look(), "notify", WARNS).problem)
    look.chosen = {"NOTIFY": "https://host.example/secret"}
    assert silent(look(), "notify").evidence == ("runs of 60 s and more are reported to the webhook at host.example",)

    environment = {"NOTIFY": "no-such-program secret"}
    found = fires(Situation(root=look.root, side=CONTAINER, environment=environment), "notify", WARNS)
    assert "program of NOTIFY was not found" in found.problem.what
    assert "secret" not in str(found.problem)
