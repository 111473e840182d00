"""The running lab, compared with the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clones import free_port
from situations import Looker, QuietLab, fires, report, silent, skipped

from rocmlab.base.errors import Problem
from rocmlab.devices.rocm import Rocm
from rocmlab.doctor import inside as asking
from rocmlab.doctor.model import BLOCKS, WARNS
from rocmlab.simulation import write_host
from rocmlab.stack import tls
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.environment import Environment
from rocmlab.stack.native import NativeLab
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
    look.options = {"lab_report": report(devices=seen(look, bus6="/dev/dri/renderD129 is missing"))}
    found = fires(look(), "lab.devices", WARNS)
    assert "does not have the GPU at 0000:06:00.0" in found.problem.what
    assert "renderD129 was not passed" in found.problem.why

    both = seen(look, bus3="/dev/kfd is missing", bus6="/dev/kfd is missing")
    look.options = {"lab_report": report(devices=both)}
    fires(look(), "lab.devices", BLOCKS)

    look.options = {"lab_report": report(devices=seen(look))}
    silent(look(), "lab.devices")


@pytest.fixture
def partitions(tmp_path: Path) -> Looker:
    """Look at a host with one GPU in eight partitions, which share its PCI address."""
    root = write_host(tmp_path / "cpx", gpus=1, profile="instinct", partition="cpx")
    return Looker(root, tmp_path / "project")


def test_each_partition_is_looked_for_by_itself(partitions: Looker) -> None:
    """One of eight that is missing is named, whichever it is; with all of them it is silent."""
    there = seen(partitions)
    assert len(there) == 8
    assert len({one["pci_address"] for one in there}) == 1

    for lacking in (0, 3, 7):
        devices = [
            {**one, "is_usable": False, "why_not": "not here"} if n == lacking else one for n, one in enumerate(there)
        ]
        partitions.options = {"lab_report": report(devices=devices)}
        found = fires(partitions(), "lab.devices", WARNS)
        assert f"partition {there[lacking]['partition']} of the GPU at {there[0]['pci_address']}" in found.problem.what

    partitions.options = {"lab_report": report(devices=there)}
    silent(partitions(), "lab.devices")


def test_a_lab_with_one_partition_of_eight_has_what_was_chosen(partitions: Looker) -> None:
    """It cannot tell which partition it has, for it sees one alone; the node of the topology tells."""
    chosen = seen(partitions)[5]
    partitions.chosen = {"GPUS": str(chosen["index"])}
    alone = {**chosen, "index": 0, "partition": 0}
    partitions.options = {"lab_report": report(devices=[alone])}
    silent(partitions(), "lab.devices")

    other = {**alone, "kfd_node": chosen["kfd_node"] + 1}
    partitions.options = {"lab_report": report(devices=[other])}
    fires(partitions(), "lab.devices", WARNS)


def test_the_mend_is_for_what_keeps_the_gpu_out(look: Looker) -> None:
    """A node that was not passed needs a new container, one that is closed its rights, a mask none of both."""
    nodes = [{"path": path} for path in ("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129")]

    def fix(index: int | None, nodes: list[dict[str, str]]) -> str:
        devices = seen(look, bus6="in words that no one reads")
        devices[1]["index"] = index
        look.options = {"lab_report": report(devices=devices, nodes=nodes)}
        return fires(look(), "lab.devices", WARNS).problem.fix

    assert "make down && make up" in fix(None, nodes[:2])
    assert "see dev.perm" in fix(None, nodes)
    assert "make down && make up" in fix(None, nodes[1:])
    assert "take the mask out of .env" in fix(1, nodes)


def test_a_gpu_that_was_not_chosen_is_not_missed(look: Looker) -> None:
    """GPUS=0 is what the user asked for."""
    look.chosen = {"GPUS": "0"}
    look.options = {"lab_report": report(devices=seen(look, bus6="/dev/dri/renderD129 is missing"))}

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


def test_a_lab_that_cannot_be_queried(look: Looker) -> None:
    """Its silence is a finding; an answer is none; no lab is neither."""
    problem = {"what": "the running lab does not answer", "why": "said", "fix": "make logs"}
    look.options = {"lab_report": report(problem=problem)}
    assert fires(look(), "lab.answers", WARNS).problem.what == "the running lab does not answer"

    look.options = {"lab_report": report()}
    silent(look(), "lab.answers")

    look.options = {}
    assert "`make up` starts it" in skipped(look(), "lab.answers")


class FakeContainer(DockerLab):
    """Docker's lab, with a program of the test for an engine."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.environment = {"PATH": "/usr/bin:/bin"}

    def container(self, *, running_only: bool = True) -> str:
        """One runs."""
        return "c0ffee"


def asked(tmp_path, answer: str, code: int = 0) -> Any:
    """Ask a lab whose engine prints this."""
    program = tmp_path / "engine"
    (tmp_path / "answer").write_text(answer)
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat {tmp_path}/answer\nexit {code}\n')
    program.chmod(0o755)
    project = Project(None, None, {}, FakeContainer(str(program)))
    return asking.ask(project, ["--no-frameworks"], 10)


def test_the_lab_is_asked_as_its_own_user(tmp_path) -> None:
    """Through the entry point, which joins the groups; exit code 2 is an answer as well."""
    found = asked(tmp_path, 'noise\n{"findings": [], "uid": 1000}\n', code=2)

    assert found == {"findings": [], "uid": 1000}
    words = (tmp_path / "words").read_text().strip()
    assert words == "exec c0ffee start.sh rocmlab doctor --json --side container --no-frameworks"


def test_a_native_lab_is_asked_by_its_own_python(look: Looker) -> None:
    """With the server's environment; before `.venv` is there, nothing can be asked."""
    settings = look.project().settings
    values = {"PORT": "0", "JUPYTER_TOKEN": "t", "SHARE": "./share", "ROCMLAB_BACKEND": "cpu"}
    environment = Environment(
        settings.project, backend="cpu", python=sys.executable, torch_index="", tensorflow_index=""
    )
    lab = NativeLab(settings, values, environment)
    project = Project(settings, look.project().choice, values, lab)
    assert (lab.is_built(), lab.inside(), asking.ask(project, [], 10)) == (False, None, None)

    interpreter = lab.venv.interpreter
    interpreter.parent.mkdir(parents=True)
    interpreter.write_text('#!/bin/sh\necho "{\\"findings\\": [], \\"said\\": \\"$ROCMLAB_RUNTIME $*\\"}"\n')
    interpreter.chmod(0o755)

    assert lab.is_built()
    assert asking.ask(project, ["--quick"], 10) == {
        "findings": [],
        "said": "native -P -m rocmlab doctor --json --side container --quick",
    }
    assert lab.disk() == settings.project


def test_what_would_keep_other_machines_out(look: Looker) -> None:
    """An address that is gone, a key that others read, and a certificate that ends; nothing without BIND."""
    assert skipped(look(), "lab.tls") == "BIND is not set"
    look.env_file(BIND="198.51.100.7")
    assert "not an address of this host" in fires(look(), "lab.tls", WARNS).problem.what

    look.env_file(BIND="127.0.0.1", TLS_PORT=str(free_port()))
    settings = look().project.settings
    tls.prepare(settings, tls.values(settings, "gpu1"))
    assert "valid for 800 days" in silent(look(), "lab.tls").evidence[0]

    path = tls.path_of(settings)
    path.chmod(0o640)
    assert fires(look(), "lab.tls", WARNS).problem.fix == f"chmod 600 {path}"

    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=x", "-keyout", str(path.with_name("key")), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    path.chmod(0o600)
    assert "ends in 2 days" in fires(look(), "lab.tls", WARNS).problem.what


def test_what_starts_is_said_by_what_is_built(look: Looker) -> None:
    """A lab that no one has built takes longer."""
    assert skipped(look(), "lab.devices") == "no lab runs"
    look.lab = QuietLab(built=True)
    assert "none is built" not in skipped(look(), "lab.answers")
    look.lab = QuietLab(prepared=True)
    assert "none is built" in skipped(look(), "lab.answers")


def test_a_lab_from_before_doctor(tmp_path) -> None:
    """It does not know the command: the fix is a new image."""
    found = asked(tmp_path, "rocmlab: error: there is no verb 'doctor'; choose one of: up\n", code=2)

    assert found["problem"]["fix"] == "make build && make up"


def test_nonsense_from_the_lab_is_a_finding(tmp_path) -> None:
    """No traceback, whatever it says."""
    for answer in ("", "{", "Killed\n", '{"findings": 3}', "{}"):
        assert asked(tmp_path, answer)["problem"]["what"], answer


def test_frameworks_that_could_not_be_installed(look: Looker) -> None:
    """Why they were not is shown; while they are being installed, or where all is there, nothing is wrong."""
    look.lab = QuietLab(missing=Problem("PyTorch could not be installed", "no index answers", "make up"))
    assert fires(look(), "lab.kernels", WARNS).problem == look.lab.missing

    for missing in ("PyTorch is being installed", None):
        look.lab = QuietLab(missing=missing)
        silent(look(), "lab.kernels")


def test_what_apt_txt_names_and_the_host_lacks_is_a_warning(look: Looker) -> None:
    """It has the command."""
    silent(look(), "lab.system_packages")
    look.lab.lacks = ("graphviz",)

    assert "graphviz" in fires(look(), "lab.system_packages", WARNS).problem.what
