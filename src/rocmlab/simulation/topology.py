"""The KFD topology: a node per CPU socket, then one per GPU or partition, with memory and links."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

from rocmlab.simulation.hosts import Gpu, Host, Partition, number
from rocmlab.simulation.trees import Node, Tree

KFD = "sys/devices/virtual/kfd/kfd"
KFD_MAJOR = 238
CORES = 16  # of each socket
BUS_WIDTH = {"instinct": 4096, "radeon": 384, "apu": 128}  # bits, of the memory
PCIE, XGMI, CPU_LINK = 2, 11, 1  # kinds of io_links
DATA, INSTRUCTIONS = 9, 10  # kinds of caches: what is in them (1, 2), and that they are a GPU's (8)


def add_topology(tree: Tree, host: Host, *, mode: int, gid: int | None) -> None:
    """Add `/sys/class/kfd` and `/dev/kfd`."""
    tree.put(KFD, dev=f"{KFD_MAJOR}:0")
    tree.put_lines(f"{KFD}/uevent", (f"MAJOR={KFD_MAJOR}", "MINOR=0", "DEVNAME=kfd"))
    tree.links[f"{KFD}/subsystem"] = "sys/class/kfd"
    tree.links["sys/class/kfd/kfd"] = KFD
    tree.links[f"sys/dev/char/{KFD_MAJOR}:0"] = KFD
    tree.nodes["dev/kfd"] = Node(KFD_MAJOR, 0, mode, gid)
    tree.folders.add(f"{KFD}/proc")
    tree.put(f"{KFD}/topology", generation_id=2)
    tree.put_lines(
        f"{KFD}/topology/system_properties",
        ("platform_oem 0", "platform_id 0", "platform_rev 1"),
    )
    _add_nodes(tree, host)


def omit(tree: Tree, host: Host, absent: Collection[int]) -> None:
    """Take GPUs out of the topology: the kernel numbers the nodes without a hole, and links only what is there."""
    tree.remove(f"{KFD}/topology/nodes")
    numbers = itertools.count(host.sockets)
    left = [
        replace(gpu, partitions=tuple(replace(partition, node=next(numbers)) for partition in gpu.partitions))
        for gpu in host.gpus
        if gpu.number not in absent
    ]
    _add_nodes(tree, replace(host, gpus=tuple(left)))


def _add_nodes(tree: Tree, host: Host) -> None:
    for socket in range(host.sockets):
        _add_socket(tree, host, socket)
    for gpu in host.gpus:
        for partition in gpu.partitions:
            _add_gpu(tree, host, gpu, partition)


def node_folder(node: int) -> str:
    """Return the folder of one node."""
    return f"{KFD}/topology/nodes/{node}"


def _add_socket(tree: Tree, host: Host, socket: int) -> None:
    folder = node_folder(socket)
    near = [(gpu, partition) for gpu in host.gpus for partition in gpu.partitions if max(gpu.numa_node, 0) == socket]
    others = [other for other in range(host.sockets) if other != socket]
    tree.put(folder, gpu_id=0, name="")
    tree.put_lines(
        f"{folder}/properties",
        _lines(
            cpu_cores_count=CORES,
            simd_count=0,
            mem_banks_count=1,
            caches_count=0,
            io_links_count=len(near) + len(others),
            p2p_links_count=0,
            cpu_core_id_base=socket * CORES,
            simd_id_base=0,
            location_id=0,
            domain=0,
            drm_render_minor=0,
            hive_id=0,
            unique_id=0,
            num_xcc=0,
            max_engine_clk_ccompute=4200,
        ),
    )
    _add_bank(tree, folder, heap=0, size=(1024 if host.sockets > 1 else 64) << 30, width=64, clock=2400)
    for turn, other in enumerate(others):
        _add_io_link(tree, socket, turn, other, CPU_LINK, weight=32)
    for turn, (_, partition) in enumerate(near, start=len(others)):
        _add_io_link(tree, socket, turn, partition.node, PCIE, weight=20)
    tree.folders |= {f"{folder}/{name}" for name in ("io_links", "p2p_links", "caches")}


def _add_gpu(tree: Tree, host: Host, gpu: Gpu, partition: Partition) -> None:
    folder = node_folder(partition.node)
    product, parts = gpu.product, len(gpu.partitions)
    peers = _peers(host, gpu, partition)
    units = product.compute_units // parts
    xccs = product.accelerators // parts
    arrays = max(1, product.arrays // parts)
    tree.put(folder, gpu_id=partition.gpu_id, name="ip discovery")
    tree.put_lines(
        f"{folder}/properties",
        _lines(
            cpu_cores_count=0,
            simd_count=units * product.simd_per_cu,
            mem_banks_count=1,
            caches_count=len(CACHES),
            io_links_count=1 + len(peers),
            p2p_links_count=0,
            cpu_core_id_base=0,
            simd_id_base=2147487744 + 512 * partition.node,
            max_waves_per_simd=8 if product.fp64_engine else 16,
            lds_size_in_kb=64,
            gds_size_in_kb=0,
            num_gws=64,
            wave_front_size=product.wave_size,
            array_count=arrays,
            simd_arrays_per_engine=product.arrays_per_engine,
            cu_per_simd_array=-(-units // arrays),
            simd_per_cu=product.simd_per_cu,
            max_slots_scratch_cu=32,
            gfx_target_version=product.gfx_target_version,
            vendor_id=0x1002,
            device_id=product.device_id,
            location_id=gpu.bus << 8 | _partition_bits(host, partition),
            domain=gpu.domain,
            drm_render_minor=partition.render,
            hive_id=gpu.hive,
            num_sdma_engines=2,
            num_sdma_xgmi_engines=3 if gpu.hive and parts == 1 else 0,
            num_sdma_queues_per_engine=8,
            num_cp_queues=24 if product.fp64_engine else 8,
            max_engine_clk_fcompute=product.core_clocks[1],
            local_mem_size=0,
            fw_version=0x58,
            capability=0x2C746000 if product.fp64_engine else 0x21022000,
            debug_prop=1495,
            sdma_fw_version=22,
            unique_id=_unique_id(host, gpu, partition),
            num_xcc=xccs,
            max_engine_clk_ccompute=4200,
        ),
    )
    size = product.gtt_bytes if product.is_apu else product.vram_bytes // parts
    _add_bank(
        tree, folder, heap=1, size=size, width=BUS_WIDTH[product.family] // parts, clock=product.memory_clocks[-1]
    )
    for turn, (level, kibibytes, kind) in enumerate(CACHES):
        size = kibibytes * xccs if level > 1 else kibibytes
        tree.put_lines(
            f"{folder}/caches/{turn}/properties",
            _lines(processor_id_low=2147487744, level=level, size=size, cache_line_size=128, type=kind),
        )
    _add_io_link(tree, partition.node, 0, max(gpu.numa_node, 0), PCIE, weight=20)
    for turn, peer in enumerate(peers, start=1):
        _add_io_link(tree, partition.node, turn, peer, XGMI, weight=15)
    tree.folders.add(f"{folder}/p2p_links")


# (level, KiB, kind): a real GPU has one entry for each of them; here is one of each sort.
CACHES = ((1, 32, DATA), (1, 64, INSTRUCTIONS), (2, 4096, DATA))


def _unique_id(host: Host, gpu: Gpu, partition: Partition) -> int:
    """Return the card's id; newer drivers give each partition the id of its first accelerator instead."""
    if len(gpu.partitions) == 1 or host.partitions_are_functions:
        return gpu.unique_id
    return number(host.seed, "accelerator", gpu.number, partition.number) | 1 << 60


def _partition_bits(host: Host, partition: Partition) -> int:
    """Return the bits that distinguish partitions: 28 to 31, and on older drivers the function of the PCI address."""
    return partition.number if host.partitions_are_functions else partition.number << 28


def _peers(host: Host, gpu: Gpu, partition: Partition) -> list[int]:
    """Return the nodes that XGMI links a GPU or partition to."""
    same = [other.node for other in gpu.partitions]
    linked = [other.node for peer in host.gpus if peer.hive and peer.hive == gpu.hive for other in peer.partitions]
    return sorted({*same, *linked} - {partition.node})


def _add_bank(tree: Tree, folder: str, *, heap: int, size: int, width: int, clock: int) -> None:
    tree.put_lines(
        f"{folder}/mem_banks/0/properties",
        _lines(heap_type=heap, size_in_bytes=size, flags=0, width=width, mem_clk_max=clock),
    )


def _add_io_link(tree: Tree, node: int, number: int, to: int, kind: int, *, weight: int) -> None:
    most = 50000 if kind == XGMI else 32000 if kind == PCIE else 0
    tree.put_lines(
        f"{node_folder(node)}/io_links/{number}/properties",
        _lines(
            type=kind,
            version_major=0,
            version_minor=0,
            node_from=node,
            node_to=to,
            weight=weight,
            min_latency=0,
            max_latency=0,
            min_bandwidth=most and (50000 if kind == XGMI else 312),
            max_bandwidth=most,
            recommended_transfer_size=0,
            recommended_sdma_engine_id_mask=0,
            flags=1,
        ),
    )


def _lines(**values: int) -> list[str]:
    return [f"{key} {value}" for key, value in values.items()]
