"""Query the running lab for its own view, as the host's `rocmlab devices` does for its devices."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.doctor.model import CONTAINER
from rocmlab.stack import process
from rocmlab.stack.project import Project

QUICK_SECONDS = 20.0


def ask(project: Project, options: Sequence[str], limit_seconds: float) -> dict[str, Any] | None:
    """Return what the lab's own doctor reports, with `problem` where it gave no report; None where no lab runs."""
    try:
        found = project.lab.inside()
    except RocmlabError as err:
        return silent(**err.problem.as_dict())
    if found is None:
        return None
    command, env = found
    arguments = [*command, "doctor", "--json", "--side", CONTAINER, *options]
    _, output = process.capture(arguments, env=env, timeout_seconds=limit_seconds)
    try:
        report = json.loads(output[output.index("{") : output.rindex("}") + 1])
    except ValueError:
        last_line = output.strip().splitlines()[-1] if output.strip() else "it printed nothing"
        what = "the running lab does not answer doctor's questions"
        if any(text in output for text in ("no verb 'doctor'", "unknown command 'doctor'", "invalid choice")):
            return silent(what, "it was built before `doctor` existed", "make build && make up")
        return silent(what, last_line[-300:], "make logs; then: make down && make up")
    if not isinstance(report, dict) or not isinstance(report.get("findings"), list):
        return silent("the running lab gave an answer that is not a report", output[:200], "make build && make up")
    return report


def silent(what: str, why: str, fix: str) -> dict[str, Any]:
    """Return the report of a lab that gave none."""
    return {"problem": {"what": what, "why": why, "fix": fix}, "findings": []}
