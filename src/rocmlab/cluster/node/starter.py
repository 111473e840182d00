"""`ray`, as our node starts it: without Ray's client server, and patient on a busy machine.

The client server listens for programs that need not be on a node; and Ray gives a node only half a minute to start. It
is a program of its own, so that no other Ray is changed.
"""

from __future__ import annotations

import ctypes
import importlib
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

START_SECONDS = 120.0
PR_SET_PDEATHSIG = 1  # Linux, sys/prctl.h


def patient(ask: Callable[..., Any], limit_seconds: float) -> Callable[..., Any]:
    """Return a function that retries until a timeout, as long as the node is not known yet."""

    def wait(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        end = time.monotonic() + limit_seconds
        while True:
            try:
                return ask(*arguments, **named)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.2)

    return wait


def main() -> None:
    """Run `ray` with this program's arguments; it ends when its parent does, however that ends.

    Raises:
        RuntimeError: this Ray would open the port, and there is no way known to keep it closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    scripts: Any = importlib.import_module("ray.scripts.scripts")
    if not hasattr(scripts, "get_ray_client_dependency_error"):
        raise RuntimeError(
            "this version of Ray opens its client server, and rocmlab does not know how to keep it closed"
        )
    services: Any = importlib.import_module("ray._private.services")
    services.get_node = patient(services.get_node, START_SECONDS)
    scripts.get_ray_client_dependency_error = lambda: ImportError("rocmlab does not use it")
    sys.argv[0] = "ray"
    scripts.main()


if __name__ == "__main__":
    main()
