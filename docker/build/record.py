"""Print what this image was built from, as JSON: record.py BACKEND BASE_IMAGE TENSORFLOW_PYTHON."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

VERSIONS = """
import importlib.metadata, json, platform, re
known = {re.sub('[-_.]+', '-', d.metadata['Name'] or '').lower(): d.version for d in importlib.metadata.distributions()}
print(json.dumps({'python': platform.python_version(), **dict(sorted(known.items()))}))
"""


def versions(python: str) -> dict[str, str]:
    """Return the versions of an interpreter and of everything installed beside it."""
    return json.loads(subprocess.run([python, "-c", VERSIONS], capture_output=True, check=True).stdout)


def main(backend: str, base_image: str, tensorflow: str) -> None:
    """Print the record."""
    rocm = Path("/opt/rocm/.info/version")  # legacy ROCm; wheels of the newer ones carry their version themselves
    record = {
        "backend": backend,
        "base_image": base_image,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "rocm": rocm.read_text().strip() if rocm.exists() else None,
        "interpreters": {"lab": sys.executable, "tensorflow": tensorflow, "torch": "/opt/torch/bin/python"},
    }
    record["versions"] = {name: versions(python) for name, python in record["interpreters"].items()}
    json.dump(record, sys.stdout, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
