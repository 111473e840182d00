"""Wheels that tests make themselves, so that no index is needed."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str], requires: Sequence[str] = ()) -> Path:
    """Write a wheel that pip accepts."""
    module = name.replace("-", "_")
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: A stand-in for tests.\n"
    extras = [it.split("'")[1] for it in requires if "extra ==" in it]
    metadata += "".join(f"Provides-Extra: {each}\n" for each in extras)
    contents = {
        **files,
        f"{module}-{version}.dist-info/METADATA": metadata + "".join(f"Requires-Dist: {it}\n" for it in requires),
        f"{module}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{module}-{version}.dist-info/RECORD"
    lines = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in contents.items()]
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in {**contents, record: "\n".join([*lines, f"{record},,"]) + "\n"}.items():
            archive.writestr(inner, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
