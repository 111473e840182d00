"""The binary table of every revision, packed manually: offsets and forms are written out, not taken from the code."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocmlab.devices.gpu_metrics import Metrics, parse

Values = dict[int, tuple[str, int]]


def table(size: int, revision: tuple[int, int], values: Values) -> bytes:
    """Return a table with all bits set but for the header and `values`: form and number by offset in bytes."""
    content = bytearray(b"\xff" * size)
    struct.pack_into("<HBB", content, 0, size, *revision)
    for offset, (form, number) in values.items():
        struct.pack_into(f"<{form}", content, offset, number)
    return bytes(content)


def present(metrics: Metrics | None) -> dict[str, object]:
    """Return the fields that are not None, without the revision."""
    assert metrics is not None
    return {name: value for name, value in metrics._asdict().items() if value is not None and name != "revision"}


CARD = {
    "busy_percent": 97.0,
    "memory_busy_percent": 41.0,
    "power_watts": 235.0,
    "edge_celsius": 51.0,
    "hotspot_celsius": 66.0,
    "memory_celsius": 58.0,
    "core_clock_hertz": 1_700_000_000,
    "memory_clock_hertz": 1_600_000_000,
    "fan_rpm": 1500,
}


class TestDiscreteCards:
    """Revisions 1.0 to 1.3: degrees, percent, watts and MHz as they are."""

    def test_1_0_starts_with_the_clock_and_has_narrow_links(self) -> None:
        """The time comes first, the energy has 32 bits, and the link is two bytes at the end of 80."""
        data = table(
            80,
            (1, 0),
            {
                8: ("Q", 12_500_000_000),
                16: ("H", 51),
                18: ("H", 66),
                20: ("H", 58),
                28: ("H", 97),
                30: ("H", 41),
                32: ("H", 3),
                34: ("H", 235),
                36: ("I", 1234567),
                40: ("H", 1650),
                54: ("H", 1700),
                56: ("H", 1090),
                58: ("H", 1600),
                72: ("H", 1500),
                74: ("B", 16),
                75: ("B", 160),
            },
        )

        assert present(parse(data)) == CARD

    @pytest.mark.parametrize(("revision", "size"), [((1, 1), 96), ((1, 2), 104), ((1, 3), 120)])
    def test_1_1_to_1_3_share_a_beginning(self, revision: tuple[int, int], size: int) -> None:
        """From 1.1 on the temperatures come first and the energy has 64 bits."""
        data = table(size, revision, BEGINNING)

        assert present(parse(data)) == CARD

    def test_1_3_as_one_struct(self) -> None:
        """The whole structure, packed in one go by the notation of the facts, gives the same fields."""
        data = struct.pack(
            "<HBB6H3HHQQ7H7HIHHHHII4HQ3HHQ",
            *(120, 1, 3),
            *(51, 66, 58, 0xFFFF, 0xFFFF, 0xFFFF),
            *(97, 41, 3),
            *(235, 1234567, 12_500_000_000),
            *(1650, 1080, 1590, 1, 2, 3, 4),
            *(1700, 1090, 1600, 5, 6, 7, 8),
            *(0x80000001, 1500, 16, 160, 0xFFFF),
            *(5000, 700),
            *(55, 56, 57, 58),
            2_500_000_000,
            *(800, 850, 1250, 0xFFFF),
            1 << 36 | 1 << 0 | 1 << 46,
        )

        assert present(parse(data)) == CARD | {
            "voltage_volts": 0.85,
            "throttle_reasons": ("PPT0", "TEMP_HOTSPOT", "PROCHOT_CPU"),
        }

    def test_no_throttling_differs_from_no_answer(self) -> None:
        """No bit set is an empty list, all bits set is unknown."""
        quiet = parse(table(120, (1, 3), {112: ("Q", 0)}))
        silent = parse(table(120, (1, 3), {16: ("H", 1)}))

        assert quiet is not None
        assert silent is not None
        assert quiet.throttle_reasons == ()
        assert silent.throttle_reasons is None

    def test_the_status_that_differs_by_chip_is_not_decoded(self) -> None:
        """Bits of `throttle_status` mean different things on different chips."""
        metrics = parse(table(104, (1, 2), {68: ("I", 0b111), 16: ("H", 1)}))

        assert metrics is not None
        assert metrics.throttle_reasons is None

    def test_every_reason_has_its_bit(self) -> None:
        """The kernel groups them by bytes: power, current, temperature, other."""
        metrics = parse(table(120, (1, 3), {112: ("Q", 0x0300_FFFF_00FF_00FF)}))

        assert metrics is not None
        assert " ".join(metrics.throttle_reasons or ()) == (
            "PPT0 PPT1 PPT2 PPT3 SPL FPPT SPPT SPPT_APU "
            "TDC_GFX TDC_SOC TDC_MEM TDC_VDD TDC_CVIP EDC_CPU EDC_GFX APCC "
            "TEMP_GPU TEMP_CORE TEMP_MEM TEMP_EDGE TEMP_HOTSPOT TEMP_SOC TEMP_VR_GFX TEMP_VR_SOC "
            "TEMP_VR_MEM0 TEMP_VR_MEM1 TEMP_LIQUID0 TEMP_LIQUID1 VRHOT0 VRHOT1 PROCHOT_CPU PROCHOT_GFX "
            "PPM FIT"
        )

    def test_a_reason_without_a_name_is_told_by_its_bit(self) -> None:
        """A newer kernel's reason is not lost."""
        metrics = parse(table(120, (1, 3), {112: ("Q", 1 << 60)}))

        assert metrics is not None
        assert metrics.throttle_reasons == ("BIT_60",)

    def test_a_mean_clock_stands_in(self) -> None:
        """The mean clock is used where the present one is absent."""
        metrics = parse(table(120, (1, 3), {40: ("H", 1650)}))

        assert metrics is not None
        assert metrics.core_clock_hertz == 1_650_000_000


BEGINNING: Values = {
    4: ("H", 51),
    6: ("H", 66),
    8: ("H", 58),
    16: ("H", 97),
    18: ("H", 41),
    20: ("H", 3),
    22: ("H", 235),
    24: ("Q", 1234567),
    32: ("Q", 12_500_000_000),
    40: ("H", 1650),
    54: ("H", 1700),
    56: ("H", 1090),
    58: ("H", 1600),
    72: ("H", 1500),
    74: ("H", 16),
    76: ("H", 160),
    80: ("I", 5000),
    84: ("I", 700),
}

ACCELERATOR = {
    "hotspot_celsius": 66.0,
    "memory_celsius": 58.0,
    "power_watts": 600.0,
    "busy_percent": 97.0,
    "memory_busy_percent": 41.0,
    "energy_joules": 3.0,
    "pcie_replays": 14,
    "core_clock_hertz": 2_100_000_000,
    "memory_clock_hertz": 1_300_000_000,
}


def accelerator(energy: int, links: int, bandwidth: int, naks: int | None, xgmi: int, clocks: int) -> Values:
    """Return the values of ACCELERATOR, of which these offsets differ from revision to revision."""
    values: Values = {4: ("H", 66), 6: ("H", 58), 10: ("H", 600), 12: ("H", 97), 14: ("H", 41)}
    values |= {energy: ("Q", 65536 * 3), energy + 8: ("Q", 12_500_000_000)}
    values |= {links + 2 * place: ("H", number) for place, number in enumerate((16, 320, 16, 32))}
    values |= {links + 8: ("I", 5000), links + 12: ("I", 700)}
    values |= {bandwidth + 8 * place: ("Q", number) for place, number in enumerate((11, 12, 13, 14, 15))}
    if naks is not None:
        values |= {naks: ("I", 16), naks + 4: ("I", 17)}
    values |= {xgmi: ("Q", 101), xgmi + 56: ("Q", 108), xgmi + 64: ("Q", 201)}
    # Of eight clocks of dies, the first is absent, as on a card with a part that is switched off.
    return values | {
        clocks: ("Q", 2_500_000_000),
        clocks + 10: ("H", 2100),
        clocks + 22: ("H", 900),
        clocks + 24: ("H", 1300),
        clocks + 48: ("H", 1300),
    }


def limited(cycles: int, partitions: int) -> Values:
    """Return values of the counters of limits and of the partitions, which are not read."""
    values: Values = {cycles + 4 * place: ("I", number) for place, number in enumerate((1000, 1, 2, 3, 4, 5))}
    return values | {partitions: ("H", 8)}


class TestAccelerators:
    """Revisions 1.4 to 1.8: no edge temperature, no throttle reasons."""

    def test_1_4(self) -> None:
        """288 bytes: energy at 24, links at 48, clocks from 232."""
        data = table(288, (1, 4), accelerator(24, 48, 64, None, 104, 232))

        assert present(parse(data)) == ACCELERATOR

    def test_1_5(self) -> None:
        """360 bytes: 32 JPEG engines come before the energy, and NAK counters are new."""
        data = table(360, (1, 5), accelerator(88, 112, 128, 168, 176, 304))

        assert present(parse(data)) == ACCELERATOR

    def test_1_6(self) -> None:
        """1664 bytes: residencies from 32, partitions at 306."""
        data = table(1664, (1, 6), accelerator(16, 60, 80, 120, 128, 256) | limited(32, 306))

        assert present(parse(data)) == ACCELERATOR

    @pytest.mark.parametrize(("revision", "size"), [((1, 7), 2208), ((1, 8), 3872)])
    def test_1_7_and_1_8(self, revision: tuple[int, int], size: int) -> None:
        """The memory's bandwidth comes at 16 and the states of links at 264; both differ after the partitions only."""
        data = table(size, revision, accelerator(24, 68, 88, 128, 136, 288) | limited(40, 338))

        assert present(parse(data)) == ACCELERATOR


def attribute(number: int, kind: int, code: str, *values: int) -> bytes:
    """Return one attribute of a self-describing table; its unit, which no one needs, is 1."""
    encoding = 1 << 24 | kind << 20 | number << 10 | len(values)
    return struct.pack(f"<Q{len(values)}{code}", encoding, *values)


def described(*attributes: bytes, count: int | None = None) -> bytes:
    """Return a table of revision 1.9 with these attributes."""
    body = struct.pack("<i", len(attributes) if count is None else count) + b"".join(attributes)
    return struct.pack("<HBB", 4 + len(body), 1, 9) + body


class TestSelfDescribing:
    """Revision 1.9: attributes with their own type and length, without padding."""

    def test_attributes_of_any_width_and_order(self) -> None:
        """Counters may have 32 or 64 bits; unknown attributes are skipped by their length."""
        data = described(
            attribute(0, 2, "H", 66),
            attribute(3, 2, "H", 600),
            attribute(900, 4, "I", 1, 2, 3),
            attribute(11, 6, "Q", 1 << 40),
            attribute(10, 4, "I", 7),
            attribute(7, 6, "Q", 65536),
            attribute(17, 2, "H", 320),
            attribute(33, 2, "H", 0xFFFF, 2100, 900),
            attribute(29, 6, "Q", 5, (1 << 64) - 1, 6),
            attribute(1, 3, "h", -1),
            attribute(37, 2, "H", 0xFFFF),
        )

        assert present(parse(data)) == {
            "hotspot_celsius": 66.0,
            "power_watts": 600.0,
            "energy_joules": 1.0,
            "core_clock_hertz": 2_100_000_000,
        }

    @pytest.mark.parametrize(
        "data",
        [
            described(attribute(3, 2, "H", 600), attribute(0, 2, "H", 66), count=9),
            described(attribute(3, 2, "H", 600), attribute(0, 2, "H", 66)) + b"\0" * 4000,
            described(attribute(3, 2, "H", 600), attribute(0, 2, "H", 66), attribute(7, 6, "Q", 1), count=2),
            described(attribute(3, 2, "H", 600), attribute(0, 2, "H", 66), attribute(7, 6, "Q", 1))[:-3],
            described(attribute(3, 2, "H", 600), attribute(0, 2, "H", 66), attribute(7, 15, "Q", 1)),
            described(attribute(3, 2, "H", 600), attribute(0, 2, "H", 66), struct.pack("<Q", 6 << 20 | 7 << 10)),
        ],
        ids=["count too large", "padded", "count too small", "cut off", "unknown type", "no values"],
    )
    def test_what_is_certain_counts(self, data: bytes) -> None:
        """Attributes before a damage are reported, nothing after it."""
        assert present(parse(data)) == {"power_watts": 600.0, "hotspot_celsius": 66.0}

    def test_an_empty_table_tells_nothing(self) -> None:
        """A table without attributes is like none."""
        assert parse(described()) is None
        assert parse(struct.pack("<HBB", 4, 1, 9)) is None


APU = {
    "edge_celsius": 51.25,
    "busy_percent": 97.5,
    "power_watts": 15.5,
    "core_clock_hertz": 1_700_000_000,
    "memory_clock_hertz": 1_600_000_000,
}


def apu(clock: int, head: int, power: int) -> Values:
    """Return the values of APU: the offsets of the time, the temperatures and the power differ."""
    return {
        clock: ("Q", 12_500_000_000),
        head: ("H", 5125),
        head + 24: ("H", 9750),
        head + 26: ("H", 300),
        power: ("H", 15500),
        power + 24: ("H", 1650),
        power + 36: ("H", 1700),
        power + 38: ("H", 1090),
        power + 40: ("H", 1600),
        power + 68: ("I", 0b101),
        power + 72: ("H", 128),
    }


class TestApus:
    """Revisions 2.0 to 2.4 and 3.0: hundredths of degrees, thousandths of watts."""

    def test_2_0(self) -> None:
        """120 bytes with the time first."""
        assert present(parse(table(120, (2, 0), apu(8, 16, 44)))) == APU

    @pytest.mark.parametrize(("revision", "size"), [((2, 1), 120), ((2, 2), 128), ((2, 3), 152), ((2, 4), 168)])
    def test_2_1_to_2_4_share_a_beginning(self, revision: tuple[int, int], size: int) -> None:
        """The temperatures come first from 2.1 on; what follows is appended."""
        assert present(parse(table(size, revision, apu(32, 4, 40)))) == APU

    def test_2_2_tells_why_it_throttles(self) -> None:
        """The status that is the same for every chip is at 120."""
        metrics = parse(table(128, (2, 2), {120: ("Q", 1 << 5 | 1 << 6 | 1 << 33)}))

        assert metrics is not None
        assert metrics.throttle_reasons == ("FPPT", "SPPT", "TEMP_CORE")

    def test_2_4_has_a_voltage(self) -> None:
        """That of the graphics part is the third of three at 152."""
        data = table(168, (2, 4), {152: ("H", 1), 154: ("H", 2), 156: ("H", 850)})

        assert present(parse(data)) == {"voltage_volts": 0.85}

    @pytest.mark.parametrize(("number", "watts"), [(15, None), (999, None), (1000, 1.0), (54000, 54.0), (0, None)])
    def test_power_that_may_be_watts_is_unknown(self, number: int, watts: float | None) -> None:
        """Some firmware of 2.x gives watts where milliwatts belong; below 1000 no one can tell."""
        metrics = parse(table(120, (2, 1), {40: ("H", number), 4: ("H", 5000)}))

        assert metrics is not None
        assert metrics.power_watts == watts

    def test_3_0(self) -> None:
        """264 bytes: plain percent, power of 32 bits, mean clocks, residencies."""
        data = table(
            264,
            (3, 0),
            {
                4: ("H", 5125),
                42: ("H", 97),
                104: ("Q", 12_500_000_000),
                112: ("I", 115_500),
                174: ("H", 2900),
                176: ("H", 1090),
                186: ("H", 1000),
                228: ("I", 1),
                232: ("I", 2),
                236: ("I", 3),
                240: ("I", 4),
                244: ("I", 5),
                248: ("I", 6),
                252: ("I", 7),
            },
        )

        assert present(parse(data)) == {
            "edge_celsius": 51.25,
            "busy_percent": 97.0,
            "power_watts": 115.5,
            "core_clock_hertz": 2_900_000_000,
            "memory_clock_hertz": 1_000_000_000,
        }

    @pytest.mark.parametrize(("number", "percent"), [(0, 0.0), (97, 97.0), (100, 100.0), (9700, 97.0)])
    def test_3_0_of_older_firmware_gives_hundredths(self, number: int, percent: float) -> None:
        """More than a hundred cannot be percent."""
        metrics = parse(table(264, (3, 0), {42: ("H", number)}))

        assert metrics is not None
        assert metrics.busy_percent == percent


WHOLE = {
    (1, 0): 80,
    (1, 1): 96,
    (1, 2): 104,
    (1, 3): 120,
    (1, 4): 288,
    (1, 5): 360,
    (1, 6): 1664,
    (1, 7): 2208,
    (1, 8): 3872,
    (2, 0): 120,
    (2, 1): 120,
    (2, 2): 128,
    (2, 3): 152,
    (2, 4): 168,
    (3, 0): 264,
}


class TestDamage:
    """Whatever the file holds, the answer is a table or None."""

    @pytest.mark.parametrize("revision", WHOLE)
    def test_all_bits_set_is_nothing(self, revision: tuple[int, int]) -> None:
        """A table that was only initialised tells nothing."""
        assert parse(table(WHOLE[revision], revision, {})) is None

    @pytest.mark.parametrize("revision", WHOLE)
    def test_padding_after_the_table_does_not_matter(self, revision: tuple[int, int]) -> None:
        """Captures are padded to a page."""
        data = table(WHOLE[revision], revision, {4: ("H", 7), 16: ("H", 5)})

        assert parse(data) is not None
        assert parse(data + b"\0" * 100) == parse(data)

    @pytest.mark.parametrize("revision", WHOLE)
    def test_a_table_cut_off_or_of_another_size_is_none(self, revision: tuple[int, int]) -> None:
        """Fields of a wrong size would be read from wrong places."""
        size = WHOLE[revision]
        data = table(size, revision, {4: ("H", 7), 16: ("H", 5)})
        smaller = struct.pack("<H", 60) + data[2:]

        assert parse(data[:-1]) is None
        assert parse(smaller) is None
        assert parse(data[:3]) is None
        assert parse(b"") is None

    def test_a_fixed_table_that_claims_more_is_none(self) -> None:
        """A table of revision 1.3 has 120 bytes and no others."""
        assert parse(table(128, (1, 3), {16: ("H", 5)})) is None

    @pytest.mark.parametrize("revision", [(0, 0), (1, 10), (2, 5), (3, 1), (4, 0), (255, 255)])
    def test_unknown_revisions_are_none(self, revision: tuple[int, int]) -> None:
        """A revision that no one described is not guessed."""
        assert parse(table(4000, revision, {16: ("H", 5)})) is None

    @given(st.binary(max_size=4096))
    @example(b"\xff" * 4096)
    @example(b"\0" * 4096)
    def test_any_bytes_are_survived(self, data: bytes) -> None:
        """No bytes raise."""
        parse(data)

    @given(
        st.sampled_from([*WHOLE, (1, 9)]),
        st.one_of(st.none(), st.integers(0, 0xFFFF)),
        st.binary(max_size=4096),
        st.integers(0, 4096),
    )
    def test_any_content_of_a_known_revision_is_survived(
        self, revision: tuple[int, int], size: int | None, body: bytes, repeat: int
    ) -> None:
        """With a true or false size, short or long, each field is None or of its type."""
        content = (body * (repeat // max(len(body), 1) + 1))[:4096]
        size = WHOLE.get(revision, 4 + len(content)) if size is None else size

        metrics = parse(struct.pack("<HBB", size, *revision) + content)

        if metrics is not None:
            assert metrics.revision == revision
            for name, value in metrics._asdict().items():
                assert value is None or name in STRUCTURED or isinstance(value, int | float), name


STRUCTURED = ("revision", "throttle_reasons")
