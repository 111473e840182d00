"""What `rocmlab bench up` changes to measure a first start."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.start import with_caches_of_its_own


def test_a_first_build_has_empty_caches(repository: Path) -> None:
    """Each cache of the Dockerfile gets an id of its own and stays where it is; nothing else changes."""
    dockerfile = (repository / "docker/Dockerfile").read_text()
    targets = re.findall(r"type=cache,target=([^,\s]+)", dockerfile)

    changed = with_caches_of_its_own(dockerfile, "bench-1")

    assert len(targets) > 5
    assert re.findall(r"type=cache,id=bench-1(\S+?),target=([^,\s]+)", changed) == [(each, each) for each in targets]
    assert re.sub(r"id=bench-1[^,]+,", "", changed) == dockerfile
