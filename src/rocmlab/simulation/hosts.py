"""Which GPUs a profile has, where they sit, and how the system numbers them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rocmlab.base.errors import RocmlabError
from rocmlab.simulation.products import PRODUCTS, Product

MAX_GPUS = 64
MAX_RENDER_NODES = 64  # renderD128 … renderD191
PARTITIONS = {"spx": 1, "dpx": 2, "qpx": 4, "cpx": 8}
# profile: (products alternately, GPUs by default, CPU sockets, number of the first card)
PROFILES: dict[str, tuple[tuple[str, ...], int, int, int]] = {
    "radeon": (("rx7900xtx",), 2, 1, 0),
    "instinct": (("mi300x",), 8, 2, 0),
    "apu": (("strix-halo",), 1, 1, 1),
    "mixed": (("rx7900xtx", "strix-point", "rx9070xt", "w7900"), 3, 1, 1),
}
HIVE = 8  # GPUs of one XGMI hive
KFD_ORDER = (2, 3, 1, 0)  # of each four Instinct GPUs by PCI address, in which the driver met them


@dataclass(frozen=True)
class Partition:
    """One KFD node of a GPU: the whole of it, or one of its partitions."""

    number: int  # within its GPU
    node: int  # of the topology
    gpu_id: int
    card: int
    render: int
    platform: int | None  # number of its amdgpu_xcp platform device; None for the first, which has the PCI device


@dataclass(frozen=True)
class Gpu:
    """One GPU of the host."""

    number: int  # order in which the driver met them: that of KFD nodes and HIP indices
    product: Product
    domain: int
    bus: int
    unique_id: int
    serial: str
    hwmon: int
    numa_node: int
    hive: int  # 0: none
    mode: str  # compute partition mode, in small letters
    partitions: tuple[Partition, ...]
    spare_cards: tuple[tuple[int, int], ...]  # (platform device, minor) of partitions not in use
    link_width: int = 16

    @property
    def address(self) -> str:
        """The PCI address."""
        return f"{self.domain:04x}:{self.bus:02x}:00.0"

    @property
    def folder(self) -> str:
        """The folder of its PCI device, below the root."""
        port = f"{self.domain:04x}:{self.bus - 1:02x}:00.0"
        return f"sys/devices/pci{self.domain:04x}:{self.bus - 1:02x}/{port}/{self.address}"


@dataclass(frozen=True)
class Host:
    """All that is fixed of a simulated host."""

    profile: str
    gpus: tuple[Gpu, ...]
    sockets: int
    seed: int
    partitions_are_functions: bool = False  # as older drivers number them in KFD: 0000:05:00.1


def number(seed: int, *words: object, bits: int = 64) -> int:
    """Return a number that depends only on the seed and the parts."""
    text = "/".join(map(str, (seed, *words)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - bits)


def plan(
    profile: str,
    gpus: int | None = None,
    *,
    partition: str = "spx",
    products: Sequence[str] = (),
    extra: Sequence[str] = (),
    seed: int = 0,
) -> Host:
    """Lay out a host.

    Args:
        profile: one of `PROFILES`.
        gpus: how many GPUs; None for what the profile has by default.
        partition: compute partition mode of the GPUs that have partitions, one of `PARTITIONS`.
        products: keys of `PRODUCTS` to use alternately in place of the profile's own.
        extra: keys of products that come after them, such as a processor's own small GPU.
        seed: decides serial numbers, unique ids and the like.

    Raises:
        RocmlabError: the profile, product or partition mode is unknown, or the number of GPUs is impossible.
    """
    chosen = _chosen(profile, gpus, partition, products, extra)
    own = len(chosen) - len(extra)  # GPUs that the profile places
    sockets = PROFILES[profile][2]
    is_instinct = profile == "instinct"
    slots = [*(_kfd_order(own) if is_instinct else range(own)), *range(own, len(chosen))]
    numbers = _Numbers(profile, chosen, partition, seed)
    made = []
    for turn, product in enumerate(chosen):
        domain, bus = _place(profile, slots[turn], product)
        partitions, spare_cards = numbers.take(turn, product)
        made.append(
            Gpu(
                number=turn,
                product=product,
                domain=domain,
                bus=bus,
                unique_id=0 if product.is_apu else number(seed, "unique_id", turn) | 1 << 60,
                serial=f"{number(seed, 'serial', turn, bits=40) % 10**12:012d}",
                hwmon=2 + turn,
                numa_node=min(slots[turn] * sockets // own, sockets - 1) if sockets > 1 else -1,
                hive=number(seed, "hive", slots[turn] // HIVE) | 1 if is_instinct and own > 1 else 0,
                mode=partition if product.has_partitions else "",
                partitions=partitions,
                spare_cards=spare_cards,
            )
        )
    numbers.check()
    return Host(profile, tuple(made), sockets, seed)


class _Numbers:
    """What the kernel numbers in the order of GPUs: KFD nodes, DRM minors, platform devices."""

    def __init__(self, profile: str, chosen: Sequence[Product], partition: str, seed: int) -> None:
        self._first_card = PROFILES[profile][3]
        self._node = PROFILES[profile][2]
        self._minor = 0
        self._platform = 0
        self._parts = PARTITIONS[partition]
        self._seed = seed
        # The driver makes all eight nodes of an MI300X whatever its mode; more than eight GPUs would not fit.
        self._has_spares = sum(product.accelerators for product in chosen) <= MAX_RENDER_NODES

    def take(self, turn: int, product: Product) -> tuple[tuple[Partition, ...], tuple[tuple[int, int], ...]]:
        """Return the next GPU's partitions, and platform device and minor of the nodes that it does not use."""
        parts = self._parts if product.has_partitions else 1
        more = product.accelerators - 1 if self._has_spares or parts > 1 else 0
        nodes = [(None, self._minor), *((self._platform + step, self._minor + 1 + step) for step in range(more))]
        partitions = tuple(
            Partition(
                number=part,
                node=self._node + part,
                gpu_id=number(self._seed, "gpu_id", turn, part, bits=9) << 7 | self._node + part,  # never twice
                card=self._first_card + minor,
                render=128 + minor,
                platform=platform,
            )
            for part, (platform, minor) in enumerate(nodes[:parts])
        )
        self._node += parts
        self._minor += 1 + more
        self._platform += more
        return partitions, tuple((platform, minor) for platform, minor in nodes[parts:] if platform is not None)

    def check(self) -> None:
        """Refuse more nodes than the kernel numbers."""
        if self._minor > MAX_RENDER_NODES:
            raise RocmlabError(
                f"this host would need {self._minor} render nodes",
                f"a host has at most {MAX_RENDER_NODES}, renderD128 to renderD191",
                "take fewer GPUs: 8 divided MI300X have 64 nodes",
            )


def _chosen(
    profile: str, gpus: int | None, partition: str, products: Sequence[str], extra: Sequence[str]
) -> list[Product]:
    _known("profile", profile, PROFILES)
    _known("partition", partition, PARTITIONS)
    for key in (*products, *extra):
        _known("product", key, PRODUCTS)
    own, default = PROFILES[profile][:2]
    count = default if gpus is None else gpus
    if not 1 <= count <= MAX_GPUS - len(extra):
        raise RocmlabError(f"--gpus {count} is impossible", f"a host has 1 to {MAX_GPUS} GPUs", "--gpus 4")
    keys = tuple(products) or own
    chosen = [PRODUCTS[keys[turn % len(keys)]] for turn in range(count)] + [PRODUCTS[key] for key in extra]
    if PARTITIONS[partition] > 1 and not any(product.has_partitions for product in chosen):
        raise RocmlabError(
            f"--partition {partition}: no GPU of this host has partitions",
            "only MI300X and its kind can be divided",
            "use --profile instinct, or omit --partition",
        )
    return chosen


def _known(what: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise RocmlabError(f"unknown {what} {value!r}", "", f"choose one of: {', '.join(known)}")


def _kfd_order(count: int) -> list[int]:
    """Return the rank by PCI address of each GPU in KFD's order, which differs from it on servers."""
    blocks = (base + step for base in range(0, count, len(KFD_ORDER)) for step in KFD_ORDER)
    return [rank for rank in blocks if rank < count]


def _place(profile: str, slot: int, product: Product) -> tuple[int, int]:
    """Return PCI domain and bus; the bus before it is that of the port above."""
    if product.is_apu and profile != "apu":
        return 0, 0xC0 + slot
    if profile == "apu":
        return 0, 0x03 + 2 * slot if slot else 0xC1
    if profile == "mixed":
        return (0, 0x03 + 2 * slot) if slot != 2 else (1, 0x03)
    return 0, (0x05 if profile == "instinct" else 0x03) + 3 * slot
