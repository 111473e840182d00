"""What `make status` says of the lab's Ray node."""

from __future__ import annotations

from typing import Any

import pytest

from rocmlab.cli import lab

READY = {
    "cluster": "192.168.1.10:6379",
    "pid": 7,
    "state": "ready",
    "head": "192.168.1.10:6379",
    "address": "192.168.1.11",
    "port": 6379,
    "is_head": False,
    "gpus": 2,
    "simulated": False,
    "problem": None,
}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, "node 192.168.1.11 of 192.168.1.10:6379, with 2 GPUs"),
        ({"is_head": True, "gpus": 1}, "head of 192.168.1.10:6379, with 1 GPU"),
        ({"simulated": True}, "node 192.168.1.11 of 192.168.1.10:6379, with 2 GPUs (SIMULATED)"),
        ({"state": "starting"}, "node 192.168.1.11 of 192.168.1.10:6379, with 2 GPUs, is starting"),
    ],
)
def test_a_node_that_runs_is_one_line(changed: dict[str, Any], line: str) -> None:
    """Whose head it is, and with which GPUs."""
    assert lab.node_lines({**READY, **changed}) == [line]


def test_a_node_that_cannot_start_says_why() -> None:
    """In the shape of every error."""
    problem = {"what": "the head cannot be reached", "why": "it is off", "fix": "turn it on"}

    lines = lab.node_lines({**READY, "state": "failed", "problem": problem})

    assert lines == ["the Ray node is not running: the head cannot be reached", "  why: it is off", "  fix: turn it on"]


def test_a_node_that_says_nothing_is_down() -> None:
    """As while the lab is stopped."""
    assert "make up" in lab.node_lines({"cluster": "head"})[0]
