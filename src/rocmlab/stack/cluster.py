"""The cluster's settings, and the native lab's Ray node: a background process, its log in `.rocmlab/cluster.log`."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.base.identity import Process
from rocmlab.cluster.node import ports, ray_node, record, token
from rocmlab.cluster.node.record import Record
from rocmlab.stack import gpus
from rocmlab.stack import settings as configuration
from rocmlab.stack.daemon import Daemon, last_lines
from rocmlab.stack.lab import Say
from rocmlab.stack.settings import Settings

NAMES = ("CLUSTER", "CLUSTER_ADDRESS", "CLUSTER_PORT", "CLUSTER_NETWORK", "CLUSTER_TOKEN")
START_SECONDS = 300.0  # Ray takes ten on an idle machine
STOP_SECONDS = 60.0  # it waits half a minute for tasks


def check(settings: Settings) -> None:
    """Raise RocmlabError unless the cluster's settings are valid."""
    ports.parse(settings.get("CLUSTER_PORT"))
    if not settings.is_in_cluster:
        return
    if settings.get("CLUSTER") != ray_node.HEAD:
        ports.split(settings.get("CLUSTER"))
    given = settings.last("CLUSTER_TOKEN")
    if given or settings.get("CLUSTER") != ray_node.HEAD:
        token.check(given)


def values(settings: Settings) -> dict[str, str]:
    """Return what goes into `.env` for the cluster; the token stays there when the cluster is left."""
    found = {"CLUSTER_TOKEN": settings.last("CLUSTER_TOKEN")}
    if settings.is_in_cluster:
        found |= {name: settings.get(name) for name in NAMES[:-1]}
        found["CLUSTER_TOKEN"] = found["CLUSTER_TOKEN"] or token.new()
    return {name: value for name, value in found.items() if value}


def forget(settings: Settings, written: Mapping[str, str]) -> None:
    """Write `.env` without the choice of a cluster; its token stays, so that the same cluster can come back."""
    left = replace(settings, chosen={name: value for name, value in settings.chosen.items() if name not in NAMES[:-1]})
    kept = {name: value for name, value in written.items() if name in settings.written and name not in NAMES[:-1]}
    if files := kept.get("COMPOSE_FILE"):
        kept["COMPOSE_FILE"] = ":".join(name for name in files.split(":") if name != gpus.CLUSTER_OVERLAY)
    left.reset = frozenset(NAMES[:-1])
    configuration.save(left, kept)


class NativeNode(Daemon):
    """This machine's node, started from `.venv`."""

    variable = identity.NODE

    def __init__(self, settings: Settings, interpreter: Path) -> None:
        super().__init__(settings.state / "cluster.json", secrets.token_hex(16))
        self.settings = settings
        self.interpreter = interpreter
        self.log = settings.state / "cluster.log"

    @property
    def folder(self) -> Path:
        """The folder of the node that the settings describe."""
        return ray_node.usual_folder(ports.parse(self.settings.get("CLUSTER_PORT")))

    def configuration(self) -> dict[str, str]:
        """Return what a running node must agree with; nothing outside a cluster."""
        if not self.settings.is_in_cluster:
            return {}
        found = {name: self.settings.get(name) for name in NAMES[:-2]}
        return {**found, "CLUSTER_TOKEN": self.settings.last("CLUSTER_TOKEN")}

    def environment(self) -> dict[str, str]:
        """Return what the lab's programs need to use the cluster: `ray.init()` finds it by these."""
        if not self.settings.is_in_cluster:
            return {}
        head, port = self.settings.get("CLUSTER"), self.settings.get("CLUSTER_PORT")
        if head == ray_node.HEAD:
            head = f"{ray_node.own_address(self.settings.get('CLUSTER_ADDRESS'), '')}:{port}"
        return {
            **{name: self.settings.get(name) for name in NAMES[:-2] if self.settings.get(name)},
            **ray_node.client_environment(head, self.folder),
        }

    def started(self) -> tuple[Process, Path] | None:
        """Return process and folder of the node that this project has started, if it is running."""
        process, folder = self.find(), self.recorded().get("folder")
        return (process, Path(folder)) if process and isinstance(folder, str) else None

    def state(self) -> Record | None:
        """Return what the running node reports of itself."""
        found = self.started()
        return record.read(found[1] / "node.json") if found else None

    def start(self, environment: Mapping[str, str], gpus: str, say: Say) -> bool:
        """Start the node unless it runs with these settings and GPUs, and wait until it is part of its cluster.

        Return whether it was started; raise RocmlabError, and leave nothing running, where that fails.
        """
        wanted = {**self.configuration(), "GPUS": gpus, "ROCMLAB_ROOT": self.settings.get("ROCMLAB_ROOT")}
        found = self.state()
        if found and found.state == record.READY and self.recorded().get("configuration") == wanted:
            return False
        self.stop(say)
        ray_node.make_private(self.folder)
        (self.folder / "node.json").unlink(missing_ok=True)
        token.write(self.folder / "token", token.check(self.settings.last("CLUSTER_TOKEN")))
        command = [str(self.interpreter), "-m", "rocmlab", "cluster", "node"]
        project, folder = self.settings.project, str(self.folder)
        self.launch(command, environment, wanted, log=self.log, cwd=project, folder=folder)
        say("starting this machine's Ray node")
        self._wait()
        return True

    def _wait(self) -> None:
        """Wait until the node is up; raise RocmlabError if it does not start."""
        assert self.child is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            has_ended = self.child.poll() is not None  # before the look, so that its last report is not missed
            found = record.read(self.folder / "node.json")
            if found and found.state == record.READY and not has_ended:
                return
            if has_ended:
                self.forget()
                if found and found.failure:
                    raise RocmlabError.of(found.failure)
                break
            time.sleep(0.1)
        self.stop(lambda _: None)
        raise RocmlabError("this machine's Ray node did not start", last_lines(self.log), f"complete log: {self.log}")

    def stop(self, say: Say) -> bool:
        """Leave the cluster: Ray lets tasks finish for half a minute. Return whether there was a node."""
        found = self.find()
        if found:
            say("leaving the cluster")
            found.send(signal.SIGTERM)
            if not identity.wait_gone([found], STOP_SECONDS):
                found.send(signal.SIGKILL)  # Ray's processes end with it
        self.forget()
        return found is not None
