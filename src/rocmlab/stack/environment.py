"""The native lab's virtual environment: one `.venv` in the project, made from the locked requirements."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile, environments, process, source
from rocmlab.stack.lab import Say

OLDEST, NEWEST = (3, 11), (3, 13)  # what the locked TensorFlow and PyTorch have wheels for
NEEDED_BYTES = {"rocm": 30e9, "cuda": 15e9, "cpu": 5e9, "metal": 5e9}
TORCH_VERSION = "2.13.0"
PACKAGE = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.MULTILINE)
AMD_WHEELS = "https://repo.radeon.com/rocm/manylinux/rocm-rel-{version}/"
MARKER = "rocmlab-environment.json"
MADE = "rocmlab-made"  # there from the beginning on: without it an environment is the user's own


@dataclass(frozen=True)
class Step:
    """One call of pip."""

    title: str
    arguments: tuple[str, ...]
    fallback: tuple[str, ...] | None = None  # tried when the first arguments find nothing
    has_companions: bool = False  # torchvision and torchaudio follow, from the same place


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
    has_cluster: bool = False  # with Ray, for a lab that is a node of a cluster
    is_beside: bool = False  # `make` leaves `.venv` as it is, and makes another environment for `switch`
    building: Path | None = None  # the folder that is being made next to `.venv`

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
        facts |= {"cluster": "ray"} if self.has_cluster else {}
        return source.digest(self.project, source.NATIVE_SOURCES, facts)

    def is_current(self) -> bool:
        """Return whether the environment is whole and made from the present requirements."""
        fitting = {self.fingerprint(), replace(self, has_cluster=True).fingerprint()}  # Ray may be there unused
        return envfile.read_json(self.marker).get("fingerprint") in fitting

    def make(self, say: Say) -> None:
        """Make the environment, or bring it up to date; see `_make`."""
        if not self.is_beside or not self.interpreter.exists() or not was_made_by_us(self.folder):
            self._make(say)
            return
        self.building = environments.new_folder(self.project)
        try:
            if self._matches(self._record(check_python(self.python)), self.project / ".venv"):
                say("copying .venv, so that the present environment is kept")
                environments.copy(self.project / ".venv", self.building)
            self._make(say)
        except BaseException:
            shutil.rmtree(self.building, ignore_errors=True)
            self.building = None
            raise

    def switch(self) -> Path | None:
        """Have `.venv` lead to the environment made next to it; return the path of the one before if it moved."""
        made, self.building, self.is_beside = self.building, None, False
        return environments.switch(self.project, made) if made is not None else None

    def _record(self, version: str) -> dict[str, str]:
        record = {"backend": self.backend, "python": version, "project": str(self.project)}
        return record | ({"jax_packages": self.jax_packages} if self.jax_packages else {})

    def _make(self, say: Say) -> None:
        """Make the environment, or bring it up to date.

        Raises:
            RocmlabError: the interpreter does not fit, the disk is full, or pip failed. A new environment is removed.
        """
        version = check_python(self.python)
        record = self._record(version)
        if self.building is None and not self.marker.exists() and was_made_by_us(self.folder):
            environments.bring_back(self.project, self.folder, only_if_there=True)  # this was ended in the middle
        is_new = not self._matches(record, self.folder)
        if is_new and os.path.lexists(self.folder):
            if self.folder.exists() and not was_made_by_us(self.folder):
                raise RocmlabError(
                    f"{self.folder} was not made by rocmlab",
                    "it would be replaced by the lab's environment, and what you installed there would be lost",
                    f"mv {self.folder} {self.folder}-mine      # or, if nothing there is needed: rm -r {self.folder}",
                )
            say("replacing .venv: it is for another backend, Python or folder, or half made")
            environments.put_aside(self.project, self.folder, is_whole=self.marker.exists())
        try:
            self.check_disk()
            self.marker.unlink(missing_ok=True)
            if is_new:
                say(f"making .venv with {self.python} ({version})")
                create(self.python, self.folder)
            (self.folder / MADE).touch()
            for step in self.steps():
                arguments = self._install(step, say)
                if step.has_companions and arguments:
                    self._add_companions(arguments if is_new else step.fallback or arguments, say)
            self.verify(self.interpreter)
            self._finish(record)
        except BaseException:
            if is_new:
                environments.bring_back(self.project, self.folder)
            raise
        environments.remove(self.project / environments.FOLDER / environments.ASIDE)

    def _matches(self, record: dict[str, str], folder: Path) -> bool:
        """Return whether the environment is whole and of this backend and Python: pip would keep other wheels."""
        found = envfile.read_json(folder / MARKER)
        if found.get("jax_packages", "") != self.jax_packages:
            return False  # a plugin that was taken back would stay
        return record.items() <= found.items() and (folder / "bin/python").exists()

    def verify(self, interpreter: Path) -> None:
        """Make sure that an interpreter's frameworks are builds for the backend, as the image's build does.

        Raises:
            RocmlabError: one is not, or cannot be imported.
        """
        for framework in ("tensorflow", "torch", "jax"):
            program = str(self.project / "docker/build/verify.py")
            command = [str(interpreter), program, self.backend, framework]
            command += [self.jax_packages] if framework == "jax" else []
            code, output = process.capture(command, timeout_seconds=300)
            if code:
                lines = [line for line in output.splitlines() if line.strip()][-1:] or ["it cannot be imported"]
                fix = "make up RUNTIME=docker" if self.backend == "rocm" else "make up BACKEND=cpu"
                raise RocmlabError(
                    f"{framework} is not what the backend {self.backend} needs",
                    lines[0].removeprefix("error: "),
                    "make up JAX_PACKAGES=" if framework == "jax" and self.jax_packages else fix,
                )

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

    def steps(self) -> Iterator[Step]:
        """Return the calls of pip that fill the environment, in order."""
        locked = ("--no-deps", "--require-hashes", "--requirement")
        lock = self.project / f"requirements/{'native-cuda' if self.backend == 'cuda' else 'native'}.txt"
        if self.backend == "rocm":
            text = without(lock.read_text(encoding="utf-8"), {"tensorflow", "tensorflow-cpu"})
            lock = self.folder / "native-rocm.txt"
            lock.write_text(text, encoding="utf-8")
        count = len(PACKAGE.findall(lock.read_text(encoding="utf-8")))
        content = "JupyterLab and the runner" if self.backend == "rocm" else "JupyterLab, the runner and TensorFlow"
        yield Step(f"{content} ({count} packages)", (*locked, str(lock)))
        if self.backend == "rocm":
            # The public index ends with 2.14.0.600, which ignores every Radeon: a typo in its list of targets.
            wanted = ("--no-deps", "--pre", "--find-links", self.tensorflow_index, "tensorflow-rocm>=2.16")
            yield Step("AMD's TensorFlow", wanted)
        yield self._torch_step()
        if self.jax_packages:
            pinned = self.folder / "pinned.txt"
            pinned.write_text(pins(lock.read_text(encoding="utf-8")) + f"torch=={TORCH_VERSION}\n", encoding="utf-8")
            links = ("--find-links", self.wheels) if self.wheels else ()
            arguments = (*links, "--constraint", str(pinned), *self.jax_packages.split())
            yield Step(f"JAX's plugin ({self.jax_packages})", arguments)
        if self.has_cluster:
            yield Step("Ray, for the cluster", (*locked, str(self.project / "requirements/cluster.txt")))
        yield Step("rocmlab", ("--no-deps", "--no-build-isolation", "--editable", str(self.project)))

    def _torch_step(self) -> Step:
        torch = f"torch=={TORCH_VERSION}"
        links = ("--find-links", self.wheels) if self.wheels else ()
        index = ("--retries", "1", "--index-url", self.torch_index) if self.torch_index else ()
        # The GPU builds bring libraries of their own (triton, CUDA); what the CPU and Metal builds need is locked.
        dependencies = ("--no-deps",) if self.backend in ("cpu", "metal") else ()
        return Step(
            f"PyTorch {TORCH_VERSION} for {self.backend}",
            # A wheel that pip already finds in a folder wins: behind a mirror PyTorch's own index cannot be reached.
            ("--no-deps", "--no-index", *links, torch),
            (*dependencies, *links, *index, torch),
            has_companions=True,
        )

    def _add_companions(self, arguments: tuple[str, ...], say: Say) -> None:
        """Install torchvision and torchaudio from where PyTorch came from; what has no matching build is omitted."""
        options = [word for word in arguments[:-1] if word != "--no-deps"]
        program = str(self.project / "docker/build/companions.py")
        output = process.capture([str(self.interpreter), program, *options], timeout_seconds=900)[1]
        for line in output.strip().splitlines():
            say(line)

    def _install(self, step: Step, say: Say) -> tuple[str, ...]:
        """Run pip, and return the arguments that it succeeded with."""
        say(f"installing {step.title}")
        log = self.project / ".rocmlab/install.log"
        arguments = step.arguments
        code, last = self._pip(arguments, log)
        if code and step.fallback:
            arguments = step.fallback
            code, last = self._pip(arguments, log)
        if code:
            errors = [line.strip() for line in last if re.match(r"ERROR|\s*\w*Error:|OSError", line)] or last[-3:]
            raise RocmlabError(
                f"installing {step.title} failed",
                "\n".join(errors[-3:]),
                f"see {log}; behind a mirror set TORCH_INDEX= and pip's own settings"
                + ("; to work on the CPU instead: make up BACKEND=cpu" if self.backend != "cpu" else ""),
            )
        return arguments

    def _pip(self, arguments: tuple[str, ...], log: Path) -> tuple[int, list[str]]:
        # Python compiles what is imported, the first time; compiling every file is a third of the installation.
        options = [] if os.environ.get("PYTHONDONTWRITEBYTECODE") else ["--no-compile"]
        pip = [str(self.interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        command = [*pip, *options, *arguments]
        return process.follow(command, log=log, show=_download, cwd=self.project)

    def _finish(self, record: dict[str, str]) -> None:
        kernels = [str(self.interpreter), "-P", "-m", "rocmlab.lab.install", "--prefix", str(self.folder)]
        kernels += ["--tensorflow", str(self.interpreter), "--torch", str(self.interpreter)]
        code, output = process.capture(kernels)
        if code:
            raise RocmlabError("the kernels could not be registered", output.strip()[-400:], "make clean && make up")
        text = json.dumps({**record, "fingerprint": self.fingerprint()}, indent=1)
        self.marker.write_text(text + "\n", encoding="utf-8")


def _download(line: str) -> str | None:
    """Return what to show of a line of pip's output, if anything: large downloads."""
    large = re.match(r"\s*Downloading (\S+?)-(\d[^-]*)-\S+ \(([\d.]+) MB\)", line)
    if large and float(large[3]) >= 20:
        return f"  {large[1].rsplit('/', 1)[-1]} {large[2]} ({float(large[3]):.0f} MB)"
    return None


def without(lock: str, names: set[str]) -> str:
    """Return a locked requirements text without some packages and their hashes."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return "".join(block for block in blocks if not ((name := PACKAGE.match(block)) and name[1] in names))


def pins(lock: str) -> str:
    """Return a locked requirements text without the hashes, as pip wants its constraints."""
    found = (line.removesuffix("\\").rstrip() for line in lock.splitlines() if PACKAGE.match(line))
    return "".join(f"{line}\n" for line in found)


def check_python(python: str) -> str:
    """Make sure that the interpreter fits the locked packages, and return its version, such as `3.12`.

    Raises:
        RocmlabError: it is missing, or its version has no wheels.
    """
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
    """Return the backend that a whole environment was made for; None: there is none."""
    backend = envfile.read_json(folder / MARKER).get("backend") if (folder / "bin/python").exists() else None
    return backend if isinstance(backend, str) else None


def was_made_by_us(folder: Path) -> bool:
    """Return whether rocmlab has made an environment, whole or not; False where there is none."""
    return any((folder / name).exists() for name in (MARKER, MADE)) or (folder.is_dir() and not any(folder.iterdir()))


def create(python: str, folder: Path) -> None:
    """Make an empty environment with pip, by `venv` or, where Debian left it out, by `virtualenv`.

    Raises:
        RocmlabError: neither works.
    """
    code, output = process.capture([python, "-P", "-m", "venv", str(folder)], timeout_seconds=300)
    if code == 0:
        return
    shutil.rmtree(folder, ignore_errors=True)
    if process.capture([python, "-P", "-m", "virtualenv", str(folder)], timeout_seconds=300)[0] == 0:
        return
    version = process.capture([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])[1].strip()
    lines = output.strip().splitlines()
    raise RocmlabError(
        "a virtual environment cannot be made",
        lines[0] if lines else f"{python} -m venv failed",
        f"sudo apt install python{version}-venv" if sys.platform == "linux" else "install Python from python.org",
    )


def rocm_version(root: Path) -> str | None:
    """Return the ROCm version of a host, such as `7.2.1`. Source: `/opt/rocm/.info/version`."""
    try:
        text = (root / "opt/rocm/.info/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.match(r"\d+\.\d+(\.\d+)?", text.strip())
    return found[0] if found else None


def amd_wheels(root: Path) -> str:
    """Return the address of AMD's wheels for the host's ROCm; raise RocmlabError if its version is not known."""
    version = rocm_version(root)
    if version is None:
        raise RocmlabError(
            "the version of this host's ROCm is not known",
            "/opt/rocm/.info/version is missing or empty",
            "set AMD's wheel folder for it: make up TENSORFLOW_INDEX=…; or make up BACKEND=cpu",
        )
    return AMD_WHEELS.format(version=version.removesuffix(".0"))
