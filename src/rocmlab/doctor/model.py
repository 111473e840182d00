"""What a check is and what it finds; the same on the host and inside the lab."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.doctor.situation import CONTAINER as CONTAINER
from rocmlab.doctor.situation import HOST as HOST
from rocmlab.doctor.situation import Situation
from rocmlab.doctor.situation import UnansweredError as UnansweredError

log = logging.getLogger("rocmlab")

OK, WARNS, BLOCKS, NOT_APPLICABLE, UNKNOWN = "ok", "warns", "blocks", "not applicable", "unknown"
BOTH = (HOST, CONTAINER)


@dataclass(frozen=True)
class Repair:
    """A change that is safe to make for a user who agrees: it can be undone, and needs no other user's rights."""

    what: str  # one line: "rewrite RENDER_GID in .env"
    apply: Callable[[], None]


@dataclass(frozen=True)
class Verdict:
    """The result of a probe."""

    status: str  # ok, warns, blocks, not applicable, unknown
    evidence: tuple[str, ...] = ()  # what was read, verbatim
    problem: Problem | None = None  # where it warns or blocks
    reason: str = ""  # where it is not applicable or unknown; a note where it is ok
    about: str | None = None  # the side where it must be fixed, if that is the other one
    repair: Repair | None = None


def ok(*evidence: str) -> Verdict:
    """Nothing is wrong."""
    return Verdict(OK, evidence)


def note(text: str, *evidence: str) -> Verdict:
    """Nothing is wrong, and there is something to know."""
    return Verdict(OK, evidence, reason=text)


def blocks(what: str, why: str, fix: str, *evidence: str, about: str | None = None) -> Verdict:
    """This stops the lab, or keeps it from a GPU."""
    return Verdict(BLOCKS, evidence, Problem(what, why, fix), about=about)


def warns(what: str, why: str, fix: str, *evidence: str, about: str | None = None) -> Verdict:
    """The lab works, and worse than it could."""
    return Verdict(WARNS, evidence, Problem(what, why, fix), about=about)


def skip(reason: str, *evidence: str) -> Verdict:
    """The question does not arise here."""
    return Verdict(NOT_APPLICABLE, evidence, reason=reason)


def unknown(reason: str, *evidence: str) -> Verdict:
    """The question arises and cannot be answered."""
    return Verdict(UNKNOWN, evidence, reason=reason)


@dataclass(frozen=True)
class Finding:
    """One check's result on one side."""

    check: str  # its id
    title: str
    side: str
    status: str
    evidence: tuple[str, ...] = ()
    problem: Problem | None = None
    reason: str = ""
    about: str | None = None
    repair: Repair | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "check": self.check,
            "title": self.title,
            "side": self.side,
            "status": self.status,
            "evidence": list(self.evidence),
            "problem": self.problem.as_dict() if self.problem else None,
            "reason": self.reason,
            "about": self.about or self.side,
            "repair": self.repair.what if self.repair else None,
        }


def from_dict(found: dict[str, Any]) -> Finding:
    """Return a finding that the other side printed; its repair is that side's to offer.

    Raises:
        KeyError, TypeError: it is none.
    """
    problem = found["problem"]
    return Finding(
        check=str(found["check"]),
        title=str(found["title"]),
        side=str(found["side"]),
        status=str(found["status"]),
        evidence=tuple(map(str, found["evidence"])),
        problem=Problem(str(problem["what"]), str(problem["why"]), str(problem["fix"])) if problem else None,
        reason=str(found["reason"]),
        about=None if found["about"] == found["side"] else str(found["about"]),
    )


Probe = Callable[[Situation], Verdict | Sequence[Verdict]]


@dataclass(frozen=True)
class Check:
    """One question, and how it is answered by looking."""

    id: str
    title: str  # what is so where all is well
    sides: tuple[str, ...]
    looks_at: str  # what it reads
    why: str  # what goes wrong where it fires
    fix: str  # the fix in short; the finding has the exact lines
    probe: Probe
    is_quick: bool = False  # part of what `make up` asks first
    is_framework: bool = False  # starts a framework, which takes seconds
    severity: str = WARNS  # the worst it finds: warns or blocks
    unless: Callable[[Situation], str] = lambda _: ""  # says why it does not apply; empty where it does

    def run(self, situation: Situation) -> list[Finding]:
        """Ask; whatever happens is a finding."""
        if situation.side not in self.sides:
            where = "on the host" if self.sides == (HOST,) else "inside the lab"
            return [self._finding(situation, skip(f"checked {where}"))]
        try:
            reason = self.unless(situation)
            found = skip(reason) if reason else self.probe(situation)
        except UnansweredError as err:
            found = unknown(str(err))
        except RocmlabError as err:
            found = Verdict(self.severity, problem=err.problem)
        except Exception as err:
            log.debug("the check %s failed", self.id, exc_info=True)
            found = unknown(f"the check itself failed: {type(err).__name__}: {err}")
        verdicts = [found] if isinstance(found, Verdict) else list(found)
        return [self._finding(situation, verdict) for verdict in verdicts]

    def _finding(self, situation: Situation, verdict: Verdict) -> Finding:
        problem = verdict.problem
        return Finding(
            self.id,
            self.title,
            situation.side,
            verdict.status,
            verdict.evidence,
            Problem(**problem.as_dict()) if problem else None,  # its kind was for the check
            verdict.reason,
            verdict.about,
            verdict.repair,
        )


def check(
    id: str,
    title: str,
    *,
    sides: tuple[str, ...] = BOTH,
    looks_at: str,
    why: str,
    fix: str,
    severity: str = WARNS,
    is_quick: bool = False,
    is_framework: bool = False,
    unless: Callable[[Situation], str] = lambda _: "",
) -> Callable[[Probe], Check]:
    """Make a probe a check."""

    def made(probe: Probe) -> Check:
        return Check(id, title, sides, looks_at, why, fix, probe, is_quick, is_framework, severity, unless)

    return made


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 0 where nothing fires, 1 where something warns, 2 where something stops the lab."""
    statuses = {finding.status for finding in findings}
    return 2 if BLOCKS in statuses else 1 if WARNS in statuses else 0
