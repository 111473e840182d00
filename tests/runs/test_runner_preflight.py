"""What stands in the way of a notebook is known before it runs, and stands in the way of that notebook only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import notebook_files
import pytest

from rocmlab.lab import kernels
from rocmlab.runs.jobs import Job, Request, name_uniquely
from rocmlab.runs.spec.preflight import jobs_of

ADDRESS = "0000:04:00.0"

DECLARED = notebook_files.PARAMETERS + "epochs: int = 1  # how often\nlearning_rate = 1e-3\ndevice: str = 'auto'"


def only(path: Path, parameters: dict | None = None, kernel: str | None = None) -> Job:
    """Return the job of one notebook."""
    return notebook_files.jobs([path], parameters, kernel)[0]


def test_a_good_notebook_has_no_problem(tmp_path: Path) -> None:
    """Its kernel, language and wish for GPUs are read from it."""
    path = notebook_files.write(tmp_path / "good.ipynb", DECLARED, rocmlab={"gpus": "all"})

    job = only(path, {"epochs": 2})

    assert job.problem is None
    assert (job.name, job.kernel, job.gpus) == ("good", "test-kernel", "all")
    assert job.kernelspec is not None
    assert job.kernelspec.language == "python"
    assert job.parameters == {"epochs": 2}


def test_an_unknown_parameter_names_those_that_exist(tmp_path: Path) -> None:
    """A typo must not train with the defaults for hours."""
    path = notebook_files.write(tmp_path / "a.ipynb", DECLARED)

    problem = only(path, {"epochs": 2, "learningrate": 0.1}).problem

    assert problem.what == "it has no parameter learningrate"
    assert "epochs=1, learning_rate=1e-3, device='auto'" in problem.why


def test_parameters_need_a_tagged_cell(tmp_path: Path) -> None:
    """A notebook without a cell tagged `parameters` takes none."""
    path = notebook_files.write(tmp_path / "a.ipynb", "epochs = 1")

    assert "no cell tagged `parameters`" in only(path, {"epochs": 2}).problem.why


def test_a_missing_kernel_names_those_that_exist(tmp_path: Path) -> None:
    """And `--kernel` replaces it."""
    path = notebook_files.write(tmp_path / "a.ipynb", "1", kernel="julia-9")

    problem = only(path).problem

    assert "'julia-9'" in problem.what
    assert "test-kernel" in problem.why
    assert "--kernel" in problem.fix
    assert only(path, kernel="test-kernel").problem is None
    assert only(path, kernel="test-kernel").kernel == "test-kernel"


def test_a_notebook_without_a_kernel_says_so(tmp_path: Path) -> None:
    """No kernel is guessed."""
    path = notebook_files.write(tmp_path / "a.ipynb", "1", kernel=None)

    assert only(path).problem.what == "it does not name a kernel"


@pytest.mark.parametrize(
    "content",
    [
        b'{"cells": [',
        b"",
        b"[]",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"cells": [{}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
    ],
)
def test_what_is_not_a_notebook_is_reported(content: bytes, tmp_path: Path) -> None:
    """Torn, empty, foreign and malformed files each become a problem of that notebook."""
    path = tmp_path / "broken.ipynb"
    path.write_bytes(content)

    problem = only(path).problem

    assert "broken.ipynb" in problem.what
    assert problem.why
    assert problem.fix


@pytest.mark.parametrize("wish", ["two", -1, 1.5, True, [1]])
def test_a_wish_for_gpus_must_be_a_number(wish: object, tmp_path: Path) -> None:
    """Metadata that cannot be understood is not ignored."""
    path = notebook_files.write(tmp_path / "a.ipynb", "1", rocmlab={"gpus": wish})

    assert "rocmlab.gpus" in only(path).problem.what


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernelspecs as the lab derives them from `torch`: `torch-0`, `torch-1`, `torch-2`, `torch-all`, and so on."""
    home = tmp_path_factory.mktemp("derived")
    for name, gpus in {**{str(each): each for each in (0, 1, 2, "all", "none")}, "gpu1": ADDRESS}.items():
        spec = kernels.specification("torch", sys.executable)
        spec["metadata"]["kernel_provisioner"] = {"provisioner_name": kernels.PROVISIONER, "config": {"gpus": gpus}}
        path = home / f"kernels/torch-{name}/kernel.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(spec), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", os.pathsep.join((str(home), os.environ["JUPYTER_PATH"])))
        yield


@pytest.mark.usefixtures("derived")
@pytest.mark.parametrize(("suffix", "gpus"), [("0", 0), ("1", None), ("2", 2), ("all", "all")])
def test_a_kernel_has_in_a_run_the_gpus_that_it_has_in_the_lab(suffix: str, gpus: object, tmp_path: Path) -> None:
    """Whether the notebook or the command line names it; for one GPU is as without a number: the CPU has no GPU."""
    own = notebook_files.write(tmp_path / "own.ipynb", "1", kernel=f"torch-{suffix}")
    other = notebook_files.write(tmp_path / "other.ipynb", "1")

    assert only(own).gpus == gpus
    assert only(other, kernel=f"torch-{suffix}").gpus == gpus


@pytest.mark.usefixtures("derived")
def test_a_number_that_is_written_beats_that_of_the_kernel(tmp_path: Path) -> None:
    """Strongest first: a number of the command line or a list, its kernel, the notebook's number, its kernel."""
    path = notebook_files.write(tmp_path / "a.ipynb", "1", kernel="torch-0", rocmlab={"gpus": "all", "min_gpus": 2})

    def asked(**given: Any) -> tuple[object, object]:
        (job,) = jobs_of([Request("a", str(path), **given)])
        return job.gpus, job.min_gpus

    assert asked() == ("all", 2)
    assert asked(kernel="torch-2") == (2, None)
    assert asked(kernel="torch-1") == ("all", 2)
    assert asked(kernel="torch-2", gpus=1) == (1, None)


@pytest.mark.usefixtures("derived")
def test_a_kernel_for_one_certain_gpu_says_that_a_run_chooses(tmp_path: Path) -> None:
    """Its job is not pinned, and the warning has what pins it."""
    job = only(notebook_files.write(tmp_path / "a.ipynb", "1", kernel="torch-gpu1"))

    assert job.gpus is None
    assert "'torch-gpu1' is for one certain GPU" in job.warning
    assert f"--gpus {ADDRESS}" in job.warning


@pytest.mark.usefixtures("derived")
def test_a_kernelspec_that_asks_for_nonsense_stops_its_notebook(tmp_path: Path) -> None:
    """It is not taken for one GPU."""
    problem = only(notebook_files.write(tmp_path / "a.ipynb", "1", kernel="torch-none")).problem

    assert "'torch-none' asks for gpus = 'none'" in problem.what


def test_one_bad_notebook_leaves_the_others_alone(tmp_path: Path) -> None:
    """Problems are by notebook."""
    good = notebook_files.write(tmp_path / "good.ipynb", "1")
    bad = tmp_path / "bad.ipynb"
    bad.write_text(json.dumps({"nbformat": 4}))

    jobs = notebook_files.jobs([bad, good])

    assert [job.problem is None for job in jobs] == [False, True]


def test_every_job_gets_a_file_name_of_its_own() -> None:
    """Names that repeat, differ in case only, or would leave the run folder become safe and unique."""
    asked = ["a", "a", "A", "b c", "../../etc/passwd", "<b>&", ".hidden", "naïve_ß", ""]

    found = [job.name for job in name_uniquely([Job(name, name) for name in asked])]

    assert found == ["a", "a-2", "A-3", "b_c", "etc_passwd", "b", "hidden", "naïve_ß", "notebook"]
