"""Stop idle labs, from a while after the hub's start on: labs that run on while it is stopped must report first.

Run as `python -m rocmlab.hub.culling SECONDS OPTIONS…`, with those of jupyterhub-idle-culler.
"""

from __future__ import annotations

import runpy
import sys
import time


def main() -> None:
    """Wait, and become the culler."""
    time.sleep(float(sys.argv.pop(1)))
    runpy.run_module("jupyterhub_idle_culler", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
