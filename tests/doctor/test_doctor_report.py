"""The screen: grouped, wrapped, pasteable."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from situations import Looker, report

from rocmlab import doctor
from rocmlab.base.errors import Problem
from rocmlab.doctor.model import BLOCKS, NOT_APPLICABLE, OK, UNKNOWN, WARNS, Finding
from rocmlab.doctor.report import Screen, catalogue, page

LONG = "sudo sed -i 's/^GRUB_CMDLINE_LINUX_DEFAULT=\"/&iommu=pt /' /etc/default/grub && sudo update-grub && sudo reboot"


@pytest.fixture
def found(look: Looker) -> doctor.Report:
    """One finding of each status."""
    blocking = Problem("/dev/kfd cannot be opened by uid 1000", "it belongs to group 992 " * 8, f"first line\n{LONG}")
    findings = (
        Finding("a.fine", "t", "host", OK, ("read",)),
        Finding("b.warns", "t", "container", WARNS, ("seen",), Problem("a warning", "because", "mend"), about="host"),
        Finding("c.blocks", "t", "host", BLOCKS, tuple(f"line {n}" for n in range(20)), blocking),
        Finding("d.unknown", "t", "host", UNKNOWN, reason="no one knows"),
        Finding("e.skipped", "t", "host", NOT_APPLICABLE, reason="no lab runs"),
    )
    return doctor.Report(look(), findings)


def test_what_stops_the_lab_comes_first(found: doctor.Report) -> None:
    """Then warnings, then what is not known, then one line for what is fine."""
    text = "\n".join(Screen(100).lines(found))

    order = [
        "SIMULATED",
        "What stops the lab",
        "✗ /dev/kfd",
        "Warnings",
        "! a warning",
        "Not known",
        "fine on the host",
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert "in the lab; fix it on the host" in text
    assert "1 more do not apply" in text
    assert "… and 8 more (--json)" in text


def test_a_fix_for_a_simulated_host_is_not_for_this_machine(found: doctor.Report) -> None:
    """It is printed where there is something to fix, and only there."""
    warning = "would change this machine"

    assert warning in " ".join("\n".join(Screen(100).lines(found)).split())
    assert warning not in " ".join("\n".join(Screen(100).lines(replace(found, findings=found.findings[:1]))).split())


@pytest.mark.parametrize("width", [20, 40, 72, 200])
def test_any_width(found: doctor.Report, width: int) -> None:
    """Text is wrapped; lines of a fix never are, for they are to be pasted."""
    lines = Screen(width).lines(found)

    assert any(line.endswith(LONG) for line in lines)
    assert all(len(line) <= max(40, width) for line in lines if "reboot" not in line)


def test_colours_only_where_asked_for(found: doctor.Report) -> None:
    """Without them there is no escape; with them the words are the same."""
    plain, painted = "\n".join(Screen(80).lines(found)), "\n".join(Screen(80, colour=True).lines(found))

    assert "\x1b" not in plain
    assert "\x1b[31;1m" in painted
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain


def test_a_clean_bill_is_short(found: doctor.Report) -> None:
    """A title and a line."""
    clean = replace(found, findings=found.findings[:1], lab=report())

    assert len([line for line in Screen(100).lines(clean) if line]) == 2


def test_the_list_and_the_page_have_every_check() -> None:
    """What `--list` prints, and the page of the site."""
    from rocmlab.doctor import checks

    listed, written = catalogue(checks.ALL), page(checks.ALL)

    assert [line.split()[0] for line in listed] == [check.id for check in checks.ALL]
    assert all(f"### `{check.id}`" in written for check in checks.ALL)
