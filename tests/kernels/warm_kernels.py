"""Asking a kernel over its sockets, and processes that come and go."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zmq
from jupyter_client.session import Session

from rocmlab.base import job_tokens
from rocmlab.kernels import kernel as kernels
from rocmlab.kernels import kernelspec
from rocmlab.kernels.kernel import LocalKernel

ANSWER_SECONDS = 60.0


class Talk:
    """Requests to one kernel's shell, whose answers come in the replies."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        separator = "-" if connection["transport"] == "ipc" else ":"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.reconnect_ivl = 5
        self._socket.linger = 0
        place = f"{connection['ip']}{separator}{connection['shell_port']}"
        self._socket.connect(f"{connection['transport']}://{place}")
        self._session = Session(key=connection["key"].encode())

    def send(self, code: str, **expressions: str) -> None:
        """Send a cell and expressions to be looked at after it."""
        content = {
            "code": code,
            "silent": False,
            "store_history": False,
            "user_expressions": expressions,
            "allow_stdin": False,
            "stop_on_error": True,
        }
        self._session.send(self._socket, "execute_request", content)

    def answer(self) -> dict[str, Any]:
        """Wait for a reply."""
        if not self._socket.poll(ANSWER_SECONDS * 1000):
            raise AssertionError("the kernel does not answer")
        _, message = self._session.recv(self._socket)
        return message["content"]

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._context.term()


def ask(connection: Mapping[str, Any], code: str, expression: str = "None") -> Any:
    """Run a cell and return the value of an expression after it."""
    talk = Talk(connection)
    try:
        talk.send(code, value=expression)
        reply = talk.answer()
    finally:
        talk.close()
    assert reply["status"] == "ok", "\n".join(reply["traceback"])
    value = reply["user_expressions"]["value"]
    assert value["status"] == "ok", value
    return ast.literal_eval(value["data"]["text/plain"])


def fork(
    address: str,
    cwd: Path | str,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
    token: str | None = None,
) -> LocalKernel:
    """Have a kernel forked."""
    given = {**(os.environ if environment is None else environment), **({job_tokens.NAME: token} if token else {})}
    lease = SimpleNamespace(descriptors=tuple(descriptors))
    return LocalKernel({"argv": [sys.executable]}, "", str(cwd), given, lease, address)


@contextlib.contextmanager
def warm(address: str, cwd: Path | str, environment: Mapping[str, str] | None = None, **more) -> Iterator[LocalKernel]:
    """Have a kernel forked, and end it."""
    kernel = fork(address, cwd, environment, **more)
    try:
        yield kernel
    finally:
        kernel.destroy()


@contextlib.contextmanager
def started_cold(name: str, cwd: Path | str, environment: Mapping[str, str] | None = None) -> Iterator[LocalKernel]:
    """Start a kernel in the ordinary way, and end it."""
    kernel = kernels.start(kernelspec.find(name), str(cwd), dict(os.environ) if environment is None else environment)
    assert isinstance(kernel, LocalKernel)
    try:
        yield kernel
    finally:
        kernel.destroy()


def lives(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def gone(*pids: int, seconds: float = 2.0) -> bool:
    """Wait until none of these processes lives; False if one does after that time."""
    end = time.monotonic() + seconds
    while any(lives(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def program(source: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program that says something on its output and waits; it is killed at the end."""
    command = [sys.executable, "-c", source, *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> list[int]:
    """Wait for a line of numbers from a program."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]
