"""A program that needs more GPUs gets advice that fits what started it."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.simulation import write_host
from rocmlab.training import interpreters, more_gpus, placement

STARTS = {
    "job": {"ROCMLAB_JOB_NAME": "04_multi_gpu_torch"},
    "lab": {"JPY_SESSION_NAME": "/notebooks/04_multi_gpu_torch.ipynb"},
    "kernel": {},
    "program": {},
}


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Return what makes this process look as if it had been started in one of four ways, with one GPU of four."""
    for name in ("ROCMLAB_JOB_NAME", "JPY_SESSION_NAME", "ROCMLAB_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(interpreters, "JUPYTER_FOLDERS", ())
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))

    def make(how, gpus=4, kernel=True):
        if gpus:
            monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(tmp_path / f"host{gpus}", gpus=gpus)))
        for name, value in STARTS[how].items():
            monkeypatch.setenv(name, value)
        monkeypatch.delitem(sys.modules, "ipykernel.kernelapp", raising=False)
        if how != "program":
            monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", SimpleNamespace())
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2")
        if kernel:
            folder = tmp_path / "kernels/torch-all"
            folder.mkdir(parents=True, exist_ok=True)
            folder.joinpath("kernel.json").write_text(json.dumps({"display_name": "PyTorch (all 4 GPUs)"}))

    return make


@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ("job", "--gpus all --job-gpus all"),
        ("lab", "Kernel > Change Kernel… > PyTorch (all 4 GPUs)"),
        ("kernel", "papermill --kernel torch-all"),
        ("program", "HIP_VISIBLE_DEVICES=0,1,2,3"),
    ],
)
def test_advice_fits_what_started_the_program(start, how, advice):
    """A job is given GPUs by its run, a kernel by its kernelspec, a program by its mask."""
    start(how)

    assert more_gpus.started_by() == how
    found = more_gpus.advice("torch")
    assert found.startswith("this lab has 4 GPUs of one kind: ")
    assert advice in found
    assert more_gpus.advice("jax") == found


@pytest.mark.parametrize(
    ("how", "advice"), [("lab", "`make down` and `make up`"), ("kernel", "`rocmlab run NOTEBOOK`")]
)
def test_a_kernel_that_the_lab_does_not_have_is_not_advised(start, how, advice):
    """A lab that was started with one GPU offers no kernel for all of them."""
    start(how, kernel=False)

    found = more_gpus.advice("torch")

    assert advice in found
    assert "torch-all" not in found


def test_what_no_kernel_could_change_is_said(start, monkeypatch):
    """With one GPU in the lab, the lab is given more; where all are visible, the framework or driver is at fault."""
    start("lab", gpus=1)
    assert "this lab has 1 usable GPU of one kind: `make up GPUS=all`" in more_gpus.advice("torch")

    start("lab", gpus=2)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    assert "the driver lists 2 GPUs and torch uses fewer" in more_gpus.advice("torch")


def test_a_team_without_two_gpus_tells_why_and_what_to_do(start, monkeypatch, capsys):
    """`auto` prints it, `gpu` has it as its fix, and nothing is printed if the CPU was requested."""
    start("lab")
    cuda = SimpleNamespace(
        is_available=lambda: True,
        device_count=lambda: 1,
        get_device_properties=lambda index: SimpleNamespace(name="Radeon RX 7900 XTX"),
    )
    mps = SimpleNamespace(is_available=lambda: False)
    torch = SimpleNamespace(cuda=cuda, backends=SimpleNamespace(mps=mps), version=SimpleNamespace(hip="7.2"))
    monkeypatch.setitem(sys.modules, "torch", torch)

    assert placement.team("torch")[0]["simulated"]
    said = capsys.readouterr().out
    with pytest.raises(RocmlabError) as caught:
        placement.team("torch", "gpu")
    placement.team("torch", "cpu")

    assert "SIMULATED on 2 parts of the CPU: torch sees 1 GPU of one kind" in said
    assert "Change Kernel… > PyTorch (all 4 GPUs)" in said
    assert "Change Kernel… > PyTorch (all 4 GPUs)" in caught.value.problem.fix
    assert capsys.readouterr().out == ""
