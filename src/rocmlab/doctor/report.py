"""What was found, as a screen for a user."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rocmlab import __version__
from rocmlab.doctor.examine import Report
from rocmlab.doctor.model import BLOCKS, CONTAINER, HOST, NOT_APPLICABLE, OK, UNKNOWN, WARNS, Check, Finding
from rocmlab.doctor.situation import CONTAINER_RUNTIMES

COLOURS = {BLOCKS: "31;1", WARNS: "33;1", OK: "32", "dim": "2", "bold": "1"}
HEADINGS = ((BLOCKS, "What stops the lab"), (WARNS, "Warnings"))
MIN_WIDTH = 40
MAX_EVIDENCE_LINES = 12  # lines shown of one finding; JSON has all


class Screen:
    """Lines of a report for a terminal of some width, in colour or not."""

    def __init__(self, width: int = 100, *, colour: bool = False) -> None:
        self.width = max(MIN_WIDTH, width)
        self.colour = colour

    def paint(self, text: str, how: str) -> str:
        """Return a text in a colour, where there are colours."""
        return f"\x1b[{COLOURS[how]}m{text}\x1b[0m" if self.colour else text

    def lines(self, report: Report) -> list[str]:
        """Return the whole screen."""
        found = report.findings
        lines = [self.paint(line, "bold") for line in self._wrapped(self._title(report), "", "  ")]
        for status, heading in HEADINGS:
            group = [finding for finding in found if finding.status == status]
            if group:
                lines += ["", self.paint(heading, status)]
                for finding in group:
                    lines += ["", *self._finding(finding)]
        unknown = [finding for finding in found if finding.status == UNKNOWN]
        if unknown:
            lines += ["", "Not known"]
            for finding in unknown:
                lines += self._wrapped(f"{finding.check} ({_where(finding.side)}): {finding.reason}", "  ", "      ")
        for finding in found:
            if finding.status == OK and finding.reason:
                wrapped = f"Note: {finding.check} ({_where(finding.side)}): {finding.reason}"
                lines += ["", *self._wrapped(wrapped, "", "  ")]
        lines += ["", *self._fine(found)]
        return [*lines, *self._notes(report)]

    def _title(self, report: Report) -> str:
        sides = "the inside of the lab" if report.situation.side == CONTAINER else "this host"
        if report.situation.side == HOST and report.lab and not report.lab.get("problem"):
            sides += " and its running lab"
        simulated = " · SIMULATED" if report.simulated else ""
        return f"rocmlab doctor {__version__}: {sides}{simulated}"

    def _finding(self, finding: Finding) -> list[str]:
        problem = finding.problem
        if problem is None:
            return []
        mark = self.paint("✗" if finding.status == BLOCKS else "!", finding.status)
        where = _where(finding.side)
        if finding.about and finding.about != finding.side:
            where += f"; fix it {_where(finding.about)}"
        lines = self._wrapped(problem.what, f"  {mark} ", "    ", extra=len(mark) - 1)
        wrapped = self._wrapped(f"{finding.check} · {where}", "    ", "    ")
        lines += [self.paint(line, "dim") for line in wrapped]
        shown = finding.evidence[:MAX_EVIDENCE_LINES]
        more = len(finding.evidence) - len(shown)
        read = [*shown, *([f"… and {more} more (--json)"] if more else [])]
        for number, line in enumerate(read):
            lines += self._wrapped(line, "    read  " if number == 0 else "          ", "            ")
        for number, line in enumerate(problem.why.splitlines()):
            lines += self._wrapped(line, "    why   " if number == 0 else "          ", "          ")
        for number, line in enumerate(problem.fix.splitlines()):  # never wrapped: it is to be pasted
            lines.append(("    fix   " if number == 0 else "          ") + line)
        return lines

    def _wrapped(self, text: str, first: str, rest: str, *, extra: int = 0) -> list[str]:
        return textwrap.wrap(
            text,
            self.width + extra,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [first.rstrip()]

    def _fine(self, found: Sequence[Finding]) -> list[str]:
        lines: list[str] = []
        for side in (HOST, CONTAINER):
            fine = dict.fromkeys(finding.check for finding in found if finding.side == side and finding.status == OK)
            if fine:
                mark = self.paint("✓", OK)
                lines += self._wrapped(f"fine {_where(side)}: {', '.join(fine)}", f"{mark} ", "  ", extra=len(mark) - 1)
        skipped = sum(finding.status == NOT_APPLICABLE for finding in found)
        if skipped:
            wrapped = self._wrapped(f"{skipped} more do not apply (--json shows why)", "  ", "  ")
            lines += [self.paint(line, "dim") for line in wrapped]
        return lines

    def _notes(self, report: Report) -> list[str]:
        lines: list[str] = []
        if report.situation.side == HOST and report.lab is None:
            inside = next((one for one in report.findings if one.check == "lab.answers"), None)
            lines += ["", *self._wrapped(f"Only the host was checked: {inside.reason}", "", "")] if inside else []
        if report.situation.side == CONTAINER and report.situation.runtime in CONTAINER_RUNTIMES:
            lines += [
                "",
                *self._wrapped("Only the lab was checked; `make doctor` on the host compares both.", "", ""),
            ]
        if any(finding.repair for finding in report.findings):
            lines += ["", *self._wrapped("scripts/rocmlab doctor --fix offers the repairs that are safe.", "", "")]
        if report.simulated and any(finding.problem for finding in report.findings):
            wrapped = (
                "SIMULATED: a fix with sudo is for a real host like this one and would change this machine; a "
                "simulated one is fixed by writing it again with scripts/rocmlab simulate."
            )
            lines += ["", *self._wrapped(wrapped, "", "")]
        return lines


def _where(side: str) -> str:
    return {HOST: "on the host", CONTAINER: "in the lab"}[side]


def catalogue(checks: Sequence[Check]) -> list[str]:
    """Return one line a check: id, sides, title."""
    width = max(len(check.id) for check in checks)
    sides: dict[tuple[str, ...], str] = {(HOST,): "host", (CONTAINER,): "lab"}
    return [
        f"{check.id:<{width}}  {sides.get(check.sides, 'both'):4}  {'stops' if check.severity == BLOCKS else 'warns'}  "
        f"{check.title}"
        for check in checks
    ]


def page(checks: Sequence[Check]) -> str:
    """Return the checks as Markdown, for the site."""
    parts = []
    titles: dict[tuple[str, ...], str] = {(HOST,): "On the host", (CONTAINER,): "In the lab"}
    for check in checks:
        severity = "may stop the lab" if check.severity == BLOCKS else "warns"
        quick = ", asked by every `make up`" if check.is_quick else ""
        parts.append(
            f"### `{check.id}`: {check.title}\n\n"
            f"*{titles.get(check.sides, 'On both sides')}; {severity}{quick}.*\n\n"
            f"- **Checks** {check.looks_at}.\n"
            f"- **Why** {check.why}\n"
            f"- **Fix** {check.fix}.\n"
        )
    return "\n".join(parts)
