"""Behind JupyterHub a lab in which something computes is not idle."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from kernel_hosts import Host

from rocmlab.kernels.leases import Holder
from rocmlab.lab.server import activity

HOLD = """
import sys
from rocmlab.devices import discover
from rocmlab.kernels.leases import Holder, Leases
gpus = [device for device in discover() if device.backend == "rocm"]
lease = Leases.of_host().take(gpus[:1], Holder.here("a job"))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_process_that_holds_a_gpu_counts_unless_it_is_the_lab_or_its_kernel(host: Host) -> None:
    """A run in a terminal is activity; an idle kernel that keeps its GPU is none."""
    assert not activity.is_computing(set())
    lease = host.leases.take(host.devices[1:], Holder.here("the whole lab"))
    assert lease is not None
    assert not activity.is_computing(set())
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        job.stdout.readline()
        counts, as_kernel = activity.is_computing(set()), activity.is_computing({job.pid})
        job.communicate()
    lease.release()

    assert counts
    assert not as_kernel


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_a_busy_kernel_counts(host: Host, state: str) -> None:
    """Also one that prints nothing."""
    kernel = SimpleNamespace(execution_state=state, provisioner=SimpleNamespace(pid=os.getpid()))
    manager = SimpleNamespace(list_kernel_ids=lambda: ["1"], get_kernel=lambda _: kernel)
    times: dict[str, object] = {}
    server = SimpleNamespace(kernel_manager=manager, web_app=SimpleNamespace(settings={"last_activity_times": times}))

    asyncio.run(activity.Activity(server).look())

    assert bool(times) == (state == "busy")
