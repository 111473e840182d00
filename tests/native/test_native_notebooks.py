"""What needs the frameworks, in the native lab's own environment: every notebook, short, and the tests marked so.

Of what takes longest each run takes a part (`tests/long_parts.py`).

The lab has no pytest: it finds the one that runs this file at the end of its path, behind all that is its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import listeners
import long_parts
import pytest
from clones import Clone

from rocmlab.runs.spec import selection

pytestmark = pytest.mark.native
REPOSITORY = Path(__file__).parents[2]
TESTS = "tests/training/frameworks"
LIMIT_SECONDS = 2400
ELSEWHERE = "01_mnist_fc"  # which test_native_lab.py trains
# More than 20 seconds each, of which most is computed: each run has one of them.
LONG = (
    *("02_mnist_cnn", "04_multi_gpu_torch", "06_segmentation_unet", "07_bert_trec"),
    *("12_lora_finetune", "14_diffusion", "15_compare"),
)
# Each run has every second of these.
HALVES = (
    *("05_multi_gpu_keras", "08_bert_inference_batches", "09_opencl_kernels", "11_multi_node_torch"),
    *("13_inference", "16_triton_kernel"),
)
SKIPPED = {
    "16_triton_kernel": "triton is not installed in this kernel"
}  # it is 200 MB, and PyTorch for a GPU brings it
# The longest first. Keras has one backend a process; what starts programs of its own, all PyTorch's, is one more, so
# that two lanes end at about the same time. OpenCL is alone, as in its notebook: its drivers bring LLVMs of their own,
# and a test of its own loads one after TensorFlow, in a child process.
RUNS = {
    "jax": "jax",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "programs": "torch",
    "opencl": "torch",
    "fork_server": "tensorflow",
}
# Each run has a third of them, which take about the same time; notebooks train with Keras and with PyTorch in each run.
THIRDS = (("jax", "opencl"), ("tensorflow",), ("torch", "programs", "fork_server"))
TESTED = {name for third, names in enumerate(THIRDS) if long_parts.in_this_part(third, len(THIRDS)) for name in names}
CHOSEN = [name for name in RUNS if name in TESTED]
ALONE = {
    "programs": tuple(f"{TESTS}/{name}.py" for name in ("test_bert_notebooks", "test_gloo", "test_scaling_programs")),
    "opencl": (f"{TESTS}/test_opencl.py",),
    "fork_server": ("tests/kernels/test_fork_server_frameworks.py",),
}
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


@contextlib.contextmanager
def watched(lab: Clone) -> Iterator[listeners.Watch]:
    """Watch what listens of all that the lab starts, through `make` or on its own."""
    value = secrets.token_hex(8)
    lab.environment[listeners.VARIABLE] = value
    try:
        with listeners.Watch(os.getpid(), variable=f"{listeners.VARIABLE}={value}") as watch:
            yield watch
    finally:
        del lab.environment[listeners.VARIABLE]


def test_every_notebook_passes_when_it_is_short(built_lab: Clone) -> None:
    """All but one, each with its own acceptance; none takes a CPU for a GPU, or listens outside the loopback."""
    found = {each.notebook.stem for each in selection.find([], built_lab.folder / "notebooks")}
    assert {ELSEWHERE, *LONG, *HALVES} <= found
    found -= {ELSEWHERE, *(name for index, name in enumerate(LONG) if not long_parts.in_this_part(index, len(LONG)))}
    found -= {name for index, name in enumerate(HALVES) if not long_parts.in_this_part(index, 2)}
    chosen = {"NOTEBOOKS": " ".join(sorted(found)), "PARAMS": "quick=true"}
    with watched(built_lab) as watch:
        done = built_lab.make("run-notebooks", timeout_seconds=LIMIT_SECONDS, succeeds=False, **chosen)

    runs = sorted((built_lab.folder / "share/runs").iterdir())
    results = json.loads((runs[-1] / "results.json").read_text(encoding="utf-8"))
    jobs = {Path(job["notebook"]).stem: job for job in results["jobs"]}
    skipped = {name: jobs.pop(name) for name in [*jobs] if jobs[name]["status"] == "skipped"}
    wrong = {name: (job["status"], job["error"]) for name, job in jobs.items() if job["status"] != "ok"}
    assert not wrong, f"{wrong}\n{done.stdout[-3000:]}"
    assert done.returncode == 0, done.stdout[-3000:]
    reasons = {name: job["recorded"]["skipped"].split(";")[0] for name, job in skipped.items()}
    assert reasons == {name: reason for name, reason in SKIPPED.items() if name in found}
    assert {*jobs, *skipped} == found
    assert {"cpu"} == {device["backend"] for job in jobs.values() for device in job["devices"]}
    assert all(job["recorded"]["acceptance"]["ok"] for job in jobs.values())
    if unet := jobs.get("06_segmentation_unet"):
        assert unet["recorded"]["first_epoch_seconds"]["float32"] > unet["recorded"]["seconds_per_epoch"]
    assert watch.outside() == []


@pytest.mark.long
def test_kernels_have_what_people_import(built_lab: Clone) -> None:
    """One environment serves both kernels here, so all of it is in one; the frameworks are those that were locked."""
    python = built_lab.folder / ".venv/bin/python"
    names = ("ipywidgets", "pandas", "sklearn", "tensorboard", "tqdm", "datasets", "accelerate", "peft", "transformers")
    program = REPOSITORY / "tests/container/units/unit_packages.py"

    done = subprocess.run(
        [python, program, *names],
        env={**built_lab.environment, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
        check=False,
    )
    conflicts = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert "TensorBoard wrote its events" in done.stdout
    assert conflicts.returncode == 0, conflicts.stdout


@pytest.fixture(scope="module")
def framework_tests(built_lab: Clone) -> dict[str, subprocess.CompletedProcess[str]]:
    """The tests marked so, a process for each that is chosen of `RUNS`, two at a time."""
    python = built_lab.folder / ".venv/bin/python"
    version = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert tuple(map(int, version)) == sys.version_info[:2], "the lab and these tests need one version of Python"
    others = [TESTS, *(f"--ignore={name}" for names in ALONE.values() for name in names)]

    def run(name: str) -> subprocess.CompletedProcess[str]:
        options = ["-m", "frameworks", *ALONE.get(name, others), "-q", "-p", "no:cacheprovider"]
        return subprocess.run(
            [python, "-c", PROGRAM, sysconfig.get_path("purelib"), *options],
            cwd=built_lab.folder,
            env={
                **built_lab.environment,
                "KERAS_BACKEND": RUNS[name],
                "OMP_NUM_THREADS": "1",  # two processes on two cores
                "TF_CPP_MIN_LOG_LEVEL": "2",
                # LLVM would optimize models for longer than these tests compute with them. Notebooks are optimized.
                "XLA_FLAGS": "--xla_backend_optimization_level=0",
                "ROCMLAB_SHARE": str(built_lab.folder / "share"),
                "PATH": f"{python.parent}{os.pathsep}{built_lab.environment['PATH']}",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CHOSEN, pool.map(run, CHOSEN), strict=True))


@pytest.mark.parametrize("name", CHOSEN)
def test_the_tests_of_the_frameworks_pass(
    framework_tests: dict[str, subprocess.CompletedProcess[str]], name: str
) -> None:
    """With each backend that Keras has."""
    done = framework_tests[name]

    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout, done.stdout[-3000:]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net: run it on Linux")
def test_workers_of_ray_listen_on_the_loopback_alone(
    built_lab: Clone, framework_tests: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    """`11_multi_node_torch` with two workers, once Ray Train is installed; after the others, which need it not."""
    python = built_lab.folder / ".venv/bin/python"
    added = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--requirement"]
    added.append(REPOSITORY / "requirements/cluster-train.txt")
    installed = subprocess.run(added, env=built_lab.environment, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"Ray Train could not be installed: {installed.stdout[-300:]}{installed.stderr[-300:]}")

    with watched(built_lab) as watch:
        name = "11_multi_node_torch"
        done = built_lab.make("run-notebooks", NOTEBOOKS=name, PARAMS="quick=true", timeout_seconds=LIMIT_SECONDS)

    (job,) = json.loads((sorted((built_lab.folder / "share/runs").iterdir())[-1] / "results.json").read_text())["jobs"]
    assert job["status"] == "ok", done.stdout[-3000:]
    assert (job["recorded"]["ray"], job["recorded"]["acceptance"]["ok"]) == ("own", True)
    assert watch.outside() == []
