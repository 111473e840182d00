"""The binary table `gpu_metrics` in the revision that each product's driver writes.

Layouts: kernel `kgd_pp_interface.h`, naturally aligned. Absent values have all bits set.
"""

from __future__ import annotations

import struct

from rocmlab.simulation.hosts import Gpu
from rocmlab.simulation.loads import AMBIENT, State

NONE16 = 0xFFFF
NONE32 = 0xFFFFFFFF
NONE64 = 0xFFFFFFFFFFFFFFFF
PPT0 = 1  # bit of the throttle status that is the same for all products: power limit
V1_3 = "<HBB6H3HHQQ7H7HIHHHHII4HQ3HHQ"
V1_5 = "<HBB3HH2H4H32HQQIIHHHHIIQQQQQII8Q8QQ8H4H4H4HHH4x"
V2_1 = "<HBB2H8H2H2HQ4H8H6H6H8H2HIH3H"
V3_0 = "<HBBHH16HHHH8H16H4H2xQIH2xIIII16H3H8H16HHH2x8I4x"


def table(gpu: Gpu, state: State) -> bytes:
    """Return the table of one GPU as it would be read now."""
    pack = {(1, 3): _v1_3, (1, 5): _v1_5, (2, 1): _v2_1, (3, 0): _v3_0}[gpu.product.metrics]
    layout, values = pack(gpu, state)
    return struct.pack(layout, struct.calcsize(layout), *gpu.product.metrics, *values)


def edge(gpu: Gpu, state: State) -> int:
    """Return the edge temperature in degrees Celsius, cooler than the junction."""
    return round(AMBIENT + (state.junction - AMBIENT) * 0.8)


def memory(gpu: Gpu, state: State) -> int:
    """Return the memory's temperature in degrees Celsius."""
    return round(AMBIENT + 4 + (state.junction - AMBIENT) * 0.9)


def fan_rpm(gpu: Gpu, state: State) -> int:
    """Return the fan's speed; it stands still while the card is cool."""
    warm = max(0.0, edge(gpu, state) - 45) / 40
    return round((gpu.product.fan_max or 0) * min(1.0, warm))


def voltage(gpu: Gpu, state: State) -> int:
    """Return the core's voltage in mV."""
    return 680 + round(370 * state.busy / 100)


def link_speed(gpu: Gpu) -> int:
    """Return the link's speed in 0.1 GT/s."""
    return round(float(gpu.product.link_speed) * 10)


def throttle(gpu: Gpu, state: State) -> int:
    """Return the throttle bits that do not depend on the product."""
    return PPT0 if state.power >= gpu.product.power_cap * 0.96 else 0


def _nanoseconds(state: State) -> int:
    return int((600 + state.seconds) * 1e9)


def _v1_3(gpu: Gpu, state: State) -> tuple[str, list[int]]:
    is_instinct = gpu.product.family == "instinct"
    soc, video = 1000 + round(2 * state.busy), 0
    temperatures = [edge(gpu, state), round(state.junction), memory(gpu, state), NONE16, NONE16, NONE16]
    clocks = [state.core_clock, soc, state.memory_clock, video, video, video, video]
    hbm = [memory(gpu, state)] * 4 if is_instinct else [NONE16] * 4
    return V1_3, [
        *temperatures,
        *(int(state.busy), int(state.memory_busy), NONE16 if is_instinct else 0),
        round(state.power),
        *(int(state.energy * 65536) if is_instinct else NONE64, _nanoseconds(state)),
        *clocks,
        *clocks,
        throttle(gpu, state),
        NONE16 if gpu.product.fan_max is None else fan_rpm(gpu, state),
        *(gpu.link_width, link_speed(gpu), NONE16),
        *(int(state.busy * state.seconds), int(state.memory_busy * state.seconds)),
        *hbm,
        _nanoseconds(state) // 10,
        *(NONE16, voltage(gpu, state), NONE16, NONE16),
        throttle(gpu, state),
    ]


def _v1_5(gpu: Gpu, state: State) -> tuple[str, list[int]]:
    """MI300X: eight accelerators, four dies."""
    links = 7 if gpu.hive else 0
    xgmi = [int(state.energy * 10 * (link + 1)) if link < links else 0 for link in range(8)]
    return V1_5, [
        *(round(state.junction), memory(gpu, state), memory(gpu, state) - 6),
        round(state.power),
        *(int(state.busy), int(state.memory_busy)),
        *([0] * 4),
        *([0] * 32),
        *(int(state.energy * 65536), _nanoseconds(state)),
        *(0, 0),
        *(gpu.link_width, link_speed(gpu), 16, 32),
        *(int(state.busy * state.seconds), int(state.memory_busy * state.seconds)),
        *(0, 0, 0, 0, 0, 0, 0),
        *xgmi,
        *xgmi,
        _nanoseconds(state) // 10,
        *([state.core_clock] * 8),
        *([900 + round(state.busy)] * 4),
        *([29] * 4),
        *([22] * 4),
        *(state.memory_clock, NONE16),
    ]


def _v2_1(gpu: Gpu, state: State) -> tuple[str, list[int]]:
    """Older APUs: temperatures in centidegrees, power in mW (16 bits), activity in hundredths of a percent."""
    warmth = edge(gpu, state) * 100
    power = min(round(state.power * 1000), NONE16 - 1)
    clocks = [state.core_clock, 800, state.memory_clock, 1000, NONE16, NONE16]
    return V2_1, [
        *(warmth, warmth - 200, *([warmth - 100] * 8), *([warmth - 300] * 2)),
        *(int(state.busy * 100), NONE16, _nanoseconds(state)),
        *(power, 3000, 2000, max(1000, power - 5000), *([NONE16] * 8)),
        *clocks,
        *clocks,
        *(*([3000] * 8), *([2000] * 2)),
        *(0, NONE16, NONE16, NONE16, NONE16),
    ]


def _v3_0(gpu: Gpu, state: State) -> tuple[str, list[int]]:
    """APUs since 2024: temperatures in centidegrees, activity in percent, power in mW."""
    warmth = edge(gpu, state) * 100
    power = round(state.power * 1000)
    return V3_0, [
        *(warmth, warmth - 150, *([warmth - 250] * 16), NONE16),
        *(int(state.busy), 0, *([0] * 8), *([900] * 16)),
        *(round(state.busy * 300), round(state.busy * 120), 0, 0),
        _nanoseconds(state),
        *(power, NONE16, power, round(power * 0.7), NONE32, round(power * 0.2)),
        *(*([round(power * 0.2) // 16] * 16), NONE16, NONE16, NONE16),
        *(state.core_clock, 800, 800, 0, 1960, 400, state.memory_clock, 0),
        *(*([3000] * 16), 5100, gpu.product.core_clocks[1]),
        *([0] * 7),
        1000000,
    ]
