"""The messages between a run and the nodes of its cluster have a number, which changes with them."""

from __future__ import annotations

import hashlib
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from rocmlab import __version__
from rocmlab.cluster.executor import nodes, task
from rocmlab.cluster.executor.node_agent import NodeAgent
from rocmlab.cluster.executor.nodes import PROTOCOL, SPOKEN, RemoteNode
from rocmlab.cluster.executor.remote_job import RemoteJob, RemoteRun
from rocmlab.kernels.kernelspec import Kernelspec
from rocmlab.notebook.outcome import Outcome

CALLS: tuple[Callable[..., Any], ...] = (
    *(nodes.describe, nodes.prepare, task.execute),
    *(NodeAgent.__init__, NodeAgent.watch, NodeAgent.stop, NodeAgent.done, NodeAgent.delivered, NodeAgent.keep),
    NodeAgent.close,
)
# By protocol: what `shape` returned. A number that was published never gets another shape.
SHAPES = {
    1: "630a05993c343de3",
    2: "0723a23fbb2957ab",
    3: "d43fdbd2e2af2417",
    4: "1bdb97c376d1940c",
    5: "42f68f0e6c8e73d0",
}


def shape() -> str:
    """Return a digest of all that a run and a node send to each other: the fields of each class, and the calls."""
    lines = [f"{call.__qualname__}{inspect.signature(call)}" for call in CALLS]
    pending: list[Any] = [RemoteRun, RemoteJob, RemoteNode, Outcome]
    seen: list[Any] = []
    while pending:
        kind = pending.pop(0)
        if kind in seen:
            continue
        seen.append(kind)
        hints = typing.get_type_hints(kind, localns={**vars(typing), "Kernelspec": Kernelspec})
        for field in fields(kind):
            lines.append(f"{kind.__qualname__}.{field.name}: {field.type}")
            pending += classes(hints[field.name])
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def classes(hint: object) -> Iterator[object]:
    """Yield the data classes in a type."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes(part)


def test_messages_that_change_get_a_new_number() -> None:
    """Clones of one version differ, and a node that misreads a job would run another one."""
    assert SHAPES.get(PROTOCOL) == shape(), (
        f"the messages changed: raise PROTOCOL in cluster/executor/nodes.py, and add it here with {shape()!r}"
    )


@pytest.mark.parametrize("version", [__version__, f"{__version__} (protocol {PROTOCOL + 1})", "0.0.9 (protocol 1)"])
def test_a_node_of_another_protocol_is_not_used(version: str) -> None:
    """Also one whose package has the same version, or that knows no number yet."""
    problem = nodes.describe(version, "node", "host").problem

    assert problem is not None
    assert problem.what == f"it has rocmlab {SPOKEN}"
    assert f"rocmlab {version}," in problem.why
    assert nodes.describe(SPOKEN, "node", "host").problem is None
