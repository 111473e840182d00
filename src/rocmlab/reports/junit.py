"""`junit.xml`: one test case for each job, in the form that Jenkins, GitLab and Ant's own schema accept.

Where they differ this keeps to what is valid in each: no attributes on `testsuites`, a time stamp without a zone, and
properties, cases, output in Ant's order.
Source: junit-10.xsd of Jenkins' xunit plug-in; JUnit.xsd of windyroad/JUnit-Schema.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from rocmlab.base import formatting
from rocmlab.base.formatting import stem
from rocmlab.reports.failures import Failure, plain
from rocmlab.reports.values import used

FAILED = ("failed",)  # the notebook's own doing; a job that ended in another way is an error


def render(results: Mapping[str, Any], failures: Mapping[str, Failure]) -> str:
    """Return the document for `results.json`, with what there is to read about each failed job, by its name."""
    run, jobs = results["run"], results["jobs"]
    outcomes = Counter(_outcome(job) for job in jobs)
    root = ElementTree.Element("testsuites")
    suite = _add(
        root,
        "testsuite",
        name=run["name"],
        package="rocmlab",
        id=0,
        timestamp=run["started"][:19],
        hostname=platform.node() or "localhost",
        tests=len(jobs),
        failures=outcomes["failure"],
        errors=outcomes["error"],
        skipped=outcomes["skipped"],
        time=f"{run['seconds']:.3f}",
    )
    counts = Counter(_name(job) for job in jobs)
    names = [_name(job) if counts[_name(job)] == 1 else f"{_name(job)} ({job['name']})" for job in jobs]
    _properties(suite, results, names)
    for name, job in zip(names, jobs, strict=True):
        _case(suite, name, job, failures.get(job["name"], Failure()))
    _add(suite, "system-out").text = plain(f"results: {run['folder']}")
    _add(suite, "system-err").text = plain(
        "\n".join(f"{job['name']}: {line}" for job in jobs for line in job["warnings"])
    )
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add(parent: ElementTree.Element, tag: str, **attributes: object) -> ElementTree.Element:
    return ElementTree.SubElement(parent, tag, {name: plain(str(value)) for name, value in attributes.items()})


def _properties(suite: ElementTree.Element, results: Mapping[str, Any], names: Sequence[str]) -> None:
    """Add what is true of the whole run, and what each case used of its devices: a case itself may have none."""
    facts = {
        "status": results["run"]["status"],
        "simulated": str(results["simulated"]).lower(),
        "slots": results["run"]["slots"],
        **{name: value for name, value in results["versions"].items() if isinstance(value, str)},
    }
    for name, job in zip(names, results["jobs"], strict=True):
        facts |= {f"{name}: {kind}": value for kind, value in used(job["devices"]).items() if value is not None}
        if job.get("attempts"):
            facts[f"{name}: attempts"] = len(job["attempts"]) + 1
    parent = _add(suite, "properties")
    for name, value in facts.items():
        _add(parent, "property", name=name, value=value)


def _outcome(job: Mapping[str, Any]) -> str:
    if job["status"] == "ok":
        return "ok"
    if job["error"] is None:  # it was skipped, or it never started
        return "skipped"
    return "failure" if job["status"] in FAILED else "error"


def _name(job: Mapping[str, Any]) -> str:
    """Return a name that stays the same from run to run, so that a CI keeps a history of it."""
    values = formatting.parameters(job["parameters"])
    return stem(job["notebook"]) + (f"[{values}]" if values else "")


def _case(suite: ElementTree.Element, name: str, job: Mapping[str, Any], failure: Failure) -> None:
    case = _add(suite, "testcase", classname=stem(job["notebook"]), name=name, time=f"{job['seconds'] or 0.0:.3f}")
    outcome = _outcome(job)
    if outcome == "skipped":
        why = job["recorded"].get("skipped") or "not started: the run ended before"
        _add(case, "skipped", message=why)
    elif outcome != "ok":
        element = _add(case, outcome, type=job["error"]["name"], message=formatting.error(job["error"]))
        element.text = plain(_told(job, failure))


def _told(job: Mapping[str, Any], failure: Failure) -> str:
    """Return cell, output and traceback, in the order in which a user reads them."""
    error = job["error"]
    where = f"cell {error['cell']} of {job['cells_total']}" if error.get("cell") else ""
    device = formatting.device_label(job["devices"]) + (" (SIMULATED)" if job["simulated"] else "")
    head = f"{job['status']}" + (f" in {where}" if where else "") + (f" on {device}" if device else "")
    advice = "\n".join(f"{label}: {error[label]}" for label in ("why", "fix") if error.get(label))
    parts = (failure.source, failure.output, failure.traceback, failure.log, advice)
    return "\n\n".join((head, *(part for part in parts if part)))
