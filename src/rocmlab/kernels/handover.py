"""How a kernel keeps the lease that it has inherited, and nothing that outlives it does.

Whoever starts the kernel passes the lease's descriptors on (`pass_fds`), with the command that `keeping` returns, and
then lets go of its own copies (`Lease.passed_to`).
"""

from __future__ import annotations

from collections.abc import Sequence

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


def keeping(command: Sequence[str], descriptors: Sequence[int]) -> list[str]:
    """Return a kernel's command with what keeps its descriptors from processes that may outlive it.

    Only IPython kernels can be told. In a kernel of another language whatever it starts inherits the lease; what is
    left of a job is ended with it, so that this ends the lease, too.
    """
    if not descriptors or not any("ipykernel" in word for word in command):
        return list(command)
    source = KEEP.format(descriptors=tuple(descriptors))
    return [*command, f"--IPKernelApp.code_to_run=exec({source!r}, {{}})"]
