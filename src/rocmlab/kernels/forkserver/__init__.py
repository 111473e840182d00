"""Warm kernels: a parent that has imported the framework forks kernels, each in a fraction of a second.

`parent`, `child`, `guards`, `marks` and `messages` run under the kernel's interpreter and need no rocmlab there; the
other modules are the side of whoever wants a kernel.
"""

from __future__ import annotations

from rocmlab.kernels.forkserver.client import Forked, Refused, fork
from rocmlab.kernels.forkserver.keys import key, modules_for
from rocmlab.kernels.forkserver.parents import Parent, start

__all__ = ["Forked", "Parent", "Refused", "fork", "key", "modules_for", "start"]
