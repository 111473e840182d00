"""A record is used only if each of its fields is what its type says, and what is wrong is said with place and value."""

from __future__ import annotations

from typing import Any

import pytest

from rocmlab.base import records
from rocmlab.runs.jobs import Result

GOOD: dict[str, Any] = {
    "name": "a",
    "notebook": "/a.ipynb",
    "parameters": {"lr": 0.1},
    "kernel": None,
    "status": "failed",
    "exit_code": 1,
    "started": "2026-11-23T10:00:00.000Z",
    "seconds": 2,
    "devices": [{"backend": "rocm", "index": 0, "name": "a GPU"}],
    "error": {"name": "ValueError", "value": "no", "line": 3, "cell": None},
    "files": {"log": "a.log"},
    "attempts": [{"status": "killed", "files": {}}],
    "of a newer rocmlab": object(),
}


def test_a_good_record_is_returned_as_it_is() -> None:
    """What a newer version has added is left to the caller."""
    assert records.check(GOOD, Result, "result") is GOOD


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "../a"}, "result.name is '../a'"),
        ({"notebook": ""}, "result.notebook is ''"),
        ({"status": "fine"}, "result.status is 'fine'"),
        ({"exit_code": True}, "result.exit_code is True"),
        ({"seconds": float("nan")}, "result.seconds is nan"),
        ({"seconds": -1}, "result.seconds is -1"),
        ({"started": "yesterday"}, "result.started is 'yesterday'"),
        ({"devices": [3]}, "result.devices[0] is 3"),
        ({"devices": [{}]}, "result.devices[0] has no backend, index, name"),
        ({"devices": [{"backend": [], "index": 0, "name": ""}]}, "result.devices[0].backend is []"),
        ({"seconds": 10**400}, f"result.seconds is {str(10**400)[:79]}…"),
        ({"devices": {}}, "result.devices is {}"),
        ({"error": {"name": "ValueError"}}, "result.error has no value"),
        ({"error": {"name": "ValueError", "value": "no", "line": None}}, "result.error.line is None"),
        ({"files": {"log": "../b.log"}}, "result.files is {'log': '../b.log'}"),
        ({"attempts": [{"status": "fine"}]}, "result.attempts[0].status is 'fine'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_value(change: dict[str, Any], problem: str) -> None:
    """The first field that is not what its type says."""
    with pytest.raises(ValueError, match=r"^result") as caught:
        records.check({**GOOD, **change}, Result, "result")

    assert str(caught.value) == problem


def test_a_field_without_a_default_is_needed() -> None:
    """All that are missing are named; something that is not an object is shown."""
    with pytest.raises(ValueError, match=r"^result has no notebook, parameters, kernel, status, exit_code$"):
        records.check({"name": "a"}, Result, "result")
    with pytest.raises(ValueError, match=r"^result is \[\]$"):
        records.check([], Result, "result")


def test_what_is_nested_too_deep_is_no_dict_of_a_record() -> None:
    """Code that recurses would fail over it."""
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}

    assert not records.fits({**GOOD, "recorded": deep}, Result)
    assert not records.fits({**GOOD, "attempts": [{"more": deep}]}, Result)
