"""What an overlay must not hide: the lab's frameworks, which are built for its GPUs, and what is compiled for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

# Distributions that install the same modules: whichever comes first on the path is imported.
SAME = (
    {"torch"},
    {"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-macos", "tensorflow-rocm"}
    | {"tf-nightly", "tf-nightly-cpu"},
    {"jaxlib"},
    {"triton", "triton-rocm", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"},
)
REQUIRED = ("tensorflow", "triton")  # the names of these groups that others require
PROTECTED = re.compile(
    r"torch|triton|triton-rocm|pytorch-triton.*|amd-.*|rocm|rocm-.*|nvidia-(?!ml-py).*|cuda-.*"
    r"|tensorflow(-(cpu|gpu|intel|macos|rocm))?|tf-nightly.*|jax|jaxlib|jax-.*(plugin|pjrt).*|ipykernel|rocmlab"
)
# Compiled for one build of a framework: PyPI's are for CUDA.
COMPANIONS: Mapping[str, str] = {
    **dict.fromkeys(
        ("torchvision", "torchaudio", "torchtext", "torchao", "torchcodec", "fbgemm-gpu", "vllm", "flash-attn"),
        "torch",
    ),
    **dict.fromkeys(("xformers", "bitsandbytes", "torch-scatter", "torch-sparse", "torch-cluster"), "torch"),
    **dict.fromkeys(("tensorflow-text", "tensorflow-io", "tensorflow-addons"), "tensorflow"),
}
GPU_BUILDS = ("rocm", "cu")


def is_protected(name: str) -> bool:
    """Return whether the version that the lab has must stay, by the normalized name."""
    return bool(PROTECTED.fullmatch(name)) or name in COMPANIONS


def twins(name: str) -> set[str]:
    """Return the other distributions that install what this one does."""
    return next((group for group in SAME if name in group), {name}) - {name}


def aliases(base: Mapping[str, str]) -> dict[str, str]:
    """Return names under which others require what the base has: `triton` where it has `triton-rocm`."""
    found = {each: version for each in REQUIRED for name, version in base.items() if each in twins(name)}
    return {name: version for name, version in found.items() if name not in base}


def pins(base: Mapping[str, str]) -> list[str]:
    """Return the constraints that keep the frameworks of a base as they are."""
    known = {**base, **aliases(base)}
    return [f"{name}=={version}" for name, version in sorted(known.items()) if is_protected(name)]


def replaced(added: Iterable[str], base: Mapping[str, str]) -> list[str]:
    """Return which of these packages would hide a framework of the base."""
    known = {**base, **aliases(base)}
    return [name for name in added if any(is_protected(each) and each in known for each in ({name} | twins(name)))]


def second(added: Iterable[str], requested: Collection[str], base: Mapping[str, str]) -> list[str]:
    """Return which frameworks came only because something needs them: builds for other hardware, and gigabytes."""
    names = {each for group in SAME for each in group}
    return [name for name in added if name in names and name not in requested and name not in base]


def build(version: str) -> str:
    """Return what a version was built for: `rocm` of `2.13.0+rocm7.2`; empty where the version does not have it."""
    return re.split(r"[^a-z]", version.partition("+")[2])[0]
