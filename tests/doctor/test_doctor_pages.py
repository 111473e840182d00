"""docs/doctor.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from rocmlab.doctor import checks
from rocmlab.doctor.report import page

BEGIN, END = "<!-- checks: begin -->\n", "<!-- checks: end -->"


def test_the_page_lists_every_check_as_it_is(repository: Path) -> None:
    """Between the marks stands what `rocmlab doctor --list --markdown` prints."""
    text = (repository / "docs/doctor.md").read_text(encoding="utf-8")

    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()

    assert written == page(checks.ALL).strip(), "run: scripts/rocmlab doctor --list --markdown, and paste it"
