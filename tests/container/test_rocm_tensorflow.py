"""AMD's real TensorFlow: in the image's ROCm branch, as a kernel, and on simulated GPUs with the real HIP.

PyTorch is a stand-in, since no index that is reached here has its ROCm build. Only `make test-rocm` runs this: it
downloads 3 GB.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import standins
from clones import clone, lighten
from containers import Container, docker

from rocmlab.devices import discover, visibility
from rocmlab.simulation import write_host
from rocmlab.stack import image_kind

pytestmark = [pytest.mark.rocm, pytest.mark.slow]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TARGET = "gfx90a"
BASE = image_kind.ImageKind(image_kind.DEBIAN, (TARGET,)).base
NOT_AVAILABLE = re.compile("cannot be downloaded|Debian does not have|Debian no longer has")  # says make-rocm-base
HIP, CUDA, ROCR = "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
MASKS: tuple[dict[str, str], ...] = (
    {},
    *({name: value} for name in (HIP, CUDA) for value in ("", "0", "-1", "2,0")),
    *({ROCR: value} for value in ("", "0", "3,1")),
    {HIP: "9"},
    {HIP: "1", CUDA: "3"},
    {HIP: "1,0", ROCR: "2,3"},
)
# TensorFlow's list, and the addresses from the HIP that it has loaded, which no masked number shows. It leaves without
# HIP's own end, which would wait for a GPU that computes nothing.
LIST = """
import ctypes, json, os
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
hip, text = ctypes.CDLL("libamdhip64.so.6"), ctypes.create_string_buffer(64)
addresses = []
for number in range(len(gpus)):
    assert hip.hipDeviceGetPCIBusId(text, len(text), number) == 0
    addresses.append(text.value.decode().lower())
from rocmlab.training import placement
assert [one["simulated"] for one in placement.visible("tensorflow")] == [True] * len(gpus) + [False]
print("RESULT " + json.dumps(addresses), flush=True)
os._exit(0)
"""
TRAIN = """
import numpy as np, tensorflow as tf
tf.keras.utils.set_random_seed(1)
inputs = np.random.default_rng(1).standard_normal((4096, 8)).astype("float32")
labels = (inputs.sum(axis=1) > 0).astype("float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
model.fit(inputs[:3072], labels[:3072], epochs=10, batch_size=32, verbose=0)
print(model.evaluate(inputs[3072:], labels[3072:], verbose=0)[1], tf.config.list_physical_devices("GPU"))
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What `make build IMAGE=debian` makes for MI200, its base too unless that is here; /opt/torch is light."""
    wheels = tmp_path_factory.mktemp("wheels")
    standins.torch(wheels, hip="7.2.0")
    name = f"rocmlab-test-debian-{os.getpid()}"
    project = clone(tmp_path_factory.mktemp("debian") / "rocmlab", COMPOSE_PROJECT_NAME=name)
    lighten(project.folder / "requirements/torch.txt", *standins.UNUSED_BESIDE_TORCH)
    had_base = BASE in docker("image", "ls", "--format", "{{.Repository}}:{{.Tag}}")
    settings = {"BACKEND": "rocm", "RUNTIME": "docker", "IMAGE": "debian", "GFX": TARGET}
    done = project.make("build", **settings, WHEELS=str(wheels), TORCH_INDEX="", succeeds=False, timeout_seconds=3600)
    if done.returncode and NOT_AVAILABLE.search(done.stdout):
        pytest.skip(" ".join(done.stdout.split())[-500:])
    assert done.returncode == 0, done.stdout
    yield f"{name}:rocm"
    docker("image", "rm", f"{name}:rocm", *([] if had_base else [BASE]))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated hosts: with one and with four MI300X, and with one RX 7900 XTX."""
    folder = tmp_path_factory.mktemp("hosts")
    for count in (1, 4):
        write_host(folder / f"mi300x-{count}", profile="instinct", gpus=count)
    write_host(folder / "radeon", profile="radeon", gpus=1)
    return folder


@pytest.fixture(scope="module")
def inside(image: str, hosts: Path) -> Iterator[Container]:
    """A container of the image that has the simulated hosts; they choose no lab's backend."""
    options = ("--env=ROCMLAB_BACKEND=cpu", f"--volume={hosts}:/hosts:ro")
    with Container(image, *options, command=["sleep", "3600"]) as container:
        yield container


def listed(inside: Container, host: str, variables: Mapping[str, str]) -> list[str]:
    """Return the PCI addresses of the GPUs that TensorFlow lists on a simulated host, in its order."""
    given = [f"--env={name}={value}" for name, value in variables.items()]
    command = ["rocmlab", "simulate", "--run", f"/hosts/{host}", "--", "/opt/venv/bin/python", "-c", LIST]
    printed = docker("exec", *given, inside.id, *command)
    found = re.search(r"^RESULT (.*)$", printed, re.MULTILINE)
    assert found, printed
    return json.loads(found[1])


def test_the_rocm_branch_is_built_on_the_real_tensorflow(inside: Container) -> None:
    """The build's own checks pass; TensorFlow and what it needs are as AMD made them, and the kernel runs it."""
    record = json.loads(inside.exec("cat", "/etc/rocmlab-build.json"))
    kernel = json.loads(inside.exec("cat", "/opt/rocmlab/share/jupyter/kernels/tensorflow/kernel.json"))

    versions = record["versions"]["tensorflow"]
    assert record["backend"] == "rocm"
    assert record["interpreters"]["tensorflow"] == "/opt/venv/bin/python"
    assert versions["tensorflow-rocm"] == "2.14.0.600"
    assert versions["numpy"].startswith("1.")
    assert {"ipykernel", "matplotlib", "rocmlab"} <= set(versions)
    assert "/opt/venv/bin/python" in kernel["argv"]
    assert kernel["env"]["PIP_CONSTRAINT"] == "/etc/rocmlab-constraints.txt"


def test_its_kernel_trains_on_the_cpu(image: str) -> None:
    """Without a GPU, TensorFlow for ROCm starts as a kernel of the lab, lists none and learns a sum's sign."""
    with Container(image, "--env=ROCMLAB_BACKEND=cpu") as container:
        container.wait_for_server(60)
        accuracy, _, gpus = container.execute("tensorflow", TRAIN).strip().splitlines()[-1].partition(" ")

    assert float(accuracy) > 0.95
    assert gpus == "[]"


@pytest.mark.parametrize("count", [1, 4])
def test_tensorflow_lists_the_gpus_that_rocmlab_says(inside: Container, hosts: Path, count: int) -> None:
    """With each kind of mask, the same MI300X in the same order, which a notebook describes as simulated."""
    devices = discover(hosts / f"mi300x-{count}", {})
    expected = [visibility.visible(variables, devices) for variables in MASKS]
    ours = [None if mask.error else [gpu.pci_address for gpu in mask.gpus] for mask in expected]

    with ThreadPoolExecutor(2) as pool:
        theirs = list(pool.map(lambda variables: listed(inside, f"mi300x-{count}", variables), MASKS))

    assert [*zip(MASKS, theirs, strict=True)] == [*zip(MASKS, ours, strict=True)]
    assert len(theirs[0]) == count


def test_hello_gpu_counts_what_hip_lists_and_calls_it_simulated(inside: Container) -> None:
    """Its cells up to TensorFlow's list, as they are: four GPUs, each marked; what follows would compute on them."""
    cells = json.loads((NOTEBOOKS / "00_hello_gpu.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"][:4]
    code = "\n".join([*sources, "sys = __import__('sys'); sys.stdout.flush(); os._exit(0)"])
    command = ["rocmlab", "simulate", "--run", "/hosts/mi300x-4", "--", "/opt/venv/bin/python", "-c", code]

    printed = docker("exec", inside.id, *command)

    lines = [line for line in printed.splitlines() if "GPU" in line or "MI300X" in line]
    assert len([line for line in lines if line.startswith("physical:   GPU")]) == 4, printed
    usable = [line for line in lines if line.startswith("usable:") and "MI300X" in line]
    assert len(usable) == 4, printed
    assert all(line.endswith(", SIMULATED") for line in usable)


def test_the_doctor_recognises_its_refusal_of_a_card(inside: Container) -> None:
    """TensorFlow 2.14 for ROCm ignores a SIMULATED RX 7900 XTX, and the doctor quotes its real words."""
    command = ["rocmlab", "simulate", "--run", "/hosts/radeon", "--", "rocmlab", "doctor", "--json"]
    command += ["--only", "compute.tensorflow", "--time-limit", "100"]
    done = subprocess.run(
        ["docker", "exec", "--env=ROCMLAB_BACKEND=rocm", inside.id, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert "TensorFlow ignores it: AMDGPU version" in done.stdout, done.stdout + done.stderr
    assert "gfx1100" in done.stdout
