"""What the build scripts decide, without a build."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).parents[2]
LOCK = """\
# made by scripts/lock
contourpy==1.3.2 ; python_full_version < '3.11' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
jupyter-client==8.10.0 \\
    --hash=sha256:cc
numpy==2.4.6 ; python_full_version >= '3.11' \\
    --hash=sha256:dd
"""


@pytest.fixture(scope="module")
def additions() -> ModuleType:
    """docker/build/additions.py as a module."""
    spec = importlib.util.spec_from_file_location("additions", REPOSITORY / "docker/build/additions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_what_is_missing_is_installed(additions: ModuleType) -> None:
    """An entry goes with its hashes, whatever the version of the distribution that is there."""
    wanted = additions.missing(LOCK, {"jupyter-client": "7.0", "contourpy": "1.0"})

    assert wanted == "numpy==2.4.6 ; python_version >= '3.11' \\\n    --hash=sha256:dd\n"


def test_markers_hold_for_a_release_candidate(additions: ModuleType) -> None:
    """Ubuntu 22.04's python3.11 is 3.11.0rc1, which as a full version is neither < 3.11 nor >= 3.11."""
    assert "python_full_version" not in additions.missing(LOCK, {})


@pytest.mark.parametrize("provider", ["tensorflow-rocm", "tensorflow-cpu", "tf-nightly-rocm"])
def test_constraints_forbid_another_tensorflow(additions: ModuleType, provider: str) -> None:
    """Where TensorFlow comes from another distribution, `tensorflow` itself may never be installed over it."""
    lines = additions.constraints({provider: "2.20.0.dev0+selfbuilt", "numpy": "2.2.6"}).splitlines()

    assert lines == [*sorted(["numpy==2.2.6", f"{provider}==2.20.0.dev0+selfbuilt"]), "tensorflow<0"]


def test_constraints_keep_tensorflow_itself(additions: ModuleType) -> None:
    """Where the base has `tensorflow`, it keeps its version."""
    assert additions.constraints({"tensorflow": "2.17.0"}) == "tensorflow==2.17.0\n"


def test_constraints_leave_out_what_pip_cannot_read(additions: ModuleType) -> None:
    """One version that pip cannot read would make it refuse the whole file."""
    assert "odd" not in additions.constraints({"odd": "custom build", "tensorflow": "2.17.0"})
