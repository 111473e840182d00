"""The parts into which the tests marked `long` are divided."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import long_parts
import pytest

pytestmark = pytest.mark.slow

TESTS = """
import pytest

@pytest.mark.long
@pytest.mark.parametrize("number", range(6))
def test_of_several(number): pass

@pytest.mark.long
def test_of_one(): pass

@pytest.mark.native
@pytest.mark.long
def test_of_a_lab(): pass

@pytest.mark.frameworks
@pytest.mark.parametrize("number", [pytest.param(number, marks=pytest.mark.long(str(number))) for number in range(20)])
def test_of_a_framework(number): pass

def test_of_each_run(): pass
"""


def run_part(folder: Path, part: str) -> set[str]:
    """Return the tests that run in a part."""
    (folder / "conftest.py").write_text(
        "from long_parts import keep_part, pytest_report_header\n"
        "def pytest_collection_modifyitems(config, items): keep_part(config, items)\n"
    )
    (folder / "pyproject.toml").write_text('[tool.pytest]\nmarkers = ["long", "native", "frameworks"]\n')
    (folder / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "no:xdist", "test_it.py"],
        cwd=folder,
        env={**os.environ, "LONG_PART": part, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"tests marked long: {'part ' if part != 'all' else ''}{part}" in done.stdout
    return set(re.findall(r"test_it\.py::(\S+) PASSED", done.stdout))


@pytest.mark.slow
def test_all_parts_together_have_every_test_and_each_has_one_of_several(tmp_path: Path) -> None:
    """What one commit leaves is run by another; each tests all that has variants with some of these.

    So do GitHub's four together with what needs no engine, and those runs that have the same frameworks.
    """
    whole = run_part(tmp_path, "all")
    parts = [run_part(tmp_path, str(number)) for number in range(long_parts.PARTS)]

    assert len(whole) == 29
    assert set.union(*parts) == whole
    assert whole - set.union(*parts[:4]) <= {name for name in whole if "lab" in name or "framework" in name}
    for third in (parts[::3], parts[1::3], parts[2::3]):
        assert {name for name in whole if "framework" in name} <= set.union(*third)
    assert all("test_of_each_run" in part for part in parts)
    assert all(sum(name.startswith("test_of_several") for name in part) in (1, 2) for part in parts)
    assert [sum(name in part for part in parts) for name in ("test_of_one", "test_of_a_lab")] == [2, 1]


def chosen_part(repository: Path, folder: Path, *words: str, **environment: str) -> str:
    """Return the part for which scripts/test would have pytest run."""
    python = folder / "python"
    python.write_text('#!/bin/sh\necho "part=$LONG_PART"\n')
    python.chmod(0o755)
    own = {name: value for name, value in os.environ.items() if name != "LONG_PART"} | environment
    command = [repository / "scripts/test", words[0], python, *words[1:]]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
    return done.stdout.split("part=")[1].split()[0]


def test_the_commit_chooses_the_part_unless_one_is_named(repository: Path, tmp_path: Path) -> None:
    """A test that is named is run whatever its part, and `make test-long` has all."""
    head = subprocess.run(["git", "-C", repository, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    of_the_commit = str(int(head.stdout or "0", 16) % long_parts.PARTS)

    assert chosen_part(repository, tmp_path, "--hermetic", "tests/devices") == of_the_commit
    assert chosen_part(repository, tmp_path, "--hermetic", "tests/devices", LONG_PART="2") == "2"
    assert chosen_part(repository, tmp_path, "--hermetic", "tests/test_hosts.py::test_it") == "all"
    assert chosen_part(repository, tmp_path, "--long", "tests/devices", LONG_PART="2") == "all"


@pytest.mark.parametrize("count", range(2, 10))
def test_no_part_is_without_a_variant(count: int) -> None:
    """However many there are."""
    for parts in (long_parts.FEWER, long_parts.PARTS):
        for part in range(parts):
            assert any(long_parts.in_part(part, parts, "a test", index, count) for index in range(count))
