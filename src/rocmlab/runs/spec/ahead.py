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
from rocmlab.runs.jobs import Request, describe, stem
from rocmlab.runs.spec import parameters, requested, resources, selection

ASSIGNED = re.compile(r"^\s*(\w+)\s*(?::[^=]*)?=(?!=)", re.MULTILINE)  # not stricter than papermill's own pattern
PYTHON_KERNELS = ("tensorflow", "torch", "python3")
NO_YAML = "the values of parameters are shown as they were typed: this Python has no PyYAML, the lab has"


@dataclass(frozen=True)
class Row:
    """One job as far as it is known; the fields of `places.plan.planned`."""

    name: str
    notebook: str
    parameters: dict[str, Any]
    kernel: str | None
    gpus: int | str | None  # as requested; None: one if there is one, else the CPU
    vram_bytes: int | None
    problem: Problem | None = None
    min_gpus: int | None = None  # of `all`; with fewer it gets the CPU

    @property
    def note(self) -> str | None:
        """What a request for all GPUs needs; None where nothing is to be said."""
        return f"{self.min_gpus} or more, else the CPU" if self.min_gpus else None

    def as_dict(self) -> dict[str, Any]:
        """Return it, ready for JSON."""
        problem = describe(self.problem) if self.problem else None
        fields = {name: getattr(self, name) for name in ("name", "notebook", "parameters", "kernel", "note")}
        known = {"gpus": self.gpus, "vram_bytes": self.vram_bytes, "expected_seconds": None, "skipped": False}
        return {**fields, **known, "problem": problem}


@dataclass(frozen=True)
class Ahead:
    """What is known of a run."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = field(default=())


def look(asked: argparse.Namespace, folder: Path, here: Path) -> Ahead:
    """Return what is known of a new run.

    Args:
        asked: the arguments of `rocmlab run` or `rocmlab export slurm`.
        folder: the lab's notebooks, on this machine.
        here: where relative paths start.

    Raises:
        RocmlabError: the arguments are wrong, or none of the jobs can run.
    """
    notes: list[str] = []
    try:
        axes = parameters.parse(asked.parameters)
    except ModuleNotFoundError:
        axes = parameters.parse(asked.parameters, read=lambda text, _: text)
        notes.append(NO_YAML)
    lists = [word for word in asked.notebooks if selection.is_list(word)]
    try:
        requests = requested.of(asked, axes, folder, here)
    except ModuleNotFoundError:  # a list, whose values are YAML
        for word in lists:
            selection.find_list(word, folder)
        notes.append(f"the jobs of {', '.join(lists)} are not known: this Python has no PyYAML, the lab has")
        asked = argparse.Namespace(**{**vars(asked), "notebooks": [w for w in asked.notebooks if w not in lists]})
        requests = requested.of(asked, axes, folder, here) if asked.notebooks else []
    rows = _rows(requests)
    if rows and not lists:
        _check_any(rows)
    return Ahead(tuple(rows), tuple(notes))


def _check_any(rows: Sequence[Row]) -> None:
    """Refuse a run of which no job can start.

    Raises:
        RocmlabError: none can.
    """
    problems = list(dict.fromkeys(row.problem for row in rows if row.problem))
    if not all(row.problem for row in rows):
        return
    if len(problems) == 1:
        raise RocmlabError(f"{rows[0].name}: {problems[0].what}", problems[0].why, problems[0].fix)
    why = "\n".join(f"{problem.what} ({problem.why})" for problem in problems[:8])
    fixes = "\n".join(dict.fromkeys(problem.fix for problem in problems[:8]))
    raise RocmlabError(f"none of these {len(rows)} jobs can run", why, fixes)


def _rows(requests: Sequence[Request]) -> list[Row]:
    read: dict[str, Mapping[str, Any] | Problem] = {}
    rows = []
    for request in requests:
        if request.notebook is not None and request.notebook not in read:
            read[request.notebook] = _read(Path(request.notebook))
        rows.append(_row(request, read.get(request.notebook or "")))
    return rows


def _row(request: Request, notebook: Mapping[str, Any] | Problem | None) -> Row:
    asked = request.notebook or request.word
    name = stem(asked) if request.name is None else request.name
    row = Row(name, asked, request.parameters, request.kernel, request.gpus, request.vram_bytes)
    if notebook is None or isinstance(notebook, Problem):
        return replace(row, problem=notebook or request.problem)
    try:
        wanted = request.resources(resources.of(notebook))
        kernel = request.kernel or _dict(notebook["metadata"].get("kernelspec")).get("name")
        if request.parameters and _is_python(notebook, kernel):
            _check_names(request.parameters, notebook)
    except RocmlabError as err:
        return replace(row, problem=err.problem)
    return replace(
        row,
        kernel=str(kernel) if kernel else None,
        gpus=wanted.gpus,
        min_gpus=wanted.min_gpus,
        vram_bytes=wanted.vram_bytes,
    )


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
    unknown = [name for name in given if name not in known]
    if unknown:
        raise RocmlabError(
            f"it has no parameter{'s' * (len(unknown) > 1)} {', '.join(unknown)}",
            f"it has these: {', '.join(dict.fromkeys(known))}" if known else "it has no cell tagged `parameters`",
            "correct the name, or name only notebooks that have it",
        )


def _tags(cell: object) -> Sequence[str]:
    tags = _dict(_dict(cell).get("metadata")).get("tags")
    return tags if isinstance(tags, list) else ()


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
