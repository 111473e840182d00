"""A Jupyter server as a client reaches it: requests with a token, and code run in a kernel."""

from __future__ import annotations

import contextlib
import itertools
import json
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any

import websocket

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(
    port: int, token: str, path: str, *, method: str = "GET", body: object = None, timeout_seconds: float = 2.0
) -> tuple[int, Any]:
    """Return status and JSON of whatever listens on a port of the loopback; status 0 where no one answers."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        headers={"Authorization": f"token {token}"},
        data=None if body is None else json.dumps(body).encode(),
    )
    try:
        with OPENER.open(request, timeout=timeout_seconds) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as err:
        with err:
            return err.code, None
    except (OSError, ValueError):
        return 0, None


def answers(port: int, token: str) -> bool:
    """Return whether a Jupyter server accepts this token."""
    return ask(port, token, "/api/status")[0] == 200


@dataclass(frozen=True)
class Server:
    """One server."""

    address: str  # host:port
    token: str

    def request(self, path: str, *, token: str | None, method: str = "GET", body: object = None) -> tuple[int, str]:
        """Return status and body; status 0 where no one answers."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"token {token}"} if token else {}
        request = urllib.request.Request(f"http://{self.address}{path}", data=data, method=method, headers=headers)
        try:
            with OPENER.open(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as err:
            with err:
                return err.code, err.read().decode()
        except OSError:
            return 0, ""

    def execute(self, kernel: str, code: str, *, keep: bool = False) -> str:
        """Run code in a new kernel, as a notebook does, and return what it printed; `keep` leaves it running."""
        answer = self.request("/api/kernels", token=self.token, method="POST", body={"name": kernel})
        identity = json.loads(answer[1])["id"]
        try:
            return self.execute_in(identity, code)
        finally:
            if not keep:
                self.request(f"/api/kernels/{identity}", token=self.token, method="DELETE")

    def execute_in(self, identity: str, code: str) -> str:
        """Run code in a kernel that runs, and return what it printed."""
        session = uuid.uuid4().hex
        url = f"ws://{self.address}/api/kernels/{identity}/channels?session_id={session}&token={self.token}"
        with contextlib.closing(websocket.create_connection(url, timeout=120)) as channel:
            return execute_on(channel, session, code)

    def gpu_processes(self) -> list[dict[str, Any]]:
        """Return the GPU processes of the next sample in the stream of the panel."""
        address = f"http://{self.address}/rocmlab/api/stream?token={self.token}"
        with OPENER.open(address, timeout=60) as stream:
            for line in itertools.islice(stream, 200):  # it never ends
                found = json.loads(line[6:]) if line.startswith(b"data: {") else {}
                if found.get("processes") is not None:
                    return found["processes"]
        raise AssertionError("no sample has processes")


def execute_on(channel: websocket.WebSocket, session: str, code: str) -> str:
    """Send one execute_request and collect its output until the kernel is idle again."""
    identity = uuid.uuid4().hex
    header = {"msg_id": identity, "msg_type": "execute_request", "session": session, "username": "", "version": "5.3"}
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    channel.send(json.dumps(message))
    printed = ""
    while True:
        answer = json.loads(channel.recv())
        if answer["parent_header"].get("msg_id") != identity:
            continue
        content = answer["content"]
        if answer["msg_type"] == "stream":
            printed += content["text"]
        elif answer["msg_type"] == "error":
            printed += f"{content['ename']}: {content['evalue']}\n"
        elif answer["msg_type"] == "status" and content["execution_state"] == "idle":
            return printed
