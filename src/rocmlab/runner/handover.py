"""The worker hands its lease to the kernel: the descriptors are inherited, and the worker's copies closed.

Engines start kernels in different ways, jupyter_client's among them, but each of them through `subprocess.Popen` and in
a session of its own. So the worker's process has a Popen that adds the descriptors to the first such process. A kernel
that is not started here (a remote one) leaves the lease with the worker, and it ends with that.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from rocmlab.runner.leases import Lease

# What an IPython kernel does first. A descriptor that is not inheritable survives a fork but no exec; and the child of
# a child closes it, as a daemon is one. By then the number may belong to another file, hence the comparison.
KEEP = """
import os
descriptors = {descriptors}
kernel, own = os.getpid(), {{number: os.fstat(number) for number in descriptors}}
def leave():
    if os.getppid() != kernel:
        for number, status in own.items():
            try:
                if os.path.samestat(os.fstat(number), status):
                    os.close(number)
            except OSError:
                pass
for number in descriptors:
    os.set_inheritable(number, False)
os.register_at_fork(after_in_child=leave)
"""


def install(lease: Lease) -> None:
    """Give this lease to the kernel that this process will start; to be called before anything imports Popen."""
    waiting = [lease]

    class Popen(subprocess.Popen[Any]):
        """Starts a process; the first in a session of its own is the kernel."""

        def __init__(self, args: Any, *more: Any, **options: Any) -> None:  # noqa: ANN401  subprocess's own
            if not waiting or not options.get("start_new_session"):
                super().__init__(args, *more, **options)
                return
            inherited = (*options.pop("pass_fds", ()), *lease.descriptors)
            super().__init__(keeping(args, lease.descriptors), *more, pass_fds=inherited, **options)
            waiting.clear()
            lease.passed_to(self.pid)

    subprocess.Popen = Popen  # type: ignore[misc]


def keeping(command: Sequence[str], descriptors: Sequence[int]) -> list[str]:
    """Return a kernel's command with what keeps its descriptors from processes that may outlive it.

    Only IPython kernels can be told. In a kernel of another language whatever it starts inherits the lease; what is
    left of a job is ended with it, so that this ends the lease, too.
    """
    if not any("ipykernel" in word for word in command):
        return list(command)
    source = KEEP.format(descriptors=tuple(descriptors))
    return [*command, f"--IPKernelApp.code_to_run=exec({source!r}, {{}})"]
