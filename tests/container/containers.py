"""A running container and what a test asks of it, after docker-stacks' TrackedContainer."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence

import websocket

TOKEN = "a-token-of-the-tests"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def docker(*arguments: str, text: str | None = None, timeout_seconds: float = 120) -> str:
    """Run docker and return its standard output; a failure carries what it printed."""
    done = subprocess.run(
        ["docker", *arguments], input=text, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(arguments)} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Container:
    """A container that is removed, with its anonymous volumes, at the end of the `with` block."""

    def __init__(self, image: str, *options: str, command: Sequence[str] = (), token: str = TOKEN) -> None:
        self.token = token
        given = ["--env", f"JUPYTER_TOKEN={token}"] if token else []
        self.id = docker("run", "--detach", "--publish", "127.0.0.1::8888", *given, *options, image, *command).strip()

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        docker("rm", "--force", "--volumes", self.id)

    # -- from outside ------------------------------------------------------------------------------------------------

    def inspect(self, template: str) -> str:
        """Return what `docker inspect` says."""
        return docker("inspect", "--format", template, self.id).strip()

    def logs(self) -> str:
        """Return everything printed so far, both streams."""
        done = subprocess.run(["docker", "logs", self.id], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def wait(self) -> int:
        """Wait for the container's end and return its exit code."""
        return int(docker("wait", self.id))

    def wait_for_server(self, timeout_seconds: float = 20) -> Container:
        """Wait until /api answers."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            if self.request("/api", token=None)[0] == 200:
                return self
            if self.inspect("{{.State.Running}}") != "true":
                break
            time.sleep(0.05)
        raise TimeoutError(f"no answer within {timeout_seconds} s\n{self.logs()}")

    def wait_for_health(self, timeout_seconds: float = 20) -> str:
        """Wait until the first verdict of the health check."""
        deadline = time.monotonic() + timeout_seconds
        while (status := self.inspect("{{.State.Health.Status}}")) == "starting" and time.monotonic() < deadline:
            time.sleep(0.1)
        return status

    # -- over HTTP ---------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The published address, host:port."""
        return docker("port", self.id, "8888").splitlines()[0]

    def request(self, path: str, *, token: str | None, method: str = "GET", body: object = None) -> tuple[int, str]:
        """Return status and body; status 0 where nobody answers."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"token {token}"} if token else {}
        request = urllib.request.Request(f"http://{self.address}{path}", data=data, method=method, headers=headers)
        try:
            with OPENER.open(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as err:
            with err:
                return err.code, err.read().decode()
        except OSError:
            return 0, ""

    def execute(self, kernel: str, code: str) -> str:
        """Run code in a new kernel of the server, as a notebook does, and return what it printed and raised."""
        answer = self.request("/api/kernels", token=self.token, method="POST", body={"name": kernel})
        identity, session = json.loads(answer[1])["id"], uuid.uuid4().hex
        url = f"ws://{self.address}/api/kernels/{identity}/channels?session_id={session}&token={self.token}"
        channel = websocket.create_connection(url, timeout=120)
        try:
            return _execute(channel, session, code)
        finally:
            channel.close()
            self.request(f"/api/kernels/{identity}", token=self.token, method="DELETE")

    # -- inside ------------------------------------------------------------------------------------------------------

    def exec(self, *command: str, text: str | None = None) -> str:
        """Run a command in the container as root."""
        return docker("exec", "--interactive", self.id, *command, text=text)

    def as_lab_user(self, *command: str, text: str | None = None) -> str:
        """Run a command in the container as the lab does."""
        return self.exec("start.sh", *command, text=text)

    def server_status(self) -> dict[str, str]:
        """Return /proc/PID/status of the Jupyter server."""
        script = "cat /proc/$(pgrep --oldest --full jupyter-lab)/status"
        lines = (line.partition(":") for line in self.exec("bash", "-c", script).splitlines())
        return {name: value.strip() for name, _, value in lines}


def _execute(channel: websocket.WebSocket, session: str, code: str) -> str:
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
