"""Import what people import first, so that Python compiles just that: packages are installed without compiling.

Usage: PYTHON imports.py, run by the interpreter of a kernel's environment. Most files are never imported, and compiling
all takes longer than installing them. What is imported later is compiled then, for as long as the container exists.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

NAMES = (
    *("ipykernel.kernelapp", "ipykernel.pylab.backend_inline", "IPython.core.completer", "ipywidgets", "tqdm.auto"),
    *("numpy", "pandas", "scipy.stats", "PIL.Image", "matplotlib.pyplot", "sklearn.linear_model", "sklearn.ensemble"),
    *("sklearn.model_selection", "torch.utils.data", "torch.nn.functional", "torch.optim", "torch.distributed"),
    *("torch.profiler", "torch._inductor.compile_fx", "torchvision.datasets", "torchvision.transforms", "torchaudio"),
    *("jax.numpy", "jax.random", "tensorflow", "keras", "accelerate", "datasets", "peft", "pyopencl"),
    *("transformers", "transformers.models.auto.modeling_auto", "transformers.trainer", "pip._internal.cli.main"),
)


def main() -> None:
    """Import each that is there; say which cannot be imported, which is for the build's checks to judge."""
    if not importlib.util.find_spec("tensorflow"):
        os.environ.setdefault("KERAS_BACKEND", "torch")
    for name in NAMES:
        if importlib.util.find_spec(name.partition(".")[0]):
            try:
                importlib.import_module(name)
            except Exception as err:
                sys.stderr.write(f"{name} is not compiled, it cannot be imported here: {err!r}\n")


if __name__ == "__main__":
    main()
