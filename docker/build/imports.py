"""Import what people import first, so that Python compiles just that: packages are installed without compiling.

Usage: PYTHON imports.py BACKEND needs|torch|tensorflow [GFX], run by the interpreter of a kernel's environment. `needs`
stands for what PyTorch's has before PyTorch. It ends with the check of the framework, see verify.py. Most files are
never imported, and compiling all takes longer than installing them. What is imported later is compiled then, for as
long as the container exists.

It does so in two processes, since one uses a single CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import verify

# Of each what the two processes import. The second begins with what needs nothing that the first one compiles.
NAMES = {
    # What goes without PyTorch. TensorFlow's environment has most of it as well, in the same files: see link.py.
    "needs": (
        (
            *("matplotlib.pyplot", "pandas", "scipy.stats", "PIL.Image", "h5py", "sklearn.linear_model"),
            *("sklearn.ensemble", "sklearn.model_selection", "pyopencl"),
        ),
        (
            *("pip._internal.cli.main", "ipywidgets", "IPython.core.completer", "ipykernel.kernelapp", "tqdm.auto"),
            *("jax.numpy", "jax.random", "tensorboard.notebook", "ipykernel.pylab.backend_inline"),
        ),
    ),
    "torch": (
        (
            *("torch.utils.data", "torch.nn.functional", "torch.optim", "torch.distributed", "torch.profiler"),
            *("torch._inductor.compile_fx", "keras"),
        ),
        (
            *("sympy", "networkx", "datasets", "accelerate", "peft", "transformers.models.auto.modeling_auto"),
            *("transformers.trainer", "torchvision.datasets", "torchvision.transforms", "torchaudio"),
        ),
    ),
    "tensorflow": (("tensorflow", "keras"), ()),
}


def import_all(names: Iterable[str]) -> None:
    """Import each that is there; say which cannot be imported, which is for the build's checks to judge."""
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]):
            try:
                importlib.import_module(name)
            except Exception as err:
                sys.stderr.write(f"{name} is not compiled, it cannot be imported here: {err!r}\n")


def main(backend: str, name: str, *details: str) -> None:
    """Import, and check what was imported.

    Raises:
        SystemExit: the environment is not what its backend promises.
    """
    if name == "torch":
        os.environ.setdefault("KERAS_BACKEND", "torch")
    first, second = NAMES[name]
    with ProcessPoolExecutor(1) as other:
        others = other.submit(import_all, second)
        import_all(first)
        if name in verify.CHECKS:
            verify.check(backend, name, *details)
        others.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
