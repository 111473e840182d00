"""What each program makes of a mask: the truth table of the readers' own code, value by value."""

from __future__ import annotations

import pytest
from hosts import device as gpu
from hypothesis import given
from hypothesis import strategies as st

from rocmlab.devices import Device, visibility

ROW = [gpu(0, unique_id="00000000000000aa"), gpu(1, unique_id="1f2e3d4c5b6a7988")]
FOUR = [gpu(number, unique_id=f"{number + 1:x}" * 16) for number in range(4)]
READERS = ("rocr", "hip", "torch", "ray", "opencl", "cuda", "container")
SECOND = "GPU-1f2e3d4c5b6a7988"


def indices(mask: visibility.Mask) -> list[int | None]:
    """Return the indices of what a mask leaves."""
    return [device.index for device in mask.gpus]


def nvidia(index: int, name: str = "NVIDIA H100") -> Device:
    """An NVIDIA GPU as NVML lists it."""
    identity = f"GPU-{index}{'0' * 7}-1111-2222-3333-{'0' * 12}"
    return gpu(index, backend="cuda", name=name, unique_id=identity)


@pytest.mark.parametrize(
    ("value", "reader", "left", "count"),
    [
        (None, "rocr", [0, 1], 2),
        (None, "hip", [0, 1], 2),
        (None, "torch", [0, 1], 2),
        (None, "ray", [0, 1], 2),
        ("", "rocr", [], 0),
        ("", "hip", [], 0),
        ("", "opencl", [], 0),
        ("", "torch", [], 0),
        ("", "ray", [], 0),
        ("-1", "rocr", [], 0),
        ("-1", "hip", [], 0),
        ("-1", "torch", [], 0),
        ("-1", "ray", [], 1),  # Ray lists a GPU called -1
        ("0,0", "rocr", [0], 1),
        ("0,0", "hip", [0], 1),
        ("0,0", "torch", [], 0),
        ("0,0", "ray", [0], 2),
        ("0,9", "rocr", [0], 1),
        ("0,9", "hip", [0], 1),
        ("0,9", "torch", [0], 1),  # counted against the GPUs there are
        ("0,9", "ray", [0], 2),
        ("0, 1", "rocr", [0, 1], 2),
        ("0, 1", "hip", [0], 1),
        ("0, 1", "torch", [0, 1], 2),
        ("0, 1", "ray", [0], 2),  # the second is called " 1"
        ("1,0", "rocr", [1, 0], 2),
        ("1,0", "hip", [1, 0], 2),
        ("1,0", "torch", [1, 0], 2),
        (SECOND, "rocr", [1], 1),
        (SECOND.upper(), "rocr", [1], 1),
        ("gpu-1F2E", "rocr", [1], 1),  # a unique prefix
        ("GPU-", "rocr", [], 0),  # fewer than 5 characters
        (SECOND, "hip", [1], 1),
        ("GPU-1f2e", "hip", [1], 1),
        (SECOND.upper(), "hip", [], 0),
        ("GPU-1F2E3D4C5B6A7988", "hip", [], 0),  # HIP reads small letters only
        (SECOND, "torch", [1], 1),
        (f"0,{SECOND}", "torch", [0], 1),  # UUIDs only if the first is one
        (f"{SECOND},0", "torch", [1], 1),
        (SECOND, "ray", [], 1),
        ("0x1", "rocr", [1], 1),
        ("0x1", "hip", [], 0),
        ("0x1", "torch", [0], 1),  # it reads the digits in front
        ("0x1", "ray", [], 1),
    ],
)
def test_the_truth_table_of_visibility(value: str | None, reader: str, left: list[int], count: int) -> None:
    """Every row of the table gives what that reader's code gives on a host with two GPUs."""
    mask = visibility.parse(value, reader, ROW)

    assert indices(mask) == left
    assert mask.count == count


@pytest.mark.parametrize(
    ("value", "reader", "left"),
    [
        ("0,", "hip", [0]),
        ("0,,1", "hip", [0]),
        (",0", "hip", []),
        ("01", "hip", []),
        ("+1", "hip", []),
        ("1.0", "hip", []),
        ("0-1", "hip", []),
        ("0-1", "torch", [0]),
        ("all", "hip", []),
        ("99999999999999999999", "hip", []),
        ("0,0,1", "hip", [0, 1]),
        ("1,-1,0", "hip", [1]),
        ("GPU-", "hip", [0]),  # every UUID contains it, and the first is taken
        ("010,1", "rocr", []),  # octal 8
        ("+1", "rocr", [1]),
        ("4294967297", "rocr", [1]),  # an int has 32 bits
        ("9999999999999999999999", "rocr", []),
        ("0,1,1", "rocr", [0, 1]),  # no more words are read than there are GPUs
        ("\t1 ", "rocr", [1]),
        ("1gpu2,0x", "torch", [1, 0]),
        ("1,9,1", "torch", []),  # twice, before anything is looked up
        ("-0,1", "torch", [0, 1]),
        ("GPU-00,GPU-00", "torch", []),
        ("GPU-00,GPU-000", "torch", []),  # the same GPU by two names
        ("NoDevFiles", "ray", []),
    ],
)
def test_what_each_reader_does_at_the_edges(value: str, reader: str, left: list[int]) -> None:
    """Signs, octal and overlong numbers, empty words and prefixes are read as that reader's code reads them."""
    assert indices(visibility.parse(value, reader, ROW)) == left


@pytest.mark.parametrize("value", [",", "0,,1", " ", "0, "])
def test_an_empty_entry_stops_rocr(value: str) -> None:
    """ROCr takes the first character of every entry without looking whether there is one."""
    mask = visibility.parse(value, "rocr", ROW)

    assert mask.error is not None
    assert mask.gpus == ()


def test_rocr_takes_no_ambiguous_uuid() -> None:
    """Partitions of a GPU share their unique id, so ROCr's mask cannot name one; HIP takes the first."""
    twins = [gpu(0, unique_id="ab" * 8), gpu(1, unique_id="ab" * 8)]
    value = f"GPU-{'ab' * 8}"

    assert indices(visibility.parse(value, "rocr", twins)) == []
    assert indices(visibility.parse(value, "hip", twins)) == [0]


def test_a_gpu_without_unique_id_has_no_uuid() -> None:
    """APUs report 0; HIP calls all of them GPU-XX, and ROCr none."""
    apus = [gpu(0), gpu(1)]

    assert indices(visibility.parse("GPU-XX", "hip", apus)) == [0]
    assert indices(visibility.parse("GPU-0000000000000000", "hip", apus)) == []
    assert indices(visibility.parse("GPU-XX", "rocr", apus)) == []


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (None, []),
        ("all", [0, 1, 2, 3]),
        ("ALL", [0, 1, 2, 3]),
        ("none", []),
        ("void", []),
        ("", []),
        ("0,1", [0, 1]),
        ("3,0", [0, 3]),  # always ascending
        ("0-2", [0, 1, 2]),
        ("0-1,3", [0, 1, 3]),
        ("2-9", [2, 3]),
        ("0-999999999", [0, 1, 2, 3]),
        ("2-1", []),
        ("0x" + "2" * 16, [1]),
        ("0X" + "2" * 16, [1]),
        ("2" * 16, [1]),  # nine or more hexadecimal digits are an id
        ("0x2", []),  # an id, not an index
        ("0, 1", [0]),
        ("0,0", [0]),
        ("GPU-" + "2" * 16, []),
    ],
)
def test_amds_container_toolkit(value: str | None, left: list[int]) -> None:
    """AMD_VISIBLE_DEVICES knows ranges and hexadecimal ids, and leaves out what it cannot read."""
    assert indices(visibility.parse(value, "container", FOUR)) == left


def test_the_container_toolkit_counts_by_pci_address() -> None:
    """Its index is rocm-smi's, not HIP's."""
    swapped = [gpu(0, smi_index=1), gpu(1, smi_index=0)]

    assert indices(visibility.visible({"AMD_VISIBLE_DEVICES": "0"}, swapped, "container")) == [1]


@pytest.mark.parametrize(
    ("value", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("0,-1,1", [0]),
        ("0,7,1", [0]),
        ("0, 2", [0, 2]),
        ("1gpu2,2ampere", [1, 2]),
        ("0,0", []),
        ("GPU-1", [1]),
        ("GPU-10000000-1111-2222-3333-000000000000,GPU-0", [1, 0]),
        ("GPU-", []),  # fits several
        ("GPU-9", []),
        ("none", []),
        ("MIG-1111", [0, 1, 2]),  # slices are not listed here, so nothing is said of them
    ],
)
def test_nvidias_rules(value: str | None, left: list[int]) -> None:
    """CUDA_VISIBLE_DEVICES on NVIDIA GPUs: indices or UUID prefixes, up to the first that is wrong; empty is none."""
    gpus = [nvidia(0), nvidia(1), nvidia(2)]
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}

    assert indices(visibility.visible(environment, gpus, "cuda")) == left


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1,0"}, [1, 3]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),  # the same mask twice hides everything
        ({"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "2,0", "CUDA_VISIBLE_DEVICES": "1"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "0x2", "HIP_VISIBLE_DEVICES": f"GPU-{'3' * 16}"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "3"}, [0]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "3"}, []),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": ""}, [3]),
        ({"CUDA_VISIBLE_DEVICES": "3"}, [3]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"GPU_DEVICE_ORDINAL": "3"}, [0, 1, 2, 3]),  # OpenCL only
        ({"AMD_VISIBLE_DEVICES": "3"}, [0, 1, 2, 3]),  # read when a container starts, never later
    ],
)
def test_rocr_filters_first_and_hip_counts_what_is_left(environment: dict[str, str], left: list[int]) -> None:
    """The variables act in the order of the runtime, each on the numbers that the one before left."""
    assert indices(visibility.visible(environment, FOUR)) == left


@pytest.mark.parametrize("first", [[0, 1, 2, 3], [3, 1], [2], [1, 0, 3]])
@pytest.mark.parametrize("second", [[0], [1, 0], [0, 2], [3]])
def test_composition_is_indexing(first: list[int], second: list[int]) -> None:
    """HIP's mask over ROCr's is the list of ROCr indexed by HIP's numbers, up to the first that is too large."""
    environment = {
        "ROCR_VISIBLE_DEVICES": ",".join(map(str, first)),
        "HIP_VISIBLE_DEVICES": ",".join(map(str, second)),
    }
    expected = []
    for number in second:
        if number >= len(first):
            break
        expected.append(first[number])

    assert indices(visibility.visible(environment, FOUR)) == expected


def test_opencl_reads_its_own_variable() -> None:
    """GPU_DEVICE_ORDINAL has HIP's rules, after ROCr's mask."""
    environment = {"GPU_DEVICE_ORDINAL": "1", "ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "0"}

    assert indices(visibility.visible(environment, FOUR, "opencl")) == [2]


class TestFrameworks:
    """What PyTorch and Ray make of several variables together."""

    @pytest.mark.parametrize(("rocr", "count"), [("0,1", 2), ("7", 1), ("nonsense,too", 2), ("", 1), ("0,1,2,3,4", 4)])
    def test_pytorch_counts_the_words_of_rocr(self, rocr: str, count: int) -> None:
        """With ROCR_ alone PyTorch does not look whether the GPUs are there."""
        assert visibility.visible({"ROCR_VISIBLE_DEVICES": rocr}, FOUR, "torch").count == count

    def test_pytorch_raises_where_hip_names_more_than_rocr(self) -> None:
        """The answer is an error, and no count."""
        environment = {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0,1"}

        assert "more entries" in str(visibility.visible(environment, FOUR, "torch").error)

    def test_pytorch_raises_at_a_lone_sign(self) -> None:
        """It gives `-` to int()."""
        assert "ValueError" in str(visibility.parse("-", "torch", FOUR).error)

    @pytest.mark.parametrize(
        ("environment", "count"),
        [({"CUDA_VISIBLE_DEVICES": "1"}, 1), ({"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": ""}, 0)],
    )
    def test_pytorch_reads_cuda_only_without_hip(self, environment: dict[str, str], count: int) -> None:
        """An empty HIP mask is set, for PyTorch."""
        assert visibility.visible(environment, FOUR, "torch").count == count

    @pytest.mark.parametrize(
        "environment",
        [{"ROCR_VISIBLE_DEVICES": "0"}, {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}],
    )
    def test_ray_refuses(self, environment: dict[str, str]) -> None:
        """ROCR_ alone and masks that differ stop it."""
        assert "Ray raises" in str(visibility.visible(environment, FOUR, "ray").error)

    def test_ray_takes_both_masks_alike(self) -> None:
        """As this project writes them."""
        environment = {"HIP_VISIBLE_DEVICES": "2,0", "CUDA_VISIBLE_DEVICES": "2,0"}

        assert indices(visibility.visible(environment, FOUR, "ray")) == [2, 0]


ANY_TEXT = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="0123456789abcdefxXGPU-+, \t.", max_size=40),
    st.lists(st.sampled_from(["0", "1", "3", "9", "-1", "", " 2", "0x1", "GPU-", SECOND, "0-3", "all"])).map(",".join),
)


@pytest.mark.parametrize("reader", READERS)
@given(value=ANY_TEXT)
def test_any_text_has_a_reading(reader: str, value: str) -> None:
    """No text ends in an exception, and what remains are GPUs that are there, each once."""
    mask = visibility.parse(value, reader, ROW)

    assert len(set(indices(mask))) == len(mask.gpus)
    assert set(mask.gpus) <= set(ROW)
    assert not (mask.error and mask.gpus)


@given(st.permutations(range(8)), st.integers(0, 8))
def test_every_reader_reads_back_what_is_written(order: list[int], length: int) -> None:
    """Any choice of GPUs in any order comes out of the written masks as it went in, for every reader."""
    amd, nv = [gpu(number) for number in range(8)], [nvidia(number) for number in range(8)]
    wanted = order[:length]

    env = visibility.apply({"ROCR_VISIBLE_DEVICES": "5", "GPU_DEVICE_ORDINAL": "1"}, [amd[number] for number in wanted])
    cuda = visibility.apply({"CUDA_VISIBLE_DEVICES": "5"}, [nv[number] for number in wanted])

    for reader in ("hip", "rocr", "torch", "ray", "opencl", "cuda"):
        assert indices(visibility.parse(env["HIP_VISIBLE_DEVICES"], reader, amd)) == wanted
    for reader in ("hip", "torch"):
        assert indices(visibility.visible(env, amd, reader)) == wanted
        assert visibility.visible(env, amd, reader).count == len(wanted)
    assert indices(visibility.visible(env, amd, "ray")) == wanted
    assert indices(visibility.visible(env, amd, "rocr")) == indices(visibility.visible(env, amd, "opencl"))
    assert indices(visibility.visible(env, amd, "rocr")) == list(range(8))
    assert indices(visibility.visible(cuda, nv, "cuda")) == wanted
