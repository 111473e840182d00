"""Putting findings together: order, doubles, the part that `make up` asks, exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hosts import Gpu
from situations import Looker, fires, host, report, silent

from rocmlab import doctor
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.doctor import checks, examine
from rocmlab.doctor.model import BLOCKS, NOT_APPLICABLE, OK, UNKNOWN, WARNS, Check, Finding, Verdict, from_dict
from rocmlab.doctor.situation import Situation

PROBLEM = Problem("what", "why", "fix")


def finding(status: str, id: str = "x", problem: Problem | None = PROBLEM, side: str = "host") -> Finding:
    """A finding."""
    return Finding(id, "title", side, status, problem=problem if status in (BLOCKS, WARNS) else None)


@pytest.mark.parametrize(
    ("statuses", "code"), [([], 0), ([OK, NOT_APPLICABLE, UNKNOWN], 0), ([OK, WARNS], 1), ([WARNS, BLOCKS], 2)]
)
def test_the_exit_code(statuses: list[str], code: int) -> None:
    """0 clean, 1 warnings, 2 what stops the lab."""
    assert doctor.exit_code([finding(status) for status in statuses]) == code


def test_the_same_problem_is_said_once() -> None:
    """Two checks, or both sides, that come to the same: the second one refers to the first."""
    found = examine.merged([finding(BLOCKS, "a"), finding(WARNS, "b"), finding(BLOCKS, "a", side="container")])

    assert [one.status for one in found] == [BLOCKS, NOT_APPLICABLE, NOT_APPLICABLE]
    assert found[1].reason == "the same as a (host)"


def test_a_check_that_fails_is_a_finding(look: Looker) -> None:
    """A bug or a file no one thought of must not end the doctor."""

    def broken(_: object) -> Verdict:
        raise ValueError("surprise")

    found = Check("x", "title", ("host",), "", "", "", broken).run(look())

    assert [(one.status, one.reason) for one in found] == [(UNKNOWN, "the check itself failed: ValueError: surprise")]


def test_a_finding_survives_the_way_through_json(look: Looker) -> None:
    """What the lab prints is what the host shows."""
    (look.root / "dev/kfd").unlink()
    for check in checks.ALL:
        for one in check.run(look()):
            told = from_dict(one.as_dict())
            assert (told.check, told.side, told.status, told.problem) == (one.check, one.side, one.status, one.problem)
            assert told.evidence == one.evidence


def test_an_unknown_id_is_a_usage_error() -> None:
    """With the way to the list."""
    with pytest.raises(RocmlabError, match="unknown check") as caught:
        doctor.Wanted(only=("dev.prem",)).checks()

    assert "--list" in caught.value.problem.fix


def test_what_make_up_would_refuse_comes_before_the_engine(look: Looker) -> None:
    """And is asked by `--quick` as well; without a plan it is all that can be said of the project."""
    ids = [check.id for check in doctor.Wanted(quick=True).checks()]
    order = [check.id for check in checks.ALL]
    assert "lab.plan" in ids
    assert order.index("lab.plan") < order.index("engine.answers")

    fires(Situation(look.root, plan_problem=PROBLEM), "lab.plan", BLOCKS)
    silent(look(), "lab.plan")


def test_ids_are_unique_and_well_formed() -> None:
    """They are printed, typed and linked to."""
    ids = [check.id for check in checks.ALL]

    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+(\.[a-z_]+){0,2}", id) for id in ids)


FACTS = """kernel.amdgpu kernel.secureboot dev.kfd.exists pcie.atomics dev.perm container.gid_mismatch groupname
docker.desktop docker.snap docker.rootless compose.version igpu gfx.support iommu.pt shm env.conflict
userspace.driver tf.clobbered wsl vfio runtimepm rebar disk cgroup jupyter.env"""


def test_nothing_of_the_list_of_known_troubles_is_missing() -> None:
    """The checks that the facts about ROCm ask for; others came from experience."""
    assert set(FACTS.split()) <= set(checks.BY_ID)


def test_every_check_has_a_test_that_fires_and_one_that_is_silent() -> None:
    """By its id in a call of `fires` and of `silent`, in this folder or in the container's tests."""
    folder = Path(__file__).parents[1]
    files = [*folder.glob("doctor/test_doctor_*.py"), folder / "container/test_doctor_container.py"]
    text = "\n".join(path.read_text() for path in files if path.exists())
    by_parameter = {"docker.desktop", "docker.snap", "docker.remote", "docker.rootless", "compute.tensorflow"}
    lacking = []
    for id in sorted(set(checks.BY_ID) - by_parameter):
        for word in ("(fires|noted)", "silent"):
            if not re.search(rf"\b{word}\b[^\n]*\"{re.escape(id)}\"", text):
                lacking.append(f"{word} {id}")

    assert not lacking


class TestBeforeUp:
    """What `make up` asks first."""

    @pytest.fixture
    def planned(self, look: Looker, monkeypatch: pytest.MonkeyPatch) -> Looker:
        """A host that `make up` was pointed to."""
        monkeypatch.setenv("ROCMLAB_ROOT", str(look.root))
        return look

    def test_a_healthy_host_is_let_through(self, planned: Looker) -> None:
        """Nothing is found, and the engine is not asked."""
        assert doctor.blocking(planned.project(), {"PATH": "/nowhere"}) == []

    def test_a_closed_node_stops_it_with_the_problem(self, planned: Looker) -> None:
        """One node of eight; the error has the shape of every other error."""
        (planned.root / "dev/dri/renderD129").chmod(0)

        with pytest.raises(RocmlabError, match="renderD129 cannot be opened") as caught:
            doctor.refuse(doctor.blocking(planned.project(), {}))

        assert "sudo chmod g+rw" in caught.value.problem.fix
        assert caught.value.exit_code == 2

    def test_several_are_counted(self, planned: Looker) -> None:
        """The first one is shown, the rest (two masks, one pointing past what the other leaves) is doctor's."""
        (planned.root / "dev/dri/renderD129").chmod(0)
        planned.env_file(HIP_VISIBLE_DEVICES="1", ROCR_VISIBLE_DEVICES="1")

        with pytest.raises(RocmlabError) as caught:
            doctor.refuse(doctor.blocking(planned.project(), {}))

        assert "make doctor (and 1 more)" in caught.value.problem.fix

    def test_warnings_stop_nothing(self, planned: Looker) -> None:
        """They are doctor's to tell."""
        planned.env_file(HSA_OVERRIDE_GFX_VERSION="11.0.0")

        assert doctor.blocking(planned.project(), {}) == []

    def test_a_lab_on_the_cpu_asks_nothing_about_gpus(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine whose GPU is not ROCm's business starts as before."""
        root = host(tmp_path / "host", Gpu(1, 0x0300, 128))
        (root / "dev/dri/renderD128").chmod(0)
        monkeypatch.setattr("rocmlab.doctor.situation.is_simulated", lambda _: False)
        monkeypatch.setenv("ROCMLAB_ROOT", str(root))
        project = Looker(root, tmp_path / "project", backend="cpu").project()

        assert doctor.blocking(project, {}) == []


def test_a_lab_of_another_version_is_understood(look: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that only it knows are shown; what is not a finding is skipped."""
    theirs = {**finding(WARNS, "new.check", side="container").as_dict(), "title": "from the future"}
    monkeypatch.setattr(examine.inside, "ask", lambda *_: report(findings=[theirs, {"check": "torn"}, 3]))

    found = doctor.on_host(look.folder, doctor.Wanted(frameworks=False), lambda *_: look(running=look.project()))

    assert [one.title for one in found.findings if one.check == "new.check"] == ["from the future"]
    assert doctor.exit_code(found.findings) >= 1
