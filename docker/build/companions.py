"""Add torchvision and torchaudio of the same build as an environment's PyTorch, or omit them and say why.

Usage: PYTHON companions.py EXTRAS [PIP'S OPTIONS], run by the interpreter that has PyTorch; the options say where that
came from, and EXTRAS what was requested of it: `[device-gfx1100]`, or nothing. Other places have builds of the same
version for other hardware (PyPI: CUDA), whose libraries cannot be loaded next to this PyTorch. So each is imported once
and removed again if it fails: a lab without it works, and `transformers` and others find out that it is missing, while
a broken one stops them at import.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tempfile

import additions
import install

NAMES = ("torchvision", "torchaudio")
GPU_BUILDS = ("rocm", "cu")


def build(version: str) -> str:
    """Return what a version was built for: `rocm` of `2.13.0+rocm7.2`; empty where the version does not have it."""
    return re.split(r"[^a-z]", version.partition("+")[2])[0]


def problem(name: str) -> str | None:
    """Return why this one cannot be used next to the PyTorch that is there; None if it can."""
    wanted, found = (build(importlib.metadata.version(it)) for it in ("torch", name))
    if wanted in GPU_BUILDS and found != wanted:
        return f"the one found is built for {found or 'other hardware'}, PyTorch for {wanted}"
    done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False)
    return (done.stderr.strip().splitlines() or ["it cannot be imported"])[-1] if done.returncode else None


def add(name: str, extras: str, options: list[str]) -> str:
    """Install one of them where a build matches; return a sentence for the log."""
    before = additions.installed()
    if name not in before:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as kept:
            kept.write(additions.constraints(before))
            kept.flush()
            program = [sys.executable, install.__file__, "--quiet", "--constraint", kept.name, *options, name + extras]
            done = subprocess.run(program, capture_output=True, text=True, check=False)
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if line.startswith("ERROR: ")), "pip failed")
            adds = f"a wheel for PyTorch {before['torch']} in the folder WHEELS adds it"
            return f"{name} omitted: {why.removeprefix('ERROR: ')}; {adds}"
    if why_not := problem(name):
        uninstall = [*install.PIP, "uninstall", "--quiet", "--yes", name]
        subprocess.run(uninstall, capture_output=True, check=False)
        return f"{name} omitted: {why_not}"
    return f"{name} {importlib.metadata.version(name)}"


def main(extras: str, options: list[str]) -> None:
    """Add both."""
    for name in NAMES:
        sys.stdout.write(add(name, extras, options) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
