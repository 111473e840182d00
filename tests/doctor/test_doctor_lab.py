"""The running lab, compared with the host."""

from __future__ import annotations

from typing import Any

from situations import Looker, fires, report, silent, skipped

from rocmlab.devices.rocm import Rocm
from rocmlab.doctor import inside as asking
from rocmlab.doctor.model import BLOCKS, WARNS
from rocmlab.stack.project import Project


def seen(look: Looker, **why_not: str) -> list[dict[str, Any]]:
    """The host's GPUs as the lab reports them; those named by the last digit of their bus are not usable."""
    found = []
    for gpu in Rocm().discover(look.root, as_root=True):
        reason = why_not.get(f"bus{gpu.pci_address[6]}") if gpu.pci_address else None
        found.append({**gpu.as_dict(), "is_usable": reason is None, "why_not": reason})
    return found


def test_a_gpu_that_is_missing_inside(look: Looker) -> None:
    """One of two is a warning, all of them stop; a new container with both is silent."""
    look.options = {"lab_report": report(devices=seen(look, bus6="/dev/dri/renderD129 is not here"))}
    found = fires(look(), "lab.devices", WARNS)
    assert "does not have the GPU at 0000:06:00.0" in found.problem.what
    assert "renderD129 was not passed" in found.problem.why

    both = seen(look, bus3="/dev/kfd is not here", bus6="/dev/kfd is not here")
    look.options = {"lab_report": report(devices=both)}
    fires(look(), "lab.devices", BLOCKS)

    look.options = {"lab_report": report(devices=seen(look))}
    silent(look(), "lab.devices")


def test_a_gpu_that_was_not_chosen_is_not_missed(look: Looker) -> None:
    """GPUS=0 is what the person asked for."""
    look.chosen = {"GPUS": "0"}
    look.options = {"lab_report": report(devices=seen(look, bus6="/dev/dri/renderD129 is not here"))}

    silent(look(), "lab.devices")


def test_groups_of_the_labs_process(look: Looker, monkeypatch) -> None:
    """A process without the group of its nodes is stopped by it; nodes for everybody, as CDI makes them, need none."""
    gid = (look.root / "dev/kfd").stat().st_gid
    monkeypatch.setattr("rocmlab.doctor.situation.is_simulated", lambda _: False)

    def reported(node_gid: int, groups: list[int], mode: int = 0o660) -> None:
        nodes = [{"path": "/dev/kfd", "gid": node_gid, "mode": mode, "major": 0, "minor": 0}]
        look.options = {"lab_report": report(nodes=nodes, groups=groups)}

    reported(gid, [100])
    found = fires(look(), "lab.groups", BLOCKS)
    assert f"not in group {gid}" in found.problem.what
    assert "lab's uid 1000: groups 100" in found.evidence

    reported(61777, [100, 61777])  # a rule of udev has changed it since
    found = fires(look(), "lab.groups", WARNS)
    assert f"/dev/kfd: host group {gid}, lab group 61777" in found.evidence

    reported(gid, [100, gid])
    silent(look(), "lab.groups")
    reported(gid, [100], mode=0o666)
    silent(look(), "lab.groups")


def test_a_lab_that_cannot_be_asked(look: Looker) -> None:
    """Its silence is a finding; an answer is none; no lab is neither."""
    problem = {"what": "the running lab does not answer", "why": "said", "fix": "make logs"}
    look.options = {"lab_report": report(problem=problem)}
    assert fires(look(), "lab.answers", WARNS).problem.what == "the running lab does not answer"

    look.options = {"lab_report": report()}
    silent(look(), "lab.answers")

    look.options = {}
    assert "`make up` starts it" in skipped(look(), "lab.answers")


class FakeContainer:
    """A lab whose engine is a program of the test."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.environment = {"PATH": "/usr/bin:/bin"}

    def container(self) -> str:
        """One runs."""
        return "c0ffee"


def asked(tmp_path, answer: str, code: int = 0) -> Any:
    """Ask a lab whose engine prints this."""
    program = tmp_path / "engine"
    (tmp_path / "answer").write_text(answer)
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat {tmp_path}/answer\nexit {code}\n')
    program.chmod(0o755)
    project = Project(None, None, {}, FakeContainer(str(program)))  # type: ignore[arg-type]
    return asking.ask(project, ["--no-frameworks"], 10)


def test_the_lab_is_asked_as_its_own_user(tmp_path) -> None:
    """Through the entry point, which joins the groups; exit code 2 is an answer, too."""
    found = asked(tmp_path, 'noise\n{"findings": [], "uid": 1000}\n', code=2)

    assert found == {"findings": [], "uid": 1000}
    words = (tmp_path / "words").read_text().strip()
    assert words == "exec c0ffee start.sh rocmlab doctor --json --side container --no-frameworks"


def test_a_lab_from_before_doctor(tmp_path) -> None:
    """It does not know the verb: the fix is a new image."""
    found = asked(tmp_path, "rocmlab: error: there is no verb 'doctor'; choose one of: up\n", code=2)

    assert found["problem"]["fix"] == "make build && make up"


def test_nonsense_from_the_lab_is_a_finding(tmp_path) -> None:
    """No traceback, whatever it says."""
    for answer in ("", "{", "Killed\n", '{"findings": 3}', "{}"):
        assert asked(tmp_path, answer)["problem"]["what"], answer
