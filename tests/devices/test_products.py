"""The tables of products and ISA targets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocmlab.devices import products

FOLDER = Path(products.__file__).parent


def _rows(name: str) -> list[list[str]]:
    lines = (FOLDER / name).read_text(encoding="ascii").splitlines()
    return [line.split(",") for line in lines if not line.startswith("#")]


@pytest.mark.parametrize("name", ["products.csv", "gfx.csv"])
def test_a_table_names_its_source_and_date(name: str) -> None:
    """And every row has as many fields as the header."""
    text = (FOLDER / name).read_text(encoding="ascii")
    header, *rows = _rows(name)

    assert re.search(r"^# source: .{20}", text, re.MULTILINE)
    assert re.search(r"^# checked: 20\d\d-\d\d-\d\d$", text, re.MULTILINE)
    assert {len(header)} == {len(row) for row in rows}


def test_every_device_has_a_name_for_any_revision() -> None:
    """Revisions are unique in a device, ids are spelled one way, and every target is in the other table."""
    rows = _rows("products.csv")[1:]
    revisions: dict[str, list[str]] = {}
    for device, listed, name, gfx in rows:
        revisions.setdefault(device, []).extend(listed.split())
        assert re.fullmatch(r"[0-9a-f]{4}", device)
        assert name.startswith("AMD ")
        assert not gfx or products.target(gfx).is_known

    assert all(listed.count("*") == 1 and len(set(listed)) == len(listed) for listed in revisions.values())


@pytest.mark.parametrize(
    ("device", "revision", "name"),
    [
        (0x67DF, 0xE7, "AMD Radeon RX 580 Series"),
        (0x67DF, 0xC7, "AMD Radeon RX 480"),
        (0x66AF, 0xC1, "AMD Radeon VII"),
        (0x731F, 0xC1, "AMD Radeon RX 5700 XT"),
        (0x73BF, 0xC1, "AMD Radeon RX 6800 XT"),
        (0x73DF, 0xC1, "AMD Radeon RX 6700 XT"),
        (0x744C, 0xC8, "AMD Radeon RX 7900 XTX"),
        (0x744C, 0x99, "AMD Radeon RX 7900 XTX/XT/GRE"),
        (0x7480, 0xCF, "AMD Radeon RX 7600"),
        (0x7550, 0xC0, "AMD Radeon RX 9070 XT"),
        (0x7448, 0x00, "AMD Radeon Pro W7900"),
        (0x6860, 0x00, "AMD Radeon Instinct MI25"),
        (0x738C, 0x01, "AMD Instinct MI100"),
        (0x740F, 0x02, "AMD Instinct MI210"),
        (0x74A1, 0x00, "AMD Instinct MI300X"),
        (0x75A3, 0x00, "AMD Instinct MI355X"),
        (0x15BF, 0xC4, "AMD Radeon 780M"),
        (0x1586, 0xC1, "AMD Radeon 8060S"),
        (0xFFFF, 0x00, "AMD GPU 1002:ffff"),
        (None, None, "AMD GPU"),
    ],
)
def test_names_are_those_of_the_box(device: int | None, revision: int | None, name: str) -> None:
    """By revision where that is known, by device otherwise, by id at last."""
    assert name == products.name(device, revision)


def test_a_target_says_what_supports_it() -> None:
    """The RX 7600 is the trap: supported by ROCm's packages, refused by TensorFlow without the override."""
    target = products.target("gfx1102")

    assert (target.architecture, target.support, target.is_in_tensorflow, target.override) == (
        "RDNA3",
        "partly",
        False,
        "11.0.0",
    )


def test_an_unknown_target_is_unknown_not_unsupported() -> None:
    """A GPU newer than the table is shown, without a claim about it."""
    target = products.target("gfx1300")

    assert (target.is_known, target.support, target.is_in_tensorflow, target.is_apu) == (False, None, None, None)
    assert products.target(None).gfx == ""


def test_every_target_of_the_table_is_complete() -> None:
    """Support is one of the known words, and every target names its products."""
    for gfx in products.targets():
        target = products.target(gfx)

        assert target.support in products.SUPPORT
        assert target.architecture
        assert target.products
