"""What can be checked of a run before there is a lab: names, parameters, metadata; with the standard library alone.

Whatever is rejected here is rejected by `preflight` inside the lab as well; what cannot be checked without the lab's
packages (YAML, kernels, devices) passes, and `notes` shows what that was.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.runs.jobs import Job, Request, describe, job_of
from rocmlab.runs.spec import parameters, requested, resources, selection

ASSIGNED = re.compile(r"^\s*(\w+)\s*(?::[^=]*)?=(?!=)", re.MULTILINE)  # not stricter than papermill's own pattern
PYTHON_KERNELS = ("tensorflow", "torch", "python3")
NO_YAML = "the values of parameters are shown as they were typed: this Python has no PyYAML, the lab has"


@dataclass(frozen=True)
class Ahead:
    """What is known of a run."""

    jobs: tuple[Job, ...]  # as far as they are known
    notes: tuple[str, ...] = field(default=())


def look(args: argparse.Namespace, folder: Path, here: Path) -> Ahead:
    """Return what is known of a new run or export; relative paths start at `here`.

    Raises:
        RocmlabError: the arguments are wrong, or none of the jobs can run.
    """
    notes: list[str] = []
    try:
        axes = parameters.parse(args.parameters)
    except ModuleNotFoundError:
        axes = parameters.parse(args.parameters, read=lambda text, _: text)
        notes.append(NO_YAML)
    lists = [word for word in args.notebooks if selection.is_list(word)]
    try:
        requests = requested.of(args, axes, folder, here)
    except ModuleNotFoundError:  # a list, whose values are YAML
        for word in lists:
            selection.find_list(word, folder)
        notes.append(f"the jobs of {', '.join(lists)} are not known: this Python has no PyYAML, the lab has")
        args = argparse.Namespace(**{**vars(args), "notebooks": [w for w in args.notebooks if w not in lists]})
        requests = requested.of(args, axes, folder, here) if args.notebooks else []
    read = {path: _read(Path(path)) for path in {request.notebook for request in requests} if path is not None}
    jobs = [_job(request, read.get(request.notebook or "")) for request in requests]
    if names := sorted({job.kernel for job in jobs if job.kernel and _goes_by_kernel(job)}):
        notes.append(f"how many GPUs a job with {', '.join(names)} gets is not known: the lab has the kernelspecs")
    if not lists:
        requested.check_any((job.name, job.problem) for job in jobs)
    return Ahead(tuple(jobs), tuple(notes))


def note(job: Job) -> str | None:
    """Return what a request for all GPUs needs; None if it needs nothing."""
    return f"{job.min_gpus} or more, else the CPU" if job.min_gpus else None


def as_dict(job: Job) -> dict[str, Any]:
    """Return a job ready for JSON: the fields of `plan.planned`."""
    fields = {name: getattr(job, name) for name in ("name", "notebook", "parameters", "kernel", "gpus", "vram_bytes")}
    problem = describe(job.problem) if job.problem else None
    return {**fields, "note": note(job), "expected_seconds": None, "skipped": False, "problem": problem}


def _job(request: Request, notebook: Mapping[str, Any] | Problem | None) -> Job:
    job = job_of(request)
    if notebook is None or isinstance(notebook, Problem):
        return replace(job, problem=notebook or request.problem)
    try:
        wanted = request.resources(resources.of(notebook))
        kernel = request.kernel or _dict(notebook["metadata"].get("kernelspec")).get("name")
        if request.parameters and _is_python(notebook, kernel):
            _check_names(request.parameters, notebook)
    except RocmlabError as err:
        return replace(job, problem=err.problem)
    return replace(job, kernel=str(kernel) if kernel else None, **wanted._asdict())


def _goes_by_kernel(job: Job) -> bool:
    """Return whether how many GPUs a job gets depends on its kernelspec, which is not here."""
    request = job.request
    is_named = bool(request and request.kernel and request.gpus is None)
    return (is_named or job.gpus is None) and job.kernel not in PYTHON_KERNELS


def _read(path: Path) -> Mapping[str, Any] | Problem:
    fix = "open it in JupyterLab and save it again, or restore it"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as err:
        return Problem(f"{path.name} cannot be read", str(err), fix)
    except (ValueError, RecursionError) as err:
        return Problem(f"{path.name} is not a notebook", str(err)[:200] or type(err).__name__, fix)
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
        return Problem(f"{path.name} is not a notebook", "it has no metadata", fix)
    return found


def _is_python(notebook: Mapping[str, Any], kernel: object) -> bool:
    if kernel in PYTHON_KERNELS:
        return True
    spec, language = (_dict(notebook["metadata"].get(name)) for name in ("kernelspec", "language_info"))
    return kernel == spec.get("name") and "python" in (spec.get("language"), language.get("name"))


def _check_names(given: Mapping[str, Any], notebook: Mapping[str, Any]) -> None:
    """Refuse parameters that the notebook's cell does not name.

    Raises:
        RocmlabError: it does not.
    """
    cells = notebook.get("cells")
    tagged = [cell for cell in cells if "parameters" in _tags(cell)] if isinstance(cells, list) else None
    if tagged is None:
        return  # an older format, which nbformat brings to the present one in the lab
    source = tagged[0].get("source", "") if tagged else ""
    known = ASSIGNED.findall("".join(source) if isinstance(source, list) else str(source))
    parameters.check_names(given, {name: name for name in known})


def _tags(cell: object) -> Sequence[str]:
    tags = _dict(_dict(cell).get("metadata")).get("tags")
    return tags if isinstance(tags, list) else ()


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
