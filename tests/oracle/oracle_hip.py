"""AMD's HIP runtime on a simulated host, and what it sees there."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import oracle_tools
import pytest

from rocmlab.simulation import environment

NO_DEVICE = 100  # hipErrorNoDevice
TIMEOUT_SECONDS = 300
MASKS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@functools.cache
def folder() -> Path:
    """Return the folder of the runtime; skip where Debian has none at the moment."""
    found = oracle_tools.folder() / "hip"
    if not (found / "ready").exists():
        reason = (found / "why-not").read_text().strip().splitlines() or ["unknown"]
        pytest.skip(f"Debian has no HIP runtime that can be unpacked at the moment: {reason[-1]}")
    return found


def version() -> str:
    """Return the runtime's version, such as 7.2.4."""
    return (folder() / "version").read_text().strip()


@functools.cache
def probe(folder: Path, name: str = "hip_probe") -> Path:
    """Compile one of the programs that ask the runtime; their source is next to this file."""
    target, source = folder / name, Path(__file__).with_name(f"{name}.c")
    if not (compiler := shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler: sudo apt-get install gcc libc6-dev")
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Werror", "-o", target, source, "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return target


def library(name: str) -> str:
    """Return the file name of one of the runtime's libraries, such as libamdhip64.so.7."""
    return next((folder() / "root/usr/lib/x86_64-linux-gnu").glob(f"{name}.so.[0-9]")).name


def start(host: Path, *command: str | Path, stdin: str = "", variables: Mapping[str, str] | None = None) -> str:
    """Return what a program prints that is started with AMD's runtime on a simulated host."""
    around = environment(host, {"PATH": os.environ["PATH"], **(variables or {})})
    line = [folder() / "start", *command]
    done = subprocess.run(line, env=around, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, f"{line} ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


def seen(
    host: Path, built: Path, environments: Sequence[Mapping[str, str]] = ({},), *, whole: bool = False
) -> list[dict[str, Any]]:
    """Return what HIP sees in each environment: error, GPUs by HIP index, or the signal that killed it.

    Args:
        host: simulated.
        built: where the probe is compiled, once.
        environments: variables of each process.
        whole: all that HIP says of a GPU, in place of its PCI address alone.
    """
    lines = [
        "\t".join(f"{name}={value}".replace("\t", "\x1f") for name, value in variables.items()) + "\n"
        for variables in environments
    ]
    program = probe(built)

    def answers(part: Sequence[str]) -> list[dict[str, Any]]:
        printed = start(host, program, library("libamdhip64"), *(["whole"] if whole else []), stdin="".join(part))
        return [json.loads(line) for line in printed.splitlines()]

    lanes = min(4, len(lines))
    with ThreadPoolExecutor(lanes) as pool:
        parts = list(pool.map(answers, [lines[lane::lanes] for lane in range(lanes)]))
    return [parts[turn % lanes][turn // lanes] for turn in range(len(lines))]


def addresses(answer: Mapping[str, Any]) -> list[str] | None:
    """Return the PCI addresses that HIP sees; None where it aborted its process."""
    assert answer.get("signal") in (None, signal.SIGABRT), answer
    return None if "signal" in answer else [gpu["address"] for gpu in answer["gpus"]]
