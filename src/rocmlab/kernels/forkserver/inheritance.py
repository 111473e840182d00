"""How a kernel keeps the lease that it has inherited, and nothing that outlives it does.

Whoever starts the kernel passes the lease's descriptors on and then closes its own copies (`Lease.passed_to`). A forked
kernel calls `keep`; the command of a cold one, from `keeping`, has the source of that function in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence


def keep(descriptors: Sequence[int]) -> None:
    """Close inherited descriptors in whatever this process executes, and in children of its children."""
    import contextlib
    import os

    kernel, own = os.getpid(), {number: os.fstat(number) for number in descriptors}
    for number in descriptors:
        os.set_inheritable(number, False)  # it survives a fork, but no exec

    def leave() -> None:
        if os.getppid() == kernel:
            return
        for number, status in own.items():  # a daemon is the child of a child
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(number), status):  # the number may belong to another file now
                    os.close(number)

    if own:
        os.register_at_fork(after_in_child=leave)


SOURCE = inspect.getsource(keep)  # read now: after an update of rocmlab the file is another one


def keeping(command: Sequence[str], descriptors: Sequence[int]) -> list[str]:
    """Return a kernel's command with what keeps its descriptors from processes that may outlive it.

    Only IPython kernels accept code to run first. In a kernel of another language everything that it starts inherits
    the lease; what is left of a job is ended with it, and the lease with that.
    """
    if not descriptors or not any("ipykernel" in word for word in command):
        return list(command)
    source = f"from __future__ import annotations\n{SOURCE}\nkeep({tuple(descriptors)})"
    return [*command, f"--IPKernelApp.code_to_run=exec({source!r}, {{}})"]
