"""The kernel's side: each check made to fire on a simulated host, repaired, and asked again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hosts import Gpu, make_host, write_node, write_partition
from situations import TWO, Looker, fires, host, pci, put, silent, skipped

from rocmlab.doctor import checks
from rocmlab.doctor.model import BLOCKS, WARNS


@pytest.fixture
def wsl(tmp_path: Path) -> Looker:
    """Looks at WSL2 with ROCm installed on it."""
    root = tmp_path / "host"
    put(root, "dev/dxg", "")
    return Looker(root, tmp_path / "project", runtime="native")


def test_wsl_needs_to_be_told(wsl: Looker) -> None:
    """The variable, exported, makes the check silent; the lab's container has it by itself."""
    found = fires(wsl(), "wsl", WARNS)
    assert found.problem.fix == "export HSA_ENABLE_DXG_DETECTION=1"
    assert "metrics of the GPU cannot be read on WSL2" in found.evidence

    wsl.environment = {"HSA_ENABLE_DXG_DETECTION": "1"}
    silent(wsl(), "wsl")
    wsl.environment, wsl.runtime = {}, "docker"
    silent(wsl(), "wsl")


def test_wsl_with_a_second_runtime(wsl: Looker) -> None:
    """The distribution's comes first and fails; removed, all is well."""
    wsl.environment = {"HSA_ENABLE_DXG_DETECTION": "1"}
    put(wsl.root, "opt/rocm/lib/x", "")
    library = put(wsl.root, "usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1", "")
    assert fires(wsl(), "wsl", WARNS).problem.fix == "sudo apt remove libhsa-runtime64-1"

    library.unlink()
    silent(wsl(), "wsl")


def test_wsl_with_a_gpu_of_another_vendor(wsl: Looker) -> None:
    """/dev/dxg is every vendor's node, and a lab on CUDA has no trouble of ROCm's."""
    wsl.backend = "cuda"

    assert skipped(wsl(), "wsl") == "no AMD GPU was found"


def test_a_linux_of_its_own_is_not_wsl(look: Looker) -> None:
    """With /dev/kfd, or without /dev/dxg."""
    silent(look(), "wsl")
    (look.root / "dev/dxg").touch()
    silent(look(), "wsl")


def test_a_missing_driver_is_named_by_the_gpu_that_waits_for_it(tmp_path: Path) -> None:
    """`modprobe amdgpu`, imitated, makes the check silent."""
    root = make_host(tmp_path / "host", kfd=False)
    pci(root, "0000:03:00.0", None)
    look = Looker(root, tmp_path / "project", backend="cpu")

    found = fires(look(), "kernel.amdgpu", BLOCKS)
    assert "0000:03:00.0" in found.problem.what
    assert "sudo modprobe amdgpu" in found.problem.fix
    assert "/sys/module/amdgpu/initstate: missing" in found.evidence

    put(root, "sys/module/amdgpu/initstate", "live")
    silent(look(), "kernel.amdgpu")


def test_a_driver_in_the_kernel_itself_is_loaded(tmp_path: Path) -> None:
    """Without `initstate` there is nothing to `modprobe`; a GPU that it has not taken sends to the kernel's log."""
    root = make_host(tmp_path / "host", kfd=False)
    put(root, "sys/module/amdgpu/parameters/gpu_recovery", "-1")
    pci(root, "0000:03:00.0", "amdgpu")
    look = Looker(root, tmp_path / "project", backend="cpu")

    assert "built into the kernel" in silent(look(), "kernel.amdgpu").evidence[0]
    assert silent(look(), "kernel.secureboot").evidence == ("amdgpu is loaded",)

    pci(root, "0000:03:00.0", None)
    found = fires(look(), "kernel.amdgpu", BLOCKS)
    assert "modprobe" not in found.problem.fix
    assert "dmesg" in found.problem.fix
    assert "modprobe" not in str(look().examined[0][0].why_not)


@pytest.mark.parametrize("driver", ["radeon", "amdgpu", None])
def test_a_card_older_than_rocm_gets_no_advice_that_cannot_help(tmp_path: Path, driver: str | None) -> None:
    """GCN 1 and 2: one note names the generation; no check sends to dmesg, another slot or another driver."""
    root = host(tmp_path / "host", Gpu(None, 0x0300, 128, device_id=0x679A, driver=driver))
    if driver != "amdgpu":
        shutil.rmtree(root / "sys/module")
    look = Looker(root, tmp_path / "project", backend="cpu")

    expected = "GCN 1 (Tahiti): ROCm has never supported it, and the CPU computes"
    assert silent(look(), "gfx.support").reason == expected
    assert {skipped(look(), id) for id in ("kernel.amdgpu", "kernel.secureboot", "pcie.atomics")} == {expected}


def test_a_gpu_of_another_driver_does_not_wait_for_amdgpu(tmp_path: Path) -> None:
    """An old Radeon with the driver `radeon`, or one for virtual machines, is left in peace."""
    root = make_host(tmp_path / "host", kfd=False)
    pci(root, "0000:03:00.0", "radeon", device="0x9440")

    assert "another driver" in skipped(Looker(root, tmp_path / "project", backend="cpu")(), "kernel.amdgpu")


def test_a_host_without_amd_gpu_has_no_amd_problems(tmp_path: Path) -> None:
    """No check about GPUs fires, or says `fine` about what is not there."""
    root = make_host(tmp_path / "host", kfd=False)
    situation = Looker(root, tmp_path / "project", backend="cpu")()
    about_gpus = ("kernel.amdgpu", "dev.perm", "gfx.support", "igpu", "iommu.pt", "gpu.answers", "env.conflict")

    assert {skipped(situation, id) for id in about_gpus} == {"no AMD GPU was found"}


def test_secure_boot_with_a_module_built_here(tmp_path: Path) -> None:
    """The key's path is the one that is there; with Secure Boot off the check is silent."""
    root = make_host(tmp_path / "host", kfd=False)
    pci(root, "0000:03:00.0", None)
    put(root, "var/lib/dkms/amdgpu/version", "6.14")
    variable = put(root, "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "")
    variable.write_bytes(b"\x06\x00\x00\x00\x01")
    look = Looker(root, tmp_path / "project", backend="cpu")

    assert "mokutil --import /var/lib/dkms/mok.pub" in fires(look(), "kernel.secureboot", BLOCKS).problem.fix
    put(root, "var/lib/shim-signed/mok/MOK.der", "")
    assert "/var/lib/shim-signed/mok/MOK.der" in fires(look(), "kernel.secureboot").problem.fix

    variable.write_bytes(b"\x06\x00\x00\x00\x00")
    silent(look(), "kernel.secureboot")

    fault = {str(variable.relative_to(root)): "EIO"}
    (root / "rocmlab-faults.json").write_text(json.dumps(fault))
    assert [one.status for one in checks.BY_ID["kernel.secureboot"].run(look())] == ["unknown"]


@pytest.mark.parametrize(("gpus", "status"), [(TWO[:1], BLOCKS), (TWO, WARNS)])
def test_vfio(tmp_path: Path, gpus: tuple[Gpu, ...], status: str) -> None:
    """One GPU for virtual machines is a warning next to another, and the end where it is the only one."""
    look = Looker(host(tmp_path / "host", *gpus), tmp_path / "project")
    pci(look.root, "0000:03:00.0", "vfio-pci")

    assert "drivers/amdgpu/bind" in fires(look(), "vfio", status).problem.fix

    pci(look.root, "0000:03:00.0", "amdgpu")
    silent(look(), "vfio")


def test_a_gpu_that_kfd_leaves_out(look: Looker) -> None:
    """Bound to amdgpu and not in the topology: atomics; in it, all is well."""
    pci(look.root, "0000:03:00.0", "amdgpu")
    pci(look.root, "0000:09:00.0", "amdgpu")

    found = fires(look(), "pcie.atomics", WARNS)
    assert "0000:09:00.0" in found.problem.what
    assert "PCI rejects atomics" in found.problem.why

    shutil.rmtree(look.root / "sys/bus/pci/devices/0000:09:00.0")
    silent(look(), "pcie.atomics")


@pytest.mark.slow
def test_a_hung_driver_is_a_finding(look: Looker) -> None:
    """A reading that never returns costs the time limit and names the GPU; the other one answers."""
    pci(look.root, "0000:03:00.0", "amdgpu", gpu_busy_percent="3")
    silent(look(limit_seconds=30), "gpu.answers")
    busy = (look.root / "sys/bus/pci/devices/0000:03:00.0/gpu_busy_percent").resolve()
    fault = {str(busy.relative_to(look.root.resolve())): "hang"}
    (look.root / "rocmlab-faults.json").write_text(json.dumps(fault))

    found = fires(look(limit_seconds=4), "gpu.answers", BLOCKS)

    assert "0000:03:00.0 does not answer" in found.problem.what
    assert "0000:03:00.0: no answer within 4 s" in found.evidence


def test_a_fact_that_hangs_costs_its_limit_once(look: Looker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check that asks is told `unknown`, and only the first one waits."""
    import threading

    end, asked = threading.Event(), []
    monkeypatch.setattr("rocmlab.doctor.situation.discover", lambda *_: asked.append(1) or end.wait(60))
    situation = look(limit_seconds=0.3)
    situation.side = "container"
    situation.environment = {"ROCMLAB_BACKEND": "rocm", "ROCMLAB_RUNTIME": "docker"}

    found = [
        one for id in ("gfx.support", "igpu", "env.override", "pcie.link") for one in checks.BY_ID[id].run(situation)
    ]
    end.set()

    assert {one.status for one in found} == {"unknown"}
    assert "did not answer within 0.3 s" in found[0].reason
    assert asked == [1]


def test_partitions_are_one_gpu_to_the_driver(tmp_path: Path) -> None:
    """Two KFD nodes of one PCI address are read once."""
    root = host(tmp_path / "host", TWO[0])
    write_node(root, 2, TWO[0], drm_render_minor=129)
    write_partition(root, 0, 1, 129)

    assert len(silent(Looker(root, tmp_path / "project")(limit_seconds=30), "gpu.answers").evidence) == 1
