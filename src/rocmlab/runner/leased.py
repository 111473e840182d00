"""A worker whose job has a lease: `python -m rocmlab.runner.leased JOB.json`, with the descriptors inherited."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rocmlab.runner import handover
from rocmlab.runner.leases import Lease


def main(arguments: list[str]) -> int:
    """Run the job that a file describes, in a kernel that holds its lease."""
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    handover.install(Lease.inherited(job["lease"]))
    from rocmlab.runner import worker  # and whatever starts its kernel

    return worker.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
