"""The Jupyter workstation for AMD GPUs."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.training.metrics import record as record
    from rocmlab.training.metrics import skip as skip

__version__ = "0.1.0"
__all__ = ["__version__", "record", "skip"]


def __getattr__(name: str) -> object:
    """Import `record` and `skip` on first use, so that importing rocmlab stays cheap."""
    if name in ("record", "skip"):
        from rocmlab.training import metrics

        return getattr(metrics, name)
    msg = f"module 'rocmlab' has no attribute {name!r}"
    raise AttributeError(msg)
