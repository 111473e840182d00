"""What `rocmlab bench up` changes to measure a first start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import start
from benchmarks.start import as_for_the_first_time
from rocmlab.base.errors import RocmlabError


def test_a_first_build_has_empty_caches(repository: Path) -> None:
    """Each cache of the Dockerfile gets an id of its own and stays where it is; all steps are new."""
    dockerfile = (repository / "docker/Dockerfile").read_text()
    targets = re.findall(r"type=cache,target=([^,\s]+)", dockerfile)

    changed = as_for_the_first_time(dockerfile, "bench-1")

    assert len(targets) > 5
    assert re.findall(r"type=cache,id=bench-1(\S+?),target=([^,\s]+)", changed) == [(each, each) for each in targets]
    stages = re.findall(r"^FROM (\S+) AS \w+\n(.*)", changed, flags=re.MULTILINE)
    follow = {base: line for base, line in stages if base != "scratch"}
    assert follow.pop("${BASE_IMAGE}") == "ARG ROCMLAB_BENCH=bench-1", "it is before all that is run"
    assert set(follow) == {"base"}, "and all other stages come from this one"
    assert re.sub(r"id=bench-1[^,]+,|ARG ROCMLAB_BENCH=.*\n", "", changed) == dockerfile


def test_a_dockerfile_whose_steps_cannot_be_told_apart_is_not_measured() -> None:
    """The time would be that of a build which takes steps from an earlier one."""
    with pytest.raises(RocmlabError, match="the Dockerfile has no stage `base`"):
        as_for_the_first_time("FROM debian\nRUN true\n", "bench-1")


def test_the_copy_that_is_measured_has_what_an_installation_needs(repository: Path, tmp_path: Path) -> None:
    """`cold_native` failed, as the program that pyproject.toml names for builds was not in it."""
    copied = start._copy(repository, tmp_path / "copy")

    programs = re.findall(r'^path = "(.+)"$', (repository / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert "scripts/wheel_project.py" in programs
    assert [each for each in programs if not (copied / each).is_file()] == []
