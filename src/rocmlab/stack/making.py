"""Making a native environment, in one step, or in two: what JupyterLab needs, and then the rest while it runs."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from rocmlab.base import installation
from rocmlab.base.errors import RocmlabError
from rocmlab.packages import companions, requested
from rocmlab.stack import empty, environments, packages, process, requirements
from rocmlab.stack.environment import MADE, Environment, check_python, was_made_by_us
from rocmlab.stack.lab import Say

FRAMEWORKS = ("tensorflow", "torch", "jax")


def make_lab(environment: Environment, say: Say) -> None:
    """Make what JupyterLab needs, where there is no environment yet; else bring all of it up to date."""
    aside = environment.project / environments.FOLDER / environments.ASIDE
    is_there = os.path.lexists(environment.folder) and not was_made_by_us(environment.folder)
    is_there = is_there or environment.marker.exists() or environment.part.exists() or os.path.lexists(aside)
    if is_there or environment.has_cluster or environment.is_beside:
        make(environment, say)
    else:
        _make(environment, say, only_lab=True)


def finish(environment: Environment, say: Say) -> None:
    """Install what `make_lab` has left, under a lab that runs; its kernelspecs stay as they are."""
    _make(environment, say, is_serving=True)


def make(environment: Environment, say: Say, *, is_part_kept: bool = False) -> None:
    """Make the environment, or bring it up to date; `is_part_kept`: a lab may run from what `make_lab` has made."""
    if is_part_kept and not environment.is_beside and environment.is_part():
        finish(environment, say)
        return
    if not environment.is_beside or not environment.interpreter.exists() or not was_made_by_us(environment.folder):
        _make(environment, say)
        return
    environment.building = environments.new_folder(environment.project)
    try:
        present = environment.project / ".venv"
        if environment.matches(environment.record_of(check_python(environment.python)), present):
            if (present / installation.PART).exists():  # sizes of scripts in a copy are other ones
                packages.remove_unfinished(present, partial(requirements.comes, environment))
            say("copying .venv, so that the present environment is kept")
            environments.copy(present, environment.building)
        _make(environment, say)
    except BaseException:
        shutil.rmtree(environment.building, ignore_errors=True)
        environment.building = None
        raise


def _make(environment: Environment, say: Say, *, only_lab: bool = False, is_serving: bool = False) -> None:
    """Make the environment, or bring it up to date; where that fails, the one before is back in its place.

    With `only_lab` as far as JupyterLab needs it; with `is_serving` a JupyterLab runs from it: rocmlab and the
    kernelspecs are there, and stay as they are.
    """
    made_from = environment.fingerprint()  # what is checked out may change while this installs
    version = check_python(environment.python)
    record = environment.record_of(version)
    if environment.building is None and not environment.marker.exists() and was_made_by_us(environment.folder):
        # This was ended in the middle.
        environments.bring_back(environment.project, environment.folder, only_if_there=True)
    is_new = not environment.matches(record, environment.folder)
    if is_new:
        _make_room(environment, say, is_serving=is_serving)
    try:
        environment.check_disk()
        environment.marker.unlink(missing_ok=True)
        (environment.folder / packages.COMPILED).unlink(missing_ok=True)
        if is_new:
            say(f"making .venv with {environment.python} ({version})")
            empty.create(environment.python, version, environment.folder)
        (environment.folder / MADE).touch()
        requirements.get_uv(environment, say)
        if only_lab:
            requirements.fill(environment, requirements.lab_steps(environment), say)
        else:
            is_continued = environment.part.exists()
            if is_continued and environment.building is None:
                packages.remove_unfinished(environment.folder, partial(requirements.comes, environment))
            steps = requirements.steps(environment, is_serving=is_serving)
            requirements.fill(environment, steps, say, is_continued=is_continued)
            verify(environment, environment.interpreter)
            _note_index(environment)
        if not is_serving:
            _register_kernels(environment)
        _finish(environment, {**record, "fingerprint": made_from}, only_lab=only_lab)
    except BaseException:
        if is_new:
            environments.bring_back(environment.project, environment.folder)
        raise
    environments.remove(environment.project, environment.project / environments.FOLDER / environments.ASIDE)


def _make_room(environment: Environment, say: Say, *, is_serving: bool) -> None:
    """Put what is there aside, unless a lab runs from it, or it is the user's own."""
    if is_serving:
        raise RocmlabError(
            f"{environment.folder} cannot be completed while JupyterLab runs",
            "it is for another backend or Python, so it has to be made again",
            "make up      # makes it again, and restarts the lab",
        )
    folder = environment.folder
    if os.path.lexists(folder):
        if folder.exists() and not was_made_by_us(folder):
            raise RocmlabError(
                f"{folder} was not made by rocmlab",
                "it would be replaced by the lab's environment, and what you installed there would be lost",
                f"mv {folder} {folder}-mine      # or, if nothing there is needed: rm -r {folder}",
            )
        say("replacing .venv: it is for another backend, Python or folder, or half made")
        environments.put_aside(environment.project, folder, is_whole=environment.marker.exists())


def _register_kernels(environment: Environment) -> None:
    kernels = [str(environment.interpreter), "-P", "-m", "rocmlab.lab.install", "--prefix", str(environment.folder)]
    kernels += ["--tensorflow", str(environment.interpreter), "--torch", str(environment.interpreter)]
    code, output = process.capture(kernels)
    if code:
        raise RocmlabError("the kernels could not be registered", output.strip()[-400:], "make clean && make up")


def _finish(environment: Environment, record: dict[str, str], *, only_lab: bool) -> None:
    text = json.dumps(record, indent=1)
    if not only_lab:
        os.sync()  # what is marked as whole is on the disk, also after a power cut
    (environment.part if only_lab else environment.marker).write_text(text + "\n", encoding="utf-8")
    if not only_lab and environment.part.exists():
        environment.part.unlink()
        (environment.folder / installation.FAILURE).unlink(missing_ok=True)
        environment.mark_kernels()


def verify(environment: Environment, interpreter: Path) -> None:
    """Raise RocmlabError unless an interpreter's frameworks are builds for the backend, as in the image."""
    program = str(environment.project / "docker/build/verify.py")

    def check(framework: str) -> tuple[int, str]:
        more = [environment.jax_packages] if framework == "jax" else []
        command = [str(interpreter), program, environment.backend, framework, *more]
        return process.capture(command, timeout_seconds=300)

    with ThreadPoolExecutor() as pool:  # importing each takes seconds, the first time more
        found = dict(zip(FRAMEWORKS, pool.map(check, FRAMEWORKS), strict=True))
    for framework, (code, output) in found.items():
        if code:
            lines = [line for line in output.splitlines() if line.strip()][-1:] or ["it cannot be imported"]
            fix = "make up RUNTIME=docker" if environment.backend == "rocm" else "make up BACKEND=cpu"
            raise RocmlabError(
                f"{framework} is not what the backend {environment.backend} needs",
                lines[0].removeprefix("error: "),
                "make up JAX_PACKAGES=" if framework == "jax" and environment.jax_packages else fix,
            )


def _note_index(environment: Environment) -> None:
    """Note where PyTorch came from: a user's packages that are compiled for it come from the same place."""
    address = requested.without_password(environment.torch_index)
    (environment.folder / companions.INDEX).write_text(f"{address}\n", encoding="utf-8")
