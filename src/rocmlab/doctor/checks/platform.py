"""The machine around the GPUs: kernel and ROCm that fit each other, shared memory, the IOMMU."""

from __future__ import annotations

import platform as python_platform
import re
from pathlib import Path

from rocmlab.base import host_limits, lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.doctor import releases
from rocmlab.doctor.model import BLOCKS, CONTAINER, HOST, Verdict, blocks, check, note, ok, skip, unknown, warns
from rocmlab.doctor.situation import CONTAINER_RUNTIMES, Situation

SMALL_SHM, TINY_SHM = 2**30, 64 * 2**20
MONTHS_APART = 12
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


@check(
    "userspace.driver",
    "the kernel's driver and the lab's ROCm fit each other",
    looks_at="`/opt/rocm/.info/version` or the base image's tag, `uname -r`, `/sys/module/amdgpu/version`, and the "
    "table of releases (doctor/releases.csv)",
    why="AMD tests a ROCm release with drivers up to a year older or newer; beyond, HIP may print `Incompatible kernel "
    "and userspace`, crash or compute wrongly (dstack#4151, hiptensorflow#63).",
    fix="a newer kernel or amdgpu-dkms, or an image of the driver's time (`make up BASE_IMAGE=…`)",
    unless=lambda s: s.no_kfd_gpus,
)
def userspace(s: Situation) -> Verdict:
    """Compare dates of release."""
    if s.backend not in ("", "rocm"):
        return skip(f"the lab's backend is {s.backend}, which uses no ROCm")
    kernel = s.text("proc/sys/kernel/osrelease") or ("" if s.simulated else python_platform.release())
    module = s.text("sys/module/amdgpu/version")
    rocm = s.rocm_version
    seen = [
        f"kernel {kernel or 'unknown'}",
        f"/sys/module/amdgpu/version: {module or 'none, so the driver is the one of the kernel itself'}",
        f"ROCm {rocm or 'unknown'}",
    ]
    made, wanted, rocm = releases.driver(module, kernel), releases.rocm(rocm), releases.minor(rocm)
    if made is None or wanted is None:
        return unknown("the age of the driver or of ROCm is not known", *seen)
    apart = releases.months_between(made, wanted)
    seen.append(f"driver of {made}, ROCm of {wanted}")
    older, least = (made, "at least " * wanted.is_least) if apart > 0 else (wanted, "at least " * made.is_least)
    if abs(apart) <= MONTHS_APART or older.is_least:  # which then may be as new as the other
        return ok(*seen)
    if apart > 0:
        return warns(
            f"the kernel's driver is {least}{apart} months older than the lab's ROCm {rocm}",
            "AMD tests a release with drivers up to a year older",
            "install a newer kernel (Ubuntu: sudo apt install linux-generic-hwe-24.04) or a newer amdgpu-dkms\n"
            "or take an older image: make up BASE_IMAGE=…      # docs/images.md",
            *seen,
            about=HOST,
        )
    return warns(
        f"the lab's ROCm {rocm} is {least}{-apart} months older than the kernel's driver",
        "AMD tests a release with drivers up to a year newer",
        "take a newer image: make up BASE_IMAGE=…      # docs/images.md",
        *seen,
        about=HOST,
    )


@check(
    "leases.folder",
    "every lab of this host can lease GPUs, and sees the leases of the others",
    looks_at="owner and mode of LEASES_DIR (`/run/lock/rocmlab`) and of its locks; in a container if it is mounted",
    why="With folders of their own two labs, or two users, take the same GPU without noticing.",
    fix="the command that the finding prints, which makes the folder at each boot (deploy/tmpfiles.d/rocmlab.conf)",
    severity=BLOCKS,
)
def leases(s: Situation) -> Verdict:
    """Look at the folder, and change nothing."""
    folder = _leases_folder(s)
    if folder is None:
        return skip("this lab leases no GPU")
    if problem := lease_folder.problem(folder):
        return blocks(problem.what, problem.why, problem.fix, about=HOST)
    if locks := lease_folder.unusable_locks(folder):
        return warns(locks[0].what, locks[0].why, "\n".join(each.fix for each in locks), about=HOST)
    if s.side == CONTAINER and s.environment.get("ROCMLAB_RUNTIME") in CONTAINER_RUNTIMES:
        if not lease_folder.is_mounted(folder):
            return warns(
                "no other lab of this host sees which GPUs are leased here",
                f"{folder} is the container's own",
                f"start the lab with `make up`; or docker run --volume {lease_folder.USUAL}:{lease_folder.USUAL}",
                about=HOST,
            )
        return ok(f"{folder} is mounted")
    try:
        found = folder.lstat()
    except OSError:
        return ok(f"{folder} is missing; the first lab that starts makes it")
    seen = f"{folder}: uid {found.st_uid}, mode {found.st_mode & 0o7777:o}"
    if found.st_uid and not s.simulated:
        why = f"uid {found.st_uid} owns it, and can remove the locks of others"
        return note(f"{why}; to make it root's: {lease_folder.command(folder)}", seen)
    return ok(seen)


@check(
    "leases.limits",
    "this host's limits for its users can be read",
    looks_at="each line of `/etc/rocmlab/limits`, where the host has that file",
    why="With a file that cannot be read, or a line that is not a limit, no kernel or job gets a GPU.",
    fix="correct the line that the finding names",
    severity=BLOCKS,
)
def limits(s: Situation) -> Verdict:
    """Read the file as kernels do."""
    if _leases_folder(s) is None:
        return skip("this lab leases no GPU")
    try:
        found = host_limits.read(s.root)
    except RocmlabError as err:
        return blocks(err.problem.what, err.problem.why, err.problem.fix, about=HOST)
    if not found.path.exists():
        return ok(f"{found.path} does not exist, so users have no limits")
    given = found.as_dict()
    text = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    return ok(f"{found.path}: {text}")


def _leases_folder(s: Situation) -> Path | None:
    """Return the folder of this lab's leases; None if it takes none."""
    if s.side == CONTAINER:
        has_gpus = s.simulated or s.environment.get("ROCMLAB_BACKEND") in ("rocm", "cuda")
        return lease_folder.path(s.environment, s.root) if has_gpus else None
    planned = s.project.values.get("ROCMLAB_LEASES") if s.project else None
    return Path(planned) if planned else None


@check(
    "shm",
    "/dev/shm is large enough",
    looks_at="the size of `/dev/shm` inside the lab; on the host the setting SHM_SIZE",
    why="Data loaders and RCCL share memory through it; 64 MB, Docker's default, ends in `No space left on device` or "
    "a bus error (NVIDIA/nccl#342).",
    fix="`make up SHM_SIZE=8gb`",
    severity=BLOCKS,
)
def shm(s: Situation) -> Verdict:
    """Compare the size with what data loaders and several GPUs need."""
    if s.side == CONTAINER:
        size, seen = s.shm_bytes, f"/dev/shm: {s.shm_bytes} bytes"
    elif s.project and s.runtime != "native":
        size_setting = s.env_values.get("SHM_SIZE") or s.project.settings.get("SHM_SIZE") or "8gb"
        size, seen = _bytes(size_setting), f"SHM_SIZE={size_setting}"
    else:
        return skip("it is the lab's /dev/shm that counts")
    if size is None:
        return unknown("the size of /dev/shm is not known", seen)
    if size >= SMALL_SHM:
        return ok(seen)
    gpus = len(s.chosen)
    counted = f"{gpus} GPU{'s' * (gpus != 1)}"
    if size <= TINY_SHM and gpus > 1:
        return blocks(
            f"/dev/shm has {size / 2**20:.0f} MiB for {gpus} GPUs",
            "RCCL exchanges data between GPUs through it, and fails when it is full",
            "make up SHM_SIZE=8gb      # on the host; docker run: --shm-size 8g",
            seen,
            counted,
        )
    return warns(
        f"/dev/shm has {size / 2**20:.0f} MiB",
        "data loaders with several workers need more",
        "make up SHM_SIZE=8gb      # on the host; docker run: --shm-size 8g",
        seen,
        counted,
    )


def _bytes(text: str) -> int | None:
    found = SIZE.fullmatch(text.strip())
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " ")) if found else None


@check(
    "iommu.pt",
    "the IOMMU does not slow transfers between GPUs",
    looks_at="`/sys/class/iommu` and `iommu=pt` in `/proc/cmdline`, where there are two GPUs or more",
    why="With a translating IOMMU transfers between GPUs are slow, or RCCL hangs; RCCL itself warns of it "
    "(rccl#1129, ROCm/vllm#390).",
    fix="`iommu=pt` among the kernel's parameters",
    unless=lambda s: s.no_kfd_gpus,
)
def iommu(s: Situation) -> Verdict:
    """Read the kernel's command line."""
    if len({gpu.pci_address for gpu in s.chosen}) < 2:
        return skip("only several GPUs are concerned")
    found = s.names("sys/class/iommu")
    line = s.text("proc/cmdline") or ""
    seen = (f"/sys/class/iommu: {', '.join(found) or 'empty'}", f"/proc/cmdline: {line or 'unreadable'}")
    if not found or re.search(r"(^|\s)(iommu=pt|iommu\.passthrough=1|(amd_|intel_)?iommu=off)(\s|$)", line):
        return ok(*seen)
    return warns(
        "several GPUs, and the kernel runs without iommu=pt",
        "every transfer between GPUs is translated by the IOMMU, which is slow and makes RCCL hang on some boards",
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX_DEFAULT=\"/&iommu=pt /' /etc/default/grub\nsudo update-grub && sudo reboot",
        *seen,
        about=HOST,
    )
