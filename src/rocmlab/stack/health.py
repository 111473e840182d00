"""Whether a lab that has just been started works: its server, our extension in it, and its kernels."""

from __future__ import annotations

from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.stack.lab import Lab

KERNEL_TIMEOUT_SECONDS = 180.0  # the first start of a kernel reads a framework from the disk


def check(lab: Lab) -> None:
    """Raise RocmlabError unless a lab works."""
    _ask(lab, "/api/status", "the server does not answer")
    _ask(lab, "/rocmlab/api/kernels", "the GPU panel's server extension does not answer")
    specs = _ask(lab, "/api/kernelspecs", "the kernels are not listed")
    names = sorted(specs.get("kernelspecs", ())) if isinstance(specs, dict) else []
    if not names:
        raise RocmlabError("the lab offers no kernels", "its list is empty", "make logs", exit_code=1)
    _try_kernel(lab, next((name for name in names if name.endswith("-cpu")), names[-1]))


def _ask(lab: Lab, path: str, what: str) -> Any:  # noqa: ANN401
    status, found = lab.ask(path, timeout_seconds=20)
    if status != 200:
        raise RocmlabError(what, f"{path} answered with status {status}", "make logs", exit_code=1)
    return found


def _try_kernel(lab: Lab, name: str) -> None:
    """Start a kernel and restart it: Jupyter answers the second request only when the kernel has answered a message."""
    status, kernel = lab.ask("/api/kernels", method="POST", body={"name": name}, timeout_seconds=KERNEL_TIMEOUT_SECONDS)
    if status != 201:
        why = f"POST /api/kernels answered with status {status}"
        raise RocmlabError(f"the kernel {name} does not start", why, "make logs", exit_code=1)
    path = f"/api/kernels/{kernel['id']}"
    try:
        status, _ = lab.ask(f"{path}/restart", method="POST", timeout_seconds=KERNEL_TIMEOUT_SECONDS)
    finally:
        lab.ask(path, method="DELETE", timeout_seconds=30)
    if status != 200:
        why = f"it was started, and a restart answered with status {status}"
        raise RocmlabError(f"the kernel {name} does not answer", why, "make logs", exit_code=1)
