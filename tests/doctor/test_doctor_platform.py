"""The machine around the GPUs: kernel and ROCm, shared memory, the IOMMU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hosts import Gpu
from situations import Looker, fires, host, put, silent, skipped

from rocmlab.doctor import checks, releases
from rocmlab.doctor.model import BLOCKS, WARNS


def test_a_driver_that_is_too_old_for_the_image(look: Looker) -> None:
    """Ubuntu 22.04's kernel with ROCm 7.2; a newer kernel makes it silent."""
    kernel = put(look.root, "proc/sys/kernel/osrelease", "5.15.0-130-generic")

    found = fires(look(), "userspace.driver", WARNS)
    assert "51 months older than the lab's ROCm 7.2" in found.problem.what
    assert "kernel 5.15.0-130-generic" in found.evidence

    kernel.write_text("6.14.0-27-generic\n")
    silent(look(), "userspace.driver")


def test_an_image_that_is_too_old_for_the_driver(look: Looker) -> None:
    """ROCm 5.7 with a kernel of today; a newer image makes it silent."""
    put(look.root, "proc/sys/kernel/osrelease", "6.17.1")
    look.values = {"BASE_IMAGE": "rocm/tensorflow:rocm5.7-tf2.13-dev"}

    assert "make up BASE_IMAGE=" in fires(look(), "userspace.driver", WARNS).problem.fix

    look.values = {}
    silent(look(), "userspace.driver")


def test_dkms_counts_and_not_the_kernel(look: Looker) -> None:
    """A driver that was installed apart follows a newer kernel than the one it runs in."""
    put(look.root, "proc/sys/kernel/osrelease", "5.15.0")
    put(look.root, "sys/module/amdgpu/version", "6.14.14")

    silent(look(), "userspace.driver")


def test_inside_the_labs_own_rocm_counts(inside: Looker) -> None:
    """Its version file, not a tag."""
    put(inside.root, "proc/sys/kernel/osrelease", "6.14.0")
    version = put(inside.root, "opt/rocm/.info/version", "5.7.1-98")
    assert "ROCm 5.7 is" in fires(inside(), "userspace.driver", WARNS).problem.what

    version.write_text("7.2.0-43\n")
    silent(inside(), "userspace.driver")


@pytest.mark.parametrize("kernel", ["6.19.3-arch1-1", "7.0.0-14-generic", "7.1.2", "7.2.6", "7.3.0-rc2", "99.1.0"])
def test_kernels_of_today_are_known(look: Looker, kernel: str) -> None:
    """One above the end of the table is at least as new as the last one in it."""
    put(look.root, "proc/sys/kernel/osrelease", kernel)

    found = silent(look(), "userspace.driver")
    assert found.evidence[-1].startswith("driver of 2026-")
    assert ("2026-08 or later" in found.evidence[-1]) is (kernel in ("7.3.0-rc2", "99.1.0"))

    look.values = {"BASE_IMAGE": "rocm/tensorflow:rocm6.0-tf2.14-dev"}
    found = fires(look(), "userspace.driver", WARNS)
    assert ("is at least 32 months older" in found.problem.what) is (kernel in ("7.3.0-rc2", "99.1.0"))


def test_rocm_above_the_end_of_the_table(look: Looker) -> None:
    """It is not accused of being old, and an old driver is all the same."""
    look.values = {"BASE_IMAGE": "rocm/tensorflow:rocm12.0-tf2.30-dev"}
    put(look.root, "proc/sys/kernel/osrelease", "7.2.0")
    silent(look(), "userspace.driver")

    put(look.root, "proc/sys/kernel/osrelease", "6.8.0-60-generic")
    assert "is at least 31 months older than the lab's ROCm 12.0" in fires(look(), "userspace.driver").problem.what


@pytest.mark.parametrize("kernel", ["5.14.0-503.11.1.el9_5.x86_64", "5.13.0", "strange", ""])
def test_what_the_tables_do_not_know_is_unknown(look: Looker, kernel: str) -> None:
    """Red Hat's kernels carry newer drivers than their number tells; no guess is made."""
    put(look.root, "proc/sys/kernel/osrelease", kernel)

    assert [one.status for one in checks.BY_ID["userspace.driver"].run(look())] == ["unknown"]


def test_releases_are_in_order() -> None:
    """A typo in a table would accuse the wrong machine."""
    for kind in ("rocm", "kernel"):
        table = releases.table(kind)
        assert len(table) > 15
        assert list(table.values()) == sorted(table.values())
        assert all(2019 <= month.year <= 2030 and 1 <= month.month <= 12 for month in table.values())


def test_the_table_says_where_it_is_from() -> None:
    """Source and date of the last check, as every data file."""
    text = Path(releases.__file__).with_suffix(".csv").read_text(encoding="utf-8")

    assert "# source: rocm: " in text
    assert "# source: kernel: " in text
    assert re.search(r"^# checked: 20\d\d-\d\d-\d\d", text, re.MULTILINE)


GIB = 2**30


@pytest.mark.parametrize(("size", "status"), [(64 * 2**20, BLOCKS), (GIB // 2, WARNS)])
def test_little_shared_memory(inside: Looker, monkeypatch: pytest.MonkeyPatch, size: int, status: str) -> None:
    """64 MB stop two GPUs, half a GiB warns; SHM_SIZE=8gb makes it silent."""

    def give(count: int) -> None:
        stat = type("Stat", (), {"f_frsize": 4096, "f_blocks": count // 4096})
        monkeypatch.setattr("rocmlab.doctor.situation.os.statvfs", lambda _: stat)

    give(size)
    found = fires(inside(), "shm", status)
    assert f"/dev/shm: {size} bytes" in found.evidence
    assert "make up SHM_SIZE=8gb" in found.problem.fix

    give(8 * GIB)
    silent(inside(), "shm")


def test_one_gpu_needs_less(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MB is a warning only: nothing is exchanged between GPUs."""
    look = Looker(host(tmp_path / "host", Gpu(1, 0x0300, 128)), tmp_path / "project", side="container")
    stat = type("Stat", (), {"f_frsize": 4096, "f_blocks": 16384})
    monkeypatch.setattr("rocmlab.doctor.situation.os.statvfs", lambda _: stat)

    fires(look(), "shm", WARNS)


@pytest.mark.parametrize(("asked", "fine"), [("64m", False), ("512MB", False), ("8gb", True), ("2g", True), ("", True)])
def test_the_setting_on_the_host(look: Looker, asked: str, fine: bool) -> None:
    """What the next lab will get."""
    look.env_file(**({"SHM_SIZE": asked} if asked else {}))

    (silent if fine else fires)(look(), "shm")


def test_several_gpus_behind_an_iommu(look: Looker) -> None:
    """`iommu=pt` on the kernel's command line makes it silent."""
    (look.root / "sys/class/iommu/ivhd0").mkdir(parents=True)
    line = put(look.root, "proc/cmdline", "root=/dev/sda1 quiet amd_iommu=on")

    found = fires(look(), "iommu.pt", WARNS)
    assert "/proc/cmdline: root=/dev/sda1 quiet amd_iommu=on" in found.evidence
    assert "iommu=pt" in found.problem.fix

    line.write_text("root=/dev/sda1 quiet iommu=pt\n")
    silent(look(), "iommu.pt")


def test_one_gpu_does_not_mind_the_iommu(tmp_path) -> None:
    """There is no one to exchange data with."""
    root = host(tmp_path / "host", Gpu(1, 0x0300, 128))
    (root / "sys/class/iommu/ivhd0").mkdir(parents=True)

    assert "several GPUs" in skipped(Looker(root, tmp_path / "project")(), "iommu.pt")


def test_a_folder_of_leases_that_is_closed_or_not_sticky(look: Looker, tmp_path: Path) -> None:
    """The finding has the command for this very folder; a lab that leases nothing is not asked."""
    assert skipped(look(), "leases.folder") == "this lab leases no GPU"
    folder = tmp_path / "leases"
    look.values = {"ROCMLAB_LEASES": str(folder)}
    assert "makes it" in silent(look(), "leases.folder").evidence[0]

    folder.mkdir()
    folder.chmod(0o777)
    found = fires(look(), "leases.folder", BLOCKS)
    assert found.problem.fix == f"on the host: sudo install -d -m 1777 -o root -g root {folder}"
    assert not found.problem.why.endswith("None")

    folder.chmod(0o1777)
    assert "mode 1777" in silent(look(), "leases.folder").evidence[0]

    closed = folder / "0123abcd-rocm-0000-03-00.0.lock"
    closed.touch(mode=0)
    found = fires(look(), "leases.folder", WARNS)
    assert "a GPU cannot be leased" in found.problem.what
    assert f"sudo rm -r {closed}" in found.problem.fix
    command = folder / "0; touch broken-in #\n\x1b[31m.lock"  # no lock's name, but one for who pastes the fix
    command.mkdir()
    assert "broken-in" not in fires(look(), "leases.folder", WARNS).problem.fix
    command.rmdir()
    closed.unlink()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert "a link" in fires(look(), "leases.folder", BLOCKS).problem.why


def test_a_container_whose_leases_are_its_own(inside: Looker, tmp_path: Path) -> None:
    """Nothing is mounted there; a lab for the CPU leases nothing, and a native one is on the host itself."""
    assert "is the container's own" in fires(inside(), "leases.folder", WARNS).problem.why

    inside.runtime = "native"
    silent(inside(), "leases.folder")


def test_wrong_limits_of_the_host_are_named_by_their_line(look: Looker, tmp_path: Path) -> None:
    """No kernel would get a GPU; without the file, and with a right one, the check is silent and shows what counts."""
    assert skipped(look(), "leases.limits") == "this lab leases no GPU"
    look.values = {"ROCMLAB_LEASES": str(tmp_path / "leases")}
    assert "no limits" in silent(look(), "leases.limits").evidence[0]

    file = look.root / "etc/rocmlab/limits"
    file.parent.mkdir(parents=True)
    file.write_text("# of all users\n\nMAX_GPUS_PER_USER = 2\n")
    assert "MAX_GPUS_PER_USER=2" in silent(look(), "leases.limits").evidence[0]

    file.write_text("# of all users\n\nMAX_GPUS_PER_USER=all\n")
    assert fires(look(), "leases.limits", BLOCKS).problem.what.startswith(f"{file}, line 3: 'MAX_GPUS_PER_USER=all'")
