"""Which GPUs a run gets when a mask of the lab hides some of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, visibility
from rocmlab.runs.scheduling.placement import choose_gpus

LAB = {"ROCMLAB_BACKEND": "rocm"}


@pytest.mark.parametrize(
    ("environment", "choice", "indices"),
    [
        ({"HIP_VISIBLE_DEVICES": "1"}, None, [1]),
        ({"HIP_VISIBLE_DEVICES": "1"}, "all", [1]),
        ({"HIP_VISIBLE_DEVICES": "1"}, "1", [1]),  # one GPU
        ({"HIP_VISIBLE_DEVICES": "1,0"}, None, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, None, [0]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, None, [1]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, None, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, None, []),
        ({"HIP_VISIBLE_DEVICES": "1"}, "none", []),
    ],
)
@pytest.mark.parametrize("is_marked", [False, True])
def test_a_run_stays_within_the_masks_of_the_lab(
    environment: dict[str, str],
    choice: str | None,
    indices: list[int],
    is_marked: bool,
    gpus: list[Device],
    cpu: Device,
) -> None:
    """It gets what the masks leave, in their order, whether or not discovery has applied them already."""
    devices = visibility.mark_hidden(gpus, environment) if is_marked else gpus

    chosen = choose_gpus([*devices, cpu], choice, {**LAB, **environment})

    assert [gpu.index for gpu in chosen] == indices


def test_an_empty_mask_is_an_error_and_no_run_on_the_cpu(gpus: list[Device], cpu: Device) -> None:
    """HIP sees no GPU then; who wants that writes -1."""
    with pytest.raises(RocmlabError) as caught:
        choose_gpus([*gpus, cpu], None, {**LAB, "HIP_VISIBLE_DEVICES": ""})

    assert "HIP_VISIBLE_DEVICES" in str(caught.value)


@pytest.mark.parametrize("choice", ["0,1", "0000:03:00.0", "2"])
def test_a_hidden_gpu_that_is_asked_for_is_an_error(choice: str, gpus: list[Device], cpu: Device) -> None:
    """Neither another GPU nor the CPU takes its place."""
    with pytest.raises(RocmlabError):
        choose_gpus([*gpus, cpu], choice, {**LAB, "HIP_VISIBLE_DEVICES": "1"})


@pytest.mark.parametrize("environment", [{}, {"HIP_VISIBLE_DEVICES": "7"}, {"HIP_VISIBLE_DEVICES": " 0"}])
def test_a_lab_for_gpus_without_any_is_an_error(environment: dict[str, str], gpus: list[Device], cpu: Device) -> None:
    """A mask that hides all by mistake, or nodes that cannot be opened, never mean the CPU."""
    closed = [replace(gpu, is_usable=False, why_not="/dev/kfd is missing", index=None) for gpu in gpus]

    with pytest.raises(RocmlabError, match="no GPU can be used here") as caught:
        choose_gpus([*(gpus if environment else closed), cpu], None, {**LAB, **environment})

    assert ("hidden by HIP_VISIBLE_DEVICES" if environment else "/dev/kfd") in caught.value.problem.why
