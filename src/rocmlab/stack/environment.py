"""The native lab's virtual environment: one `.venv` in the project, for one backend; `making` makes it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from rocmlab.base import installation
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile, environments, process, source

OLDEST, NEWEST = (3, 11), (3, 13)  # what the locked TensorFlow and PyTorch have wheels for
NEEDED_BYTES = {"rocm": 30e9, "cuda": 15e9, "cpu": 5e9, "metal": 5e9}
MARKER = installation.WHOLE
MADE = "rocmlab-made"  # there from the beginning on: without it an environment is the user's own


@dataclass
class Environment:
    """The `.venv` of a project for one backend."""

    project: Path
    backend: str
    python: str  # the interpreter it is made with
    torch_index: str  # an index for the PyTorch wheel; empty: pip's own configuration
    tensorflow_index: str = ""  # rocm: where AMD's TensorFlow wheels are
    wheels: str = ""  # a folder of wheels tried before any index
    jax_packages: str = ""  # JAX's plugin for the GPU, as arguments of pip; empty: JAX computes on the CPU
    extras: str = ""  # of JupyterLab, with commas
    has_cluster: bool = False  # with Ray, for a lab that is a node of a cluster
    variables: dict[str, str] = field(default_factory=dict)  # of CA_BUNDLE and PIP_CONFIG, for what installs
    is_beside: bool = False  # `make` leaves `.venv` as it is, and makes another environment for `switch`
    building: Path | None = None  # the folder that is being made next to `.venv`
    descriptors: tuple[int, ...] = ()  # of a lock, which what installs keeps open: it may outlive this process

    @property
    def folder(self) -> Path:
        """The environment's folder, or a link to one of those in `.rocmlab/environments`."""
        return self.building or self.project / ".venv"

    @property
    def interpreter(self) -> Path:
        """The environment's python; not by way of the link, which may lead elsewhere while the server runs."""
        return (self.folder.resolve() if self.folder.is_symlink() else self.folder) / "bin/python"

    @property
    def marker(self) -> Path:
        """Written last, so that a half-made environment is never taken for a whole one."""
        return self.folder / MARKER

    @property
    def part(self) -> Path:
        """There from when JupyterLab could start until the environment is whole; see `installation`."""
        return self.folder / installation.PART

    def fingerprint(self) -> str:
        """Return a digest of all the environment is made from."""
        facts = {
            "backend": self.backend,
            "python": self.python,
            "torch_index": self.torch_index,
            "tensorflow_index": self.tensorflow_index,
            "jax_packages": self.jax_packages,
            "project": str(self.project),
        }
        facts |= {"extras": self.extras} if self.extras else {}
        facts |= {"cluster": "ray"} if self.has_cluster else {}
        return source.digest(self.project, source.NATIVE_SOURCES, facts)

    def is_current(self) -> bool:
        """Return whether the environment is whole and made from the present requirements."""
        fitting = {self.fingerprint(), replace(self, has_cluster=True).fingerprint()}  # Ray may be there unused
        return envfile.read_json(self.marker).get("fingerprint") in fitting

    def is_part(self) -> bool:
        """Return whether it has what JupyterLab needs, from the present requirements, and `finish` can go on."""
        is_whole = installation.is_whole(self.folder)
        found = envfile.read_json(self.part).get("fingerprint")
        if is_whole or found != self.fingerprint() or not self.interpreter.exists():
            return False
        try:
            return self.matches(self.record_of(check_python(self.python)), self.folder)
        except RocmlabError:
            return False  # what makes the environment again reports it

    def switch(self) -> Path | None:
        """Have `.venv` lead to the environment made next to it; return the path of the one before if it moved."""
        made, self.building, self.is_beside = self.building, None, False
        return environments.switch(self.project, made) if made is not None else None

    def record_of(self, version: str) -> dict[str, str]:
        """Return what an environment must have been made with to be brought up to date: pip would keep other wheels."""
        found = {"backend": self.backend, "python": version, "project": str(self.project)}
        return {**found, "jax_packages": self.jax_packages, "extras": self.extras}

    def matches(self, record: dict[str, str], folder: Path) -> bool:
        """Return whether an environment has this record, or fewer extras: what was taken back would stay in it."""
        read = envfile.read_json(folder / MARKER) or envfile.read_json(folder / installation.PART)
        found = {"jax_packages": "", **read, "extras": record["extras"]}
        more = set(str(read.get("extras", "")).split(",")) - {"", *record["extras"].split(",")}
        return record.items() <= found.items() and not more and (folder / "bin/python").exists()

    def check_disk(self) -> None:
        """Raise RocmlabError unless what has still to be installed fits on the project's disk."""
        needed, free = NEEDED_BYTES[self.backend], shutil.disk_usage(self.project).free
        if not self.interpreter.exists() and free < needed:
            is_kept = os.path.lexists(self.project / environments.FOLDER / environments.ASIDE)
            more = "; make clean removes the present environment, which is kept" if is_kept else ""
            raise RocmlabError(
                f"the disk of {self.project} has {free / 1e9:.1f} GB free",
                f"the native {self.backend} environment needs about {needed / 1e9:.0f} GB",
                f"free some space, or move the project to a larger disk{more}",
            )

    @property
    def lock(self) -> Path:
        """The locked requirements of the whole environment."""
        return self.project / f"requirements/{'native-cuda' if self.backend == 'cuda' else 'native'}.txt"

    @property
    def log(self) -> Path:
        """What pip or uv printed."""
        return self.project / ".rocmlab/install.log"

    def mark_kernels(self) -> None:
        """Have the launcher show which kernels are still being installed, or that they no longer are."""
        process.capture([str(self.interpreter), "-P", "-m", "rocmlab.lab.marks", str(self.folder)])


def check_python(python: str) -> str:
    """Return an interpreter's version, such as `3.12`; an error if the locked packages have no wheels for it."""
    code, output = process.capture([python, "-c", "import sys; print(*sys.version_info[:2])"])
    span = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    fix = f"install one of Python {span} then: make up PYTHON=python3.12"
    if code:
        raise RocmlabError(f"PYTHON={python} does not run", output.strip()[-200:], fix)
    found = tuple(map(int, output.split()))
    version = ".".join(map(str, found))
    if not OLDEST <= found <= NEWEST:
        raise RocmlabError(
            f"{python} is Python {version}", f"TensorFlow and PyTorch have wheels for Python {span}", fix
        )
    return version


def backend_of(folder: Path) -> str | None:
    """Return the backend that an environment was made for, as far as that JupyterLab starts; None: there is none."""
    found = envfile.read_json(folder / MARKER) or envfile.read_json(folder / installation.PART)
    backend = found.get("backend") if (folder / "bin/python").exists() else None
    return backend if isinstance(backend, str) else None


def was_made_by_us(folder: Path) -> bool:
    """Return whether rocmlab has made an environment, whole or not; False where there is none."""
    return any((folder / name).exists() for name in (MARKER, MADE)) or (folder.is_dir() and not any(folder.iterdir()))
