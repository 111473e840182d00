"""`rocmlab cluster node`: this machine's Ray node as long as it lives, watched, and ended with all that it started."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import handshake, ray_node, record
from rocmlab.cluster.node.ray_node import Plan
from rocmlab.cluster.node.record import Record

log = logging.getLogger("rocmlab")

READY = "Ray runtime started."  # which `ray start` prints when its processes are up
ADORNMENT = re.compile(r"\x1b\[[0-9;]*m|^\S+ \S+\s+(INFO|SUCC|WARN|WARNING|ERR|ERROR) \S+ -- ")
STOP_SECONDS = 45.0  # Ray waits up to 30 s for tasks that run
LAST_LINES = 15


class Service:
    """One node and its process."""

    def __init__(self, wanted: Plan, say: Callable[[str], None]) -> None:
        self.plan = wanted
        self.say = say
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.child: subprocess.Popen[str] | None = None
        self.is_ending = False

    def run(self, environment: Mapping[str, str]) -> int:
        """Start the node and return when it has ended: 0 if it was stopped.

        Raises:
            RocmlabError: it cannot start, or has ended by itself; nothing of it is left.
        """
        ray_node.give_token(self.plan, environment)
        try:
            self._note(record.STARTING)
            self._check(environment)
            self._start(environment)
            if self._watch():
                return 0
            raise self._why()
        except RocmlabError as err:
            self._note(record.FAILED, err)
            raise
        finally:
            self._end()
            if self.is_ending:
                self.plan.record.unlink(missing_ok=True)

    def stop(self, number: int, _: object) -> None:
        """Tell the node to leave; its tasks get Ray's half minute to finish."""
        self.is_ending = True
        if self.child and self.child.poll() is None:
            self.child.terminate()
        elif self.child is None:
            raise KeyboardInterrupt  # before there is one

    def _check(self, environment: Mapping[str, str]) -> None:
        if sys.platform != "linux":
            raise RocmlabError(
                "a cluster needs Linux",
                f"Ray clusters are supported only on Linux, and this is {sys.platform}",
                "make up",
            )
        handshake.check_ray()
        if busy := ray_node.busy_ports(self.plan):
            raise RocmlabError(
                f"these ports of the node are in use: {', '.join(busy)}",
                "another program listens there, perhaps another Ray",
                "stop it, or choose others: CLUSTER_PORT=7379",
            )
        if not self.plan.is_head:
            asking = {**environment, **ray_node.client_environment(self.plan.head, self.plan.folder)}
            handshake.check_versions(handshake.ask_aside(self.plan.head, asking))

    def _start(self, environment: Mapping[str, str]) -> None:
        self.child = subprocess.Popen(
            ray_node.command(self.plan),
            env=ray_node.ray_environment(self.plan, environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is ours to answer
        )
        log.debug("started Ray's node, process %d", self.child.pid)
        if self.is_ending:
            self.child.terminate()

    def _watch(self) -> bool:
        """Read Ray's output until it ends, report when the node is up, and return whether the end was requested."""
        assert self.child is not None
        assert self.child.stdout is not None
        for line in self.child.stdout:
            text = ADORNMENT.sub("", ADORNMENT.sub("", line)).rstrip()
            if not text:
                continue
            self.last.append(text)
            if text == READY:
                self._note(record.READY)
                self.say(self._ready())
            log.debug("ray: %s", text)
        self.child.wait()
        if self.is_ending:
            self.say("left the cluster")
        return self.is_ending

    def _why(self) -> RocmlabError:
        assert self.child is not None
        return RocmlabError(
            f"this machine's Ray node exited unexpectedly, with exit code {self.child.returncode}",
            "last log lines:\n" + "\n".join(self.last),
            f"its logs: {self.plan.folder / 'ray/session_latest/logs'}; the head is gone: make cluster-status there",
            exit_code=1,
        )

    def _ready(self) -> str:
        gpus = len(self.plan.devices)
        gpu_count = f"{gpus} GPU{'s' * (gpus != 1)}" + (" (SIMULATED)" if self.plan.simulated and gpus else "")
        if self.plan.is_head:
            return f"this machine is the head of a cluster at {self.plan.head}, with {gpu_count}"
        return f"this machine, {self.plan.address}, has joined the cluster at {self.plan.head} with {gpu_count}"

    def _note(self, state: str, error: RocmlabError | None = None) -> None:
        problem = vars(error.problem) if error else None
        Record(
            pid=os.getpid(),
            started=identity.start_of(os.getpid()),
            state=state,
            head=self.plan.head,
            address=self.plan.address,
            port=self.plan.port,
            is_head=self.plan.is_head,
            gpus=len(self.plan.devices),
            simulated=self.plan.simulated,
            problem=dict(problem) if problem else None,
        ).write(self.plan.record)

    def _end(self) -> None:
        if self.child is None or self.child.poll() is not None:
            return
        self.child.terminate()
        try:
            self.child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()


def serve(wanted: Plan, environment: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Be this machine's node until SIGTERM or SIGINT; see `Service.run`.

    Raises:
        RocmlabError: see there.
    """
    service = Service(wanted, say)
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    assert threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, service.stop) for number in signals}
    try:
        return service.run(environment)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
