"""What a client asks a warm parent for, checked."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocmlab.base import job_tokens
else:
    import _rocmlab_warm_job_tokens as job_tokens

PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")


@dataclass(frozen=True)
class Request:
    """What a client asks a kernel to be."""

    cwd: str
    environment: dict[str, str]
    mark: str
    connection: dict[str, Any]
    connection_file: str
    arguments: list[str]  # more words for ipykernel's command line
    output: int  # a descriptor for its output
    lifeline: int  # a pipe whose other end the client holds
    leases: list[int]


def parse(message: Mapping[str, Any], descriptors: Sequence[int], added: Mapping[str, str], scratch: str) -> Request:
    """Return a request.

    Args:
        message: the client's.
        descriptors: that came with it.
        added: what the imports have added to the environment, as they would have in the kernel.
        scratch: a folder for the kernel, not there yet.

    Raises:
        ValueError: it makes no sense.
        KeyError: it lacks something.
        TypeError: something in it is of another kind.
    """
    if len(descriptors) < 2:
        raise ValueError("a descriptor for the output and one for the lifeline are needed")
    mark = _typed(message, "mark", str, None) or secrets.token_hex(8)
    if not job_tokens.PATTERN.fullmatch(mark):
        raise ValueError(f"no mark of 16 hexadecimal digits: {mark}")
    words = _typed(message, "arguments", list, [])
    if not all(isinstance(word, str) for word in words):
        raise TypeError("arguments are text")
    return Request(
        cwd=_typed(message, "cwd", str),
        environment={**added, **_environment(message)},
        mark=mark,
        connection=_typed(message, "connection", dict, None) or _connection(scratch),
        connection_file=_typed(message, "connection_file", str, None) or os.path.join(scratch, "kernel.json"),
        arguments=words,
        output=descriptors[0],
        lifeline=descriptors[1],
        leases=list(descriptors[2:]),
    )


def _environment(message: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = _typed(message, "environment", dict)
    for name, text in found.items():
        if not isinstance(text, str) or not name or "=" in name or "\0" in name + text:
            raise ValueError(f"no environment variable: {name!r}")
    return {name: text for name, text in found.items() if name != "JPY_PARENT_PID"}  # it may outlive its parent


def _typed(message: Mapping[str, Any], name: str, kind: type, *default: object) -> Any:  # noqa: ANN401  as its kind
    found = message.get(name, *default) if default else message[name]
    if not isinstance(found, kind) and not (default and found is default[0]):
        raise TypeError(f"{name} is no {kind.__name__}")
    return found


def _connection(scratch: str) -> dict[str, Any]:
    """Return where a kernel shall listen: sockets in a folder that only this user can open."""
    ports = {port: number for number, port in enumerate(PORTS, 1)}
    common = {"key": secrets.token_hex(32), "signature_scheme": "hmac-sha256", "kernel_name": ""}
    return {"transport": "ipc", "ip": os.path.join(scratch, "s"), **ports, **common}
