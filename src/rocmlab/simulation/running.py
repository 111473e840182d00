"""Starting a program on a simulated host: AMD's real runtime finds that host's GPUs in place of this machine's.

`driver.c`, compiled at the first use, is loaded into the program and into all that it starts, and answers for the
kernel's driver. Nothing that a program gives to such a GPU is ever computed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.devices.roots import SIMULATED_DRIVER
from rocmlab.simulation.writer import is_ours

SOURCE = Path(__file__).with_name("driver.c")
COMPILERS = ("cc", "gcc", "clang")
COMPILE_TIMEOUT_SECONDS = 120


def environment(host: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with which a program sees the GPUs of a simulated host.

    Raises:
        RocmlabError: the folder is not a simulated host, or the driver cannot be compiled.
    """
    if not is_ours(host):
        raise RocmlabError(f"{host} is not a simulated host", "", "write one: rocmlab simulate NEW_FOLDER")
    library = str(driver())
    if any(character in library for character in " :"):
        raise RocmlabError(
            f"programs cannot be started with {library}",
            "the loader takes a space or a colon in LD_PRELOAD for the end of a path",
            "set XDG_CACHE_HOME to a folder without them",
        )
    preloaded = " ".join(filter(None, (library, base.get("LD_PRELOAD"))))
    return {**base, "ROCMLAB_ROOT": str(host.resolve()), "LD_PRELOAD": preloaded}


def driver(folder: Path | None = None) -> Path:
    """Return the compiled driver, made once for each version of its source; by default in the user's cache.

    Raises:
        RocmlabError: this is not Linux, there is no C compiler, or it fails.
    """
    if not sys.platform.startswith("linux"):
        raise RocmlabError(
            "programs cannot be started on a simulated host here", "AMD's runtime exists for Linux", "use Linux"
        )
    if folder is None:
        chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
        folder = (chosen if chosen.is_absolute() else Path.home() / ".cache") / "rocmlab"
    made = folder / f"{SIMULATED_DRIVER}{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            os.replace(_compile(Path(draft) / made.name), made)
    return made


def _compile(target: Path) -> Path:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise RocmlabError(
            "C compiler not found",
            "the driver of the simulated host is compiled once",
            "sudo apt-get install gcc libc6-dev",
        )
    command = [compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise RocmlabError(
            f"{compiler} cannot compile the driver of the simulated host",
            (done.stderr.strip().splitlines() or ["it printed nothing"])[0],
            "sudo apt-get install libc6-dev, which has the headers of the C library",
        )
    return target
