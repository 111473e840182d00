"""What a framework computes on is reported by itself; a CPU is never called a GPU."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.simulation import environment, write_host
from rocmlab.training import network, placement


def install_torch(monkeypatch, names=(), hip=None, mps=False):
    """Put a module in the place of PyTorch that sees GPUs of these names."""

    def properties(index):
        return SimpleNamespace(name=names[index], pci_domain_id=0, pci_bus_id=3 + index, pci_device_id=0)

    cuda = SimpleNamespace(
        is_available=lambda: bool(names), device_count=lambda: len(names), get_device_properties=properties
    )
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps))
    torch = SimpleNamespace(cuda=cuda, backends=backends, version=SimpleNamespace(hip=hip))
    monkeypatch.setitem(sys.modules, "torch", torch)


def install_tensorflow(monkeypatch, gpus=(), build=()):
    """Put a module in the place of TensorFlow that sees these GPUs; return it."""
    listed = [SimpleNamespace(name=f"/physical_device:GPU:{number}", title=name) for number, name in enumerate(gpus)]
    module = ModuleType("tensorflow")
    module.hidden = False

    def hide(devices, kind):
        module.hidden = kind == "GPU" and devices == []

    details = SimpleNamespace(get_device_details=lambda gpu: {"device_name": gpu.title})
    module.config = SimpleNamespace(
        get_visible_devices=lambda kind: [] if module.hidden else listed,
        set_visible_devices=hide,
        experimental=details,
    )
    module.sysconfig = SimpleNamespace(get_build_info=lambda: dict.fromkeys(build, True))
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    return module


def install_jax(monkeypatch, *devices, fault=None):
    """Put a module in the place of JAX that lists devices (platform, kind, version of the platform); return it."""
    listed = [
        SimpleNamespace(
            platform=platform, device_kind=kind, id=number, client=SimpleNamespace(platform_version=version)
        )
        for number, (platform, kind, version) in enumerate(devices)
    ]
    cpu = SimpleNamespace(platform="cpu", device_kind="cpu", id=0)
    config = SimpleNamespace(jax_default_device=None, jax_platforms=None)
    config.update = lambda name, value: setattr(config, name, value)

    def local_devices():
        if fault:
            raise RuntimeError(fault)
        return listed or [cpu]

    jax = SimpleNamespace(config=config, local_devices=local_devices, devices=lambda kind: [cpu])
    monkeypatch.setitem(sys.modules, "jax", jax)
    return jax


def install_keras(monkeypatch, backend, torch_device="cuda:0"):
    """Put a module in the place of Keras that computes with `backend`, on PyTorch on this device; return it."""
    keras = SimpleNamespace(device_now=torch_device)

    @contextmanager
    def device(name):
        before, keras.device_now = keras.device_now, name
        yield
        keras.device_now = before

    def zeros(shape):
        kind, _, index = keras.device_now.partition(":")
        return SimpleNamespace(device=SimpleNamespace(type=kind, index=int(index) if index else None))

    keras.backend = SimpleNamespace(backend=lambda: backend)
    keras.device, keras.ops = device, SimpleNamespace(zeros=zeros)
    monkeypatch.setitem(sys.modules, "keras", keras)
    return keras


def test_torch_on_rocm_is_told_from_cuda(monkeypatch):
    """PyTorch calls both `cuda`; the version of HIP distinguishes them, and the PCI address comes along."""
    install_torch(monkeypatch, ["Radeon RX 7900 XTX"], hip="7.2")

    found = placement.describe("torch")

    expected = {"backend": "rocm", "name": "Radeon RX 7900 XTX", "index": 0, "pci": "0000:03:00.0", "simulated": False}
    assert found == expected
    install_torch(monkeypatch, ["NVIDIA H200"])
    assert placement.describe("torch")["backend"] == "cuda"


def test_a_gpu_of_the_simulated_driver_is_marked(monkeypatch, tmp_path):
    """PyTorch lists it as it does a real one; the CPU, which does compute, has no mark."""
    install_torch(monkeypatch, ["AMD Instinct MI300X"], hip="7.2")
    host = write_host(tmp_path, gpus=1)
    monkeypatch.setenv("LD_PRELOAD", environment(host, {})["LD_PRELOAD"])

    assert [one["simulated"] for one in placement.visible("torch")] == [True, False]


def test_torch_on_a_mac_is_metal(monkeypatch):
    """MPS is the backend metal."""
    install_torch(monkeypatch, mps=True)

    assert placement.describe("torch")["backend"] == "metal"


@pytest.mark.parametrize(
    ("build", "backend"), [(["is_rocm_build"], "rocm"), (["is_cuda_build"], "cuda"), ([], "metal")]
)
def test_tensorflow_says_what_it_was_built_for(monkeypatch, build, backend):
    """The build decides the backend; the PCI address is not queried where that would take the GPU's memory."""
    install_tensorflow(monkeypatch, ["a card"], build)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)

    found = placement.describe("tensorflow")

    assert found == {"backend": backend, "name": "a card", "index": 0, "pci": None, "simulated": False}


def test_tensorflow_pci_address_comes_from_its_own_list(monkeypatch):
    """With growing memory TensorFlow is asked, and its description is read."""
    install_tensorflow(monkeypatch, ["a card"], ["is_rocm_build"])
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    text = "device: 0, name: Radeon RX 7900 XTX, pci bus id: 0000:0A:00.0"
    local = SimpleNamespace(name="/device:GPU:0", physical_device_desc=text)
    client = SimpleNamespace(device_lib=SimpleNamespace(list_local_devices=lambda: [local]))
    monkeypatch.setitem(sys.modules, "tensorflow.python.client", client)

    assert placement.describe("tensorflow")["pci"] == "0000:0a:00.0"


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        (("gpu", "AMD Instinct MI300X", "PJRT C API\nrocm 70200"), "rocm"),
        (("gpu", "NVIDIA H200", "PJRT C API\ncuda 12090"), "cuda"),
        (("METAL", "Metal", "jax-metal 0.1.1"), "metal"),
    ],
)
def test_jax_says_through_its_client_what_made_a_gpu(monkeypatch, device, backend):
    """JAX calls AMD's and NVIDIA's devices `gpu`; the version of the client distinguishes them. No PCI address."""
    install_jax(monkeypatch, device)

    found = placement.visible("jax")

    assert found[0] == {"backend": backend, "name": device[1], "index": 0, "pci": None, "simulated": False}
    assert [one["backend"] for one in found] == [backend, "cpu"]


def test_choosing_the_cpu_keeps_jax_off_the_gpus(monkeypatch):
    """After `cpu` JAX starts no GPU, and computes on the CPU if it had started one already."""
    jax = install_jax(monkeypatch, ("gpu", "AMD Instinct MI300X", "rocm 70200"))

    assert placement.choose("jax", "cpu")["backend"] == "cpu"
    assert jax.config.jax_platforms == "cpu"
    assert jax.config.jax_default_device.platform == "cpu"
    assert placement.describe("jax")["backend"] == "cpu"


def test_a_jax_that_cannot_start_says_why(monkeypatch):
    """What JAX says itself is the reason."""
    install_jax(monkeypatch, fault="Unable to initialize backend 'rocm'")

    with pytest.raises(RocmlabError, match="Unable to initialize backend 'rocm'"):
        placement.choose("jax")


@pytest.mark.parametrize("framework", ["jax", "tensorflow", "torch"])
def test_keras_is_placed_as_its_backend_is(monkeypatch, framework):
    """`keras` means the framework that Keras computes with, and no other that is installed."""
    install_torch(monkeypatch, ["a card"], hip="7.2")
    install_tensorflow(monkeypatch, ["a card"], ["is_rocm_build"])
    install_jax(monkeypatch, ("gpu", "a card", "rocm 70200"))
    install_keras(monkeypatch, framework)

    assert placement.choose("keras") == placement.describe(framework)
    assert placement.choose("keras", "cpu")["backend"] == "cpu"
    assert placement.describe("keras")["backend"] == "cpu"


def test_keras_on_torch_is_on_a_gpu_of_its_own_accord_until_the_cpu_is_chosen(monkeypatch):
    """Keras puts tensors of PyTorch on a GPU; choosing the CPU changes that, and choosing again changes it back."""
    install_torch(monkeypatch, ["a card"], hip="7.2")
    keras = install_keras(monkeypatch, "torch")

    placement.choose("keras", "cpu")
    assert keras.device_now == "cpu"

    assert placement.choose("keras", "gpu")["backend"] == "rocm"
    assert keras.device_now == "cuda:0"


def test_keras_on_torch_is_where_its_tensors_are(monkeypatch):
    """KERAS_TORCH_DEVICE may name another GPU than the first, or the CPU: what a tensor says counts."""
    install_torch(monkeypatch, ["a card", "a card"], hip="7.2")

    install_keras(monkeypatch, "torch", "cuda:1")
    assert placement.describe("keras")["index"] == 1

    install_keras(monkeypatch, "torch", "cpu")
    assert placement.describe("keras")["backend"] == "cpu"
    with pytest.raises(RocmlabError, match="sees no GPU"):
        placement.choose("keras", "gpu")


@pytest.mark.parametrize("framework", ["jax", "torch", "tensorflow"])
def test_without_a_gpu_the_answer_is_the_cpu(monkeypatch, framework):
    """A framework without a GPU is described as CPU, whatever the host has; asking for a GPU is an error."""
    install_torch(monkeypatch)
    install_jax(monkeypatch)
    install_tensorflow(monkeypatch, build=["is_rocm_build"])

    assert placement.choose(framework)["backend"] == "cpu"
    with pytest.raises(RocmlabError, match="sees no GPU"):
        placement.choose(framework, "gpu")


def test_choosing_the_cpu_hides_the_gpus_from_tensorflow(monkeypatch):
    """After `cpu` TensorFlow has no GPU left to compute on."""
    tensorflow = install_tensorflow(monkeypatch, ["a card"], ["is_rocm_build"])

    assert placement.choose("tensorflow", "cpu")["backend"] == "cpu"
    assert tensorflow.hidden
    assert placement.describe("tensorflow")["backend"] == "cpu"


def test_unknown_words_are_rejected():
    """A wrong device or framework is answered with the right ones."""
    with pytest.raises(RocmlabError, match="device='gpus'"):
        placement.choose("torch", "gpus")
    with pytest.raises(RocmlabError, match="'mxnet'"):
        placement.describe("mxnet")


def test_a_team_is_made_of_gpus_of_one_kind(monkeypatch):
    """Integrated graphics next to two equal cards is excluded."""
    install_torch(monkeypatch, ["Radeon RX 7900 XTX", "Radeon Graphics", "Radeon RX 7900 XTX"], hip="7.2")

    assert [one["index"] for one in placement.team("torch")] == [0, 2]


def test_a_team_without_two_gpus_is_simulated(monkeypatch):
    """One GPU, or the wish for the CPU, gives two parts of the CPU that say they are simulated."""
    install_torch(monkeypatch, ["Radeon RX 7900 XTX"], hip="7.2")

    team = placement.team("torch")

    assert [(one["backend"], one["index"], one["simulated"]) for one in team] == [("cpu", 0, True), ("cpu", 1, True)]
    with pytest.raises(RocmlabError, match="one GPU"):
        placement.team("torch", "gpu")


def test_a_team_on_the_cpu_ignores_gpus(monkeypatch):
    """Asked for the CPU, two GPUs do not matter."""
    install_torch(monkeypatch, ["Radeon RX 7900 XTX"] * 2, hip="7.2")

    assert all(one["simulated"] for one in placement.team("torch", "cpu"))


def test_what_frameworks_read_at_import_is_set_for_several_devices(monkeypatch):
    """JAX gets its parts of the CPU and threads enough for them, RCCL the loopback; what a user has set stays."""
    for name in ("XLA_FLAGS", "TF_ENABLE_ONEDNN_OPTS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("NPROC", "3")
    before = dict(os.environ)

    placement.prepare(4)

    found = dict(os.environ)
    for name in found.keys() - before.keys():
        monkeypatch.delenv(name)
    assert "--xla_force_host_platform_device_count=4" in found["XLA_FLAGS"]
    assert found["NPROC"] == "3"
    assert found["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert network.on_this_machine().items() <= found.items() or found["NCCL_SOCKET_IFNAME"]
