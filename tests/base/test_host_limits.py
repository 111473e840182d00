"""The administrator's limits for the users of a host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocmlab.base import host_limits
from rocmlab.base.errors import RocmlabError
from rocmlab.base.host_limits import HostLimits
from rocmlab.kernels.leases import Leases


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a host, which is empty."""
    found = host_limits.path(tmp_path)
    found.parent.mkdir(parents=True)
    found.touch()
    return found


def test_a_host_without_the_file_has_no_limits(tmp_path: Path) -> None:
    """Nor does one whose file is empty."""
    before = host_limits.read(tmp_path)
    host_limits.path(tmp_path).parent.mkdir(parents=True)
    host_limits.path(tmp_path).touch()

    assert before == host_limits.read(tmp_path) == HostLimits(path=host_limits.path(tmp_path))
    assert before.gpus_per_user is before.hold_seconds is None


@pytest.mark.skipif(not Path("/proc/self/root").exists(), reason="Linux")
def test_no_other_way_to_this_host_leads_to_other_limits() -> None:
    """A user may name the root folder of a process of theirs, in which they have mounted an `/etc` of their own."""
    assert host_limits.path(Path("/proc/self/root")) == host_limits.path()


def test_each_limit_is_read(tmp_path: Path, file: Path) -> None:
    """Comments, empty lines and spaces mean nothing."""
    file.write_text(
        "# ours\n\nMAX_GPUS_PER_USER=2\n MAX_HOLD_SECONDS_WHILE_OTHERS_WAIT = 7200 \n"
        "HOLD_NOTICE_SECONDS=300\nHOLD_GRACE_SECONDS=0\n"
    )

    assert host_limits.read(tmp_path) == HostLimits(2, 7200, 300, 0, file)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("MAX_GPUS=2", "it is not one of MAX_GPUS_PER_USER,"),
        ("MAX_GPUS_PER_USER", "MAX_GPUS_PER_USER is a number of GPUs, 1 or more"),
        ("MAX_GPUS_PER_USER=0", "1 or more"),
        ("MAX_GPUS_PER_USER=-1", "1 or more"),
        ("MAX_GPUS_PER_USER=²", "1 or more"),
        ("MAX_GPUS_PER_USER=" + "9" * 5000, "1 or more"),
        ("MAX_HOLD_SECONDS_WHILE_OTHERS_WAIT=2h", "a number of seconds, 60 or more"),
        ("HOLD_NOTICE_SECONDS=3\x00", "60 or more"),
        ("HOLD_GRACE_SECONDS=1", "HOLD_GRACE_SECONDS is set twice"),
    ],
)
def test_a_wrong_line_is_an_error_that_names_it(tmp_path: Path, file: Path, line: str, why: str) -> None:
    """A limit with a typo does not silently mean none."""
    file.write_text(f"HOLD_GRACE_SECONDS=1\n\n{line}\n")

    with pytest.raises(RocmlabError) as raised:
        host_limits.read(tmp_path)

    assert raised.value.problem.what.startswith(f"{file}, line 3: ")
    assert why in raised.value.problem.why


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, file: Path) -> None:
    """It may have limits."""
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(RocmlabError, match="cannot be read") as raised:
        host_limits.read(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(RocmlabError, match="cannot be read"):
        host_limits.read(tmp_path)

    assert raised.value.problem.fix == f"on the host: sudo chmod a+r {file}"


def test_no_variable_of_a_user_changes_a_limit(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one of a limit's name nor another folder for the leases: the path of the host's file is fixed."""
    file.write_text("MAX_GPUS_PER_USER=1\n")
    monkeypatch.setenv("MAX_GPUS_PER_USER", "8")

    found = Leases.of_host({**os.environ, "LEASES_DIR": str(tmp_path / "mine")}, tmp_path)

    assert found.limits().gpus_per_user == 1
    assert Leases.of_host({"LEASES_DIR": str(tmp_path / "mine")}, Path("/")).limits().path == Path(
        "/etc/rocmlab/limits"
    )
