"""Looking at one side or both, and putting together what was found."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    """What to ask."""

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
                raise RocmlabError(
                    f"there is no check {id}", "the ids are those of docs/doctor.md", "rocmlab doctor --list"
                )
        return [
            check
            for check in checks.ALL
            if (check.is_quick or not self.quick) and (not self.only or check.id in self.only)
        ]

    def options(self) -> list[str]:
        """Return the same as words of the command line, for the other side."""
        words = [word for id in self.only for word in ("--only", id)]
        words += ["--quick"] if self.quick else []
        words += [] if self.frameworks else ["--no-frameworks"]
        return [*words, "--time-limit", f"{self.operation_limit_seconds:g}"]


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


def on_host(folder: Path | None, wanted: Wanted) -> Report:
    """Look at the host, then ask the running lab, then compare.

    Args:
        folder: the project folder, or None where there is none.
        wanted: what to ask.

    Raises:
        RocmlabError: a check that was asked for does not exist.
    """
    selected = wanted.checks()
    situation = _planned(folder, wanted)
    answer = _ask_meanwhile(situation, wanted)
    found = {check.id: check.run(situation) for check in selected if check.id not in COMPARING}
    situation.lab_report = lab = answer()
    found |= {check.id: check.run(situation) for check in selected if check.id in COMPARING}
    findings = [finding for check in selected for finding in found[check.id]]
    findings += [_named(finding, checks.BY_ID) for finding in _told(lab)]
    return Report(situation, tuple(merged(findings)), lab)


def _ask_meanwhile(situation: Situation, wanted: Wanted) -> Callable[[], dict[str, Any] | None]:
    """Ask the running lab on a thread; return what waits for its answer, which is None where no lab runs."""
    running = situation.running
    if running is None or wanted.quick:
        return lambda: None
    limit = inside.QUICK_SECONDS + (_framework_limit(situation, wanted) if wanted.frameworks else 0)
    limit += clusters.PROBE_SECONDS if clusters.is_asked(situation) else 0
    answers: list[dict[str, Any] | None] = []
    thread = threading.Thread(target=lambda: answers.append(inside.ask(running, wanted.options(), limit)), daemon=True)
    thread.start()

    def wait() -> dict[str, Any] | None:
        thread.join()
        return answers[0] if answers else inside.silent("the running lab could not be asked", "see above", "make logs")

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
    project, problem, asked = None, None, None
    try:
        asked = configuration.load(folder) if folder else None
        project = projects.plan(folder) if folder else None
    except RocmlabError as err:
        problem = err.problem
    root = system_root()  # which the plan has set to the simulated host that was chosen
    situation = Situation(root, project=project, plan_problem=problem, asked=asked, with_frameworks=wanted.frameworks)
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
    found = []
    for one in (report or {}).get("findings", []):
        try:
            found.append(from_dict(one))
        except (KeyError, TypeError):
            continue
    return found


def _named(finding: Finding, known: Mapping[str, Check]) -> Finding:
    """Give a finding of a lab of another version the title that this version has."""
    return replace(finding, title=known[finding.check].title) if finding.check in known else finding


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """Drop what a finding before it has said already: the same problem by another check, or on the other side."""
    kept: list[Finding] = []
    said: dict[str, str] = {}
    for finding in findings:
        if finding.problem and finding.problem.what in said:
            reason = f"the same as {said[finding.problem.what]}"
            kept.append(replace(finding, status=NOT_APPLICABLE, problem=None, reason=reason, repair=None))
            continue
        if finding.problem:
            said[finding.problem.what] = f"{finding.check} ({finding.side})"
        kept.append(finding)
    return kept


def blocking(project: Project, environment: Mapping[str, str] | None = None) -> list[Finding]:
    """Return what would stop the lab that `make up` is about to start; asks the engine nothing that the plan has not.

    Args:
        project: what was planned.
        environment: the variables of this process, by default its own.
    """
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


GPU_CHECKS = ("kernel.amdgpu", "dev.kfd.exists", "dev.perm", "env.conflict", "env.override")


def refuse(findings: Sequence[Finding]) -> None:
    """Stop with the first of what blocks.

    Raises:
        RocmlabError: there is something.
    """
    if not findings or findings[0].problem is None:
        return
    problem = findings[0].problem
    more = f"\nall of it: make doctor (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    raise RocmlabError(problem.what, problem.why, problem.fix + more)
