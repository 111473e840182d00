"""What the tests of several frameworks share: the function under test."""

from __future__ import annotations

import pytest


@pytest.fixture
def fit_resident():
    """Return the function under test, by the way a notebook imports it."""
    from rocmlab.training import fit_resident

    return fit_resident
