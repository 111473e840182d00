"""The kinds of GPU that a simulated host can have: our own round numbers in the style of each product."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True)
class Product:
    """One kind of GPU; clocks in MHz, power in watts, temperatures in degrees Celsius."""

    key: str  # what --product calls it
    family: str  # radeon, instinct or apu: which files its driver offers
    device_id: int
    revision: int
    gfx_target_version: int
    compute_units: int
    arrays: int  # shader arrays of the whole GPU
    vram_bytes: int
    gtt_bytes: int
    core_clocks: tuple[int, int]  # idle, full
    memory_clocks: tuple[int, ...]  # levels
    power_idle: int
    power_cap: int
    metrics: tuple[int, int]  # format and content revision of gpu_metrics
    product_name: str | None = None  # what the card's own memory says; consumer cards have none
    part_number: str | None = None  # of the board; None: one that no product has
    arrays_per_engine: int = 1
    simd_per_cu: int = 2
    wave_size: int = 32
    accelerators: int = 1  # XCCs, which partitions divide
    link_speed: str = "16.0"  # GT/s
    fan_max: int | None = None  # rpm; None where the card has no fan of its own
    temperature_limits: tuple[int, int, int] = (100, 110, 108)  # critical: edge, junction, memory
    memory_vendor: str = "samsung"
    fp64_engine: bool = False

    @property
    def is_apu(self) -> bool:
        """Return whether it shares the host's memory."""
        return self.family == "apu"

    @property
    def has_partitions(self) -> bool:
        """Return whether it can be divided."""
        return self.accelerators > 1

    @property
    def sensors(self) -> tuple[str, ...]:
        """The temperatures it offers, in hwmon's order."""
        if self.is_apu:
            return ("edge",)
        return ("junction", "mem") if self.has_partitions else ("edge", "junction", "mem")


# fmt: off
_PRODUCTS = (
    Product(
        "rx7900xtx", "radeon", 0x744C, 0xC8, 110000, 96, 12, 24560 * MIB, 31 * GIB,
        (24, 2498), (96, 456, 772, 1249), 14, 303, (1, 3),
        arrays_per_engine=2, fan_max=3200,
    ),
    Product(
        "rx7900xt", "radeon", 0x744C, 0xCC, 110000, 84, 12, 20464 * MIB, 31 * GIB,
        (22, 2394), (96, 456, 772, 1249), 12, 265, (1, 3),
        arrays_per_engine=2, fan_max=3300,
    ),
    Product(
        "rx7800xt", "radeon", 0x747E, 0xC8, 110001, 60, 6, 16368 * MIB, 31 * GIB,
        (19, 2430), (96, 456, 772, 1218), 9, 212, (1, 3),
        arrays_per_engine=2, fan_max=3400, memory_vendor="hynix",
    ),
    Product(
        "rx9070xt", "radeon", 0x7550, 0xC0, 120001, 64, 8, 16304 * MIB, 31 * GIB,
        (19, 2970), (96, 456, 772, 1258), 11, 304, (1, 3),
        arrays_per_engine=2, link_speed="32.0", fan_max=3600, temperature_limits=(110, 110, 108),
    ),
    Product(
        "w7900", "radeon", 0x7448, 0x00, 110000, 96, 12, 46064 * MIB, 63 * GIB,
        (26, 2495), (96, 456, 772, 1124), 16, 241, (1, 3),
        product_name="AMD Radeon PRO W7900", arrays_per_engine=2, fan_max=4000,
    ),
    Product(
        "mi210", "instinct", 0x740F, 0x02, 90010, 104, 8, 65520 * MIB, 503 * GIB,
        (500, 1700), (400, 700, 1200, 1600), 41, 300, (1, 3),
        product_name="AMD Instinct MI210", simd_per_cu=4, wave_size=64, temperature_limits=(100, 110, 94),
        memory_vendor="hynix", fp64_engine=True,
    ),
    Product(
        "mi300x", "instinct", 0x74A1, 0x00, 90402, 304, 32, 196592 * MIB, 1007 * GIB,
        (132, 2100), (900, 1100, 1200, 1300), 137, 750, (1, 5),
        product_name="AMD Instinct MI300X OAM",
        part_number="102-G30211-00",  # in AMD's dashboards, which choose metrics by it
        simd_per_cu=4, wave_size=64, accelerators=8,
        link_speed="32.0", temperature_limits=(100, 100, 105), memory_vendor="hynix", fp64_engine=True,
    ),
    Product(
        "strix-halo", "apu", 0x1586, 0xC1, 110501, 40, 4, 1024 * MIB, 62 * GIB,
        (600, 2900), (400, 800, 1000), 8, 120, (3, 0),
        arrays_per_engine=2, temperature_limits=(100, 100, 100),
    ),
    Product(
        "strix-point", "apu", 0x150E, 0xD1, 110500, 16, 2, 512 * MIB, 15 * GIB,
        (600, 2900), (400, 800, 1000), 5, 54, (3, 0),
        arrays_per_engine=2, temperature_limits=(100, 100, 100),
    ),
    Product(
        "raphael", "apu", 0x164E, 0xC1, 100306, 2, 1, 512 * MIB, 15 * GIB,
        (400, 2200), (400, 800, 2400), 2, 65, (2, 1),
        temperature_limits=(100, 100, 100),
    ),
)
# fmt: on
PRODUCTS = {product.key: product for product in _PRODUCTS}
