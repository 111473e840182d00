"""A digest of what an image or an environment is made from, so that nothing is made twice and nothing is forgotten."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

# Not the notebooks: Compose binds the folder itself, and saving one there must not rebuild the image.
IMAGE_SOURCES = ("docker", "requirements", "src", "pyproject.toml", "README.md", "LICENSE")
NATIVE_SOURCES = ("requirements", "pyproject.toml", "src/rocmlab/lab")
IGNORED = {"__pycache__", ".ipynb_checkpoints", "monitoring"}


def digest(project: Path, sources: Iterable[str], facts: Mapping[str, str]) -> str:
    """Return the SHA-256 (hex) of these files and folders, by content, and of named facts."""
    found = hashlib.sha256()
    for name, value in sorted(facts.items()):
        found.update(f"{name}={value}\0".encode())
    for path in sorted(_files(project, sources)):
        executable = "x" if path.stat().st_mode & 0o100 else "-"
        found.update(f"{path.relative_to(project)}\0{executable}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _files(project: Path, sources: Iterable[str]) -> Iterator[Path]:
    for source in sources:
        start = project / source
        if start.is_file():
            yield start
        for path in start.rglob("*") if start.is_dir() else ():
            is_ignored = IGNORED & set(path.parts) or path.suffix in (".pyc", ".in", ".whl")
            if path.is_file() and not is_ignored:
                yield path
