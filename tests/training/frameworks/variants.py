"""Which tests of several backends each run leaves to some of them; `make test-long` runs all."""

from __future__ import annotations

import os

import pytest


def long_on(*backends):
    """Return the mark `long` where Keras has one of these backends: another one shows the same in each run."""
    return pytest.mark.long if os.environ.get("KERAS_BACKEND") in backends else pytest.mark.skipif(False, reason="")
