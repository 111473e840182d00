"""Print what this image was built from, as JSON: record.py BACKEND BASE_IMAGE TENSORFLOW_PYTHON IMAGE GFX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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


def main(backend: str, base_image: str, tensorflow: str, image: str, gfx: str) -> None:
    """Print the record; without TensorFlow, its interpreter is an empty string."""
    rocm = Path("/opt/rocm/.info/version")
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    pythons = {"lab": sys.executable, "tensorflow": tensorflow, "torch": "/opt/torch/bin/python"}
    record = {
        "backend": backend,
        "base_image": base_image,
        "created": datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds"),
        "image": image,
        "gfx": gfx.split(",") if gfx else None,  # None: what the base has
        "interpreters": {name: python for name, python in pythons.items() if python},
    }
    record["versions"] = {name: versions(python) for name, python in record["interpreters"].items()}
    # ROCm's wheels carry its version themselves.
    wheel = record["versions"]["torch"].get("rocm-sdk-core")
    record["rocm"] = rocm.read_text().strip() if rocm.exists() else wheel
    json.dump(record, sys.stdout, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
