"""Training with the data on the device and an epoch as one compiled program, for Keras on any backend and PyTorch."""

from rocmlab.training.resident.engine import Fit
from rocmlab.training.resident.fit import fit_resident

__all__ = ["Fit", "fit_resident"]
