"""The PCI device folder of one GPU with all that hangs on it: DRM, hwmon, RAS, partitions.

Names and units: kernel documentation of amdgpu and hwmon. AMD's tools insist on more than they show: `vendor` with its
0x, complete KFD properties, and an `io_links` folder even for CPUs.
"""

from __future__ import annotations

from rocmlab.simulation import metrics
from rocmlab.simulation.hosts import PARTITIONS, Gpu, Host
from rocmlab.simulation.loads import State
from rocmlab.simulation.trees import Node, Tree

DRM_MAJOR = 226
AUTOSUSPEND_MS = 5000  # amdgpu's own
FAMILIES = ("radeon", "instinct", "apu")
FIRMWARE = {
    "mec": 0x58,
    "me": 0x2F,
    "pfp": 0x33,
    "rlc": 0x7B,
    "sdma": 0x16,
    "sdma2": 0x16,
    "smc": 0x00552D04,
    "vcn": 0x0911,
}
RAS_BLOCKS = ("umc", "sdma", "gfx", "mmhub", "pcie_bif", "hdp", "xgmi_wafl")


def add_card(tree: Tree, host: Host, gpu: Gpu, *, mode: int, gid: int | None) -> None:
    """Add everything of one GPU that does not change with its load."""
    _add_identity(tree, host, gpu)
    _add_link(tree, gpu)
    _add_power_files(tree, gpu)
    _add_drm(tree, gpu, mode=mode, gid=gid)
    _add_hwmon(tree, gpu)
    if gpu.product.family == "instinct":
        _add_ras(tree, gpu)
    if gpu.product.has_partitions:
        _add_partitions(tree, gpu)
    if gpu.hive:
        tree.put(gpu.folder, xgmi_device_id=f"{gpu.hive + gpu.number:d}", xgmi_error=0)
        tree.put(f"{gpu.folder}/xgmi_hive_info", xgmi_hive_id=gpu.hive)


def readings(gpu: Gpu, state: State) -> dict[str, bytes]:
    """Return the files that change with the load, by path below the root."""
    product = gpu.product
    tree = Tree()
    gtt_used = (180 << 20) if product.is_apu and state.busy < 2 else 24 << 20
    if product.is_apu and state.busy >= 2:
        gtt_used = int(product.gtt_bytes * 0.6 * state.busy / 100) // 4096 * 4096
    tree.put(
        gpu.folder,
        gpu_busy_percent=int(state.busy),
        mem_info_vram_used=state.vram_used,
        mem_info_vis_vram_used=state.vram_used,
        mem_info_gtt_used=gtt_used,
        gpu_metrics=metrics.table(gpu, state),
    )
    if not product.is_apu:
        tree.put(gpu.folder, mem_busy_percent=int(state.memory_busy))
    tree.put_lines(f"{gpu.folder}/pp_dpm_sclk", _core_levels(gpu, state))
    tree.put_lines(f"{gpu.folder}/pp_dpm_mclk", _levels(product.memory_clocks, state.memory_clock))
    tree.put_lines(f"{gpu.folder}/pp_dpm_fclk", _levels((1200, 1600, 2000), 2000 if state.busy > 30 else 1200))
    tree.put_lines(f"{gpu.folder}/pp_dpm_socclk", _levels((600, 1000, 1200), 1200 if state.busy > 30 else 600))
    _add_sensors(tree, gpu, state)
    return tree.files


def _add_sensors(tree: Tree, gpu: Gpu, state: State) -> None:
    product = gpu.product
    hwmon = hwmon_folder(gpu)
    values = {"edge": metrics.edge(gpu, state), "junction": round(state.junction), "mem": metrics.memory(gpu, state)}
    for sensor in product.sensors:
        tree.put(hwmon, **{f"temp{_sensor_number(sensor)}_input": values[sensor] * 1000})
    microwatts = round(state.power) * 1_000_000
    if product.is_apu or product.has_partitions:
        tree.put(hwmon, power1_input=microwatts)
    if not product.has_partitions:
        tree.put(hwmon, power1_average=microwatts, in0_input=metrics.voltage(gpu, state))
    tree.put(hwmon, freq1_input=state.core_clock * 1_000_000)
    if not product.is_apu:
        tree.put(hwmon, freq2_input=state.memory_clock * 1_000_000)
    if product.fan_max:
        speed = metrics.fan_rpm(gpu, state)
        tree.put(hwmon, fan1_input=speed, fan1_target=speed, pwm1=round(speed * 255 / product.fan_max))


def hwmon_folder(gpu: Gpu) -> str:
    """Return the folder of the GPU's sensors."""
    return f"{gpu.folder}/hwmon/hwmon{gpu.hwmon}"


def _add_identity(tree: Tree, host: Host, gpu: Gpu) -> None:
    product, folder = gpu.product, gpu.folder
    kind = "0x038000" if product.is_apu else "0x120000" if product.family == "instinct" else "0x030000"
    subsystem = 0x0E00 + FAMILIES.index(product.family) * 16 + product.revision % 16
    number = f"{product.device_id:04X}"
    tree.put_lines(
        f"{folder}/uevent",
        (
            "DRIVER=amdgpu",
            f"PCI_CLASS={int(kind, 16):X}",
            f"PCI_ID=1002:{number}",
            f"PCI_SUBSYS_ID=1002:{subsystem:04X}",
            f"PCI_SLOT_NAME={gpu.address}",
            f"MODALIAS=pci:v00001002d0000{number}sv00001002sd0000{subsystem:04X}bc{kind[2:4]}sc{kind[4:6]}i00",
        ),
    )
    tree.put(
        folder,
        vendor="0x1002",
        device=f"0x{product.device_id:04x}",
        subsystem_vendor="0x1002",
        subsystem_device=f"0x{subsystem:04x}",
        revision=f"0x{product.revision:02x}",
        vbios_version=f"113-SIM{number}-{gpu.number + 1:03d}",
        numa_node=gpu.numa_node,
        local_cpulist="0-15" if gpu.numa_node < 1 else "16-31",
        local_cpus="0000ffff" if gpu.numa_node < 1 else "ffff0000",
        enable=1,
        power_state="D0",
        mem_info_vram_total=product.vram_bytes,
        mem_info_vis_vram_total=product.vram_bytes,
        mem_info_gtt_total=product.gtt_bytes,
    )
    tree.files[f"{folder}/class"] = f"{kind}\n".encode()
    if not product.is_apu:
        tree.put(folder, unique_id=f"{gpu.unique_id:016x}", mem_info_vram_vendor=product.memory_vendor)
    if product.product_name:
        tree.put(
            folder,
            product_name=product.product_name,
            product_number=product.part_number or f"102-SIM{number}-00",
            serial_number=gpu.serial,
        )
    for name, version in FIRMWARE.items():
        tree.put(f"{folder}/fw_version", **{f"{name}_fw_version": f"0x{version + host.seed % 7:08x}"})
    add_power_management(tree, folder, may_sleep=product.family == "radeon")
    tree.links[f"{folder}/subsystem"] = "sys/bus/pci"
    tree.links[f"{folder}/driver"] = "sys/bus/pci/drivers/amdgpu"
    tree.links[f"sys/bus/pci/devices/{gpu.address}"] = folder
    tree.links[f"sys/bus/pci/drivers/amdgpu/{gpu.address}"] = folder


def add_power_management(tree: Tree, folder: str, *, may_sleep: bool, status: str = "active") -> None:
    """Add the kernel's files about sleep; the delay of a card that never sleeps cannot be read, and is empty here."""
    delay = f"{AUTOSUSPEND_MS}\n".encode() if may_sleep else b""
    tree.put(
        f"{folder}/power",
        runtime_status=status,
        control="auto" if may_sleep else "on",
        autosuspend_delay_ms=delay,
    )


def _add_link(tree: Tree, gpu: Gpu) -> None:
    speed = f"{gpu.product.link_speed} GT/s PCIe"
    for folder in (gpu.folder, gpu.folder.rpartition("/")[0]):
        tree.put(
            folder,
            current_link_speed=speed,
            current_link_width=gpu.link_width,
            max_link_speed=speed,
            max_link_width=16,
        )
    port = gpu.folder.rpartition("/")[0]
    tree.files[f"{port}/class"] = b"0x060400\n"
    tree.put(port, vendor="0x1022", device="0x14ab")
    tree.links[f"{port}/subsystem"] = "sys/bus/pci"
    tree.links[f"sys/bus/pci/devices/{port.rpartition('/')[2]}"] = port
    tree.put(gpu.folder, pcie_replay_count=0)
    if not gpu.product.is_apu:
        top = gpu.product.link_speed
        tree.put_lines(
            f"{gpu.folder}/pp_dpm_pcie",
            ("0: 2.5GT/s, x1 310Mhz", f"1: {top}GT/s, x{gpu.link_width} 619Mhz *"),
        )
    if gpu.product.family == "instinct":
        tree.put(gpu.folder, pcie_bw="0 0 256")


def _add_power_files(tree: Tree, gpu: Gpu) -> None:
    tree.put(gpu.folder, power_dpm_force_performance_level="auto", power_dpm_state="performance", pp_cur_state=0)
    tree.put_lines(f"{gpu.folder}/pp_num_states", ("states: 1", "0 default"))
    tree.put(
        gpu.folder,
        thermal_throttling_logging=f"{gpu.address}: thermal throttling logging enabled, with interval 60 seconds",
    )


def _add_drm(tree: Tree, gpu: Gpu, *, mode: int, gid: int | None) -> None:
    for partition in gpu.partitions:
        folder = gpu.folder if partition.platform is None else xcp_folder(partition.platform)
        _add_minor(tree, folder, partition.card, partition.render, mode=mode, gid=gid)
    first_card = gpu.partitions[0].card - (gpu.partitions[0].render - 128)
    for platform, minor in gpu.spare_cards:
        _add_minor(tree, xcp_folder(platform), first_card + minor, 128 + minor, mode=mode, gid=gid)
    for platform in platforms(gpu):
        folder = xcp_folder(platform)
        name = folder.rpartition("/")[2]
        tree.put(folder, modalias=f"platform:{name}", uevent=f"MODALIAS=platform:{name}")
        tree.links[f"{folder}/subsystem"] = "sys/bus/platform"
        tree.links[f"sys/bus/platform/devices/{name}"] = folder


def platforms(gpu: Gpu) -> list[int]:
    """Return the numbers of its amdgpu_xcp platform devices."""
    used = [partition.platform for partition in gpu.partitions if partition.platform is not None]
    return used + [platform for platform, _ in gpu.spare_cards]


def xcp_folder(platform: int) -> str:
    """Return the folder of a partition's platform device."""
    return f"sys/devices/platform/amdgpu_xcp_{platform}"


def _add_minor(tree: Tree, device: str, card: int, render: int, *, mode: int, gid: int | None) -> None:
    for name, minor in ((f"card{card}", card), (f"renderD{render}", render)):
        folder = f"{device}/drm/{name}"
        tree.put(folder, dev=f"{DRM_MAJOR}:{minor}")
        tree.put_lines(
            f"{folder}/uevent",
            (f"MAJOR={DRM_MAJOR}", f"MINOR={minor}", f"DEVNAME=dri/{name}", "DEVTYPE=drm_minor"),
        )
        tree.links[f"{folder}/device"] = device
        tree.links[f"{folder}/subsystem"] = "sys/class/drm"
        tree.links[f"sys/class/drm/{name}"] = folder
        tree.links[f"sys/dev/char/{DRM_MAJOR}:{minor}"] = folder
        tree.nodes[f"dev/dri/{name}"] = Node(DRM_MAJOR, minor, mode, gid)


def _add_hwmon(tree: Tree, gpu: Gpu) -> None:
    product = gpu.product
    folder = hwmon_folder(gpu)
    tree.put(folder, name="amdgpu", freq1_label="sclk", power1_label="PPT")
    limits = dict(zip(("edge", "junction", "mem"), product.temperature_limits, strict=True))
    for sensor in product.sensors:
        number = _sensor_number(sensor)
        tree.put(folder, **{f"temp{number}_label": sensor})
        if not product.is_apu:
            tree.put(
                folder,
                **{
                    f"temp{number}_crit": limits[sensor] * 1000,
                    f"temp{number}_crit_hyst": -273150,
                    f"temp{number}_emergency": limits[sensor] * 1000 + 5000,
                },
            )
    if not product.has_partitions:
        tree.put(folder, in0_label="vddgfx")
    if not product.is_apu:
        cap, watt = product.power_cap * 1_000_000, 1_000_000
        tree.put(
            folder,
            freq2_label="mclk",
            power1_cap=cap,
            power1_cap_default=cap,
            power1_cap_max=cap if product.family == "instinct" else product.power_cap * 115 // 100 * watt,
            power1_cap_min=0 if product.family == "instinct" else product.power_cap * 9 // 10 * watt,
        )
    if product.fan_max:
        tree.put(folder, fan1_max=product.fan_max, fan1_min=0, fan1_enable=0, pwm1_max=255, pwm1_min=0, pwm1_enable=2)
    tree.links[f"{folder}/device"] = gpu.folder
    tree.links[f"{folder}/subsystem"] = "sys/class/hwmon"
    tree.links[f"sys/class/hwmon/hwmon{gpu.hwmon}"] = folder


def _add_ras(tree: Tree, gpu: Gpu) -> None:
    folder = f"{gpu.folder}/ras"
    tree.put(folder, features="feature mask: 0x1fff", gpu_vram_bad_pages=b"")
    for block in RAS_BLOCKS:
        corrected = 3 if block == "umc" and gpu.number % 4 == 1 else 0
        tree.put(folder, **{f"{block}_err_count": f"ue: 0\nce: {corrected}"})


def _add_partitions(tree: Tree, gpu: Gpu) -> None:
    modes = ", ".join(mode.upper() for mode in PARTITIONS)
    tree.put(
        gpu.folder,
        current_compute_partition=gpu.mode.upper(),
        available_compute_partition=modes,
        current_memory_partition="NPS1",
        available_memory_partition="NPS1, NPS4",
    )


def _sensor_number(sensor: str) -> int:
    return ("edge", "junction", "mem").index(sensor) + 1


def _core_levels(gpu: Gpu, state: State) -> list[str]:
    """Return the lines of pp_dpm_sclk: Radeon gives least, now and most, RDNA4 a line for deep sleep before them."""
    low, high = gpu.product.core_clocks
    now = state.core_clock
    if gpu.product.family == "radeon":
        least = max(low, 500)
        if gpu.product.gfx_target_version >= 120000 and now < least:
            return [f"S: {now}Mhz *", f"0: {least}Mhz", f"1: {high}Mhz"]
        return [f"0: {least}Mhz", f"1: {now}Mhz *", f"2: {high}Mhz"]
    return _levels((low, high) if now in (low, high) else (low, now, high), now)


def _levels(clocks: tuple[int, ...], now: int) -> list[str]:
    nearest = min(clocks, key=lambda clock: abs(clock - now))
    return [f"{turn}: {clock}Mhz" + (" *" if clock == nearest else "") for turn, clock in enumerate(clocks)]
