"""The same lab under Debian's Podman, as root and as an ordinary user."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import podmans
import pytest
import standins
from claims import CLAIM, FOLDER, claimed, in_container, simulated
from clones import free_port, printed_url
from hosts import Gpu, make_host
from podmans import Host

from rocmlab.base import lease_folder
from rocmlab.devices import discover
from rocmlab.kernels.leases import Leases

pytestmark = [pytest.mark.container, pytest.mark.podman]
NODES = {"/dev/kfd": 61104, "/dev/dri/renderD128": 61992, "/dev/dri/renderD129": 61993}
OPEN = "import os; [os.close(os.open(path, os.O_RDWR)) for path in {paths}]; print(os.getuid(), sorted(os.getgroups()))"
START = """
from rocmlab.stack import project
found = project.plan(project.find())
found = project.prepare(found, print)
found.lab.start(print)
print(found.choice.backend, found.choice.runtime, found.choice.why)
"""
# The GPUs are those of a folder, whose /dev is this machine's.
SUBSET = """
from pathlib import Path
from rocmlab.stack import live, podman_engine, project, settings
from rocmlab.stack.choice import Choice
from rocmlab.stack.engine import Engine
podman = podman_engine.probe()
choice = Choice("rocm", "podman", "test", is_rootless=podman.is_rootless)
found = project._assemble(settings.load(project.find()), choice, Engine(is_usable=False), podman, Path("{root}"))
print("\\n".join(project.notes(found)))
project.write(found)
live.ensure_folder(found.settings)  # which `make up` does also: Podman mounts no folder that is missing
found.lab.start(print)
"""


@pytest.fixture(scope="module")
def slim(image: str, make_project, base_image: str) -> Iterator[str]:
    """The lab's image without frameworks."""
    tag = podmans.slim_image(image, make_project("cpu", BASE_IMAGE=base_image).folder)
    yield tag
    podmans.docker("image", "rm", tag)


@pytest.fixture(scope="module")
def root(slim: str, base_image: str) -> Iterator[Host]:
    """Rootful Podman with the image for the CPU."""
    with podmans.rootful(base_image) as host, host.lent(slim):
        host.load(slim)
        yield host
        host.forget("rocm")
        host.make("clean", succeeds=False)  # before the image goes that its own was made from


@pytest.fixture(scope="module")
def person(slim: str, base_image: str) -> Iterator[Host]:
    """Rootless Podman of a user who is in the groups of the nodes, with the image for the CPU."""
    with podmans.rootless(base_image, tuple(NODES.values())) as host, host.lent(slim):
        host.load(slim)
        yield host
        host.forget("rocm")
        host.make("clean", succeeds=False)


ROOTFUL = pytest.mark.long("Podman as root")


@pytest.fixture(params=[pytest.param("root", marks=ROOTFUL), "person"])
def host(request: pytest.FixtureRequest) -> Host:
    """Each of the two."""
    return request.getfixturevalue(request.param)


class TestEveryday:
    """The same commands as with Docker."""

    def test_make_up_ends_with_a_url_that_answers(self, host: Host) -> None:
        """The line says which Podman; the token is needed; a second `make up` changes nothing; `make down` stops."""
        first = host.make("up")
        started = host.run("podman", "ps", "--no-trunc", "--format", "{{.ID}} {{.StartedAt}}")
        answers = host.lab.answers()
        second = host.make("up")
        again = host.run("podman", "ps", "--no-trunc", "--format", "{{.ID}} {{.StartedAt}}")
        status = host.make("status")
        down = host.make("down")

        assert "backend cpu, runtime podman" in first
        assert "building" not in first
        assert answers
        assert printed_url(first) == printed_url(second)
        assert started == again
        assert "answers (backend cpu, runtime podman)" in status
        assert "the share is kept: Podman volume" in down
        assert not host.lab.answers()

    def test_the_lab_user_owns_what_it_saves(self, host: Host) -> None:
        """It is uid 1000 without capabilities inside; outside, the notebooks folder's owner, or jovyan for root's."""
        host.make("up")
        status = host.inside("cat", "/proc/self/status")
        runtime = host.inside("printenv", "ROCMLAB_RUNTIME")
        host.inside("bash", "-c", "touch ~/work/mine ~/share/runs/mine ~/here && echo kept > ~/share/models/note")
        owner = (host.lab.folder / "notebooks/mine").stat().st_uid
        host.make("down")
        host.make("up")
        kept = host.inside("cat", "/home/jovyan/share/models/note")
        host.make("down")

        facts = dict(line.split(":\t", 1) for line in status.splitlines() if line)
        assert set(facts["Uid"].split()) == {"1000"}
        assert [int(facts[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")] == [0, 0, 0, 0]
        assert facts["NoNewPrivs"] == "1"
        assert runtime == "podman\n"
        assert owner == (host.uid or 1000)
        assert kept == "kept\n"

    def test_a_backup_and_its_restore_into_a_new_volume(self, host: Host) -> None:
        """Made by the user who runs Podman and theirs alone; restored, the files are the lab user's."""
        volume = f"{host.lab.settings['COMPOSE_PROJECT_NAME']}_share"
        host.make("up")
        host.inside("bash", "-c", "mkdir -m 700 ~/share/mine && echo saved >~/share/mine/a && chmod 600 ~/share/mine/a")
        saved = ("/home/jovyan/share/mine", "/home/jovyan/share/mine/a")
        before = host.inside("stat", "--format=%u %a", *saved)
        backups = host.lab.folder / "share/backups"
        made = host.make("backup", TO=str(backups))
        host.make("down", FORCE="1")
        host.run("podman", "volume", "rm", volume)
        restored = host.make("restore", FROM=str(backups))
        host.make("up")
        content = host.inside("cat", "/home/jovyan/share/mine/a")
        after = host.inside("stat", "--format=%u %a", *saved)
        host.make("down", FORCE="1")
        (backup,) = backups.iterdir()

        assert "is complete" in made
        assert "restored" in restored
        assert (content, after) == ("saved\n", before)
        assert before.splitlines()[1] == "1000 600"
        assert (backup.stat().st_uid, backup.stat().st_mode & 0o777) == (host.uid, 0o700)

    def test_a_run_while_the_lab_is_down_has_a_container_of_its_own(self, host: Host) -> None:
        """Its exit code is the run's, and nothing is left of it."""
        printed = host.make("run-notebooks", RUN="--resume no_such_run", succeeds=False)  # only the share knows

        assert "no_such_run" in printed
        assert not host.run("podman", "ps", "--all", "--quiet").strip()

    @pytest.mark.long
    def test_settings_reach_the_lab_and_no_other(self, person: Host) -> None:
        """What compose.yaml passes of `.env` is passed, /dev/shm has its size, the port is the loopback's.

        As root the command is the same; rootless, where ports are forwarded by a program, less works.
        """
        person.make("up", SHM_SIZE="96mb")
        with open(person.lab.folder / ".env", "a", encoding="utf-8") as file:
            file.write("NCCL_DEBUG=INFO\nNOT_OURS=1\nLAB_BASE_URL=/gpu1/\n")
            file.write(f"BIND=127.0.0.2\nTLS_PORT={(tls_port := free_port())}\n")
        again = person.make("up", SHM_SIZE="96mb")
        seen = person.inside("bash", "-c", "echo $NCCL_DEBUG-$NOT_OURS-$(df --output=size -m /dev/shm | tail -1)")
        port = person.run("podman", "port", f"{person.lab.settings['COMPOSE_PROJECT_NAME']}-lab")
        person.make("down")
        path = person.lab.folder / ".env"
        kept = path.read_text(encoding="utf-8").splitlines()
        others = [line for line in kept if not line.startswith(("LAB_BASE_URL=", "BIND=", "TLS_PORT="))]
        path.write_text("\n".join([*others, ""]), encoding="utf-8")

        assert "restarted with the new settings" in again
        assert f"http://127.0.0.1:{person.lab.port}/gpu1/lab?token=" in again  # where it has answered
        assert "".join(seen.split()) == "INFO--96"
        assert sorted(port.split("\n")) == sorted(
            ["", f"8888/tcp -> 127.0.0.1:{person.lab.port}", f"8443/tcp -> 127.0.0.2:{tls_port}"]
        )
        assert f"https://127.0.0.2:{tls_port}/gpu1/lab?token=" in again


class TestLeases:
    """GPUs of a SIMULATED host, which labs of other engines and users have as well."""

    def test_a_whole_lab_shares_no_gpu_with_a_lab_in_docker(self, host: Host, image: str) -> None:
        """The lab that `make up` starts leases in the host's folder, which it mounts without any setting."""
        with simulated(2) as top:
            lease_folder.ensure(top / FOLDER)
            host.make("up", ROCMLAB_ROOT=str(top))
            try:
                with (
                    claimed(in_container(image, top, 1000, "alice")) as first,
                    claimed(host.command_inside("/opt/rocmlab/bin/python", "-c", CLAIM), **host.lab.environment) as own,
                    claimed(in_container(image, top, 1001, "bob")) as refused,
                ):
                    gpus = [device for device in discover(top, {}) if device.backend == "rocm"]
                    uids = [Leases.of_host(root=top).held(gpus)[gpu].uid for gpu in gpus]
            finally:
                host.make("down", FORCE="1")
                host.run("sed", "--in-place", "/^ROCMLAB_ROOT=/d", ".env")

        assert (first, own) == ([0], [1])
        assert "no GPU is free" in str(refused)
        assert "alice" in str(refused)
        assert uids == [1000, host.uid or 1000]  # outside, the lab's user of a rootless engine is who runs it


class TestGpus:
    """Device nodes; character devices with odd groups stand in for GPUs."""

    def test_the_lab_user_opens_every_node(self, host: Host, slim: str, request: pytest.FixtureRequest) -> None:
        """As root by their numeric groups; rootless by the user's own groups, which show as nogroup inside."""
        leases = Path(lease_folder.USUAL)
        if leases.is_dir() and not list(leases.iterdir()):  # as after a boot: Podman does not make what it mounts
            leases.rmdir()
        with standins.host_nodes(NODES):
            host.load(slim, "rocm")
            printed = host.python(START, BACKEND="rocm")
            try:
                can_lease = host.inside("bash", "-c", f"mountpoint -q {leases} && test -w {leases} && echo yes")
                seen = host.inside("python3", "-c", OPEN.format(paths=list(NODES)))
                log = host.run("podman", "logs", f"{host.lab.settings['COMPOSE_PROJECT_NAME']}-lab", succeeds=False)
            finally:
                host.make("down", succeeds=False)

        assert "rocm podman" in printed
        assert can_lease == "yes\n"
        assert "error:" not in log
        if host.uid:
            assert seen.split(" ", 1) == ["1000", "[100, 65534, 65534, 65534]\n"]
        else:
            assert seen == "1000 [100, 61104, 61992, 61993]\n"

    def test_gpus_passes_a_subset_or_masks_and_says_so(self, host: Host, slim: str) -> None:
        """As root exactly the chosen node is there; rootless all are, a mask hides the others, and a line says it."""
        folder = host.lab.folder.parent / "topology"  # which that user may read, as not pytest's own folders
        topology = make_host(folder, Gpu(1, 0x8300, 129), Gpu(2, 0x0300, 128, unique_id=7))
        shutil.rmtree(topology / "dev")
        (topology / "dev").symlink_to("/dev")
        with standins.host_nodes(NODES):
            host.load(slim, "rocm")
            try:
                printed = host.python(SUBSET.format(root=topology), GPUS="0", BACKEND="rocm")
                nodes = host.inside("ls", "/dev/dri").split()
                masks = host.inside("bash", "-c", "echo ${HIP_VISIBLE_DEVICES-none} ${ROCR_VISIBLE_DEVICES-none}")
            finally:
                host.make("down", succeeds=False)
                for name in (".env", ".rocmlab/written.json"):  # GPUS would stay chosen
                    (host.lab.folder / name).unlink(missing_ok=True)

        assert nodes == (["renderD128", "renderD129"] if host.uid else ["renderD129"])
        assert masks == ("0 none\n" if host.uid else "none none\n")
        assert ("rootless Podman passes every GPU you may open" in printed) is bool(host.uid)

    def test_without_the_group_the_person_is_told(self, person: Host) -> None:
        """A user outside the groups may open no node: `make up` stops before anything is built."""
        outside = [word.split(",")[0] if word.startswith("--groups=") else word for word in person.prefix]
        with standins.host_nodes(NODES):
            printed = replace(person, prefix=outside).make("up", BACKEND="rocm", succeeds=False)

        assert "error: rootless Podman cannot open /dev/kfd, because you may not" in printed
        assert "usermod -aG render,video" in printed


@pytest.mark.long
@ROOTFUL
def test_the_dockerfile_builds_with_podman(root: Host, slim: str) -> None:
    """The stage that makes the package: cache and bind mounts, secrets, the named context, one ARG a line.

    Its base is the image that Podman has by now, and that has Debian's packages.
    """
    folder = root.lab.folder
    program = (
        "from rocmlab.stack import project\nfound = project.plan(project.find())\nproject.write(found)\n"
        "print('\\n'.join([*found.lab._build_command()]))"
    )
    command = root.python(program, BACKEND="cpu", BASE_IMAGE=slim).splitlines()
    tag = "localhost/rocmlab-test/podman-package"
    command[command.index("--tag") + 1] = tag
    try:
        root.run(*command[:-1], "--target=package", command[-1])
        wheels = root.run("podman", "run", "--rm", "--entrypoint", "ls", tag, "/dist")
    finally:
        root.run("podman", "image", "rm", "--force", tag, succeeds=False)
        root.run("podman", "image", "prune", "--force", succeeds=False)

    assert wheels.startswith("rocmlab-")
    assert not (Path(folder) / ".rocmlab/Containerfile").read_text().count("--start-interval")
