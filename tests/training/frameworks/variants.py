"""Which tests of several backends each run leaves to some of them; `make test-long` runs all."""

from __future__ import annotations

import os

import pytest


def long_on(*backends, together=""):
    """Return the mark `long` where Keras has one of these backends: another one shows the same in each run."""
    if (backend := os.environ.get("KERAS_BACKEND")) not in backends:
        return pytest.mark.skipif(False, reason="")
    return pytest.mark.long(f"{together}, {backend}") if together else pytest.mark.long
