"""How a child gets exactly its GPUs."""

from __future__ import annotations

import pytest
from hosts import device as gpu
from hypothesis import given
from hypothesis import strategies as st

from rocmlab.devices import Device, visibility
from rocmlab.errors import RocmlabError

CPU = Device(backend="cpu", index=0, name="CPU", is_usable=True)


class TestChildEnvironment:
    """The masks that are written."""

    def test_hip_decides_and_cuda_mirrors_it(self) -> None:
        """Both masks hold the same list, so that they can never disagree."""
        masks = visibility.child_environment([gpu(2), gpu(0)])

        assert masks["HIP_VISIBLE_DEVICES"] == masks["CUDA_VISIBLE_DEVICES"] == "2,0"

    def test_rocr_is_removed(self) -> None:
        """A ROCR mask left from outside would renumber before HIP counts."""
        env = visibility.apply({"ROCR_VISIBLE_DEVICES": "1", "PATH": "/bin"}, [gpu(1)])

        assert "ROCR_VISIBLE_DEVICES" not in env
        assert env["PATH"] == "/bin"

    def test_no_gpu_is_minus_one_never_empty(self) -> None:
        """An empty mask means all GPUs to HIP, so a CPU job gets -1."""
        assert visibility.child_environment([CPU])["HIP_VISIBLE_DEVICES"] == "-1"

    @given(st.lists(st.integers(0, 63), unique=True))
    def test_masks_hold_digits_and_commas_only(self, numbers: list[int]) -> None:
        """No space and no sign, which runtimes read differently, except the one -1 that hides all."""
        mask = visibility.child_environment([gpu(number) for number in numbers])["HIP_VISIBLE_DEVICES"]

        assert mask == "-1" or [int(part) for part in str(mask).split(",")] == numbers


class TestSelect:
    """What a person may write behind GPUS=."""

    @pytest.mark.parametrize(
        ("choice", "chosen"),
        [
            ("all", [0, 1, 2, 3]),
            ("none", []),
            ("-1", []),
            ("0,2", [0, 2]),
            ("2,0", [2, 0]),
            ("1-3", [1, 2, 3]),
            ("0, 3", [0, 3]),
            ("0000:02:00.0", [2]),
            ("03:00.0", [3]),
            ("GPU-00000000000000aa", [1]),
        ],
    )
    def test_every_form_is_understood(self, choice: str, chosen: list[int]) -> None:
        """Words, indices, ranges, PCI addresses with or without domain, and unique ids name GPUs."""
        gpus = [gpu(0), gpu(1, unique_id="00000000000000aa"), gpu(2), gpu(3)]

        assert chosen == [device.index for device in visibility.select([*gpus, CPU], choice)]

    @pytest.mark.parametrize(
        ("choice", "what"), [("4", "there is no GPU 4"), ("0,0", "names 0 twice"), ("x", "there is no GPU x")]
    )
    def test_a_wrong_choice_is_explained(self, choice: str, what: str) -> None:
        """The error names the offending word and lists what there is."""
        with pytest.raises(RocmlabError, match=what):
            visibility.select([gpu(0), CPU], choice)

    def test_an_unusable_gpu_says_why(self) -> None:
        """Choosing a GPU that this process may not open gives the reason, not a later crash."""
        locked = gpu(None, "0000:05:00.0", why_not="/dev/dri/renderD128 cannot be opened")

        with pytest.raises(RocmlabError) as caught:
            visibility.select([locked], "05:00.0")

        assert "renderD128" in caught.value.problem.why
