"""What a framework really computes on, as the framework itself reports it.

The answer never comes from the host's list of devices: a lab with GPUs can still compute on the CPU, and must
report that.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover
from rocmlab.devices.roots import has_simulated_driver
from rocmlab.training import more_gpus, network

Description = dict[str, Any]  # backend, name, index, pci, simulated
CHOICES = ("auto", "gpu", "cpu")
# How XLA adds up gradients: 128 MB at a time (its own default is 30 MB), in place instead of in one copied buffer, and
# while the next are computed.
XLA_SUMS = "--xla_gpu_all_reduce_combine_threshold_bytes=134217728"
XLA_IN_PLACE = "--xla_disable_hlo_passes=all-reduce-contiguous"
XLA_OVERLAP = "--xla_gpu_enable_latency_hiding_scheduler=true"
XLA = f"{XLA_SUMS} {XLA_IN_PLACE} {XLA_OVERLAP}"
_keras_scope = ExitStack()  # what makes Keras on PyTorch compute on the CPU, as long as that is wanted
atexit.register(_keras_scope.close)


def choose(framework: str, device: str = "auto") -> Description:
    """Make `framework` compute on the device a notebook requested, and describe it.

    Call it before the framework computes anything. `auto` takes the first GPU the framework can use, else the
    CPU; `gpu` insists on one; `cpu` hides them all from this process.

    Args:
        framework: `tensorflow`, `jax` or `torch`; `keras` for the one that Keras computes with.
        device: `auto`, `gpu` or `cpu`.

    Raises:
        RocmlabError: a GPU was requested and the framework has none, or an argument is unknown.
    """
    if device not in CHOICES:
        raise RocmlabError(f"device={device!r} is unknown", "", f"use one of: {', '.join(CHOICES)}")
    if framework == "keras":
        _keras_scope.close()
    if device == "cpu":
        _hide_gpus(framework)
        return _cpu()
    found = visible(framework)
    if device == "gpu" and found[0]["backend"] == "cpu":
        raise RocmlabError(
            f'device="gpu", but {framework} sees no GPU',
            f"{framework} lists only the CPU",
            f'{more_gpus.advice(framework, 1)}; or use device="auto" or device="cpu"',
        )
    return found[0]


def describe(framework: str) -> Description:
    """Describe what `framework` computes on by default: its first visible GPU, else the CPU."""
    return visible(framework)[0]


def visible(framework: str) -> list[Description]:
    """Describe every device `framework` may use in this process: GPUs in its own order, then the CPU.

    Each has `backend` (rocm, cuda, metal, cpu), `name`, `index` (the framework's number), `pci` (None if the
    framework does not report it) and `simulated` (an AMD GPU where `rocmlab simulate --run` started this
    process).
    """
    return [*_reader(framework)(), _cpu()]


def alike(found: Sequence[Description]) -> list[Description]:
    """Return the GPUs that can share one job: the largest group with one name.

    A collective over integrated graphics and a card hangs, so kinds are not mixed.
    """
    gpus = [one for one in found if one["backend"] != "cpu"]
    if not gpus:
        return []
    name, _count = Counter(one["name"] for one in gpus).most_common(1)[0]
    return [one for one in gpus if one["name"] == name]


def team(framework: str, device: str = "auto", size: int = 2) -> list[Description]:
    """Return the devices a job on several devices runs on: GPUs of one kind, or `size` parts of the CPU.

    Parts of the CPU are `simulated`: they show that the method is right, and are no measure of speed. Why they are
    used, and how this process would get more GPUs, is printed.

    Raises:
        RocmlabError: `device` is `gpu` and there are fewer than two alike, or an argument is unknown.
    """
    first = choose(framework, device)
    gpus = alike(visible(framework)) if device != "cpu" else []
    if len(gpus) >= 2:
        return gpus
    if device == "gpu":
        raise RocmlabError(
            f'device="gpu", but {framework} sees one GPU of the kind {first["name"]}',
            "work is shared between two or more GPUs of one kind",
            f'{more_gpus.advice(framework)}; or use device="auto" to simulate two on the CPU',
        )
    if device == "auto":
        seen = f"{len(gpus)} GPU of one kind" if gpus else "no GPU"
        sys.stdout.write(f"SIMULATED on {size} parts of the CPU: {framework} sees {seen}\n")
        sys.stdout.write(f"for GPUs: {more_gpus.advice(framework)}\n")
    return [{**_cpu(), "index": number, "simulated": True} for number in range(size)]


def prepare(parts: int = 2) -> None:
    """Set what TensorFlow and JAX read at import for a job on several devices or parts of the CPU, if it is not set."""
    settings = {
        "TF_ENABLE_ONEDNN_OPTS": "0",  # the same rounding on every CPU
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # leave GPU memory to others
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={parts} {XLA}",
        "NPROC": str(max(8, 2 * parts)),  # with fewer threads than parts, JAX' sums would wait for each other forever
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    os.environ.update(network.on_this_machine())  # RCCL listens for the other GPUs on the loopback alone


def _cpu() -> Description:
    return _description("cpu", discover()[-1].name, 0)


def _description(backend: str, name: str, index: int, pci: str | None = None) -> Description:
    simulated = backend == "rocm" and has_simulated_driver()
    return {"backend": backend, "name": name, "index": index, "pci": pci, "simulated": simulated}


def _reader(framework: str) -> Callable[[], list[Description]]:
    readers = {"tensorflow": _tensorflow_gpus, "jax": _jax_gpus, "torch": _torch_gpus, "keras": _keras_gpus}
    if framework not in readers:
        raise RocmlabError(f"framework {framework!r} is unknown", "", f"use one of: {', '.join(readers)}")
    return readers[framework]


def _hide_gpus(framework: str) -> None:
    _reader(framework)
    if framework == "keras":
        import keras

        framework = keras.backend.backend()
        if framework == "torch":  # Keras puts tensors on a GPU by default
            _keras_scope.enter_context(keras.device("cpu"))
    if framework == "tensorflow":
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
    if framework == "jax":
        import jax

        jax.config.update("jax_platforms", "cpu")  # keeps JAX from taking a GPU's memory, if it has not started
        jax.config.update("jax_default_device", jax.devices("cpu")[0])
    # PyTorch itself computes on a GPU only on request; there is nothing to hide.


def _keras_gpus() -> list[Description]:
    """Return the GPUs of Keras' backend, the one it computes on first."""
    import keras

    framework = keras.backend.backend()
    gpus = _reader(framework)()
    if framework != "torch":
        return gpus
    used = keras.ops.zeros(1).device  # `KERAS_TORCH_DEVICE` or a scope may have it elsewhere than on the first GPU
    return [] if used.type == "cpu" else sorted(gpus, key=lambda one: one["index"] != (used.index or 0))


def _tensorflow_gpus() -> list[Description]:
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    backend = "rocm" if build.get("is_rocm_build") else "cuda" if build.get("is_cuda_build") else "metal"
    found = []
    for index, gpu in enumerate(tf.config.get_visible_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        found.append(_description(backend, details.get("device_name") or gpu.name, index, _tensorflow_pci(index)))
    return found


def _tensorflow_pci(index: int) -> str | None:
    """Return the PCI address TensorFlow prints for a GPU, or None.

    Source: `physical_device_desc` of `device_lib.list_local_devices()`: "device: 0, name: …, pci bus id: …".
    """
    if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") != "true":
        return None  # the query would take all of the GPU's memory
    if has_simulated_driver():
        return None  # it would wait for a GPU that computes nothing
    from tensorflow.python.client import device_lib

    for local in device_lib.list_local_devices():
        if local.name == f"/device:GPU:{index}":
            match = re.search(r"pci bus id: ([0-9a-fA-F:.]+)", local.physical_device_desc)
            return match[1].lower() if match else None
    return None


def _jax_gpus() -> list[Description]:
    """Return the GPUs JAX computes on; none if it is set to compute on the CPU. JAX does not report PCI addresses."""
    import jax

    if getattr(jax.config.jax_default_device, "platform", jax.config.jax_default_device) == "cpu":
        return []
    try:
        found = jax.local_devices()
    except RuntimeError as err:
        raise RocmlabError(
            "JAX cannot start", str(err), 'unset JAX_PLATFORMS, or use device="cpu"; `make doctor` looks at the GPUs'
        ) from err
    gpus = []
    for one in found:
        if one.platform != "cpu":
            text = f"{one.platform} {one.client.platform_version}".lower()  # those of ROCm and CUDA are both `gpu`
            backend = next((word for word in ("rocm", "metal") if word in text), "cuda")
            gpus.append(_description(backend, one.device_kind, one.id))
    return gpus


def _torch_gpus() -> list[Description]:
    import torch

    if torch.cuda.is_available():
        backend = "rocm" if torch.version.hip else "cuda"
        every = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return [_description(backend, one.name, index, _torch_pci(one)) for index, one in enumerate(every)]
    if torch.backends.mps.is_available():
        return [_description("metal", "Apple GPU", 0)]
    return []


def _torch_pci(properties: object) -> str | None:
    """Return the PCI address that PyTorch reports; None where this version does not."""
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in parts:
        return None
    domain, bus, device = (int(part or 0) for part in parts)
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"
