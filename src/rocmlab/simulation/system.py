"""What a simulated host has besides its GPUs: CPUs, the driver's module, groups, and parts of `/proc`."""

from __future__ import annotations

from rocmlab.simulation.hosts import Host
from rocmlab.simulation.topology import CORES
from rocmlab.simulation.trees import Tree

KERNEL = "6.12.48-simulated"
DRIVER = "6.12.12"  # of the amdgpu module, as AMD's own packages number it
RENDER_GID = 992
VIDEO_GID = 44
MODULE = "sys/module/amdgpu"


def add_system(tree: Tree, host: Host) -> None:
    """Add everything that is there with or without GPUs."""
    _add_processors(tree, host)
    _add_proc(tree, host)
    tree.put("etc", hostname="simulated")
    tree.put_lines(
        "etc/group", ("root:x:0:", f"video:x:{VIDEO_GID}:", f"render:x:{RENDER_GID}:", "users:x:100:", "docker:x:990:")
    )
    tree.put_lines("etc/os-release", ('PRETTY_NAME="Simulated host (rocmlab)"', "ID=simulated", 'VERSION_ID="1"'))
    tree.folders |= {"sys/class/net", "sys/class/scsi_host"}  # amd-smi complains without
    tree.links["sys/class/hwmon/hwmon0"] = "sys/devices/platform/coretemp.0/hwmon/hwmon0"
    tree.put("sys/devices/platform/coretemp.0/hwmon/hwmon0", name="coretemp", temp1_input=41000)


def add_driver(tree: Tree) -> None:
    """Add the loaded module amdgpu."""
    tree.put(MODULE, initstate="live", version=DRIVER, refcnt=4, srcversion="51D0A7E9C0FFEE000000000")
    tree.put(f"{MODULE}/parameters", gpu_recovery=-1, noretry=-1, vm_size=-1)
    tree.links["sys/bus/pci/drivers/amdgpu/module"] = MODULE
    tree.links[f"{MODULE}/drivers/pci:amdgpu"] = "sys/bus/pci/drivers/amdgpu"
    tree.put("sys/class/drm", version="drm 1.1.0 20060810")


def _add_processors(tree: Tree, host: Host) -> None:
    count = CORES * host.sockets
    for name in ("online", "possible", "present"):
        tree.put("sys/devices/system/cpu", **{name: f"0-{count - 1}"})
        tree.put("sys/devices/system/node", **{name: f"0-{host.sockets - 1}" if host.sockets > 1 else "0"})
    for cpu in range(count):
        tree.put(
            f"sys/devices/system/cpu/cpu{cpu}/topology",
            physical_package_id=cpu // CORES,
            core_id=cpu % CORES,
        )
    for socket in range(host.sockets):
        first = socket * CORES
        tree.put(f"sys/devices/system/node/node{socket}", cpulist=f"{first}-{first + CORES - 1}")


def _add_proc(tree: Tree, host: Host) -> None:
    count = CORES * host.sockets
    kibibytes = (1024 if host.sockets > 1 else 64) << 20
    tree.put_lines(
        "proc/cpuinfo",
        (
            line
            for cpu in range(count)
            for line in (
                f"processor\t: {cpu}",
                "vendor_id\t: AuthenticAMD",
                "model name\t: Simulated processor",
                f"physical id\t: {cpu // CORES}",
                f"core id\t\t: {cpu % CORES}",
                f"cpu cores\t: {CORES}",
                "",
            )
        ),
    )
    tree.put_lines(
        "proc/meminfo",
        (
            f"MemTotal:       {kibibytes} kB",
            f"MemFree:        {kibibytes // 2} kB",
            f"MemAvailable:   {kibibytes // 4 * 3} kB",
        ),
    )
    tree.put(
        "proc", version=f"Linux version {KERNEL} (simulated by rocmlab)", cmdline="BOOT_IMAGE=/vmlinuz ro iommu=pt"
    )
    tree.put("proc/sys/kernel", osrelease=KERNEL, ostype="Linux", numa_balancing=0)
    tree.put_lines("proc/modules", ("amdgpu 19914752 4 - Live 0x0000000000000000",))
