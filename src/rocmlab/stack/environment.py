"""The native lab's virtual environment: one `.venv` in the project, made from the locked requirements."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from rocmlab.base import installation
from rocmlab.base.errors import RocmlabError
from rocmlab.devices.rocm import rocm_version
from rocmlab.stack import envfile, environments, packages, process, source
from rocmlab.stack.lab import Say

OLDEST, NEWEST = (3, 11), (3, 13)  # what the locked TensorFlow and PyTorch have wheels for
NEEDED_BYTES = {"rocm": 30e9, "cuda": 15e9, "cpu": 5e9, "metal": 5e9}
TORCH_VERSION = "2.13.0"
PACKAGE = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.MULTILINE)
FRAMEWORKS = ("tensorflow", "torch", "jax")
NOT_LOCKED = {"tensorflow-rocm", "torch", "torchvision", "torchaudio"}
GPU_LIBRARIES = ("cuda-", "jax-", "nvidia-", "pytorch-triton", "triton")  # what PyTorch and JAX for GPUs bring
LAB_LOCKS = ("lab", "build")  # what is in these is all that JupyterLab needs to start
LOCKED = ("--no-deps", "--require-hashes", "--requirement")
INSTALL = "docker/build/install.py"  # installs with uv, else with pip
AMD_WHEELS = "https://repo.radeon.com/rocm/manylinux/rocm-rel-{version}/"
MARKER = installation.WHOLE
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
        facts |= {"cluster": "ray"} if self.has_cluster else {}
        return source.digest(self.project, source.NATIVE_SOURCES, facts)

    def is_current(self) -> bool:
        """Return whether the environment is whole and made from the present requirements."""
        fitting = {self.fingerprint(), replace(self, has_cluster=True).fingerprint()}  # Ray may be there unused
        return envfile.read_json(self.marker).get("fingerprint") in fitting

    def has_lab(self) -> bool:
        """Return whether JupyterLab can start from the present requirements; its frameworks may be missing yet."""
        return self.is_current() or self.is_part()

    def is_part(self) -> bool:
        """Return whether it has what JupyterLab needs, from the present requirements, and `finish` can go on."""
        is_whole = installation.is_whole(self.folder)
        found = envfile.read_json(self.part).get("fingerprint")
        if is_whole or found != self.fingerprint() or not self.interpreter.exists():
            return False
        try:
            return self._matches(self._record(check_python(self.python)), self.folder)
        except RocmlabError:
            return False  # what makes the environment again reports it

    def make_lab(self, say: Say) -> None:
        """Make what JupyterLab needs, where there is no environment yet; else bring all of it up to date."""
        aside = self.project / environments.FOLDER / environments.ASIDE
        is_there = os.path.lexists(self.folder) and not was_made_by_us(self.folder)
        is_there = is_there or self.marker.exists() or self.part.exists() or os.path.lexists(aside)
        if is_there or self.has_cluster or self.is_beside:
            self.make(say)
        else:
            self._make(say, only_lab=True)

    def finish(self, say: Say) -> None:
        """Install what `make_lab` has left, under a lab that runs; its kernelspecs stay as they are."""
        self._make(say, is_serving=True)

    def make(self, say: Say, *, is_part_kept: bool = False) -> None:
        """Make the environment, or bring it up to date; `is_part_kept`: a lab may run from what `make_lab` has made."""
        if is_part_kept and not self.is_beside and self.is_part():
            self.finish(say)
            return
        if not self.is_beside or not self.interpreter.exists() or not was_made_by_us(self.folder):
            self._make(say)
            return
        self.building = environments.new_folder(self.project)
        try:
            if self._matches(self._record(check_python(self.python)), self.project / ".venv"):
                if (self.project / ".venv" / installation.PART).exists():  # sizes of scripts in a copy are other ones
                    packages.remove_unfinished(self.project / ".venv", self.comes)
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

    def _make(self, say: Say, *, only_lab: bool = False, is_serving: bool = False) -> None:
        """Make the environment, or bring it up to date; where that fails, the one before is back in its place.

        Args:
            say: prints progress.
            only_lab: as far as JupyterLab needs it.
            is_serving: a JupyterLab runs from it: rocmlab and the kernelspecs are there, and stay as they are.
        """
        made_from = self.fingerprint()  # what is checked out may change while this installs
        version = check_python(self.python)
        record = self._record(version)
        if self.building is None and not self.marker.exists() and was_made_by_us(self.folder):
            environments.bring_back(self.project, self.folder, only_if_there=True)  # this was ended in the middle
        is_new = not self._matches(record, self.folder)
        if is_new:
            self._make_room(say, is_serving=is_serving)
        try:
            self.check_disk()
            self.marker.unlink(missing_ok=True)
            packages.forget_bytecode(self.folder)
            if is_new:
                say(f"making .venv with {self.python} ({version})")
                create(self.python, self.folder)
            (self.folder / MADE).touch()
            self._get_uv(say)
            if only_lab:
                self._fill(self.lab_steps(), say)
            else:
                is_continued = self.part.exists()
                if is_continued and self.building is None:
                    packages.remove_unfinished(self.folder, self.comes)
                self._fill(self.steps(is_serving=is_serving), say, is_continued=is_continued)
                self.verify(self.interpreter)
            if not is_serving:
                self._register_kernels()
            self._finish({**record, "fingerprint": made_from}, only_lab=only_lab)
        except BaseException:
            if is_new:
                environments.bring_back(self.project, self.folder)
            raise
        environments.remove(self.project / environments.FOLDER / environments.ASIDE)

    def _make_room(self, say: Say, *, is_serving: bool) -> None:
        """Put what is there aside, unless a lab runs from it, or it is the user's own."""
        if is_serving:
            raise RocmlabError(
                f"{self.folder} cannot be completed while JupyterLab runs",
                "it is for another backend or Python, so it has to be made again",
                "make up      # makes it again, and restarts the lab",
            )
        if os.path.lexists(self.folder):
            if self.folder.exists() and not was_made_by_us(self.folder):
                raise RocmlabError(
                    f"{self.folder} was not made by rocmlab",
                    "it would be replaced by the lab's environment, and what you installed there would be lost",
                    f"mv {self.folder} {self.folder}-mine      # or, if nothing there is needed: rm -r {self.folder}",
                )
            say("replacing .venv: it is for another backend, Python or folder, or half made")
            environments.put_aside(self.project, self.folder, is_whole=self.marker.exists())

    def _fill(self, steps: Iterator[Step], say: Say, *, is_continued: bool = False) -> None:
        for step in steps:
            was_there = step.has_companions and packages.has(self.folder, "torch")  # the first arguments find that one
            arguments = self._install(step, say)
            if is_continued and was_there and step.fallback and arguments != step.fallback:
                self._pip(step.fallback, self.log)  # what it needs may be missing; without an index it stays as it is
            if step.has_companions and arguments:
                self._add_companions(step.fallback if was_there and step.fallback else arguments, say)

    def _matches(self, record: dict[str, str], folder: Path) -> bool:
        """Return whether the environment is of this backend and Python: pip would keep other wheels."""
        found = envfile.read_json(folder / MARKER) or envfile.read_json(folder / installation.PART)
        if found.get("jax_packages", "") != self.jax_packages:
            return False  # a plugin that was taken back would stay
        return record.items() <= found.items() and (folder / "bin/python").exists()

    def verify(self, interpreter: Path) -> None:
        """Raise RocmlabError unless an interpreter's frameworks are builds for the backend, as in the image."""
        program = str(self.project / "docker/build/verify.py")

        def check(framework: str) -> tuple[int, str]:
            more = [self.jax_packages] if framework == "jax" else []
            command = [str(interpreter), program, self.backend, framework, *more]
            return process.capture(command, timeout_seconds=300)

        with ThreadPoolExecutor() as pool:  # importing each takes seconds, the first time more
            found = dict(zip(FRAMEWORKS, pool.map(check, FRAMEWORKS), strict=True))
        for framework, (code, output) in found.items():
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

    def steps(self, *, is_serving: bool = False) -> Iterator[Step]:
        """Return the calls of pip that fill the environment, in order; without rocmlab for one that is serving."""
        lock = self.lock
        if self.backend == "rocm":
            text = without(lock.read_text(encoding="utf-8"), {"tensorflow", "tensorflow-cpu"})
            lock = self.folder / "native-rocm.txt"
            lock.write_text(text, encoding="utf-8")
        count = len(PACKAGE.findall(lock.read_text(encoding="utf-8")))
        content = "JupyterLab and the runner" if self.backend == "rocm" else "JupyterLab, the runner and TensorFlow"
        yield Step(f"{content} ({count} packages)", (*LOCKED, str(lock)))
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
            yield Step("Ray, for the cluster", (*LOCKED, str(self.project / "requirements/cluster.txt")))
        if not is_serving:
            yield self._own_step()

    def lab_steps(self) -> Iterator[Step]:
        """Return the calls of pip for what JupyterLab needs: the same versions of it that `steps` installs."""
        texts = [(self.project / f"requirements/{name}.txt").read_text(encoding="utf-8") for name in LAB_LOCKS]
        names = {name for text in texts for name in PACKAGE.findall(text)}
        lock = self.lock.read_text(encoding="utf-8")
        part = self.folder / "lab.txt"
        part.write_text(without(lock, set(PACKAGE.findall(lock)) - names), encoding="utf-8")
        count = len(PACKAGE.findall(part.read_text(encoding="utf-8")))
        yield Step(f"JupyterLab and the runner ({count} packages)", (*LOCKED, str(part)))
        yield self._own_step()

    @property
    def lock(self) -> Path:
        """The locked requirements of the whole environment."""
        return self.project / f"requirements/{'native-cuda' if self.backend == 'cuda' else 'native'}.txt"

    def comes(self, name: str) -> bool:
        """Return whether `steps` install a package where it is not there; rocmlab itself does not count."""
        text = self.lock.read_text(encoding="utf-8")
        if self.has_cluster:
            text += (self.project / "requirements/cluster.txt").read_text(encoding="utf-8")
        names = {packages.normal(each) for each in PACKAGE.findall(text)} | NOT_LOCKED
        return name in names or (self.backend in ("rocm", "cuda") and name.startswith(GPU_LIBRARIES))

    @property
    def log(self) -> Path:
        """What pip or uv printed."""
        return self.project / ".rocmlab/install.log"

    def _own_step(self) -> Step:
        return Step("rocmlab", ("--no-deps", "--no-build-isolation", "--editable", str(self.project)))

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
        output = process.capture(
            [str(self.interpreter), program, *options], timeout_seconds=900, env=self._uv(), keep=self.descriptors
        )[1]
        for line in output.strip().splitlines():
            say(line)

    def _install(self, step: Step, say: Say) -> tuple[str, ...]:
        """Run pip, and return the arguments that it succeeded with."""
        say(f"installing {step.title}")
        log = self.log
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

    def _uv(self) -> dict[str, str]:
        """Return the variables that tell `INSTALL` where uv is."""
        return {**os.environ, "ROCMLAB_UV": str(self.project / environments.UV)}

    def _get_uv(self, say: Say) -> None:
        """Install uv apart from the environment, where its locked version is not there yet; see `INSTALL`."""
        lock, folder = self.project / "requirements/uv.txt", self.project / environments.UV
        version = re.search(r"^uv==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
        if version is None or all((folder / name).exists() for name in (f"uv-{version[1]}.dist-info", "bin/uv")):
            return
        shutil.rmtree(folder, ignore_errors=True)
        pip = [str(self.interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
        options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock)]
        if process.capture([*pip, "--target", str(folder), *options], timeout_seconds=300)[0]:
            shutil.rmtree(folder, ignore_errors=True)
            say("uv cannot be installed; pip installs the packages, which takes longer")

    def _pip(self, arguments: tuple[str, ...], log: Path) -> tuple[int, list[str]]:
        # Python compiles what is imported, the first time; compiling every file is a third of the installation.
        options = [] if os.environ.get("PYTHONDONTWRITEBYTECODE") else ["--no-compile"]
        program = [str(self.interpreter), str(self.project / INSTALL)]
        command = [*program, "--disable-pip-version-check", "--no-input", *options, *arguments]
        return process.follow(command, log=log, show=_download, cwd=self.project, env=self._uv(), keep=self.descriptors)

    def _register_kernels(self) -> None:
        kernels = [str(self.interpreter), "-P", "-m", "rocmlab.lab.install", "--prefix", str(self.folder)]
        kernels += ["--tensorflow", str(self.interpreter), "--torch", str(self.interpreter)]
        code, output = process.capture(kernels)
        if code:
            raise RocmlabError("the kernels could not be registered", output.strip()[-400:], "make clean && make up")

    def _finish(self, record: dict[str, str], *, only_lab: bool) -> None:
        text = json.dumps(record, indent=1)
        if not only_lab:
            os.sync()  # after a power cut, too, what is marked as whole is on the disk
        (self.part if only_lab else self.marker).write_text(text + "\n", encoding="utf-8")
        if not only_lab and self.part.exists():
            self.part.unlink()
            (self.folder / installation.FAILURE).unlink(missing_ok=True)
            self.mark_kernels()

    def mark_kernels(self) -> None:
        """Have the launcher show which kernels are still being installed, or that they no longer are."""
        process.capture([str(self.interpreter), "-P", "-m", "rocmlab.lab.marks", str(self.folder)])


def _download(line: str) -> str | None:
    """Return what to show of a line of uv's or pip's output, if anything: large downloads."""
    large = re.match(r"\s*Downloading (?:\S*/)?([^\s/]+?)(?:-\d\S*)? \(([\d.]+) ?([MG])i?B\)", line)
    megabytes = float(large[2]) * (1000 if large[3] == "G" else 1) if large else 0
    return f"  {large[1]} ({megabytes:.0f} MB)" if large and megabytes >= 20 else None


def without(lock: str, names: set[str]) -> str:
    """Return a locked requirements text without some packages and their hashes."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return "".join(block for block in blocks if not ((name := PACKAGE.match(block)) and name[1] in names))


def pins(lock: str) -> str:
    """Return a locked requirements text without the hashes, as pip wants its constraints."""
    found = (line.removesuffix("\\").rstrip() for line in lock.splitlines() if PACKAGE.match(line))
    return "".join(f"{line}\n" for line in found)


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


def create(python: str, folder: Path) -> None:
    """Make an empty environment with pip, by `venv` or, where Debian left it out, by `virtualenv`."""
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
