"""How a child gets exactly its GPUs, what a mask hides, and what a user may write."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hosts import device as gpu
from hosts import make_node
from hypothesis import given
from hypothesis import strategies as st

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, visibility

CPU = Device(backend="cpu", index=0, name="CPU", is_usable=True)
FOUR = [gpu(number, unique_id=f"{number + 1:x}" * 16) for number in range(4)]
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def indices(devices: list[Device]) -> list[int | None]:
    """Return their indices."""
    return [device.index for device in devices]


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
        """An empty mask is easily taken for one that is not set, so a CPU job gets -1."""
        assert visibility.child_environment([CPU])["HIP_VISIBLE_DEVICES"] == "-1"
        assert visibility.child_environment([])["CUDA_VISIBLE_DEVICES"] == "-1"

    def test_gpus_of_two_makers_get_a_mask_each(self) -> None:
        """HIP reads its own mask first, so CUDA's may name the NVIDIA GPUs."""
        masks = visibility.child_environment([gpu(1), gpu(0, backend="cuda")])

        assert (masks["HIP_VISIBLE_DEVICES"], masks["CUDA_VISIBLE_DEVICES"]) == ("1", "0")

    def test_a_gpu_without_a_number_is_never_left_out_silently(self) -> None:
        """A GPU that the runtime cannot list has no place in a mask, and a child without it would use the CPU."""
        with pytest.raises(RocmlabError, match="cannot be given") as caught:
            visibility.child_environment([gpu(0), gpu(None, "0000:05:00.0", why_not="/dev/kfd is missing")])

        assert "/dev/kfd" in caught.value.problem.why

    @given(st.lists(st.integers(0, 63), unique=True))
    def test_masks_hold_digits_and_commas_only(self, numbers: list[int]) -> None:
        """No space and no sign, which runtimes read differently, except the one -1 that hides all."""
        mask = visibility.child_environment([gpu(number) for number in numbers])["HIP_VISIBLE_DEVICES"]

        assert mask == "-1" or [int(part) for part in str(mask).split(",")] == numbers

    def test_a_child_process_has_exactly_these_masks(self) -> None:
        """A real child sees the two masks, CUDA's order and the rest of the environment, and no other mask."""
        parent = {
            "PATH": "/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "HIP_VISIBLE_DEVICES": "1,3",
            "ROCR_VISIBLE_DEVICES": "0,1,3",
            "CUDA_VISIBLE_DEVICES": "",
            "GPU_DEVICE_ORDINAL": "0",
            "AMD_VISIBLE_DEVICES": "all",
        }
        marked = visibility.mark_hidden(FOUR, parent)

        env = visibility.apply(parent, [device for device in marked if device.is_usable])
        said = subprocess.run([sys.executable, "-c", SHOW], env=env, capture_output=True, text=True, check=True).stdout

        assert json.loads(said) == {
            "PATH": "/usr/bin:/bin",
            "LC_ALL": "C.UTF-8",
            "HIP_VISIBLE_DEVICES": "1",  # as on the host: ROCr's second is the host's 1, and HIP's 3 is not there
            "CUDA_VISIBLE_DEVICES": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "AMD_VISIBLE_DEVICES": "all",
        }

    @pytest.mark.parametrize("outer", [{"HIP_VISIBLE_DEVICES": "3,1"}, {"ROCR_VISIBLE_DEVICES": "1,3"}])
    def test_a_child_of_a_masked_process_gets_the_right_gpu(self, outer: dict[str, str]) -> None:
        """Its mask names the GPU as before all masks, and its reader arrives at that very GPU."""
        chosen = visibility.select(visibility.mark_hidden(FOUR, outer), "3")

        assert indices(list(visibility.visible(visibility.apply(outer, chosen), FOUR).gpus)) == [3]


class TestMarkHidden:
    """What the masks of this process hide."""

    @pytest.mark.parametrize(
        ("environment", "hidden"),
        [
            ({}, {}),
            ({"HIP_VISIBLE_DEVICES": ""}, dict.fromkeys(range(4), "hidden by HIP_VISIBLE_DEVICES= (empty)")),
            ({"GPU_DEVICE_ORDINAL": "1", "AMD_VISIBLE_DEVICES": "1"}, {}),
            ({"HIP_VISIBLE_DEVICES": "1"}, dict.fromkeys((0, 2, 3), "hidden by HIP_VISIBLE_DEVICES=1")),
            ({"HIP_VISIBLE_DEVICES": "-1"}, dict.fromkeys(range(4), "hidden by HIP_VISIBLE_DEVICES=-1")),
            ({"CUDA_VISIBLE_DEVICES": "3,0"}, dict.fromkeys((1, 2), "hidden by CUDA_VISIBLE_DEVICES=3,0")),
            ({"ROCR_VISIBLE_DEVICES": ""}, dict.fromkeys(range(4), "hidden by ROCR_VISIBLE_DEVICES= (empty)")),
            ({"HIP_VISIBLE_DEVICES": "0, 1"}, dict.fromkeys((1, 2, 3), "hidden by HIP_VISIBLE_DEVICES=0, 1")),
            (
                {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"},
                {
                    0: "hidden by ROCR_VISIBLE_DEVICES=2,3",
                    1: "hidden by ROCR_VISIBLE_DEVICES=2,3",
                    2: "hidden by HIP_VISIBLE_DEVICES=1",
                },
            ),
        ],
    )
    def test_the_mask_that_hides_is_named(self, environment: dict[str, str], hidden: dict[int, str]) -> None:
        """Each hidden GPU names the variable and value that hide it, and keeps its index."""
        marked = visibility.mark_hidden([*FOUR, CPU], environment)

        assert {device.index: device.why_not for device in marked[:4] if not device.is_usable} == hidden
        assert indices(marked) == [0, 1, 2, 3, 0]
        assert marked[4] == CPU

    def test_the_first_reason_stays(self) -> None:
        """A GPU that cannot be opened is not hidden, and takes no number."""
        closed = gpu(None, "0000:09:00.0", why_not="/dev/dri/renderD128 is missing")

        marked = visibility.mark_hidden([gpu(0), closed, gpu(1)], {"HIP_VISIBLE_DEVICES": "1"})

        assert marked[1] == closed
        assert [device.is_usable for device in marked] == [False, False, True]

    def test_nvidia_gpus_obey_cuda_alone(self) -> None:
        """HIP's and ROCr's masks say nothing to NVIDIA's driver; an empty CUDA mask hides the GPUs of both."""
        mixed = [gpu(0), gpu(1), gpu(0, backend="cuda"), gpu(1, backend="cuda")]

        marked = visibility.mark_hidden(mixed, {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"})
        empty = visibility.mark_hidden(mixed, {"CUDA_VISIBLE_DEVICES": ""})

        assert [device.is_usable for device in marked] == [False, True, True, False]
        assert [device.is_usable for device in empty] == [False] * 4

    @given(
        st.dictionaries(st.sampled_from(visibility.VARIABLES), st.text(alphabet="0123x,- GPUab", max_size=12)),
        st.booleans(),
    )
    def test_nothing_but_the_usability_changes(self, environment: dict[str, str], again: bool) -> None:
        """Whatever the masks, each GPU stays the same GPU, and marking twice is marking once."""
        marked = visibility.mark_hidden(FOUR, environment)

        if again:
            assert visibility.mark_hidden(marked, environment) == marked
        assert [replace(device, is_usable=True, why_not=None) for device in marked] == FOUR
        assert all(device.is_usable == (device.why_not is None) for device in marked)

    def test_what_remains_has_the_order_of_the_mask(self) -> None:
        """A framework's GPU 0 is the mask's first."""
        assert indices(visibility.remaining(FOUR, {"HIP_VISIBLE_DEVICES": "3,1"})) == [3, 1]
        assert visibility.remaining([CPU], {}) == []

    @pytest.mark.parametrize(
        ("backend", "environment", "expected"),
        [
            ("rocm", {"HIP_VISIBLE_DEVICES": "-1"}, True),
            ("rocm", {"CUDA_VISIBLE_DEVICES": "-1"}, True),
            ("rocm", {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, True),
            ("rocm", {"ROCR_VISIBLE_DEVICES": ""}, True),
            ("rocm", {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}, False),
            ("rocm", {"HIP_VISIBLE_DEVICES": "9"}, False),
            ("rocm", {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "-1"}, False),
            ("rocm", {}, False),
            ("cuda", {"CUDA_VISIBLE_DEVICES": ""}, True),
            ("cuda", {"CUDA_VISIBLE_DEVICES": "-1"}, True),
            ("cuda", {"HIP_VISIBLE_DEVICES": "-1"}, False),
        ],
    )
    def test_hiding_all_on_purpose_is_told_from_an_accident(
        self, backend: str, environment: dict[str, str], expected: bool
    ) -> None:
        """`-1` is meant so; a GPU that is not there is not, nor is an empty line of `.env`."""
        assert visibility.hides_all(environment, backend) is expected


class TestNarrow:
    """Some of the GPUs that a mask leaves, without reading the GPUs."""

    @pytest.mark.parametrize(
        ("environment", "positions", "mask"),
        [
            ({}, [0, 2], "0,2"),
            ({}, [], "-1"),
            ({"HIP_VISIBLE_DEVICES": "2,3,5"}, [0, 2], "2,5"),
            ({"HIP_VISIBLE_DEVICES": "2,3,5"}, [2, 0], "5,2"),
            ({"HIP_VISIBLE_DEVICES": ""}, [], "-1"),
            ({"CUDA_VISIBLE_DEVICES": "3,1"}, [1], "1"),
            ({"HIP_VISIBLE_DEVICES": "GPU-ab,GPU-cd"}, [0, 1], "GPU-ab,GPU-cd"),
            ({"ROCR_VISIBLE_DEVICES": "2,3"}, [1], "3"),
            ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, [0], "3"),
            ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1,0"}, [0, 1], "3,2"),
        ],
    )
    def test_positions_count_within_the_masks(
        self, environment: dict[str, str], positions: list[int], mask: str
    ) -> None:
        """The numbers are the framework's, and what is written are those before all masks."""
        env = visibility.narrow({"PATH": "/bin", **environment}, positions)

        assert env["HIP_VISIBLE_DEVICES"] == mask
        assert "ROCR_VISIBLE_DEVICES" not in env
        assert env["PATH"] == "/bin"

    @pytest.mark.parametrize(
        "environment",
        [
            {"HIP_VISIBLE_DEVICES": "0,1"},
            {"HIP_VISIBLE_DEVICES": "0,1,-1"},
            {"HIP_VISIBLE_DEVICES": "GPU-ab,GPU-cd,GPU-ef"},
            {"ROCR_VISIBLE_DEVICES": ""},
            {"ROCR_VISIBLE_DEVICES": "4", "HIP_VISIBLE_DEVICES": "0,1,2"},
        ],
    )
    def test_what_the_mask_does_not_have_is_an_error(self, environment: dict[str, str]) -> None:
        """Picking beyond the mask, or by something other than a number, is rejected."""
        with pytest.raises(RocmlabError, match="cannot be picked"):
            visibility.narrow(environment, [0, 2])

    @pytest.mark.parametrize(
        ("mask", "positions"),
        [
            ("-1", [0]),  # hidden on purpose: the job would run on the CPU
            ("abc", [0]),
            ("none", [0]),
            ("0, 1", [1]),  # HIP ends the list at the space
            ("0,0", [1]),
            ("0,,1", [1]),
            ("1_0", [0]),
            ("٣", [0]),
            ("01", [0]),
            ("+1", [0]),
            ("0,1", [-1]),
            ("0,1", [0, 0]),
            ("GPU-ab,GPU-cd", [1, 0]),
            ("GPU-ab,0", [0, 1]),
        ],
    )
    @pytest.mark.parametrize("name", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
    def test_no_mask_is_guessed_at(self, name: str, mask: str, positions: list[int]) -> None:
        """What programs read in different ways, or not at all, never becomes another GPU or the CPU in silence."""
        with pytest.raises(RocmlabError, match="cannot be picked"):
            visibility.narrow({name: mask}, positions)

    @pytest.mark.parametrize("mask", ["0,1", "GPU-ab,GPU-cd"])
    def test_all_of_a_mask_is_written_to_every_variable(self, mask: str) -> None:
        """A contradicting mask of another reader does not stay, whether the whole list is taken or a part."""
        left = {"HIP_VISIBLE_DEVICES": mask, "CUDA_VISIBLE_DEVICES": "7", "GPU_DEVICE_ORDINAL": "3"}

        env = visibility.narrow(left, [0, 1])

        assert env["HIP_VISIBLE_DEVICES"] == env["CUDA_VISIBLE_DEVICES"] == mask
        assert "GPU_DEVICE_ORDINAL" not in env

    @pytest.mark.parametrize("hip", ["", "-1", "0"])
    def test_nvidias_driver_reads_its_own_mask_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hip: str
    ) -> None:
        """A mask of ROCm hides nothing on a host with NVIDIA GPUs alone, and stops nothing there; on others it does."""
        masks = {"HIP_VISIBLE_DEVICES": hip, "ROCR_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "4,6"}
        monkeypatch.setenv("ROCMLAB_ROOT", str(tmp_path))
        make_node(tmp_path / "dev/nvidia0")

        assert visibility.narrow(masks, [1])["CUDA_VISIBLE_DEVICES"] == "6"
        del masks["CUDA_VISIBLE_DEVICES"]
        assert visibility.narrow(masks, [1])["CUDA_VISIBLE_DEVICES"] == "1"
        make_node(tmp_path / "dev/kfd")
        with pytest.raises(RocmlabError, match="cannot be picked"):
            visibility.narrow(masks, [1])

    @pytest.mark.parametrize("mask", ["-1", "abc", "0, 1", "GPU-ab"])
    def test_the_cpu_can_be_had_under_any_mask(self, mask: str) -> None:
        """No GPU is picked, so none has to be read."""
        assert visibility.narrow({"HIP_VISIBLE_DEVICES": mask}, [])["HIP_VISIBLE_DEVICES"] == "-1"


class TestSelect:
    """What a user may write behind GPUS=."""

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
            ("ALL", [0, 1, 2, 3]),
            ("", [0, 1, 2, 3]),
            (" none ", []),
            ("0-0", [0]),
            ("0 - 2", [0, 1, 2]),
            ("1,", [1]),
            ("3:0.0", [3]),
            ("00000000:02:00.0", [2]),
            ("00000000000000AA", [1]),
            ("gpu-00000", [1]),
            ("2,GPU-0000000000,0000:03:00.0,0", [2, 1, 3, 0]),
            ("2-3,0-1", [2, 3, 0, 1]),
        ],
    )
    def test_every_form_is_understood(self, choice: str, chosen: list[int]) -> None:
        """Words, indices, ranges, PCI addresses with or without domain, and unique ids name GPUs."""
        gpus = [gpu(0), gpu(1, unique_id="00000000000000aa"), gpu(2), gpu(3)]

        assert chosen == [device.index for device in visibility.select([*gpus, CPU], choice)]

    @pytest.mark.parametrize(
        ("choice", "what"),
        [
            ("4", "GPU 4 not found"),
            ("0,0", "names 0 twice"),
            ("0,0000:00:00.0", "names 0000:00:00.0 twice"),
            ("x", "GPU x not found"),
            (",", "does not match any GPU"),
            (" , ,", "does not match any GPU"),
            ("3-0", "the range 3-0 runs backwards"),
            ("99999999999-1", "runs backwards"),
            ("0-3", r"GPU 3 not found \(in 0-3\)"),
            ("0-999999999", "GPU 999999999 not found"),
            ("0-" + "9" * 5000, r"GPU 9+… not found"),
            ("0,all", "mixes `all`"),
            ("none,0", "mixes `none`"),
            ("0,-1", "mixes `-1`"),
            ("00", "GPU 00 not found"),
            ("GPU-12", "GPU gpu-12 not found"),
            ("0000:99:00.0", "GPU 0000:99:00.0 not found"),
            ("0;1", "GPU 0;1 not found"),
            ("\x00", r"GPU .* not found"),
            ("٣", r"GPU .* not found"),
        ],
    )
    def test_a_wrong_choice_is_explained(self, choice: str, what: str) -> None:
        """The error names the offending word and lists what there is."""
        with pytest.raises(RocmlabError, match=what) as caught:
            visibility.select([gpu(0), CPU], choice)

        assert caught.value.problem.why
        assert caught.value.problem.fix
        assert caught.value.exit_code == 2

    def test_an_unusable_gpu_says_why(self) -> None:
        """Choosing a GPU that this process may not open gives the reason, not a later crash."""
        locked = gpu(None, "0000:05:00.0", why_not="/dev/dri/renderD128 cannot be opened")

        with pytest.raises(RocmlabError) as caught:
            visibility.select([locked], "05:00.0")

        assert "renderD128" in caught.value.problem.why

    def test_a_hidden_gpu_is_not_given_away(self) -> None:
        """A mask of this process is a wish of the one who set it, so the error names it."""
        marked = visibility.mark_hidden(FOUR, {"HIP_VISIBLE_DEVICES": "1"})

        with pytest.raises(RocmlabError, match="GPU 2 cannot be used") as caught:
            visibility.select(marked, "1,2")

        assert caught.value.problem.why == "hidden by HIP_VISIBLE_DEVICES=1"
        assert indices(visibility.select(marked, "all")) == [1]

    def test_an_address_is_read_in_any_case_and_domain(self) -> None:
        """Tools print PCI addresses in both cases and with 4 or 8 digits of domain."""
        far = [gpu(0, "0000:c1:00.0"), gpu(1, "10000:c1:00.0"), gpu(2, "0000:C3:00.0")]

        assert indices(visibility.select(far, "0000:C1:00.0,00010000:c1:00.0,c3:00.0")) == [0, 1, 2]

    def test_what_fits_two_gpus_is_not_guessed(self) -> None:
        """An address without its domain, a short prefix and an index of two makers may be two GPUs."""
        far = [gpu(0, "0000:c1:00.0", unique_id="ab" * 8), gpu(1, "0001:c1:00.0", unique_id="ab" * 7 + "cd")]
        makers = [gpu(0), gpu(0, "0000:07:00.0", backend="cuda")]

        for gpus, choice in ((far, "c1:00.0"), (far, "GPU-abababab"), (makers, "0"), (makers, "0-0")):
            with pytest.raises(RocmlabError, match="may be one of 2"):
                visibility.select(gpus, choice)

    def test_an_address_of_a_gpu_in_partitions_is_all_of_them(self) -> None:
        """Partitions share address and unique id; their indices distinguish them."""
        parts = [gpu(number, "0000:c1:00.0", unique_id="ab" * 8, partition=number) for number in range(4)]

        assert indices(visibility.select(parts, "c1:00.0")) == [0, 1, 2, 3]
        assert indices(visibility.select(parts, "GPU-" + "ab" * 8)) == [0, 1, 2, 3]
        assert indices(visibility.select(parts, "2")) == [2]

    def test_the_id_of_a_board_is_all_of_its_partitions(self) -> None:
        """Newer drivers give each partition an id of its own; rocm-smi prints the board's."""
        board, other = "ab" * 8, "ab" * 7 + "cd"
        ids = ("1" * 16, "2" * 15 + "a", "3" * 16)
        parts = [gpu(n, "0000:c1:00.0", unique_id=ids[n], board_id=board, partition=n) for n in range(3)]
        far = gpu(3, "0000:c2:00.0", unique_id="ab" * 4 + "0" * 8)

        assert indices(visibility.select(parts, f"GPU-{board.upper()}")) == [0, 1, 2]
        assert indices(visibility.select(parts, "GPU-22222")) == [1]
        assert indices(visibility.select([*parts, far], f"{board},3")) == [0, 1, 2, 3]
        for gpus in ([*parts, far], [*parts, gpu(3, "0000:c2:00.0", unique_id="f" * 16, board_id=other)]):
            with pytest.raises(RocmlabError, match="may be one of 2"):
                visibility.select(gpus, "GPU-abababab")

    def test_digits_are_an_index_before_they_are_an_id(self) -> None:
        """A unique id of digits alone is given whole or behind `GPU-`; fewer digits are an index, here or not."""
        known = [gpu(0), gpu(1, unique_id="1000067890123456")]

        assert indices(visibility.select(known, "1")) == [1]
        for choice in ("1000067890123456", "gpu-10000", "GPU-1000067890123456"):
            assert indices(visibility.select(known, choice)) == [1]
        for choice in ("10000", "100006789012345", "0,10000"):
            with pytest.raises(RocmlabError, match=r"GPU 10000\d* not found"):
                visibility.select(known, choice)

    def test_a_uuid_of_nvidia_has_dashes(self) -> None:
        """It is not a range."""
        known = [gpu(0, backend="cuda", unique_id="GPU-12345678-9012-3456-7890-123456789012"), gpu(1, backend="cuda")]

        for choice in ("GPU-12345678-9012-3456-7890-123456789012", "12345678-9012", "gpu-12345"):
            assert indices(visibility.select(known, choice)) == [0]

    @given(st.permutations(range(4)), st.integers(1, 4), st.data())
    def test_any_spelling_of_any_subset_is_that_subset(
        self, order: list[int], length: int, data: st.DataObject
    ) -> None:
        """Indices, addresses and ids name the same GPU, in any mixture and order."""
        wanted = [FOUR[number] for number in order[:length]]

        def spelled(device: Device) -> str:
            address, identity = str(device.pci_address), str(device.unique_id)
            forms = [
                str(device.index),
                address,
                address.upper(),
                address[5:],
                identity,
                f"GPU-{identity}",
                f"gpu-{identity[:5]}",
            ]
            return data.draw(st.sampled_from(forms))

        choice = data.draw(st.sampled_from([",", ", ", " ,"])).join(map(spelled, wanted))

        assert visibility.select([*FOUR, CPU], choice) == wanted

    @pytest.mark.slow
    @given(
        st.one_of(
            st.text(max_size=60),
            st.text(alphabet="0123456789abcdef:.-, GPUgpualno", max_size=60),
            st.from_regex(r"[0-9]{1,30}-[0-9]{1,30}(,[0-9a-f:.]{0,12})?", fullmatch=True),
        )
    )
    def test_any_text_is_a_choice_or_an_error(self, choice: str) -> None:
        """What a user types never ends in a traceback, and what is chosen can be used."""
        gpus = [*FOUR, gpu(None, "0000:09:00.0", why_not="/dev/kfd is missing"), CPU]
        chosen: list[Device] = []
        problem = None
        try:
            chosen = visibility.select(gpus, choice)
        except RocmlabError as err:
            problem = err.problem

        assert problem is None or (problem.what and problem.why and problem.fix)
        assert all(device.is_usable and device.backend != "cpu" for device in chosen)
        assert len(set(indices(chosen))) == len(chosen)
