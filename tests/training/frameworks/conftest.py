"""What the tests of several frameworks share: the function under test, and a process group of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def fit_resident():
    """Return the function under test, by the way a notebook imports it."""
    from rocmlab.training import fit_resident

    return fit_resident


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """Make this process the only rank of a group."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    # gloo's thread may still have to release a tensor, for which it needs the interpreter's lock; who drops the last
    # reference to the group has that lock, and would wait for the thread for ever.
    dist.barrier()
    dist.destroy_process_group()
