"""Who sees the device nodes of this host: all of its labs, so a test that makes some runs apart from tests of labs."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def seen(*, alone: bool) -> Iterator[None]:
    """Keep the nodes as they are meanwhile, or alone, to change them; tests of one run wait for each other."""
    run = os.environ.get("TEST_RUN")  # scripts/test's
    if not run:
        yield  # one test at a time
        return
    with Path(tempfile.gettempdir(), f"rocmlab-test-{run}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
