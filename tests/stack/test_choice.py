"""Which backend and runtime a host gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hosts import Gpu, make_host

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.stack.choice import Host, choose, inspect
from rocmlab.stack.engine import Engine
from rocmlab.stack.podman_engine import Podman

RUNNING = Engine(is_usable=True, version="26.1.5", operating_system="Debian GNU/Linux 12")
ABSENT = Engine(is_usable=False)
DOWN = Engine(
    is_usable=False,
    problem=Problem("the engine does not answer", "it is down", "sudo systemctl start docker"),
)
DESKTOP = Engine(is_usable=True, version="28.0", operating_system="Docker Desktop")
ROOTLESS = Engine(is_usable=True, version="28.0", security=("name=rootless",))
SNAP = Engine(is_usable=True, version="28.0", is_snap=True)
ROOTFUL = Podman(is_usable=True, version="4.3.1", oci_runtime="crun")
PERSONAL = Podman(is_usable=True, version="5.4.2", oci_runtime="crun", is_rootless=True)
WITHOUT_CRUN = Podman(is_usable=True, version="4.3.1", oci_runtime="runc", is_rootless=True)
BROKEN_PODMAN = Podman(
    is_usable=False, problem=Problem("newuidmap is missing", "not installed", "sudo apt install uidmap")
)


class TestAuto:
    """Nothing asked: the best that the host can do."""

    @pytest.mark.parametrize(
        ("host", "expected"),
        [
            (Host(RUNNING, has_amd=True), ("rocm", "docker")),
            (Host(RUNNING, has_amd=True, has_nvidia=True, has_nvidia_toolkit=True), ("rocm", "docker")),
            (Host(RUNNING, has_nvidia=True, has_nvidia_toolkit=True), ("cuda", "docker")),
            (Host(RUNNING), ("cpu", "docker")),
            (Host(ABSENT), ("cpu", "native")),
            (Host(ABSENT, is_mac=True), ("metal", "native")),
            (Host(RUNNING, is_mac=True), ("metal", "native")),
            (Host(ABSENT, has_amd=True, has_rocm=True), ("rocm", "native")),
            (Host(ABSENT, has_nvidia=True), ("cuda", "native")),
            (Host(ABSENT, has_nvidia=True, podman=ROOTFUL), ("cuda", "native")),
            (Host(RUNNING, podman=ROOTFUL), ("cpu", "docker")),
            (Host(ABSENT, podman=ROOTFUL), ("cpu", "podman")),
            (Host(DOWN, has_amd=True, podman=PERSONAL), ("rocm", "podman")),
            (Host(ROOTLESS, podman=PERSONAL), ("cpu", "podman")),
            (Host(Engine(True, is_remote=True), has_amd=True, podman=PERSONAL), ("rocm", "podman")),
            (Host(DESKTOP, has_amd=True, podman=PERSONAL), ("rocm", "podman")),
            (Host(SNAP, has_amd=True, podman=ROOTFUL), ("rocm", "podman")),
            (Host(SNAP, podman=ROOTFUL), ("cpu", "docker")),
            (Host(RUNNING, has_wsl_gpu=True), ("rocm", "docker")),
            (Host(RUNNING, has_amd=True, simulated="/sim"), ("cpu", "docker")),
        ],
    )
    def test_the_host_decides(self, host: Host, expected: tuple[str, str]) -> None:
        """GPU nodes decide the backend, the engine decides the runtime."""
        choice = choose(host)

        assert expected == (choice.backend, choice.runtime)

    def test_an_image_for_another_host_needs_no_gpu_here(self) -> None:
        """GFX names its targets; without GFX the missing GPU is an error."""
        chosen = choose(Host(RUNNING), "rocm", is_for_another_host=True)

        assert (chosen.backend, chosen.runtime, chosen.is_wsl) == ("rocm", "docker", False)
        assert choose(Host(RUNNING), "cuda", "docker", is_for_another_host=True).backend == "cuda"
        assert choose(Host(RUNNING, has_wsl_gpu=True), "rocm", is_for_another_host=True).is_wsl
        with pytest.raises(RocmlabError, match="no usable AMD GPU"):
            choose(Host(RUNNING), "rocm")

    def test_why_it_is_not_docker_is_said(self) -> None:
        """In the one line that `make up` prints first."""
        assert "because the snap package of Docker" in choose(Host(SNAP, has_amd=True, podman=ROOTFUL)).why
        assert "because" not in choose(Host(ABSENT, has_amd=True, podman=ROOTFUL)).why

    @pytest.mark.parametrize(
        ("host", "what"),
        [
            (Host(DOWN, podman=PERSONAL), "does not answer"),
            (Host(SNAP, has_amd=True, podman=PERSONAL), "snap package"),
        ],
    )
    def test_a_lab_of_dockers_does_not_move_by_itself(self, host: Host, what: str) -> None:
        """Docker is only down: the share is in its volume, and the lab would seem empty under Podman."""
        with pytest.raises(RocmlabError, match=what):
            choose(host, before="docker")

        assert choose(host).runtime == choose(host, before="podman").runtime == "podman"
        assert choose(host, runtime="podman", before="docker").runtime == "podman"

    def test_a_lab_of_podmans_does_not_move_because_docker_came(self) -> None:
        """Its share would be another, empty one."""
        host = Host(RUNNING, podman=PERSONAL)

        assert choose(host).runtime == "docker"
        assert choose(host, before="podman").runtime == "podman"
        assert choose(replace(host, has_nvidia=True, has_nvidia_toolkit=True), before="podman").runtime == "docker"

    def test_what_is_special_is_remembered(self) -> None:
        """WSL2, a simulated host and a rootless engine each change what the lab is given, and the line reports it."""
        wsl = choose(Host(RUNNING, has_wsl_gpu=True))
        simulated = choose(Host(RUNNING, has_amd=True, simulated="/sim"))
        rootless = choose(Host(ABSENT, has_amd=True, podman=PERSONAL))

        assert (wsl.is_wsl, simulated.is_wsl, rootless.is_wsl) == (True, False, False)
        assert (wsl.is_simulated, simulated.is_simulated) == (False, True)
        assert (rootless.is_rootless, wsl.is_rootless) == (True, False)
        assert "/dev/dxg" in wsl.why
        assert "SIMULATED host /sim" in simulated.why
        assert "rootless Podman 5.4.2" in rootless.why

    def test_an_amd_gpu_without_driver_is_named(self) -> None:
        """The CPU is chosen, and the line says that there is a GPU and what it lacks."""
        choice = choose(Host(RUNNING, amd_without_driver="0000:03:00.0"))

        assert choice.backend == "cpu"
        assert "0000:03:00.0 has no driver" in choice.why


class TestNeverSilent:
    """A GPU that is there, or was requested, and cannot be used is an error."""

    @pytest.mark.parametrize(
        ("before", "host", "why"),
        [
            ("rocm", Host(RUNNING), "/dev/kfd is missing"),
            ("rocm", Host(RUNNING, amd_without_driver="0000:03:00.0"), "0000:03:00.0 has no driver"),
            ("cuda", Host(ABSENT), "/dev/nvidia0 is missing"),
        ],
    )
    def test_a_lab_that_had_gpus_does_not_go_to_the_cpu(self, before: str, host: Host, why: str) -> None:
        """As after an update of the Linux kernel without the driver: a night's run would compute on the CPU."""
        with pytest.raises(RocmlabError, match=why) as caught:
            choose(host, backend_before=before)

        assert "make up BACKEND=cpu" in caught.value.problem.fix
        assert choose(host, "cpu", backend_before=before).backend == "cpu"
        assert choose(host, backend_before="cpu").backend == "cpu"
        assert (
            choose(replace(host, has_amd=True, has_rocm=True, amd_without_driver=None), backend_before="cuda").backend
            == "rocm"
        )
        assert choose(replace(host, simulated="/sim"), backend_before=before).backend == "cpu"

    @pytest.mark.parametrize(
        ("host", "backend", "runtime", "what"),
        [
            (Host(RUNNING), "rocm", "auto", "BACKEND=rocm was requested"),
            (Host(RUNNING), "cuda", "auto", "BACKEND=cuda was requested"),
            (Host(RUNNING), "metal", "auto", "this is not a Mac"),
            (Host(DOWN), "auto", "auto", "does not answer"),
            (Host(ABSENT), "auto", "docker", "Docker engine was not found"),
            (Host(DOWN), "auto", "docker", "does not answer"),
            (Host(DESKTOP, has_amd=True), "auto", "auto", "Docker Desktop cannot pass"),
            (Host(SNAP, has_amd=True), "auto", "auto", "snap package"),
            (Host(SNAP, has_amd=True, podman=WITHOUT_CRUN), "auto", "auto", "snap package"),
            (Host(ROOTLESS), "auto", "auto", "rootless Docker engine"),
            (Host(Engine(True, is_remote=True), has_amd=True), "auto", "auto", "another machine"),
            (Host(RUNNING, has_nvidia=True), "auto", "auto", "cannot be passed"),
            (Host(ABSENT, has_amd=True), "auto", "auto", "neither Docker nor ROCm"),
            (Host(ABSENT, is_mac=True), "metal", "docker", "Docker engine was not found"),
            (Host(RUNNING, is_mac=True), "metal", "docker", "Metal cannot be used"),
            (Host(RUNNING), "opencl", "auto", "BACKEND=opencl is unknown"),
            (Host(RUNNING), "auto", "lxc", "RUNTIME=lxc is unknown"),
            (Host(RUNNING), "auto", "podman", "Podman was not found"),
            (Host(ABSENT, podman=BROKEN_PODMAN), "auto", "auto", "newuidmap"),
            (Host(ABSENT, podman=BROKEN_PODMAN), "auto", "podman", "newuidmap"),
            (Host(ABSENT, has_amd=True, podman=WITHOUT_CRUN), "auto", "auto", "rootless Podman with runc"),
            (Host(ABSENT, has_nvidia=True, podman=ROOTFUL), "cuda", "podman", "not passed to Podman"),
            (Host(ABSENT, is_mac=True, podman=ROOTFUL), "metal", "podman", "Metal cannot be used"),
            (Host(RUNNING, simulated="/sim", has_amd=True), "rocm", "auto", "the host is simulated"),
            (Host(Engine(True, is_remote=True)), "cpu", "auto", "another machine"),
        ],
    )
    def test_it_stops_with_a_problem(self, host: Host, backend: str, runtime: str, what: str) -> None:
        """What, why and fix are all there."""
        with pytest.raises(RocmlabError, match=what) as caught:
            choose(host, backend, runtime)

        assert caught.value.exit_code == 2
        assert caught.value.problem.why
        assert caught.value.problem.fix

    def test_the_cpu_can_be_asked_for_on_any_engine(self) -> None:
        """BACKEND=cpu is a way out of every GPU problem."""
        assert choose(Host(DESKTOP, has_amd=True), "cpu").runtime == "docker"


class TestInspect:
    """Looking at a host."""

    def test_amd_device_nodes_are_seen(self, tmp_path: Path) -> None:
        """/dev/kfd with a GPU in the topology makes an AMD host."""
        assert inspect(ABSENT, make_host(tmp_path, Gpu(1, 0x0300, 128))).has_amd

    def test_a_card_without_driver_is_found_on_the_pci_bus(self, tmp_path: Path) -> None:
        """An AMD display device without /dev/kfd is remembered by its address."""
        device = tmp_path / "sys/bus/pci/devices/0000:03:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1002\n")
        (device / "class").write_text("0x030000\n")

        host = inspect(ABSENT, tmp_path)

        assert (host.has_amd, host.amd_without_driver) == (False, "0000:03:00.0")

    @pytest.mark.parametrize("driver", ["radeon", "amdgpu"])
    def test_a_card_older_than_rocm_leaves_the_cpu(self, tmp_path: Path, driver: str) -> None:
        """Also where amdgpu has it, which makes /dev/kfd and a render node for it."""
        root = make_host(tmp_path, Gpu(None, 0x0300, 128, device_id=0x679A, driver=driver))
        host = replace(inspect(ABSENT, root), simulated=None)

        choice = choose(host, runtime="native")

        assert choice.backend == "cpu"
        assert "0000:03:00.0 is GCN 1 (Tahiti), which ROCm has never supported" in choice.why
        with pytest.raises(RocmlabError, match="BACKEND=rocm") as caught:
            choose(host, "rocm", "native")
        assert "GCN 1 (Tahiti)" in caught.value.problem.why

    def test_a_card_older_than_rocm_leaves_the_cpu_also_with_a_kfd_node(self, tmp_path: Path) -> None:
        """The kernel gives Hawaii (GCN 2) one."""
        root = make_host(tmp_path, Gpu(1, 0x0300, 128, gfx_target_version=70001, device_id=0x67B0))

        assert choose(replace(inspect(ABSENT, root), simulated=None), runtime="native").backend == "cpu"

    @pytest.mark.parametrize(("lent", "expected"), [([], True), (["libcuda.so.1"], False), (["nvidia-smi"], False)])
    def test_wsl_is_told_by_its_node(self, tmp_path: Path, lent: list[str], expected: bool) -> None:
        """/dev/dxg serves every vendor's GPU; NVIDIA's driver for WSL, where Windows lends it, tells whose it is."""
        (tmp_path / "usr/lib/wsl/lib").mkdir(parents=True)
        for name in lent:
            (tmp_path / "usr/lib/wsl/lib" / name).touch()
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/dxg").touch()

        assert inspect(ABSENT, tmp_path).has_wsl_gpu is expected

    def test_the_nvidia_runtime_of_the_engine_counts(self, tmp_path: Path) -> None:
        """The engine's list of runtimes tells that the container toolkit is configured."""
        (tmp_path / "dev").mkdir()
        (tmp_path / "dev/nvidia0").touch()

        host = inspect(Engine(is_usable=True, runtimes=("runc", "nvidia")), tmp_path)

        assert (host.has_nvidia, host.has_nvidia_toolkit) == (True, True)
