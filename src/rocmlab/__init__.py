"""The Jupyter workstation for AMD GPUs."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.telemetry.in_kernel import load_ipython_extension as load_ipython_extension
    from rocmlab.telemetry.measurement import measure as measure
    from rocmlab.training.metrics import record as record
    from rocmlab.training.metrics import skip as skip

__version__ = "0.1.0"
__all__ = ["__version__", "measure", "record", "skip"]
LAZY = {
    "load_ipython_extension": "rocmlab.telemetry.in_kernel",  # `%load_ext rocmlab`
    "measure": "rocmlab.telemetry.measurement",
    "record": "rocmlab.training.metrics",
    "skip": "rocmlab.training.metrics",
}


def __getattr__(name: str) -> object:
    """Import `measure`, `record` and `skip` on first use, so that importing rocmlab stays cheap."""
    if name in LAZY:
        import importlib

        return getattr(importlib.import_module(LAZY[name]), name)
    msg = f"module 'rocmlab' has no attribute {name!r}"
    raise AttributeError(msg)
