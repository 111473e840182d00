"""A job's key: what decides its result. `--resume` runs a finished job again only if its key has changed.

In the key: the code cells with those tags that decide what is executed, the parameters, the kernel with the command and
the environment of its kernelspec and what it preloads, how many GPUs it gets, the files that the notebook declares as
inputs, the image's build record, and the versions of the user's own packages in that kernel, with the code of editable
ones. Not in it: outputs, prose,
other metadata, limits, the file's name and place, rocmlab's own version outside of an image.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import kernelspec
from rocmlab.kernels.kernelspec import Specification
from rocmlab.packages import base_packages, overlays, recorded
from rocmlab.runs.jobs import Job

BUILD_RECORD = Path("/etc/rocmlab-build.json")
MAX_HASHED_BYTES = 64 * 1024**2  # of larger inputs size and time of change are compared
TAGS = ("parameters", "injected-parameters", "skip-execution", "raises-exception")
PARTS = ("code", "parameters", "kernel", "gpus", "inputs", "image", "packages")


class Inputs:
    """Reads each declared input once, however many jobs have it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    def digest(self, path: Path) -> str:
        """Return what stands for a file's content.

        Raises:
            OSError: it cannot be read.
        """
        status = path.stat()
        key = (str(path), status.st_size, status.st_mtime_ns)
        if key not in self._known:
            if status.st_size > MAX_HASHED_BYTES:
                self._known[key] = f"{status.st_size} bytes of {status.st_mtime_ns}"
            else:
                self._known[key] = hashlib.sha256(path.read_bytes()).hexdigest()
        return self._known[key]


def image() -> Any:  # noqa: ANN401  any JSON value
    """Return the build record of the image; None outside of one."""
    try:
        return json.loads(BUILD_RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def packages(spec: Specification, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of the user's own packages in a kernel, and what stands for the code of editable ones."""
    place = overlays.of_specification(spec, environment.get(overlays.SHARE))
    prefix = overlays.in_use(place, environment) if place else None
    if prefix is None:
        return {}
    code = {f"-e {folder}": digest for folder, digest in recorded.editable(prefix)}
    return {**base_packages.installed(overlays.site_of(prefix)), **code}


def of(
    job: Job,
    notebook: Any,  # noqa: ANN401
    spec: Specification,
    built: object,
    inputs: Inputs,
    own: Mapping[str, str],
) -> str:
    """Return a job's key: for each of `PARTS` 16 hex digits of SHA-256, so that changes can be named.

    Without packages of the user's own that part is omitted: so are the keys of earlier journals.

    Raises:
        RocmlabError: the notebook declares inputs in a way that cannot be understood.
    """
    code = [
        [cell["source"].rstrip(), [tag for tag in cell.get("metadata", {}).get("tags", ()) if tag in TAGS]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]
    parts = (
        code,
        job.parameters,
        [job.kernel, spec.get("argv", []), spec.get("env", {}), kernelspec.preload(spec)],
        job.gpus,
        _inputs(notebook["metadata"], Path(job.notebook).parent, inputs),
        built,
        *([own] if own else []),
    )
    texts = (json.dumps(part, sort_keys=True, default=str) for part in parts)
    return ":".join(hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts)


def changes(then: str, now: str) -> str:
    """Return what differs between two keys: `code and inputs`."""
    pairs = zip_longest(PARTS, then.split(":"), now.split(":"), fillvalue="")
    changed = [part for part, old, new in pairs if old != new]
    return " and ".join(filter(None, (", ".join(changed[:-1]), *changed[-1:]))) or "key"


def _inputs(metadata: Mapping[str, Any], folder: Path, inputs: Inputs) -> list[list[str]]:
    """Return the declared inputs and what stands for their content; a missing file by its error."""
    ours = metadata.get("rocmlab", {})
    declared = ours.get("inputs", []) if isinstance(ours, Mapping) else []
    if not isinstance(declared, list) or not all(isinstance(each, str) for each in declared):
        raise RocmlabError(
            f"its metadata has rocmlab.inputs = {declared!r}",
            "this is not a list of files",
            'use {"rocmlab": {"inputs": ["data/x.csv"]}}; paths are relative to the notebook',
        )
    found: list[list[str]] = []
    for pattern in declared:
        for path in _files(folder, pattern) or [folder / pattern]:
            try:
                content = inputs.digest(path)
            except (OSError, ValueError) as err:
                content = type(err).__name__
            found.append([os.path.relpath(path, folder), content])
    return found


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the files that a path, a folder or a glob means, in name order."""
    try:
        where = folder / pattern
        if where.is_dir():
            return sorted(path for path in where.rglob("*") if path.is_file())
        return sorted(path for path in map(Path, glob.glob(str(where), recursive=True)) if path.is_file())
    except (OSError, ValueError):
        return []
