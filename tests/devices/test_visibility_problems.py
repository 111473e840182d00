"""Conflicts between the variables of a process: explained, and fixed by the line that is offered."""

from __future__ import annotations

import re

import pytest
from hosts import device as gpu
from hypothesis import example, given
from hypothesis import strategies as st

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, visibility
from rocmlab.devices.visibility import conflicts, overrides

FOUR = [  # the toolkit counts by PCI address: 2,3,0,1
    gpu(number, unique_id=f"{number + 10:x}" * 16, gfx="gfx1100", kfd_node=number + 1, smi_index=(number + 2) % 4)
    for number in range(4)
]
APU = gpu(1, gfx="gfx1036", kfd_node=2, name="Radeon Graphics")
MIXED = [FOUR[0], APU]
FIRST = "GPU-" + "a" * 16
HIP, ROCR, CUDA = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
AMD = "AMD_VISIBLE_DEVICES"


def repaired(environment: dict[str, str], fix: str) -> dict[str, str]:
    """Do what a shell does with the pasted line."""
    changed = dict(environment)
    for command in fix.split("#")[0].split(";"):
        verb, *words = command.split()
        assert verb in ("unset", "export")
        for word in words:
            name, _, value = word.partition("=")
            if verb == "unset":
                changed.pop(name, None)
            else:
                changed[name] = value
    return changed


CASES = [
    # environment, GPUs, what is said, what it does, what remains once it is fixed
    ({ROCR: "2,3", HIP: "1"}, FOUR, "are both set", "GPU 3", [3]),
    ({ROCR: "1", HIP: "1"}, FOUR, "are both set", "see no GPU", [1]),
    ({ROCR: "1", HIP: "1"}, FOUR, "are both set", "HIP_VISIBLE_DEVICES names GPU 1, which is not there", [1]),
    ({ROCR: "1", HIP: "0"}, FOUR, "are both set", "HIP counts within the one GPU that it leaves: ", [1]),
    ({ROCR: "7", HIP: "0"}, FOUR, "are both set", "HIP counts within no GPU that it leaves; ROCR_", [0]),
    ({ROCR: "0", HIP: "0,1"}, FOUR, "are both set", "more entries", [0]),
    ({ROCR: "2,0", CUDA: "1"}, FOUR, "are both set", "GPU 0", [0]),
    ({HIP: ""}, FOUR, "is set and empty", "as no GPU: HIP and TensorFlow see no GPU", [0, 1, 2, 3]),
    ({HIP: "", CUDA: "2"}, FOUR, "is set and empty", "whatever CUDA_VISIBLE_DEVICES=2 names", [2]),
    ({HIP: "", ROCR: "2,1"}, FOUR, "is set and empty", "see no GPU", [2, 1]),
    ({CUDA: ""}, FOUR, "CUDA_VISIBLE_DEVICES is set and empty", "PyTorch counts 0", [0, 1, 2, 3]),
    ({HIP: "0, 1"}, FOUR, "contains a space", "see GPU 0, PyTorch counts 2, Ray counts 2", [0, 1]),
    ({CUDA: " 0"}, FOUR, "contains a space", "see no GPU", [0]),
    ({HIP: "1,1"}, FOUR, "names a GPU twice", "PyTorch counts 0", [1]),
    ({ROCR: "1,1"}, FOUR, "names a GPU twice", "see GPU 1", [1]),
    ({HIP: "0,9"}, FOUR, "names GPU 9, which is not there", "there are 4", [0]),
    ({HIP: "9"}, FOUR, "names GPU 9, which is not there", "see no GPU", [0, 1, 2, 3]),
    ({ROCR: "4"}, FOUR, "names GPU 4, which is not there", "there are 4", [0, 1, 2, 3]),
    ({HIP: "0", CUDA: "1"}, FOUR, "differ", "the first one counts", [0]),
    ({HIP: "0", CUDA: "-1"}, FOUR, "differ", "Ray raises AssertionError", [0]),
    ({ROCR: "2"}, FOUR, "is set without HIP_VISIBLE_DEVICES", "Ray raises RuntimeError", [2]),
    ({ROCR: ""}, FOUR, "is set without HIP_VISIBLE_DEVICES", "PyTorch counts 1", []),
    ({HIP: "0x1"}, FOUR, "has a hexadecimal index", "PyTorch counts 1", [1]),
    ({HIP: FIRST.upper()}, FOUR, "in capitals", FIRST, [0]),
    ({HIP: "GPU-1234567890123456"}, FOUR, "which does not match any GPU", FIRST, [0, 1, 2, 3]),
    ({HIP: "GPU-0000000000000000"}, MIXED, "which does not match any GPU", "GPU 1 (Radeon Graphics) has none", [0, 1]),
    ({HIP: f"{FIRST},1"}, FOUR, "names GPUs by UUID", "amd-smi", [0, 1]),
    ({ROCR: "GPU-1234567890123456"}, FOUR, "which does not match any GPU", FIRST, [0, 1, 2, 3]),
    ({HIP: "1-2"}, FOUR, "is not a list of indices", "'1-2' is neither", [1, 2]),
    ({HIP: "all"}, FOUR, "is not a list of indices", "see no GPU", [0, 1, 2, 3]),
    ({HIP: "1,,2"}, FOUR, "is not a list of indices", "see GPU 1", [1, 2]),
    ({HIP: "1,"}, FOUR, "is not a list of indices", "Ray counts 2", [1]),
    ({HIP: "0X"}, FOUR, "is not a list of indices", "PyTorch counts 1", [0, 1, 2, 3]),
    ({HIP: "radeon"}, FOUR, "is not a list of indices", "see no GPU", [0, 1, 2, 3]),
    ({ROCR: "0,,1"}, FOUR, "has an empty entry", "ends with SIGABRT", [0, 1]),
    ({ROCR: ",0", HIP: "0"}, FOUR, "has an empty entry", "an empty entry stops ROCm", [0]),
    ({"GPU_DEVICE_ORDINAL": "1"}, FOUR, "differs from", "and sees GPU 1: ", [0, 1, 2, 3]),
    ({"GPU_DEVICE_ORDINAL": "x", HIP: "1"}, FOUR, "differs from", "and sees no GPU: ", [1]),
    ({"GPU_DEVICE_ORDINAL": "1,0", HIP: "0,1"}, FOUR, "differs from", "and sees GPU 1, 0: ", [0, 1]),
    ({AMD: "2-3"}, FOUR, "hides no GPU from this process", f"--env {AMD}=2,3); here it does nothing", [0, 1]),
    ({AMD: "none"}, FOUR, "hides no GPU from this process", f"--env {AMD}=none)", []),
    ({AMD: "0", HIP: "1"}, FOUR, "hides no GPU from this process", "when a container is created", [1]),
    ({AMD: "0x1,9"}, FOUR, "hides no GPU from this process", "see GPU 0, 1, 2, 3", [0, 1, 2, 3]),
    ({"HSA_OVERRIDE_GFX_VERSION": "gfx1030"}, FOUR, "is not three numbers", "stops ROCm", [0, 1, 2, 3]),
    ({"HSA_OVERRIDE_GFX_VERSION": ""}, FOUR, "is not three numbers", "or nothing", [0, 1, 2, 3]),
    ({"HSA_OVERRIDE_GFX_VERSION": "10.3"}, FOUR, "is not three numbers", "major.minor.step", [0, 1, 2, 3]),
    ({"HSA_OVERRIDE_GFX_VERSION": "10.3.0 "}, FOUR, "is not three numbers", "major.minor.step", [0, 1, 2, 3]),
    ({"HSA_OVERRIDE_GFX_VERSION": "99.0.0"}, FOUR, "is not three numbers", "major.minor.step", [0, 1, 2, 3]),
    ({"HSA_OVERRIDE_GFX_VERSION_1": "x"}, FOUR, "is not three numbers", "major.minor.step", [0, 1, 2, 3]),
    ({"HSA_OVERRIDE_GFX_VERSION_0": "11.0.0"}, FOUR, "does not match any GPU", "GPU 0 is node 1", [0, 1, 2, 3]),
    ({"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}, MIXED, "GPUs of different kinds", "GPU 1 (Radeon Graphics)", [0, 1]),
    ({"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}, MIXED, "GPUs of different kinds", "is gfx1100", [0, 1]),
]


@pytest.mark.parametrize(("environment", "gpus", "what", "why", "left"), CASES)
def test_a_conflict_is_explained_and_its_fix_mends_it(
    environment: dict[str, str], gpus: list[Device], what: str, why: str, left: list[int]
) -> None:
    """The problem says who sees what; its pasted line leaves the GPUs that were meant, and silence."""
    found = {problem.what: problem for problem in visibility.problems(environment, gpus)}
    problem = next((found[said] for said in found if what in said), None)
    assert problem is not None, found

    after = repaired(environment, problem.fix)

    assert why in problem.why
    assert visibility.problems(after, gpus) == []
    assert [device.index for device in visibility.visible(after, gpus).gpus] == left


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ({}, FOUR),
        ({HIP: "0,2"}, FOUR),
        ({HIP: "3,0", CUDA: "3,0"}, FOUR),
        ({HIP: "-1", CUDA: "-1"}, FOUR),
        ({CUDA: "1"}, FOUR),
        ({"GPU_DEVICE_ORDINAL": "1", HIP: "1"}, FOUR),
        ({"GPU_DEVICE_ORDINAL": "0,1,2,3"}, FOUR),
        ({AMD: "all"}, FOUR),
        ({AMD: "0-3"}, FOUR),  # as in a container that was made with the four of them
        ({AMD: "1", HIP: "3"}, FOUR),
        ({"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}, FOUR),
        ({"HSA_OVERRIDE_GFX_VERSION": "10.3.0", HIP: "1"}, MIXED),  # the other GPU is hidden
        ({"HSA_OVERRIDE_GFX_VERSION_2": "10.3.0"}, MIXED),
        ({"HSA_OVERRIDE_GFX_VERSION": "11.0.0", "HSA_OVERRIDE_GFX_VERSION_2": "10.3.0"}, MIXED),
        ({"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}, [gpu(0, gfx="gfx1030"), gpu(1, gfx="gfx1032")]),  # fits both
        ({HIP: "", ROCR: "0, 1", "HSA_OVERRIDE_GFX_VERSION": "x"}, [gpu(0, backend="cuda")]),  # AMD's, and none is here
        ({HIP: "7, 7"}, []),
        ({HIP: "1"}, [gpu(None, "0000:05:00.0", why_not="/dev/kfd is missing")]),  # the count is not known
    ],
)
def test_what_is_no_conflict_is_not_mentioned(environment: dict[str, str], gpus: list[Device]) -> None:
    """Plain masks, masks of absent hardware and overrides that fit are silent."""
    assert visibility.problems(environment, gpus) == []


def test_one_cause_is_said_once() -> None:
    """Both masks set, and one too large for what the other leaves, are one problem with one fix."""
    assert len(visibility.problems({ROCR: "1", HIP: "1"}, FOUR)) == 1
    assert len(visibility.problems({ROCR: "9", HIP: "9"}, FOUR)) == 1


def test_several_gpus_without_an_id_have_none() -> None:
    """One has none, two have none."""
    (one,) = visibility.problems({HIP: "GPU-0000000000000000"}, MIXED)
    (two,) = visibility.problems({HIP: "GPU-0000000000000000"}, [*MIXED, gpu(2, name="Oland")])

    assert "GPU 1 (Radeon Graphics) has none, so no UUID can name it" in one.why
    assert "GPU 1 (Radeon Graphics), GPU 2 (Oland) have none, so no UUID can name them" in two.why


def test_a_problem_says_by_its_kind_what_it_is_about() -> None:
    """Masks, overrides, and those overrides with which nothing starts; whatever the words are."""
    environment = {HIP: "9", "HSA_OVERRIDE_GFX_VERSION": "x", "HSA_OVERRIDE_GFX_VERSION_9": "11.0.0", AMD: "1"}

    kinds = [type(problem) for problem in visibility.problems(environment, FOUR)]

    masks = [conflicts.MaskProblem] * 2
    assert kinds == [*masks, overrides.FatalOverride, overrides.OverrideProblem]
    assert issubclass(overrides.FatalOverride, overrides.OverrideProblem)


def test_the_fix_for_two_kinds_names_the_node_that_needs_it() -> None:
    """The override stays for the GPU it is meant for, by ROCm's own number of its node."""
    gpus = [gpu(0, gfx="gfx1102", kfd_node=1), gpu(None, "0000:05:00.0", kfd_node=2), gpu(1, gfx="gfx906", kfd_node=3)]

    problems = visibility.problems({"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}, gpus)

    assert problems[0].fix == "unset HSA_OVERRIDE_GFX_VERSION; export HSA_OVERRIDE_GFX_VERSION_1=11.0.0"
    assert overrides.node_numbers(gpus) == {0: 1, 1: 2}  # the closed GPU has no number


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("10.3.0", True),
        ("9.0.10", True),
        (" 10.3.0", True),
        ("10. 3.0", True),
        ("63.255.255", True),
        ("64.0.0", False),
        ("10.256.0", False),
        ("10.3.0\n", False),
        ("10.3.0.0", False),
        ("9.0.a", False),
        ("-1.0.0", False),
        ("10.3.", False),
        ("", False),
    ],
)
def test_a_gfx_version_is_read_as_rocm_reads_it(value: str, expected: bool) -> None:
    """Three decimal numbers within their limits and nothing behind them, as sscanf takes them."""
    assert overrides.is_version(value) is expected


class TestNvidia:
    """CUDA_VISIBLE_DEVICES on NVIDIA GPUs."""

    TWINS = (gpu(0, backend="cuda", name="H100"), gpu(1, backend="cuda", name="H100"))
    ODD_PAIR = (gpu(0, backend="cuda", name="T400"), gpu(1, backend="cuda", name="RTX 4090"))

    @pytest.mark.parametrize(
        ("value", "what", "left"),
        [
            ("0,5", "'5' is beyond", [0]),
            ("1,1", "twice", [1]),
            ("1,x", "'x' does not match any GPU", [1]),
            ("x", "no GPU", []),
        ],
    )
    def test_what_the_driver_ignores_is_said(self, value: str, what: str, left: list[int]) -> None:
        """The list ends at the first wrong entry, which the driver does not tell."""
        (problem,) = visibility.problems({CUDA: value}, self.TWINS)

        after = repaired({CUDA: value}, problem.fix)

        assert what in problem.why
        assert visibility.problems(after, self.TWINS) == []
        assert [device.index for device in visibility.visible(after, self.TWINS, "cuda").gpus] == left

    def test_the_order_matters_between_different_gpus(self) -> None:
        """CUDA puts the fastest first unless it is told to count as nvidia-smi does."""
        (problem,) = visibility.problems({CUDA: "0"}, self.ODD_PAIR)

        assert "fastest" in problem.why
        assert visibility.problems(repaired({CUDA: "0"}, problem.fix), self.ODD_PAIR) == []
        assert visibility.problems({CUDA: "0"}, self.TWINS) == []

    @pytest.mark.parametrize("value", ["", "-1", "NoDevFiles", "0", "1,0"])
    def test_plain_values_are_silent(self, value: str) -> None:
        """An empty value hides all from NVIDIA's driver and from PyTorch alike."""
        assert visibility.problems({CUDA: value}, self.TWINS) == []


@given(st.permutations(range(4)), st.integers(0, 4))
def test_amds_toolkit_reads_back_what_is_written_for_it(order: list[int], length: int) -> None:
    """The GPUs that were meant, in the toolkit's own order."""
    wanted = [FOUR[number] for number in order[:length]]

    read = visibility.visible({AMD: visibility.container_value(wanted)}, FOUR, "container")

    assert set(read.gpus) == set(wanted)
    assert read.odd == ()


def test_what_the_toolkit_cannot_be_told_is_an_error() -> None:
    """A GPU of another maker, or one without a place in amd-smi's list."""
    for device in (gpu(0, backend="cuda", smi_index=0), gpu(0)):
        with pytest.raises(RocmlabError, match="cannot be named to AMD's container toolkit"):
            visibility.container_value([device])


VALUES = st.one_of(
    st.text(alphabet="0123456789abcdefxXGPU-+, .", max_size=24),
    st.lists(
        st.sampled_from(["0", "1", "3", "9", "-1", "", " 2", "0x1", FIRST, FIRST.upper(), "0-3", "all", "GPU-f"])
    ).map(",".join),
)
NAMES = st.sampled_from([HIP, ROCR, CUDA, "GPU_DEVICE_ORDINAL"])


@given(st.dictionaries(st.one_of(NAMES, st.just(AMD)), VALUES))
@example({ROCR: ""})
@example({HIP: "-1,0"})
@example({HIP: "GPU-XX"})
def test_every_fix_can_be_pasted_and_mends(environment: dict[str, str]) -> None:
    """Whatever the masks hold, following the offered lines ends in silence, and nothing raises on the way."""
    for _ in range(4):
        problems = visibility.problems(environment, FOUR)
        if not problems:
            break
        assert all(re.match(r"(unset|export) ", problem.fix) and "\n" not in problem.what for problem in problems)
        environment = repaired(environment, problems[0].fix)

    assert visibility.problems(environment, FOUR) == []


@given(st.permutations(range(4)), st.integers(0, 4), st.dictionaries(NAMES, VALUES))
def test_what_we_write_is_never_a_conflict(order: list[int], length: int, environment: dict[str, str]) -> None:
    """A child's environment is silent, whatever its parent had."""
    child = visibility.apply(environment, [FOUR[number] for number in order[:length]])

    assert visibility.problems(child, FOUR) == []


@given(st.dictionaries(NAMES, VALUES))
@example({CUDA: ""})
@example({HIP: "1", "GPU_DEVICE_ORDINAL": "0"})
def test_where_readers_disagree_something_is_said(environment: dict[str, str]) -> None:
    """Silence means that HIP and PyTorch see the same GPUs; Ray too, but for -1 and CUDA's mask alone."""
    hip, torch, ray = (visibility.visible(environment, FOUR, reader) for reader in ("hip", "torch", "ray"))
    is_one = hip.gpus == torch.gpus and torch.count == len(torch.gpus) and not (hip.error or torch.error)
    is_for_ray = ray.error is None and ray.gpus == hip.gpus and ray.count == len(ray.gpus)
    exempt = "-1" in (environment.get(HIP), environment.get(CUDA)) or not environment.get(HIP)

    assert visibility.problems(environment, FOUR) or (is_one and (is_for_ray or exempt))
