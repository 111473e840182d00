"""The kernel's side: is the driver loaded, does it have every GPU, and does each GPU answer."""

from __future__ import annotations

from rocmlab.devices import roots, topology
from rocmlab.doctor import sampling
from rocmlab.doctor.model import BLOCKS, HOST, OK, Verdict, blocks, check, ok, skip, unknown, warns
from rocmlab.doctor.situation import Situation

NO_AMDGPU = ("radeon", "vfio-pci", "pciback", "pci-stub")  # drivers that have the GPU on purpose


@check(
    "wsl",
    "on WSL2 ROCm finds the GPU through /dev/dxg",
    looks_at="`/dev/dxg` and `/dev/kfd`; where ROCm runs, HSA_ENABLE_DXG_DETECTION and a second libhsa-runtime64",
    why="WSL2 has no KFD: ROCm reaches the GPU through `/dev/dxg` and librocdxg, once that is enabled; the "
    "distribution's own libhsa-runtime64 does not know that way. Metrics of the GPU cannot be read there at all.",
    fix="`HSA_ENABLE_DXG_DETECTION=1`, which the lab's container has by itself; `sudo apt remove libhsa-runtime64-1`",
)
def wsl(s: Situation) -> Verdict:
    """Look for what WSL2 needs in addition to the node."""
    if not s.exists("dev/dxg"):
        return ok("no /dev/dxg: this is not WSL2")
    if s.exists("dev/kfd"):
        return ok("/dev/dxg and /dev/kfd are here")
    if s.no_amd:
        return skip(s.no_amd)
    seen = ["/dev/dxg is here, /dev/kfd is not", "metrics of the GPU cannot be read on WSL2"]
    if s.for_container or s.is_rootless:
        return ok(*seen, "the lab uses /dev/dxg")
    shadow = [name for name in s.names("usr/lib/x86_64-linux-gnu") if name.startswith("libhsa-runtime64.so")]
    if shadow and s.exists("opt/rocm/lib"):
        return warns(
            "the distribution's ROCm runtime comes before AMD's, and does not support WSL2",
            f"/usr/lib/x86_64-linux-gnu/{shadow[0]} shadows the one of /opt/rocm, which comes with librocdxg",
            "sudo apt remove libhsa-runtime64-1",
            *seen,
        )
    if s.environment.get("HSA_ENABLE_DXG_DETECTION") == "1":
        return ok(*seen, "HSA_ENABLE_DXG_DETECTION=1")
    return warns(
        "on WSL2 ROCm does not find the GPU by itself",
        "up to ROCm 7.12 it looks for /dev/kfd alone, unless /dev/dxg is enabled",
        "export HSA_ENABLE_DXG_DETECTION=1",
        *seen,
    )


@check(
    "kernel.amdgpu",
    "the amdgpu driver is loaded",
    looks_at="`/sys/module/amdgpu` (with `initstate` if it is a module, without if it is built into the kernel), the "
    "PCI bus and the KFD topology",
    why="Without the driver `/dev/kfd` is missing, and the lab would compute on the CPU.",
    fix="`sudo modprobe amdgpu`, and the kernel's log",
    severity=BLOCKS,
    is_quick=True,
    unless=lambda s: s.no_rocm,
)
def amdgpu(s: Situation) -> Verdict:
    """Look for a GPU whose driver is missing."""
    if s.exists("dev/dxg") and not s.exists("dev/kfd"):
        return skip("WSL2 has no amdgpu driver")
    state = s.text("sys/module/amdgpu/initstate")
    read = f"/sys/module/amdgpu/initstate: {state or 'missing'}"
    is_built_in = topology.is_built_in(s.root)
    if is_built_in:
        read = "/sys/module/amdgpu has no initstate: the driver is built into the kernel"
    without = [gpu for gpu in s.candidates if gpu.driver is None]
    if is_built_in and without and not any(gpu.driver == "amdgpu" for gpu in s.pci_gpus):
        return blocks(
            f"amdgpu is built into the kernel and has not taken the AMD GPU at {without[0].address}",
            "it failed when the machine started: its firmware is not in the kernel or the initramfs, or the kernel "
            "does not know this GPU",
            "sudo dmesg | grep -i -E 'amdgpu|firmware'\n"
            "then put the firmware into the initramfs (linux-firmware), or install a newer kernel",
            read,
            *map(str, without),
            about=HOST,
        )
    if s.driver_is_live:
        version = s.text("sys/module/amdgpu/version")
        return ok(read, *([f"/sys/module/amdgpu/version: {version}"] if version else []))
    found = [gpu for gpu in s.candidates if gpu.driver not in NO_AMDGPU]
    if not found:
        others = [str(gpu) for gpu in s.pci_gpus]
        return skip("every AMD GPU has another driver on purpose", *others) if others else unknown("no GPU seen", read)
    return blocks(
        f"the driver of the AMD GPU at {found[0].address} is not loaded",
        "amdgpu makes /dev/kfd and /dev/dri, and it is not there: blacklisted, not installed for this kernel, or it "
        "failed when it was loaded",
        "sudo modprobe amdgpu\nsudo dmesg | grep -i amdgpu      # if it still does not appear",
        read,
        *map(str, found),
        about=HOST,
    )


@check(
    "kernel.secureboot",
    "Secure Boot does not block the driver",
    sides=(HOST,),
    looks_at="`/sys/firmware/efi/efivars/SecureBoot-*`, `/var/lib/dkms`",
    why="Secure Boot rejects a driver that was built on this machine (dkms) and signed with a key it does not know.",
    fix="enrol the key with `mokutil --import`, and reboot (ROCm#4328, ROCm#276)",
    severity=BLOCKS,
    unless=lambda s: s.no_rocm,
)
def secureboot(s: Situation) -> Verdict:
    """Explain a missing driver by an unsigned module."""
    if s.driver_is_live:
        return ok("amdgpu is loaded")
    folder = "sys/firmware/efi/efivars"
    variable = next((name for name in s.names(folder) if name.startswith("SecureBoot-")), None)
    if variable is None:
        return skip("this machine has no Secure Boot")
    content = roots.read_bytes(s.root / folder / variable, 8)
    if content is None:
        return unknown(f"{variable} cannot be read")
    value = content[4:5]  # behind four bytes of attributes
    modules = [name for name in s.names("var/lib/dkms") if name.startswith("amdgpu")]
    read = f"{variable}: {value.hex() or 'empty'}"
    if value != b"\x01" or not modules:
        return ok(read, f"/var/lib/dkms: {', '.join(modules) or 'no amdgpu'}")
    ubuntu, other = "var/lib/shim-signed/mok/MOK.der", "var/lib/dkms/mok.pub"
    key = ubuntu if s.exists(ubuntu) else other
    return blocks(
        "Secure Boot blocks the amdgpu driver",
        "the driver was built here by dkms, and the firmware does not know the key it is signed with",
        f"sudo mokutil --import /{key}      # choose a password, reboot, and enrol the key in the blue screen\n"
        "or turn Secure Boot off in the firmware",
        read,
        f"/var/lib/dkms: {', '.join(modules)}",
    )


@check(
    "vfio",
    "no GPU is reserved for a virtual machine",
    sides=(HOST,),
    looks_at="the driver of each AMD GPU on the PCI bus",
    why="A GPU bound to vfio-pci belongs to a virtual machine, and the host cannot use it.",
    fix="unbind it from vfio-pci and bind it to amdgpu, or leave it to the virtual machine",
    severity=BLOCKS,
    unless=lambda s: s.no_amd,
)
def vfio(s: Situation) -> Verdict:
    """Look for GPUs bound to vfio-pci."""
    if not s.pci_gpus:
        return skip("no AMD GPU on the PCI bus")
    bound = [gpu for gpu in s.candidates if gpu.driver == "vfio-pci"]
    if not bound:
        return ok(*map(str, s.pci_gpus))
    address = bound[0].address
    fire = warns if len(bound) < len(s.pci_gpus) else blocks
    return fire(
        f"the GPU at {address} is reserved for virtual machines",
        "it is bound to vfio-pci, by a setting of the kernel (vfio-pci.ids) or by a virtual machine's manager",
        f"echo {address} | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind\n"
        f"echo {address} | sudo tee /sys/bus/pci/drivers/amdgpu/bind\n"
        "grep -r vfio /etc/modprobe.d /proc/cmdline      # where the reservation for the next boot is set",
        *map(str, bound),
    )


@check(
    "pcie.atomics",
    "KFD lists every GPU of the driver",
    looks_at="GPUs bound to amdgpu that the KFD topology does not list",
    why="Older GPUs need PCIe atomics all the way to the CPU; without them KFD skips the device, and ROCm with it.",
    fix="a slot that is attached to the CPU, without riser, on Haswell, Zen or newer (ROCm#910, ROCm#1214, ROCm#827)",
    severity=BLOCKS,
    unless=lambda s: s.no_rocm,
)
def atomics(s: Situation) -> Verdict:
    """Compare the PCI bus with the topology."""
    bound = [gpu for gpu in s.candidates if gpu.driver == "amdgpu"]
    if not bound:
        return skip("no GPU that ROCm supports is bound to amdgpu")
    listed = {gpu.pci_address for gpu in s.passed}
    skipped = [gpu for gpu in bound if gpu.address not in listed]
    if not skipped:
        return ok(*(f"{gpu.address} is in the KFD topology" for gpu in bound))
    if len(skipped) <= len(s.kfd.denied):
        return ok(*(f"{gpu.address} was not given to this container" for gpu in skipped))
    if len(skipped) <= len(s.kfd.denied) + len(s.kfd.damaged):
        return unknown("the kernel's description of a GPU is damaged, see gpu.description", *map(str, skipped))
    fire = warns if len(skipped) < len(bound) else blocks
    return fire(
        f"the GPU at {skipped[0].address} has the driver, and KFD does not list it",
        "KFD skips GPUs that need PCIe atomics where the slot has none (`skipped device 1002:…, PCI rejects atomics` "
        "in the kernel's log)",
        "sudo dmesg | grep -i -E 'kfd|atomics'\n"
        "if it shows `PCI rejects atomics`: move the GPU to a slot attached to the CPU, without a riser",
        *map(str, skipped),
        about=HOST,
    )


@check(
    "gpu.answers",
    "every GPU's driver answers",
    looks_at="one reading of each GPU, in a child process with a time limit",
    why="A hung GPU or SMU blocks every program that reads it; only a reset helps.",
    fix="what the kernel reports, then a reboot",
    severity=BLOCKS,
    unless=lambda s: s.no_kfd_gpus,
)
def answers(s: Situation) -> Verdict:
    """Read every GPU once, where it does not matter if the reading hangs."""
    outcome = sampling.probe(s.root, s.limit_seconds)
    seen = [f"{address}: {answer}" for address, answer in outcome.items()]
    silent = [address for address, answer in outcome.items() if answer.startswith(sampling.SILENT)]
    if not outcome:
        return unknown("the child process that reads the GPUs gave no result")
    if silent:
        return blocks(
            f"the GPU at {silent[0]} does not answer",
            f"its driver did not finish one reading within {s.limit_seconds:g} s: a hung GPU, or its SMU",
            "sudo dmesg | grep -i amdgpu | tail -n 30\nsudo reboot      # a hung SMU needs a reboot",
            *seen,
            about=HOST,
        )
    return Verdict(OK, tuple(seen))
