"""Keras' History with what `fit_resident` adds, at module level so that it can be pickled; it imports Keras."""

from __future__ import annotations

import keras

from rocmlab.training.resident.engine import Fit


class KerasFit(keras.callbacks.History, Fit):  # type: ignore[misc]  # Keras has no types
    """The History of a training by `fit_resident`; `how` and `seconds` are filled in at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.how = ""
        self.seconds: list[float] = []
