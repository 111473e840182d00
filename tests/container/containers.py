"""A running container and what a test asks of it, after docker-stacks' TrackedContainer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import clients
import listeners

TOKEN = "a-token-of-the-tests"


def docker(*arguments: str, text: str | None = None, timeout_seconds: float = 120) -> str:
    """Run docker and return its standard output; a failure carries what it printed."""
    done = subprocess.run(
        ["docker", *arguments], input=text, capture_output=True, text=True, timeout=timeout_seconds, check=False
    )
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(arguments)} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def own(image: str, folder: Path, uid: int, gid: int) -> None:
    """Give a folder of the host and what is in it to a user, which only root can: in a container."""
    mount = f"--volume={folder}:/folder"
    docker("run", "--rm", "--entrypoint=chown", mount, image, "-h", "-R", f"{uid}:{gid}", "/folder")


@contextlib.contextmanager
def watched_container(name: str, limit_seconds: float = 1200) -> Iterator[list[listeners.Listener]]:
    """Watch what listens in a container outside its loopback; the list is filled at the end of the `with` block."""
    found: list[listeners.Listener] = []
    program = Path(listeners.__file__).read_text(encoding="utf-8")
    command = ["docker", "exec", "--interactive", name, "python3", "-c", program, str(limit_seconds)]
    watch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield found
    finally:
        told = json.loads(watch.communicate(timeout=60)[0])  # which closes its input
        assert told["looks"] > 1
        found.extend(listeners.Listener(**one) for one in told["found"])


def mirror() -> dict[str, str]:
    """Find what this machine's pip uses: a folder of wheels, a CA bundle, a configuration, a PyTorch index."""
    links = next((path for path in os.environ.get("PIP_FIND_LINKS", "").split() if Path(path).is_dir()), "")
    bundles = (os.environ.get(name, "") for name in ("PIP_CERT", "SSL_CERT_FILE"))
    return {
        "WHEELS": links,
        "CA_BUNDLE": next((path for path in bundles if Path(path).is_file()), ""),
        "PIP_CONFIG": next((path for path in [os.environ.get("PIP_CONFIG_FILE", "")] if Path(path).is_file()), ""),
    }


class Container:
    """A container that is removed, with its anonymous volumes, at the end of the `with` block.

    Kernels start cold unless a test is of that: a fork server that imports a framework for a second kernel, which most
    tests do not start, keeps a CPU busy for seconds.
    """

    def __init__(
        self, image: str, *options: str, command: Sequence[str] = (), token: str = TOKEN, warm: str = "off"
    ) -> None:
        self.token = token
        given = ["--env", f"JUPYTER_TOKEN={token}"] if token else []
        given += ["--env", f"WARM_KERNELS={warm}"]
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

    def wait_for_server(self, timeout_seconds: float = 120) -> Container:
        """Wait until /api answers."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline and self.inspect("{{.State.Running}}") == "true":
            server = self.server  # asked for once a second, for its port changes when the container starts again
            for _ in range(20):
                if server.request("/api", token=None)[0] == 200:
                    return self
                time.sleep(0.05)
        raise TimeoutError(f"no answer within {timeout_seconds} s\n{self.logs()}")

    def wait_for_health(self, timeout_seconds: float = 120) -> str:
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

    @property
    def server(self) -> clients.Server:
        """The Jupyter server, as a client reaches it."""
        return clients.Server(self.address, self.token)

    def request(self, path: str, *, token: str | None, method: str = "GET", body: object = None) -> tuple[int, str]:
        """Return status and body; status 0 where no one answers."""
        return self.server.request(path, token=token, method=method, body=body)

    def execute(self, kernel: str, code: str) -> str:
        """Run code in a new kernel of the server, as a notebook does, and return what it printed and raised."""
        return self.server.execute(kernel, code)

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
