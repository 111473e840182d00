"""Import what people import first, so that Python compiles just that: packages are installed without compiling.

Usage: PYTHON imports.py [BACKEND NAME...], run by the interpreter of a kernel's environment; with arguments, those of
verify.py, it ends with that check. Most files are never imported, and compiling all takes longer than installing them.
What is imported later is compiled then, for as long as the container exists.

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

FRAMEWORKS = (
    *("torch.utils.data", "torch.nn.functional", "torch.optim", "torch.distributed", "torch.profiler"),
    *("torch._inductor.compile_fx", "torchvision.datasets", "torchvision.transforms", "torchaudio"),
    *("tensorflow", "keras", "jax.numpy", "jax.random", "pip._internal.cli.main"),
)
# The last need PyTorch, which the other process has compiled by then.
OTHERS = (
    *("ipykernel.kernelapp", "ipykernel.pylab.backend_inline", "IPython.core.completer", "ipywidgets", "tqdm.auto"),
    *("numpy", "pandas", "scipy.stats", "PIL.Image", "matplotlib.pyplot", "sklearn.linear_model", "sklearn.ensemble"),
    *("sklearn.model_selection", "pyopencl", "datasets", "accelerate", "peft"),
    *("transformers", "transformers.models.auto.modeling_auto", "transformers.trainer"),
)


def import_all(names: Iterable[str]) -> None:
    """Import each that is there; say which cannot be imported, which is for the build's checks to judge."""
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]):
            try:
                importlib.import_module(name)
            except Exception as err:
                sys.stderr.write(f"{name} is not compiled, it cannot be imported here: {err!r}\n")


def main(*wanted: str) -> None:
    """Import all, and check what was wanted.

    Raises:
        SystemExit: the environment is not what its backend promises.
    """
    if not importlib.util.find_spec("tensorflow"):
        os.environ.setdefault("KERAS_BACKEND", "torch")
    with ProcessPoolExecutor(1) as other:
        others = other.submit(import_all, OTHERS)
        import_all(FRAMEWORKS)
        if wanted:
            verify.check(*wanted)
        others.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
