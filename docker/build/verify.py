"""Stop the build when an environment is not what its backend promises.

Usage: PYTHON verify.py BACKEND tensorflow|torch|jax|lab|cluster [GFX|JAX_PACKAGES|CLUSTER], run by the interpreter in
question. No GPU is needed.
"""

from __future__ import annotations

import importlib.metadata
import sys


def tensorflow(backend: str) -> None:
    """Check what the imported TensorFlow was built for."""
    import tensorflow as tf

    built = {"rocm": tf.test.is_built_with_rocm(), "cuda": tf.test.is_built_with_cuda()}
    if not built.get(backend, True):
        sys.exit(
            f"error: TensorFlow {tf.__version__} in {sys.prefix} is not built with {backend}, so it would compute on "
            f"the CPU: set BASE_IMAGE to an image whose TensorFlow is, or BACKEND=cpu"
        )
    sys.stderr.write(
        f"TensorFlow {tf.__version__}: built with {[name for name, is_built in built.items() if is_built] or 'cpu'}\n"
    )


def torch(backend: str, gfx: str = "") -> None:
    """Check what the imported PyTorch was built for, and that it has the kernels for each target of a slim image."""
    import torch

    found = {"rocm": torch.version.hip, "cuda": torch.version.cuda}
    if backend in found and not found[backend]:
        sys.exit(
            f"error: PyTorch {torch.__version__} is not built for {backend} (torch.version says {found}), so it would "
            f"compute on the CPU: set TORCH_INDEX to an index with {backend} builds, or put such a wheel into WHEELS"
        )
    if backend == "cpu" and any(found.values()):
        sys.exit(
            f"error: PyTorch {torch.__version__} is built for a GPU ({found}), gigabytes that the cpu backend cannot "
            "use: set TORCH_INDEX to an index with CPU builds, or put such a wheel into WHEELS"
        )
    for target in filter(None, gfx.split(",")):
        name = f"amd-torch-device-{target}"
        version = importlib.metadata.version(name)
        if version != torch.__version__:  # PyPI has empty placeholders of these names
            sys.exit(
                f"error: {name} {version} does not belong to PyTorch {torch.__version__}, so a {target} would have no "
                "kernels: set TORCH_INDEX to AMD's index, where both are of one version"
            )
    sys.stderr.write(f"PyTorch {torch.__version__}: {found} {gfx}\n")


def jax(backend: str, packages: str = "") -> None:
    """Check that JAX imports, and that it will find the plugin for the backend's GPU where packages were given.

    Source: JAX looks for its plugins among the entry points of the group `jax_plugins` (xla_rocm7, xla_cuda13).
    """
    import jax

    found = {plugin.name: plugin for plugin in importlib.metadata.entry_points(group="jax_plugins")}
    if packages and not any(backend in name for name in found):
        sys.exit(
            f"error: JAX {jax.__version__} in {sys.prefix} has no plugin for {backend} (it has {sorted(found)}), so it "
            f"would compute on the CPU, though JAX_PACKAGES={packages!r} was asked for: name the plugin for {backend} "
            "and this JAX there, or take it back with JAX_PACKAGES="
        )
    for name, plugin in found.items():
        try:
            plugin.load()
        except Exception as err:
            sys.exit(f"error: JAX's plugin {name} cannot be imported ({err!r}): name another version in JAX_PACKAGES")
    sys.stderr.write(f"JAX {jax.__version__}: {sorted(found) or 'cpu'}\n")


def cluster(_backend: str, wanted: str = "") -> None:
    """Check that Ray imports where the lab is to be part of a cluster."""
    if wanted:
        import ray

        sys.stderr.write(f"Ray {ray.__version__} in {sys.prefix}\n")


def lab(_backend: str) -> None:
    """Check that JupyterLab starts without the grammar that costs every Jupyter program a second."""
    import jupyterlab.labapp

    if "rfc3987_syntax" in sys.modules:
        sys.exit(
            "error: importing JupyterLab imports rfc3987_syntax, which costs 0.8 to 1.6 s at every start: "
            "take it out of requirements/lab.txt again (scripts/lock leaves it out)"
        )
    sys.stderr.write(f"JupyterLab {jupyterlab.labapp.__version__} imports without rfc3987_syntax\n")


CHECKS = {"tensorflow": tensorflow, "torch": torch, "jax": jax, "lab": lab, "cluster": cluster}


def check(backend: str, name: str, *details: str) -> None:
    """Run the check of this name.

    Raises:
        SystemExit: the environment is not what its backend promises.
    """
    CHECKS[name](backend, *details)


if __name__ == "__main__":
    check(*sys.argv[1:])
