"""The kernel in place of one that got no GPU, or has no framework: every cell is answered by why and what can be done.

Started as `python -m rocmlab.lab.refusal -f FILE`, by `rocmlab.lab.provisioner` or by a kernelspec. Nothing of a cell
is executed, least of all silently on the CPU. A restart requests a GPU again, and starts the real kernel if it can.
"""

from __future__ import annotations

import json
import os
import platform
from typing import Any

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

from rocmlab import __version__

REASON = "ROCMLAB_REFUSAL"
NAME = "NoFreeGPU"


def reason() -> dict[str, str]:
    """Return what was left in the environment: what, why and fix, and the name of the error."""
    try:
        found = json.loads(os.environ[REASON])
        return {"name": str(found.get("name", NAME)), **{name: str(found[name]) for name in ("what", "why", "fix")}}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {
            "name": NAME,
            "what": "this kernel got no GPU",
            "why": "it was not started by JupyterLab",
            "fix": "restart it",
        }


def lines() -> list[str]:
    """Return the text for the user."""
    found = reason()
    return [
        f"{found['name']}: {found['what']}",
        "",
        *found["why"].splitlines(),
        "",
        "What you can do:",
        *(f"  {line}" for line in found["fix"].splitlines()),
    ]


class RefusalKernel(Kernel):
    """Answers each cell with one error."""

    implementation = "rocmlab"
    implementation_version = __version__
    language_info = {  # noqa: RUF012  as ipykernel gives it: a notebook keeps the language it had
        "name": "python",
        "version": platform.python_version(),
        "mimetype": "text/x-python",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
        "file_extension": ".py",
    }

    @property
    def banner(self) -> str:  # type: ignore[override]  # as IPython's own kernel has it
        """What a console shows at first."""
        return "\n".join(lines())

    async def do_execute(self, code: str, silent: bool, *_: Any, **__: Any) -> dict[str, Any]:  # noqa: ANN401
        """Execute nothing."""
        error = {"ename": reason()["name"], "evalue": reason()["what"], "traceback": lines()}
        if not silent:
            self.send_response(self.iopub_socket, "error", error)  # type: ignore[no-untyped-call]
        return {"status": "error", "execution_count": self.execution_count, **error}

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Let a console send whatever was typed."""
        return {"status": "complete"}


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=RefusalKernel)
