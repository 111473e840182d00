"""`rocmlab bench train` before and after its processes: which interpreter, which environment, what failed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking import train
from rocmlab.training import interpreters

# Plays the measuring process: it writes down what it was started with, and answers as `train_row` does.
PYTHON = """\
#!{python}
import json, os, sys
if sys.argv[1] == "-c":
    sys.exit(print(os.environ.get("LACKING", "")))
order = json.loads(sys.argv[3])
if os.environ.get("FAILS"):
    sys.exit("ImportError: libhsa-runtime64.so.1: cannot open shared object file")
answer = {{"order": order, "module": sys.argv[2], "env": dict(os.environ)}}
if os.environ.get("PROBLEM"):
    answer = {{"problem": {{"what": "no such device", "why": "none", "fix": "use the CPU"}}}}
open(sys.argv[4], "w").write(json.dumps(answer))
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The two kernels of the lab, both with an interpreter that only says how it was called."""
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o755)
    for name in ("tensorflow", "torch"):
        spec = tmp_path / "kernels" / name / "kernel.json"
        spec.parent.mkdir(parents=True)
        spec.write_text(json.dumps({"argv": [str(python)], "env": {"KERNEL": name, "KERAS_BACKEND": name}}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    return tmp_path / "kernels"


@pytest.mark.parametrize(("backend", "kernel"), [("tensorflow", "tensorflow"), ("torch", "torch"), ("jax", "torch")])
def test_each_backend_is_measured_in_the_interpreter_that_has_it(kernels: Path, backend: str, kernel: str) -> None:
    """JAX lives in PyTorch's kernel; what that says of Keras' backend does not count for it."""
    row = train.measure([f"mnist_fc_{backend}"], runs=3, samples=640).rows[0]

    assert row["env"]["KERNEL"] == kernel
    assert row["env"]["KERAS_BACKEND"] == backend
    assert row["order"] == {
        "workload": "mnist_fc",
        "backend": backend,
        "runs": 3,
        "samples": 640,
        "device": "auto",
    }


def test_the_cpu_is_measured_with_all_gpus_hidden(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that found a GPU there would be measured on it."""
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")

    hidden = train.measure(["mnist_fc_jax"], device="cpu").rows[0]["env"]
    seen = train.measure(["mnist_fc_jax"]).rows[0]["env"]

    assert (hidden["HIP_VISIBLE_DEVICES"], hidden["CUDA_VISIBLE_DEVICES"], hidden["JAX_PLATFORMS"]) == (
        "-1",
        "-1",
        "cpu",
    )
    assert seen["HIP_VISIBLE_DEVICES"] == "0"


@pytest.mark.slow
def test_quick_shortens_the_digits_alone(kernels: Path) -> None:
    """6,400 images of the U-Net would be more than a long run of it has; a number that was given counts."""
    rows = ["mnist_cnn_jax", "unet_jax"]

    quick = train.measure(rows, quick=True).rows
    given = train.measure(rows, quick=True, samples=16).rows

    assert [row["order"]["samples"] for row in quick] == [6_400, None]
    assert [row["order"]["samples"] for row in given] == [16, 16]


def test_options_reach_the_measuring_process(kernels: Path) -> None:
    """The size of images, for example, or a test after each epoch."""
    row = train.measure(["unet_mixed_torch"], options={"size": 64, "curves": True}).rows[0]

    assert (row["order"]["workload"], row["order"]["backend"]) == ("unet_mixed", "torch")
    assert (row["order"]["size"], row["order"]["curves"]) == (64, True)


def test_backends_that_no_kernel_has_are_named(kernels: Path) -> None:
    """With the reason; those that are installed are not."""
    spec = kernels / "tensorflow/kernel.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "env": {"LACKING": "tensorflow"}}))

    assert list(train.missing()) == ["tensorflow"]
    assert "has no tensorflow" in train.missing()["tensorflow"]


def test_the_usual_rows_are_those_of_the_issue(kernels: Path) -> None:
    """Each once, in order."""
    assert [row["name"] for row in train.measure().rows] == [
        "mnist_fc_tensorflow",
        "mnist_fc_torch",
        "mnist_fc_jax",
        "mnist_cnn_tensorflow",
    ]


def test_a_backend_that_is_not_there_is_left_out_and_said(kernels: Path) -> None:
    """Of the usual rows; one that was named is an error."""
    spec = kernels / "tensorflow/kernel.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "env": {"LACKING": "tensorflow"}}))

    report = train.measure()

    assert [row["name"] for row in report.rows] == ["mnist_fc_torch", "mnist_fc_jax"]
    assert "has no tensorflow" in report.skipped["mnist_fc_tensorflow"]
    with pytest.raises(RocmlabError, match="mnist_cnn_tensorflow cannot be measured"):
        train.measure(["mnist_cnn_tensorflow"])


def test_without_any_backend_it_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty table would say that all is well."""
    monkeypatch.setattr(interpreters, "JUPYTER_FOLDERS", ())
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    if any(interpreters.importlib.util.find_spec(name) for name in train.BACKENDS):
        pytest.skip("this interpreter has a framework itself: run .ci/run")

    with pytest.raises(RocmlabError, match="nothing was measured") as caught:
        train.measure()

    assert "no interpreter with tensorflow" in caught.value.problem.why


def test_a_process_that_fails_is_reported_with_its_output(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a problem that it names is that problem."""
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(RocmlabError, match="mnist_fc_torch was not measured") as caught:
        train.measure(["mnist_fc_torch"])
    assert "libhsa-runtime64" in caught.value.problem.why
    monkeypatch.delenv("FAILS")
    monkeypatch.setenv("PROBLEM", "1")
    with pytest.raises(RocmlabError, match="no such device"):
        train.measure(["mnist_fc_torch"])


def test_rows_that_fail_alike_are_one_error(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row was measured: where all have the same problem it is that one, else all are listed."""
    monkeypatch.setenv("PROBLEM", "1")
    with pytest.raises(RocmlabError, match=r"^no such device"):
        train.measure()
    monkeypatch.delenv("PROBLEM")
    monkeypatch.setenv("FAILS", "1")

    with pytest.raises(RocmlabError, match="nothing was measured") as caught:
        train.measure(["mnist_fc_torch", "mnist_fc_jax"])

    assert "mnist_fc_torch: mnist_fc_torch was not measured" in caught.value.problem.why
    assert "mnist_fc_jax: mnist_fc_jax was not measured" in caught.value.problem.why
    assert caught.value.exit_code == 1


def test_an_unknown_row_is_an_error_with_the_names() -> None:
    """A typo must not measure everything."""
    with pytest.raises(RocmlabError, match="no such row: mnist_fc_jaxx") as caught:
        train.measure(["mnist_fc_jaxx"])

    assert "unet_torch" in caught.value.problem.fix
