"""Looking at one side or both, and putting together what was found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rocmlab.base import background
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import system_root
from rocmlab.doctor import checks, inside
from rocmlab.doctor import cluster as clusters
from rocmlab.doctor.model import BLOCKS, CONTAINER, NOT_APPLICABLE, Check, Finding, UnansweredError, from_dict
from rocmlab.doctor.situation import Situation
from rocmlab.stack import project as projects
from rocmlab.stack import settings as configuration
from rocmlab.stack.project import Project

COMPARING = ("lab.answers", "lab.devices", "lab.groups", "cgroup")  # which need the lab's answer


@dataclass(frozen=True)
class Wanted:
    """What to examine."""

    only: tuple[str, ...] = ()  # ids; empty: all
    quick: bool = False
    frameworks: bool = True
    operation_limit_seconds: float = 180.0

    def checks(self) -> list[Check]:
        """Return the checks, in their order.

        Raises:
            RocmlabError: there is no check of that id.
        """
        for id in self.only:
            if id not in checks.BY_ID:
                raise RocmlabError(f"unknown check: {id}", "no check has this id", "rocmlab doctor --list")
        return [
            check
            for check in checks.ALL
            if (check.is_quick or not self.quick) and (not self.only or check.id in self.only)
        ]

    def options(self) -> list[str]:
        """Return the same as arguments of the command line, for the other side."""
        arguments = [word for id in self.only for word in ("--only", id)]
        arguments += ["--quick"] if self.quick else []
        arguments += [] if self.frameworks else ["--no-frameworks"]
        return [*arguments, "--time-limit", f"{self.operation_limit_seconds:g}"]


@dataclass(frozen=True)
class Report:
    """Everything found."""

    situation: Situation
    findings: tuple[Finding, ...]
    lab: Mapping[str, Any] | None = None  # the lab's own report

    @property
    def simulated(self) -> bool:
        """Return whether the host, or the lab, is simulated."""
        return self.situation.simulated or bool(self.lab and self.lab.get("simulated"))


def on_host(
    folder: Path | None, wanted: Wanted, plan: Callable[[Path | None, Wanted], Situation] | None = None
) -> Report:
    """Examine the host, then query the running lab, then compare.

    Args:
        folder: of the project.
        wanted: which checks.
        plan: returns what is examined; if None, what the next `make up` would use.

    Raises:
        RocmlabError: a check that was requested does not exist.
    """
    selected = wanted.checks()
    situation = (plan or _planned)(folder, wanted)
    answer = _ask_meanwhile(situation, wanted)
    found = {check.id: check.run(situation) for check in selected if check.id not in COMPARING}
    situation.lab_report = lab = answer()
    found |= {check.id: check.run(situation) for check in selected if check.id in COMPARING}
    findings = [finding for check in selected for finding in found[check.id]]
    findings += _told(lab)
    return Report(situation, tuple(merged(findings)), lab)


def _ask_meanwhile(situation: Situation, wanted: Wanted) -> Callable[[], dict[str, Any] | None]:
    """Ask the running lab on a thread; return what waits for its answer, which is None where no lab runs."""
    running = situation.running
    if running is None or wanted.quick:
        return lambda: None
    limit = inside.QUICK_SECONDS + (_framework_limit(situation, wanted) if wanted.frameworks else 0)
    limit += clusters.PROBE_SECONDS if clusters.is_asked(situation) else 0
    answer = background.start(lambda: inside.ask(running, wanted.options(), limit))

    def wait() -> dict[str, Any] | None:
        if err := answer.exception():
            return inside.silent("the running lab could not be queried", f"{type(err).__name__}: {err}", "make logs")
        return answer.result()

    return wait


def on_container(wanted: Wanted) -> Report:
    """Look at the inside of a lab, from the inside."""
    situation = Situation(
        root=system_root(),
        side=CONTAINER,
        with_frameworks=wanted.frameworks,
        operation_limit_seconds=wanted.operation_limit_seconds,
    )
    return Report(situation, tuple(merged(run(wanted.checks(), situation))))


def _framework_limit(situation: Situation, wanted: Wanted) -> float:
    try:
        count = max(1, len(situation.passed))
    except UnansweredError:
        count = 1
    return 2 * count * wanted.operation_limit_seconds


def _planned(folder: Path | None, wanted: Wanted) -> Situation:
    """Plan as `make up` does, and find the lab that the last one left; a plan that fails is a finding."""
    project, problem, requested = None, None, None
    try:
        requested = configuration.load(folder) if folder else None
        project = projects.plan(folder) if folder else None
    except RocmlabError as err:
        problem = err.problem
    root = system_root()  # which the plan has set to the simulated host that was chosen
    situation = Situation(
        root, project=project, plan_problem=problem, requested=requested, with_frameworks=wanted.frameworks
    )
    if folder is None:
        return situation
    try:
        left = projects.reopen(folder)
        situation.running = left if left.lab.is_running() else None
    except RocmlabError:  # there was no `make up` yet
        situation.running = None
    return situation


def run(selected: Iterable[Check], situation: Situation) -> list[Finding]:
    """Ask every question of one side."""
    return [finding for check in selected for finding in check.run(situation)]


def _told(report: Mapping[str, Any] | None) -> list[Finding]:
    """Return a lab's findings; one of another version has other titles, and the same ids."""
    found = []
    for one in (report or {}).get("findings", []):
        with suppress(KeyError, TypeError):
            finding = from_dict(one)
            known = checks.BY_ID.get(finding.check)
            found.append(replace(finding, title=known.title) if known else finding)
    return found


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """Drop what an earlier finding has reported: the same problem by another check, or on the other side."""
    kept: list[Finding] = []
    earlier: dict[str, str] = {}
    for finding in findings:
        if finding.problem and finding.problem.what in earlier:
            reason = f"the same as {earlier[finding.problem.what]}"
            kept.append(replace(finding, status=NOT_APPLICABLE, problem=None, reason=reason, repair=None))
            continue
        if finding.problem:
            earlier[finding.problem.what] = f"{finding.check} ({finding.side})"
        kept.append(finding)
    return kept


def blocking(project: Project, environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Return what would stop the lab that `make up` is about to start; queries nothing beyond the plan."""
    situation = Situation(
        root=system_root(),
        environment=os.environ if environment is None else environment,
        project=project,
        limit_seconds=1.0,
    )
    found = run(Wanted(quick=True).checks(), situation)
    if project.choice.backend != "rocm" and not situation.simulated:
        found = [one for one in found if one.check not in GPU_CHECKS]
    return [one for one in merged(found) if one.status == BLOCKS]


GPU_CHECKS = ("kernel.amdgpu", "dev.kfd.exists", "dev.perm", "gfx.results", "env.conflict", "env.override")


def refuse(findings: Sequence[Finding]) -> None:
    """Stop with the first of what blocks.

    Raises:
        RocmlabError: there is something.
    """
    if not findings or findings[0].problem is None:
        return
    problem = findings[0].problem
    more = f"\nall of it: make doctor (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    raise RocmlabError.of(replace(problem, fix=problem.fix + more))
