"""Processes of several users that lease GPUs, wait for them and are killed, next to what the host must say of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rocmlab.devices import Device
from rocmlab.kernels.leases import Leases

WITHIN_SECONDS = 60.0  # on a machine with much else to do
# What a program begins with: it imports as root, whose interpreter others may not read, and then is the user for good.
AS_USER = """
import encodings.ascii, encodings.idna, fcntl, getpass, glob, json, os, pwd, signal, struct, sys, time
sys.path[:0] = json.loads(os.environ["SEARCHED"])
os.umask(int(os.environ.get("UMASK", "022"), 8))
from dataclasses import replace
from pathlib import Path
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.kernels import holders
from rocmlab.kernels.leases import Holder, Leases
os.setgroups([])
os.setresgid(*[int(os.environ["AS"])] * 3)
os.setresuid(*[int(os.environ["AS"])] * 3)
"""
# A user's program, natively or in a container: it forks claimants, and kills those of its processes that it is told to.
AGENT = """
import json, os, signal, sys, time
from dataclasses import replace
from rocmlab.devices import Device
from rocmlab.kernels.leases import Holder, Leases

def say(**facts):
    os.write(1, (json.dumps(facts) + "\\n").encode())

def claim(number, count):
    os.close(0)
    signal.alarm(600)  # whatever becomes of the test, it does not stay
    gpus = [Device(**each) for each in json.loads(os.environ["GPUS_OF_TEST"])]
    leases, holder, ticket = Leases.of_host(), Holder.here(f"{number}.ipynb"), None
    while not (lease := leases.pick(gpus, count, holder, ticket)):
        if ticket is None:
            ticket = leases.join(gpus, count, holder)
            say(number=number, waits=os.getpid())
        leases.renew(ticket, gpus, count)
        time.sleep(0.05)
    kernel = os.fork()  # it inherits the lease, as a runner's kernel does
    signal.alarm(600)
    if kernel:
        lease.describe(replace(holder, pid=kernel))
        if ticket:
            ticket.close()
        say(number=number, has=[gpu.index for gpu in lease.devices], pids=[os.getpid(), kernel])
    elif ticket:
        ticket.close()
    while True:
        signal.pause()

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
say(ready=True)
for line in sys.stdin:
    order = json.loads(line)
    if "kill" in order:
        os.kill(order["kill"], signal.SIGKILL)
    elif os.fork() == 0:
        claim(order["number"], order["count"])
"""


@dataclass
class Claimant:
    """One who has GPUs, or waits for some."""

    number: int
    count: int
    agent: Agent
    pids: list[int] = field(default_factory=list)  # as its agent counts
    gpus: set[int] = field(default_factory=set)  # that it has


class Agent:
    """A user's program."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._rest = b""

    def order(self, **facts: int) -> None:
        """Have it do something."""
        assert self.process.stdin
        self.process.stdin.write((json.dumps(facts) + "\n").encode())
        self.process.stdin.flush()

    def said(self) -> list[dict[str, object]]:
        """Return what it and its processes have said since the last time."""
        assert self.process.stdout
        descriptor = self.process.stdout.fileno()
        while select.select([descriptor], [], [], 0)[0]:
            if not (found := os.read(descriptor, 65536)):
                break
            self._rest += found
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Agent]:
    """An agent that is ready; its own end ends none of its claimants."""
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        agent = Agent(process)
        try:
            is_ready = until(lambda: {"ready": True} in agent.said() or process.poll() is not None)
            assert is_ready, f"it did not start: {command[:2]}"
            assert process.poll() is None, f"it exited: {command[:2]}"
            yield agent
        finally:
            assert process.stdin
            process.stdin.close()
            process.stdout.close()  # type: ignore[union-attr]


@dataclass
class Chaos:
    """Who must have which GPU, and who must wait in which order: the queue as it should be."""

    leases: Leases
    gpus: Sequence[Device]
    agents: Sequence[Agent]
    chance: random.Random
    holders: list[Claimant] = field(default_factory=list)
    queue: list[Claimant] = field(default_factory=list)
    waited: int = 0  # how many were served after they had waited
    _number: int = 0
    _served: list[Claimant] = field(default_factory=list)  # who must get GPUs, and has not shown it yet

    def run(self, kills: int) -> None:
        """Begin claims and kill processes at random; after each step the host must be as the model is."""
        done = 0
        try:
            while done < kills:
                if len(self.queue) < 3 and self.chance.random() < 0.5:
                    self.begin()
                else:
                    done += self.kill()
                assert until(self.is_as_expected), f"after {done} kills: {self.state()}"
        finally:
            for claimant in [*self.queue, *self.holders, *self._served]:
                for pid in claimant.pids:
                    claimant.agent.order(kill=pid)
        self.queue, self.holders, self._served = [], [], []
        assert until(lambda: self.state() == ({}, [])), self.state()

    def begin(self) -> None:
        """Have a user claim one to three GPUs."""
        self._number += 1
        claimant = Claimant(self._number, self.chance.choice((1, 1, 2, 3)), self.chance.choice(self.agents))
        self.queue.append(claimant)
        self.serve()
        claimant.agent.order(number=claimant.number, count=claimant.count)
        assert until(lambda: self.listen() or claimant.pids), f"nothing of {claimant.number}"

    def kill(self) -> int:
        """Kill a process that has a lease or waits for one; a lease ends with the last that has it."""
        living = [*self.holders, *self.queue]
        if not living:
            return 0
        claimant = self.chance.choice(living)
        pid = self.chance.choice(claimant.pids)
        claimant.agent.order(kill=pid)
        claimant.pids.remove(pid)
        if not claimant.pids:
            (self.holders if claimant in self.holders else self.queue).remove(claimant)
            self.serve()
        return 1

    def serve(self) -> None:
        """In the order of the queue, as long as there is enough; no one overtakes the first."""
        left = len(self.gpus) - sum(claimant.count for claimant in [*self.holders, *self._served])
        while self.queue and self.queue[0].count <= left:
            first = self.queue.pop(0)
            left -= first.count
            self.waited += bool(first.pids)
            self._served.append(first)

    def listen(self) -> None:
        """Take what the claimants have said."""
        for agent in self.agents:
            for facts in agent.said():
                living = {each.number: each for each in [*self.queue, *self._served, *self.holders]}
                if (claimant := living.get(int(str(facts.get("number"))))) is None:
                    continue
                if "waits" in facts:
                    claimant.pids = [int(str(facts["waits"]))]
                else:
                    assert claimant in self._served, f"{claimant.number} overtook {[c.number for c in self.queue]}"
                    claimant.pids, claimant.gpus = facts["pids"], set(facts["has"])  # type: ignore[assignment, call-overload]
                    self._served.remove(claimant)
                    self.holders.append(claimant)

    def is_as_expected(self) -> bool:
        """Return whether exactly these have GPUs, each GPU once, and exactly these wait, in this order."""
        self.listen()
        had = [gpu for claimant in self.holders for gpu in claimant.gpus]
        assert len(had) == len(set(had)), "leased twice"
        expected = {gpu: f"{each.number}.ipynb" for each in self.holders for gpu in each.gpus}
        return not self._served and self.state() == (expected, [f"{each.number}.ipynb" for each in self.queue])

    def state(self) -> tuple[dict[int, str | None], list[str | None]]:
        """Return what the host says: the holder of each GPU, and who waits."""
        held = self.leases.held(self.gpus)
        has = {gpu.index: holder.notebook for gpu, holder in held.items() if gpu.index is not None}
        return has, [waiter.holder.notebook for waiter in self.leases.waiting()]


def until(is_true: object, seconds: float = WITHIN_SECONDS) -> bool:
    """Wait until something is true: the kernel closes the files of a killed process a moment later."""
    deadline = time.monotonic() + seconds
    while not is_true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
