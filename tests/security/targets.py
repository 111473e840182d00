"""What is attacked: a running lab with its token, its folders, its processes, and a secret of its user."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import clients
import psutil
from clones import Clone
from containers import docker
from raw_http import Answer, Site, canary

SECRETS = ("JUPYTER_TOKEN", "METRICS_TOKEN", "CLUSTER_TOKEN", "GRAFANA_PASSWORD")
START_SECONDS = 60.0


@dataclass
class Target:
    """A lab that runs, and what an authorised user knows of it."""

    name: str  # native or container
    lab: Clone
    canary: str = field(default_factory=canary)  # in a file of the user, and in nothing that others may see
    application: int = 0  # the port of an application of the user; 0: the lab has no extras, nor what they serve

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.lab.port}"

    @property
    def token(self) -> str:
        """The right one."""
        return self.lab.env["JUPYTER_TOKEN"]

    @property
    def metrics_token(self) -> str | None:
        """The one that may read the metrics; None where the lab has none."""
        return self.lab.env.get("METRICS_TOKEN")

    @cached_property
    def site(self) -> Site:
        """Its address, as anybody reaches it."""
        return Site(self.address)

    @property
    def server(self) -> clients.Server:
        """Its server, as its user reaches it."""
        return clients.Server(self.address, self.token)

    @property
    def secrets(self) -> dict[str, str]:
        """What no one else may see, by name."""
        known = {name: self.lab.env[name] for name in SECRETS if self.lab.env.get(name)}
        return {**known, "the user's file": self.canary}

    def told(self, text: str | None) -> str | None:
        """Return which secret a text has in it, if any."""
        return next((f"it has {name} in it" for name, value in self.secrets.items() if value in (text or "")), None)

    # -- as its user ---------------------------------------------------------------------------------------------

    def as_user(self, path: str, *, method: str = "GET", body: object = None) -> Answer:
        """Make a request with the right token; the first one of nbconvert imports every exporter, which takes long."""
        data = json.dumps(body).encode() if body is not None else b""
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        return self.site.send(path, headers, method=method, body=data, timeout_seconds=60.0)

    @cached_property
    def browser(self) -> Site:
        """A browser that is logged in: its cookies, and no token."""
        cookies = self.site.send(f"/lab?token={self.token}").cookies
        return Site(self.address, cookies)

    @cached_property
    def kernel(self) -> str:
        """A kernel of the user, which runs until the attack is over."""
        answer = self.as_user("/api/kernels", method="POST", body={"name": "torch"})
        assert answer.status == 201, answer
        return str(json.loads(answer.body)["id"])

    @cached_property
    def terminal(self) -> str:
        """A terminal of the user."""
        return str(json.loads(self.as_user("/api/terminals", method="POST").body)["name"])

    def state(self) -> dict[str, Any]:
        """Return what a request could change: kernels, sessions, terminals, notebooks."""
        found: dict[str, Any] = {}
        for path, key in (("/api/kernels", "id"), ("/api/sessions", "id"), ("/api/terminals", "name")):
            answer = self.as_user(path)
            found[path] = sorted(each[key] for each in json.loads(answer.body)) if answer.status == 200 else str(answer)
        answer = self.as_user("/api/contents/work")
        found["work"] = sorted(each["name"] for each in json.loads(answer.body)["content"])
        return found

    def write(self, path: str, text: str, kind: str = "text") -> None:
        """Save a file as JupyterLab does."""
        body = {"type": "file", "format": kind, "content": text}
        assert self.as_user(f"/api/contents/{path}", method="PUT", body=body).status in (200, 201)

    def inside(self, *command: str, user: str = "0") -> tuple[int, str]:
        """Run a command in the container, and return its exit code and all it printed."""
        done = _docker("exec", "--user", user, self.container, *command)
        return done.returncode, done.stdout

    def engine(self, *words: str) -> str:
        """Return what docker prints, on both streams."""
        return _docker(*words).stdout

    # -- where it is ---------------------------------------------------------------------------------------------

    @cached_property
    def container(self) -> str:
        """The container's id."""
        label = f"label=com.docker.compose.project={self.lab.env['COMPOSE_PROJECT_NAME']}"
        return docker("ps", "--quiet", "--no-trunc", "--filter", label).strip()

    def processes(self) -> list[psutil.Process]:
        """Return the server and all that it has started, as the host sees them."""
        if self.name == "container":
            first = psutil.Process(int(docker("inspect", "--format", "{{.State.Pid}}", self.container)))
        else:
            first = next(
                process
                for process in psutil.process_iter()
                if any(each.laddr.port == self.lab.port for each in _listening(process))
            )
        return [first, *first.children(recursive=True)]

    def log(self) -> str:
        """Return what the server has logged."""
        if self.name == "container":
            return self.engine("logs", self.container)
        return (self.lab.folder / ".rocmlab/jupyter.log").read_text(encoding="utf-8", errors="replace")

    def wait_until_up(self) -> None:
        """Wait until it answers its user."""
        deadline = time.monotonic() + START_SECONDS
        while self.as_user("/api/status").status != 200:
            assert time.monotonic() < deadline, "the lab does not answer"
            time.sleep(0.1)

    def finish(self) -> None:
        """End the kernels and terminals that the attack needed."""
        for path, key in (("/api/sessions", "id"), ("/api/kernels", "id"), ("/api/terminals", "name")):
            answer = self.as_user(path)
            for each in json.loads(answer.body) if answer.status == 200 else ():
                self.as_user(f"{path}/{each[key]}", method="DELETE")


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", *words]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, **both, text=True, errors="replace", timeout=60, check=False)


def _listening(process: psutil.Process) -> list[Any]:
    with contextlib.suppress(psutil.Error):
        return [each for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return []


@contextlib.contextmanager
def reachable(folder: Path) -> Iterator[None]:
    """Let everybody walk through the folders above one, as in a home of mode 0755: else nothing in it is proved."""
    changed: list[tuple[Path, int]] = []
    for parent in (folder, *folder.parents):
        mode = stat.S_IMODE(parent.stat().st_mode)
        if mode & 0o005 != 0o005 and parent.stat().st_uid == os.getuid() and parent != Path("/"):
            changed.append((parent, mode))
            parent.chmod(mode | 0o055)
    try:
        yield
    finally:
        for parent, mode in changed:
            parent.chmod(mode)
