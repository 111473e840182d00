"""Stand-ins for what a machine without AMD hardware and without gigabytes to download does not have.

Each says in its metadata that it is one. They have just enough for the build to examine: none of them computes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from wheel_files import wheel

TENSORFLOW = """
__version__ = "2.20.0-dev0+selfbuilt"
class test:
    is_built_with_rocm = staticmethod(lambda: {rocm})
    is_built_with_cuda = staticmethod(lambda: False)
"""
# Of /opt/torch: most of what these take to install, and no check of the build looks at any of it. The
# CPU image of the other tests has all of it.
UNUSED_BESIDE_TORCH = (
    "accelerate",
    "datasets",
    "h5py",
    "hf-xet",
    "huggingface-hub",
    "keras",
    "networkx",
    "optree",
    "pandas",
    "peft",
    "pocl-binary-distribution",
    "pyarrow",
    "pydantic-core",
    "pyopencl",
    "regex",
    "scikit-learn",
    "sympy",
    "tensorboard-data-server",
    "tokenizers",
    "transformers",
)
TORCH = "from torch import version\n__version__ = {version!r}\n"


def tensorflow(folder: Path, *, rocm: bool) -> Path:
    """A `tensorflow-rocm` as AMD's images have it, version and all."""
    files = {"tensorflow/__init__.py": TENSORFLOW.format(rocm=rocm)}
    return wheel(folder, "tensorflow-rocm", "2.20.0.dev0+selfbuilt", files)


def torch(folder: Path, *, hip: str | None) -> None:
    """A PyTorch that says whether it is built with HIP; with it comes the triton that such builds require."""
    version = "2.13.0+rocm7.2" if hip else "2.13.0"
    files = {
        "torch/__init__.py": TORCH.format(version=version),
        "torch/version.py": f"hip = {hip!r}\ncuda = None\n",
    }
    wheel(folder, "torch", version, files, ["filelock", "triton-rocm==3.7.0"] if hip else ["filelock"])
    wheel(folder, "triton-rocm", "3.7.0", {"triton/__init__.py": ""})


def jax_plugin(folder: Path, kind: str) -> str:
    """JAX's plugin for `rocm7` or `cuda13`, which registers as the real ones do; return what asks pip for it."""
    name, version = f"jax-{kind}-plugin", "0.10.2+standin"
    module = name.replace("-", "_")
    entry_points = f"[jax_plugins]\nxla_{kind} = {module}\n"
    files = {f"{module}/__init__.py": "", f"{module}-{version}.dist-info/entry_points.txt": entry_points}
    wheel(folder, name, version, files)
    return f"{name}=={version}"


@contextmanager
def host_nodes(groups: Mapping[str, int], mode: int = 0o660) -> Iterator[None]:
    """Put device nodes on this very host, each owned by a group; what is /dev/null opens for whom the mode lets.

    Skips the test without root, and on a host that has such nodes of its own.
    """
    if os.geteuid() != 0:
        pytest.skip("making device nodes needs root: run .ci/run")
    folders = [Path(path).parent for path in groups if Path(path).parent != Path("/dev")]
    taken = [path for path in (*map(Path, groups), *folders) if path.exists()]
    if taken:
        pytest.skip(f"this host has a {taken[0]} of its own")
    try:
        for path, gid in groups.items():
            Path(path).parent.mkdir(exist_ok=True)
            os.mknod(path, mode | stat.S_IFCHR, os.makedev(1, 3))
            os.chown(path, 0, gid)
            os.chmod(path, mode)
        yield
    finally:
        for path in groups:
            Path(path).unlink(missing_ok=True)
        for folder in dict.fromkeys(folders):
            folder.rmdir()
