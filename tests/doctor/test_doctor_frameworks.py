"""TensorFlow and PyTorch: stand-in interpreters that are clobbered, crash, hang, or compute wrong numbers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from hosts import Gpu
from situations import Looker, fires, host, silent, skipped

from rocmlab.base import lease_folder
from rocmlab.devices import discover
from rocmlab.doctor import checks, operation
from rocmlab.doctor.model import BLOCKS, WARNS
from rocmlab.kernels.leases import Holder, Leases

RIGHT = {"device": "AMD Radeon", "on_gpu": True, "version": "9.9", "wrong": 0, "of": 9216, "first": None}


def kernel(look: Looker, tmp_path: Path, name: str, program: str) -> Path:
    """Give the lab a kernel whose interpreter is this shell program."""
    python = tmp_path / f"python-{name}"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    spec = tmp_path / "jupyter/kernels" / name / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(json.dumps({"argv": [str(python), "-m", "ipykernel_launcher"], "env": {"KERAS_BACKEND": name}}))
    look.environment |= {
        "JUPYTER_PATH": str(tmp_path / "jupyter"),
        "JUPYTER_DATA_DIR": str(tmp_path / "none"),
        "PATH": "/usr/bin:/bin",
    }
    return python


def prints(**result: object) -> str:
    """A program that prints a result as ours would."""
    return f"echo noise; printf '%s\\n' '{operation.MARK}{json.dumps(result)}'"


def installed(*distributions: tuple[str, str], rocm: bool | None = None, hip: str | None = None) -> str:
    """A program that says what is installed."""
    build = "" if rocm is None else f'OrderedDict([("is_cuda_build", False), ("is_rocm_build", {rocm})])'
    version = f'cuda: Optional[str] = None\nhip: Optional[str] = "{hip}"\n' if hip else 'hip = None\ncuda = "12.6"\n'
    return prints(distributions=list(distributions), build_info=build, torch_version=version)


class TestClobbered:
    """Is it still AMD's build."""

    AMD = ("tensorflow-rocm", "2.20.0.dev0+selfbuilt")

    def test_the_cpu_build_over_amds(self, inside: Looker, tmp_path: Path) -> None:
        """After `pip install tf-keras`: the files are the other's; a new container makes it silent."""
        kernel(inside, tmp_path, "tensorflow", installed(self.AMD, ("tensorflow", "2.21.0"), rocm=False))
        found = fires(inside(), "tf.clobbered", BLOCKS)
        assert "tensorflow 2.21.0 has replaced AMD's TensorFlow" in found.problem.what
        assert "make down && make up" in found.problem.fix

        kernel(inside, tmp_path, "tensorflow", installed(self.AMD, rocm=True))
        silent(inside(), "tf.clobbered")

    def test_beside_amds_it_is_a_warning(self, inside: Looker, tmp_path: Path) -> None:
        """The files are still AMD's, and the next upgrade breaks them."""
        kernel(inside, tmp_path, "tensorflow", installed(self.AMD, ("tensorflow-cpu", "2.20.0"), rocm=True))

        assert "pip uninstall tensorflow-cpu" in fires(inside(), "tf.clobbered", WARNS).problem.fix

    def test_the_wheel_with_the_typing_error(self, inside: Looker, tmp_path: Path) -> None:
        """2.14.0.600 of the public index ignores every Radeon."""
        kernel(inside, tmp_path, "tensorflow", installed(("tensorflow-rocm", "2.14.0.600"), rocm=True))

        assert "gfx1030gfx1100" in fires(inside(), "tf.clobbered", BLOCKS).problem.why

    def test_instinct_is_on_the_list_of_the_wheel_with_the_typing_error(self, tmp_path: Path) -> None:
        """Seen in the wheel: it refuses gfx1030 and gfx1100 alone, and accepts MI300X and what is older."""
        mi300x = Gpu(1, 0x0300, 128, gfx_target_version=90402, device_id=0x74A1)
        look = Looker(host(tmp_path / "host", mi300x), tmp_path / "project", side="container")
        kernel(look, tmp_path, "tensorflow", installed(("tensorflow-rocm", "2.14.0.600"), rocm=True))

        silent(look(), "tf.clobbered")

    def test_pytorch_for_cuda(self, inside: Looker, tmp_path: Path) -> None:
        """`torch.version.hip` is read from its file; AMD's wheel makes it silent."""
        kernel(inside, tmp_path, "torch", installed(("torch", "2.15.0")))
        assert "PyTorch 2.15.0 is a CUDA build" in fires(inside(), "torch.clobbered", BLOCKS).problem.what

        kernel(inside, tmp_path, "torch", installed(("torch", "2.13.0+rocm7.2"), hip="7.2.53150"))
        silent(inside(), "torch.clobbered")

    def test_pytorch_is_gone(self, inside: Looker, tmp_path: Path) -> None:
        """Uninstalled manually."""
        kernel(inside, tmp_path, "torch", prints(distributions=[], build_info="", torch_version=""))

        assert "missing" in fires(inside(), "torch.clobbered", BLOCKS).problem.what

    def test_on_the_cpu_backend_any_build_is_right(self, inside: Looker, tmp_path: Path) -> None:
        """Nothing of AMD's is expected there."""
        inside.backend, inside.options = "cpu", {}
        kernel(inside, tmp_path, "tensorflow", installed(("tensorflow-cpu", "2.20.0"), rocm=False))

        silent(inside(), "tf.clobbered")

    def test_empty_packages_of_the_public_index(self, inside: Looker, tmp_path: Path) -> None:
        """They install without an error; AMD's own have content, and make it silent."""
        listed = [("amd-torch-device-gfx1100", "0.0.1.dev0"), ("torch", "2.14.0")]
        kernel(inside, tmp_path, "torch", prints(distributions=listed, placeholders=["amd-torch-device-gfx1100"]))

        found = fires(inside(), "rocm.packages", WARNS)
        assert found.problem.what == "amd-torch-device-gfx1100 is an empty placeholder"
        assert "pip uninstall amd-torch-device-gfx1100" in found.problem.fix

        kernel(inside, tmp_path, "torch", prints(distributions=[("amd-torch-device-gfx1100", "10.1.0")]))
        silent(inside(), "rocm.packages")

    def test_a_plugin_of_jax_that_does_not_fit(self, inside: Looker, tmp_path: Path) -> None:
        """JAX compares three numbers; a build's suffix is no difference."""
        listed = [("jaxlib", "0.12.0"), ("jax-rocm7-plugin", "0.10.2"), ("jax-rocm7-pjrt", "0.12.0+rocm7")]
        kernel(inside, tmp_path, "torch", prints(distributions=listed))

        found = [one for one in checks.BY_ID["rocm.packages"].run(inside()) if one.problem]
        assert [one.problem.what for one in found] == ["jax-rocm7-plugin 0.10.2 does not fit jaxlib 0.12.0"]
        assert "jax-rocm7-plugin==0.12.0" in fires(inside(), "rocm.packages", WARNS).problem.fix

        kernel(inside, tmp_path, "torch", prints(distributions=[("jaxlib", "0.12.0"), ("jax-rocm7-plugin", "0.12.0")]))
        silent(inside(), "rocm.packages")

    def test_what_a_real_interpreter_says(self, tmp_path: Path) -> None:
        """Packages are read and not imported: importing these would fail."""
        site = tmp_path / "site"
        for path, text in {
            "torch/__init__.py": "raise RuntimeError",
            "torch/version.py": "__version__ = '2.13.0+rocm7.2'\ncuda: str = None\nhip = '7.2.1'\n",
            "torch-2.13.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n",
            "tensorflow/__init__.py": "raise RuntimeError",
            "tensorflow/python/platform/build_info.py": "build_info = {'is_rocm_build': True}\n",
            "tensorflow_rocm-2.20.0.dist-info/METADATA": "Name: tensorflow_rocm\nVersion: 2.20.0\n",
            "rocm_sdk_core-0.0.1.dist-info/METADATA": "Name: rocm_sdk_core\nVersion: 0.0.1\nSummary: Placeholder\n",
        }.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)

        found = operation.inspect(operation.Interpreter(sys.executable), {"PYTHONPATH": str(site)}, 60)

        assert found is not None
        assert {("torch", "2.13.0"), ("tensorflow-rocm", "2.20.0")} <= set(found.distributions)
        assert (found.tensorflow_rocm, found.torch_hip, found.torch_cuda) == (True, "7.2.1", None)
        assert found.placeholders == ("rocm-sdk-core",)


def is_alive(process: Path) -> bool:
    """Return whether a process of /proc is there and no zombie that no one has asked after yet."""
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class TestComputes:
    """One multiplication on each device; whatever happens to it is a finding."""

    def test_a_refusal_of_tensorflow_is_the_reason(self, inside: Looker, tmp_path: Path) -> None:
        """It computes on the CPU and explains why in one line of its log, which is information to it."""
        refusal = (
            "2026-11-24 00:20:01.1: I core/gpu_device.cc:2335] Ignoring visible gpu device (device: 0, name: "
            "AMD Radeon RX 7900 XTX, pci bus id: 0000:03:00.0) with AMDGPU version : gfx1100. The supported AMDGPU "
            "versions are gfx1030gfx1100, gfx900."
        )
        later = "2026-11-24 00:20:02.1: I tensorflow/core/util.cc:1] slightly different results due to round-off errors"
        program = f"[ $TF_CPP_MIN_LOG_LEVEL = 0 ] && echo '{refusal}' >&2; echo '{later}' >&2; "
        program += prints(**{**RIGHT, "on_gpu": False})
        kernel(inside, tmp_path, "tensorflow", program)

        found = fires(inside(), "compute.tensorflow", BLOCKS)

        assert found.problem.why.startswith("TensorFlow ignores it: AMDGPU version : gfx1100. The supported AMDGPU")
        assert "HSA_OVERRIDE_GFX_VERSION" in found.problem.fix

    def test_information_is_no_reason_for_a_crash(self, inside: Looker, tmp_path: Path) -> None:
        """TensorFlow's greeting has the word errors in it."""
        greeting = "2026-11-24 00:20:02.1: I tensorflow/core/util.cc:1] different results due to round-off errors"
        kernel(inside, tmp_path, "tensorflow", f"echo 'HSA fault' >&2; echo '{greeting}' >&2; exit 3")

        assert "HSA fault" in fires(inside(), "compute.tensorflow", BLOCKS).problem.why

    def test_right_numbers_on_each_device(self, inside: Looker, tmp_path: Path) -> None:
        """Each child has exactly one GPU, by its mask, and no ROCR mask."""
        inside.environment = {"ROCR_VISIBLE_DEVICES": "0,1"}
        line = f'echo "$HIP_VISIBLE_DEVICES/$CUDA_VISIBLE_DEVICES/${{ROCR_VISIBLE_DEVICES-unset}}" >>{tmp_path}/masks'
        kernel(inside, tmp_path, "torch", f"{line}\n{prints(**RIGHT)}")
        from rocmlab.doctor import checks

        found = checks.BY_ID["compute.torch"].run(inside())

        assert [one.status for one in found] == ["ok", "ok"]
        assert found[0].evidence[0] == "HIP 0 (0000:03:00.0): torch 9.9: all 9216 numbers right"
        assert (tmp_path / "masks").read_text().split() == ["0/0/unset", "1/1/unset"]

    @pytest.mark.parametrize("framework", ["tensorflow", "torch"])
    def test_wrong_numbers(self, inside: Looker, tmp_path: Path, framework: str) -> None:
        """The first wrong one is shown next to the right one; a right result makes it silent."""
        kernel(inside, tmp_path, framework, prints(**{**RIGHT, "wrong": 12, "first": ["0", "3", "7.0", "9"]}))

        found = fires(inside(), f"compute.{framework}", BLOCKS)

        assert "computed wrong numbers on HIP 0" in found.problem.what
        assert "12 of 9216 numbers are wrong: [0, 3] is 7.0 and should be 9" in found.problem.why

    def test_a_crash_by_a_signal(self, inside: Looker, tmp_path: Path) -> None:
        """A segfault of the GPU stack is named; the doctor lives."""
        kernel(inside, tmp_path, "torch", "echo 'HSA exception: memory fault' >&2; kill -SEGV $$")

        found = fires(inside(), "compute.torch", BLOCKS)

        assert "crashed" in found.problem.what
        assert "SIGSEGV" in found.problem.why
        assert "memory fault" in found.problem.why

    @pytest.mark.parametrize(
        ("said", "why"),
        [
            ("HSA Error: Incompatible kernel and userspace, Upgrade amdgpu.", "driver is too old"),
            ("RuntimeError: HIP error: invalid device function", "has no kernels for gfx1100"),
        ],
    )
    def test_crashes_whose_cause_is_known(self, inside: Looker, tmp_path: Path, said: str, why: str) -> None:
        """The words of the stack lead to the check that explains them."""
        kernel(inside, tmp_path, "torch", f"echo '{said}'; exit 1")

        assert why in fires(inside(), "compute.torch", BLOCKS).problem.why

    def test_a_crash_is_explained_by_what_pytorch_has_kernels_for(self, inside: Looker, tmp_path: Path) -> None:
        """Its list of targets is printed before the operation; with the GPU's on it the crash has another cause."""
        kernel(inside, tmp_path, "torch", f"echo '{operation.TARGETS}gfx1030 gfx90a'; kill -SEGV $$")
        found = fires(inside(), "compute.torch", BLOCKS)
        assert found.problem.why == "it has kernels for gfx1030, gfx90a and none for gfx1100"
        assert "torch.cuda.get_arch_list(): gfx1030 gfx90a; this GPU: gfx1100" in found.evidence

        kernel(inside, tmp_path, "torch", f"echo '{operation.TARGETS}gfx1100'; kill -SEGV $$")
        assert "SIGSEGV" in fires(inside(), "compute.torch", BLOCKS).problem.why

    def test_what_others_have_leased_is_left_to_them(self, inside: Looker, tmp_path: Path) -> None:
        """No child is started for such a GPU, and who has it is named; it computes on the other one, then on both."""
        kernel(inside, tmp_path, "torch", f'echo "$HIP_VISIBLE_DEVICES" >>{tmp_path}/masks\n{prints(**RIGHT)}')
        first = discover(inside.root)[0]
        lease = Leases(lease_folder.path({}, inside.root)).take([first], Holder(owner="ann", notebook="a.ipynb", pid=7))
        assert lease

        found = checks.BY_ID["compute.torch"].run(inside())

        assert [one.status for one in found] == ["not applicable", "ok"]
        assert found[0].reason == "HIP 0 (0000:03:00.0) is leased to a.ipynb (process 7 of ann)"
        assert (tmp_path / "masks").read_text().split() == ["1"]
        lease.release()
        assert [one.status for one in checks.BY_ID["compute.torch"].run(inside())] == ["ok", "ok"]

    @pytest.mark.parametrize(
        ("framework", "said"),
        [
            ("torch", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total"),
            ("torch", "RuntimeError: HIP error: out of memory"),
            (
                "tensorflow",
                "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor",
            ),
        ],
    )
    def test_a_full_gpu_is_no_crash(self, inside: Looker, tmp_path: Path, framework: str, said: str) -> None:
        """Nothing is wrong with the lab: it is a warning that shows what to look at."""
        kernel(inside, tmp_path, framework, f"echo '{operation.TARGETS}gfx1030'; echo '{said}' >&2; exit 1")

        found = fires(inside(), f"compute.{framework}", WARNS)

        assert found.problem.what.endswith("could not be tried on HIP 0 (0000:03:00.0): the GPU is full")
        assert said in found.problem.why
        assert "rocmlab smi" in found.problem.fix

    def test_without_a_gpu_no_gpu_is_full(self, inside: Looker, tmp_path: Path) -> None:
        """On the CPU it is the host's memory that is used up, which stops the lab."""
        inside.backend = "cpu"
        kernel(inside, tmp_path, "torch", "echo 'RuntimeError: out of memory' >&2; exit 1")

        assert "crashed" in fires(inside(), "compute.torch", BLOCKS).problem.what

    @pytest.mark.slow
    def test_a_hang_ends_at_the_limit_with_all_its_children(self, inside: Looker, tmp_path: Path) -> None:
        """The whole group is killed; the limit is named, with the command for a longer one."""
        kernel(inside, tmp_path, "torch", f"sleep 600 & echo $! >{tmp_path}/child; trap '' TERM; wait; sleep 600")
        started = time.monotonic()

        found = fires(inside(operation_limit_seconds=1.0), "compute.torch", BLOCKS)

        assert time.monotonic() - started < 60  # of 600
        assert "did not finish" in found.problem.what
        assert "--time-limit" in found.problem.fix
        child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}")
        deadline = time.monotonic() + 10
        while is_alive(child) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not is_alive(child)

    def test_a_result_of_the_cpu_does_not_pass_for_one_of_the_gpu(self, inside: Looker, tmp_path: Path) -> None:
        """Right numbers from the wrong device."""
        kernel(inside, tmp_path, "tensorflow", prints(**{**RIGHT, "on_gpu": False, "device": "cpu"}))

        assert "computed on the CPU" in fires(inside(), "compute.tensorflow", BLOCKS).problem.what

    def test_the_cpu_backend_says_where_it_computed(self, inside: Looker, tmp_path: Path) -> None:
        """On a simulated host the GPUs cannot compute, and it reports it."""
        inside.backend = "cpu"
        kernel(inside, tmp_path, "torch", prints(**{**RIGHT, "on_gpu": False, "device": "cpu"}))

        found = silent(inside(), "compute.torch")

        assert "computed on cpu" in found.evidence
        assert any("SIMULATED" in line for line in found.evidence)

    @pytest.mark.parametrize("on_gpu", [True, False])
    def test_on_wsl_only_computing_shows_the_gpu(self, inside: Looker, tmp_path: Path, on_gpu: bool) -> None:
        """Nothing lists it, so no mask names it; a result of the CPU is a finding all the same."""
        (inside.root / "dev/kfd").rename(inside.root / "dev/dxg")
        line = f'echo "${{HIP_VISIBLE_DEVICES-unset}}" >{tmp_path}/mask'
        kernel(inside, tmp_path, "torch", f"{line}\n{prints(**{**RIGHT, 'on_gpu': on_gpu})}")

        if on_gpu:
            assert "behind /dev/dxg" in silent(inside(), "compute.torch").evidence[0]
        else:
            assert "computed on the CPU" in fires(inside(), "compute.torch", BLOCKS).problem.what
        assert (tmp_path / "mask").read_text() == "unset\n"

    def test_a_framework_that_cannot_be_imported(self, inside: Looker, tmp_path: Path) -> None:
        """It is a warning: the other framework may be all one needs."""
        kernel(inside, tmp_path, "torch", prints(missing="No module named 'torch'"))

        assert "cannot be imported" in fires(inside(), "compute.torch", WARNS).problem.what

    @pytest.mark.parametrize("program", ["exit 0", "echo 'ROCMLAB-RESULT {'", "echo ROCMLAB-RESULT 3", "exit 3"])
    def test_nonsense_is_a_crash(self, inside: Looker, tmp_path: Path, program: str) -> None:
        """No result, or a truncated one."""
        kernel(inside, tmp_path, "torch", program)

        assert "crashed" in fires(inside(), "compute.torch", BLOCKS).problem.what

    def test_an_interpreter_that_is_gone(self, inside: Looker, tmp_path: Path) -> None:
        """The kernelspec names a Python that was removed."""
        kernel(inside, tmp_path, "torch", "").unlink()

        assert "No such file" in fires(inside(), "compute.torch", BLOCKS).problem.why

    def test_it_can_be_left_out(self, inside: Looker, tmp_path: Path) -> None:
        """`--no-frameworks` starts nothing."""
        kernel(inside, tmp_path, "torch", f"touch {tmp_path}/started")

        assert skipped(inside(with_frameworks=False), "compute.torch") == "--no-frameworks"
        assert not (tmp_path / "started").exists()


FAKE_TORCH = """
class backends: mps = None
class cuda:
    is_available = staticmethod(lambda: {on_gpu})
    get_device_name = staticmethod(lambda _: "AMD Fake")
    get_arch_list = staticmethod(lambda: ["gfx1100", "gfx1201"])
float32, __version__ = "float32", "9.9"
class tensor:
    def __init__(self, rows, dtype, device): self.rows = rows
    def __matmul__(self, other):
        columns = list(zip(*other.rows))
        rows = [[float(sum(a * b for a, b in zip(row, column))) for column in columns] for row in self.rows]
        rows[5][7] += {error}
        return tensor(rows, None, None)
    def cpu(self): return self
    def tolist(self): return self.rows
"""


@pytest.mark.parametrize(("error", "kind"), [(0, "right"), (1, "wrong")])
@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_operation_itself(tmp_path: Path, error: int, kind: str, on_gpu: bool) -> None:
    """Run by a real Python against a stand-in that multiplies by itself: one wrong number of 9216 is found."""
    (tmp_path / "torch.py").write_text(FAKE_TORCH.format(error=error, on_gpu=on_gpu))
    interpreter = operation.Interpreter(sys.executable)

    found = operation.run("torch", interpreter, None, {"PYTHONPATH": str(tmp_path)}, 60)

    assert (found.kind, found.on_gpu) == (kind, on_gpu)
    assert found.targets == (("gfx1100", "gfx1201") if on_gpu else ())
    assert ("1 of 9216 numbers are wrong: [5, 7]" in found.detail) is bool(error)
