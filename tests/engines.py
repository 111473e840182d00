"""The Docker engine of the machine that tests, and the base image that tests build on."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocmlab.stack import podman_engine

REPOSITORY = Path(__file__).parents[1]
STEADY_CHROMIUM = REPOSITORY / "tests/steady-chromium"
BASE = "rocmlab-test/base:bookworm"
CHROMIUM_FLAGS = [
    "--no-sandbox",  # CI runs as root in a machine of its own
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Processes for a toolbar that no one sees, and for pages that come later: about a sixth of the CPU time of a page.
    "--disable-features=PreloadTopChromeWebUI,SpareRendererForSitePerProcess,InitialWebUI,WebUIReloadButton",
]
FROM_REGISTRY = """\
FROM debian:bookworm
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends ca-certificates python3
"""


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
def missing_for_rocm() -> str:
    """Say why no base image with AMD's TensorFlow can be made here, or nothing."""
    if os.geteuid() != 0:
        return "making a base image from packages needs root: run it as root on Debian"
    return missing() or ("" if shutil.which("mmdebstrap") else "no mmdebstrap: sudo apt install mmdebstrap")


@functools.cache
def missing_podman() -> str:
    """Say why Podman cannot be tried here, or nothing."""
    if os.geteuid() != 0:
        return "trying Podman as root and as another user needs root: run .ci/run"
    found = podman_engine.probe()
    if found.problem:
        return str(found.problem)
    return "" if found.is_usable else "no podman: sudo apt install podman crun uidmap slirp4netns"


@functools.cache
def base_image() -> str:
    """Return a plain Debian with python3: the one here, one made from packages, or the registry's with python3."""
    if chosen := os.environ.get("TEST_BASE_IMAGE"):
        return chosen
    maker = REPOSITORY / "scripts/make-base-image"
    with maker.open() as lock:  # lanes begin at the same time, and one makes it
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = subprocess.run(["docker", "images", "--quiet", BASE], capture_output=True, text=True, check=True)
        if found.stdout.strip():
            return BASE
        if shutil.which("mmdebstrap") and os.geteuid() == 0:
            subprocess.run([maker, BASE, "bookworm"], check=True)
        else:
            build = ["docker", "build", "--quiet", "--tag", BASE, "-"]
            subprocess.run(build, input=FROM_REGISTRY, text=True, check=True)
    return BASE


@contextmanager
def second_engine(folder: Path, **configuration: object) -> Iterator[dict[str, str]]:
    """Run a Docker engine of its own below a folder, next to the machine's, and return the environment that reaches it.

    It has its own containerd, images, socket, state and network namespace: an engine with `bridge: none` near another
    one would remove the other's docker0. Skips without root, and
    where the installed engine is older than 25, the first with CDI.
    """
    program = shutil.which("dockerd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if os.geteuid() != 0 or program is None or shutil.which("containerd") is None:
        pytest.skip("an engine of the test's own needs root, dockerd and containerd: run .ci/run")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"version (\d+)", said)
    if version is None or int(version[1]) < 25:
        pytest.skip(f"engine 25 or newer is needed, and here is: {said.strip()}")
    settings = {
        "data-root": f"{folder}/data",
        "exec-root": f"{folder}/exec",
        "pidfile": f"{folder}/docker.pid",
        "hosts": [f"unix://{folder}/docker.sock"],
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        **configuration,
    }
    (folder / "daemon.json").write_text(json.dumps(settings))
    environment = {**os.environ, "DOCKER_HOST": f"unix://{folder}/docker.sock"}
    with open(folder / "dockerd.log", "w", encoding="utf-8") as log:
        command = ["unshare", "--net", program, f"--config-file={folder}/daemon.json"]
        engine = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(["docker", "info"], capture_output=True, env=environment, check=False).returncode:
            assert engine.poll() is None, (folder / "dockerd.log").read_text()
            assert time.monotonic() < deadline, (folder / "dockerd.log").read_text()
            time.sleep(0.2)
        yield environment
    finally:
        engine.terminate()
        engine.wait(30)


def chromium() -> str | None:
    """Return the path of Chromium or Chrome, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)


def launch_chromium(playwright: Any) -> Any:
    """Start Chromium with Playwright: headless, and deaf to containers that start and end beside it."""
    return playwright.chromium.launch(
        executable_path=STEADY_CHROMIUM,
        headless=True,
        args=CHROMIUM_FLAGS,
        env={**os.environ, "CHROMIUM": str(chromium())},
    )


def firefox() -> str | None:
    """Return the path of Firefox, or None."""
    names = ("firefox-esr", "firefox")
    return os.environ.get("FIREFOX") or next((path for name in names if (path := shutil.which(name))), None)


def missing_browser(name: str = "chromium") -> str:
    """Say that there is no such browser, or nothing where there is one."""
    if name == "firefox":
        return "" if firefox() else "no Firefox: sudo apt install firefox-esr, or set FIREFOX to its path"
    return "" if chromium() else "no Chromium: sudo apt install chromium, or set CHROMIUM to its path"
