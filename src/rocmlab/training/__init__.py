"""What notebooks import: data sets, recorded results, the device in use, several GPUs, resident training.

Nothing here imports a framework before the notebook has done so.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from rocmlab.training.resident.fit import fit_resident as fit_resident


def __getattr__(name: str) -> object:
    """Import `fit_resident` on first use: it needs NumPy, which `import rocmlab.training` does not."""
    if name == "fit_resident":
        from rocmlab.training.resident.fit import fit_resident

        return fit_resident
    msg = f"module 'rocmlab.training' has no attribute {name!r}"
    raise AttributeError(msg)
