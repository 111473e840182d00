"""The Jupyter workstation for AMD GPUs."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.training.metrics import record as record

__version__ = "0.1.0"
__all__ = ["__version__", "record"]


def __getattr__(name: str) -> object:
    """Import `record` on first use, so that importing rocmlab stays cheap."""
    if name == "record":
        from rocmlab.training.metrics import record

        return record
    msg = f"module 'rocmlab' has no attribute {name!r}"
    raise AttributeError(msg)
