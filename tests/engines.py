"""The Docker engine of the machine that tests, and the base image that tests build on."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
BASE = "rocmlab-test/base:bookworm"


@functools.cache
def missing() -> str:
    """Say why there is no usable engine, or nothing where there is one."""
    for command in (["docker", "info"], ["docker", "compose", "version"], ["docker", "buildx", "version"]):
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            return f"`{' '.join(command)}` fails: install Docker with Compose and buildx, or use .ci/run"
    return ""


@functools.cache
def base_image() -> str:
    """Return a plain Debian with python3: the one here, one made from packages, or the registry's."""
    if chosen := os.environ.get("TEST_BASE_IMAGE"):
        return chosen
    found = subprocess.run(["docker", "images", "--quiet", BASE], capture_output=True, text=True, check=True)
    if found.stdout.strip():
        return BASE
    if shutil.which("mmdebstrap") and os.geteuid() == 0:
        subprocess.run([REPOSITORY / "scripts/make-base-image", BASE, "bookworm"], check=True)
        return BASE
    return "debian:bookworm"


def chromium() -> str | None:
    """Return the path of Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


def missing_browser() -> str:
    """Say that there is no Chromium, or nothing where there is one."""
    return "" if chromium() else "no Chromium: sudo apt install chromium, or set CHROMIUM to its path"
