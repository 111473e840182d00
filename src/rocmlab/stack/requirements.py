"""The locked requirements of a native environment, and the calls of pip that install them."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base import extras
from rocmlab.base.errors import RocmlabError
from rocmlab.devices.rocm import rocm_version
from rocmlab.packages.requested import normal
from rocmlab.stack import environments, packages, process
from rocmlab.stack.environment import Environment
from rocmlab.stack.lab import Say

# PyPI has 2.15. This is the newest that is known to be in PyTorch's index for ROCm 7.2 (public projects use it) and
# among what AMD builds for ROCm 10 (2.11 to 2.14); one version is tested for all. Checked 2026-11, in documentation.
TORCH_VERSION = "2.13.0"
PACKAGE = re.compile(r"^([A-Za-z0-9][\w.-]*)==", re.MULTILINE)
NOT_LOCKED = {"tensorflow-rocm", "torch", "torchvision", "torchaudio"}
GPU_LIBRARIES = ("cuda-", "jax-", "nvidia-", "pytorch-triton", "triton")  # what PyTorch and JAX for GPUs bring
LAB_LOCKS = ("lab", "build")  # what is in these is all that JupyterLab needs to start
LOCKED = ("--no-deps", "--require-hashes", "--requirement")
INSTALL = "docker/build/install.py"  # installs with uv, else with pip
ALONE = "--no-other-index"  # of it: only the index and the folders of the arguments, whatever pip's settings name
HASHES = "--hashes"  # of it: the lock by which the named packages are installed, where it has exactly these
AMD_WHEELS = "https://repo.radeon.com/rocm/manylinux/rocm-rel-{version}/"


@dataclass(frozen=True)
class Step:
    """One call of pip."""

    title: str
    arguments: tuple[str, ...]
    fallback: tuple[str, ...] | None = None  # tried when the first arguments find nothing
    has_companions: bool = False  # torchvision and torchaudio follow, from the same place


def steps(environment: Environment, *, is_serving: bool = False) -> Iterator[Step]:
    """Return the calls of pip that fill the environment, in order; without rocmlab for one that is serving."""
    lock = environment.lock
    if environment.backend == "rocm":
        text = without(lock.read_text(encoding="utf-8"), {"tensorflow", "tensorflow-cpu"})
        lock = environment.folder / "native-rocm.txt"
        lock.write_text(text, encoding="utf-8")
    count = len(PACKAGE.findall(lock.read_text(encoding="utf-8")))
    content = "JupyterLab and the runner" if environment.backend == "rocm" else "JupyterLab, the runner and TensorFlow"
    yield Step(f"{content} ({count} packages)", (*LOCKED, str(lock)))
    if environment.backend == "rocm":
        # The public index ends with 2.14.0.600, which ignores RX 6800 to 7900: a typo in its list of targets.
        # No index either: it could outbid AMD's wheels by a higher version.
        wanted = ("--no-deps", "--pre", ALONE, "--no-index", *_links(environment))
        wanted += ("--find-links", environment.tensorflow_index, "tensorflow-rocm>=2.16")
        yield Step("AMD's TensorFlow", wanted)
    yield _torch_step(environment)
    if environment.jax_packages:
        pinned = environment.folder / "pinned.txt"
        pinned.write_text(pins(lock.read_text(encoding="utf-8")) + f"torch=={TORCH_VERSION}\n", encoding="utf-8")
        hashes = (HASHES, f"{_frameworks(environment)}/jax-*.txt")
        arguments = (*_links(environment), *hashes, "--constraint", str(pinned), *environment.jax_packages.split())
        yield Step(f"JAX's plugin ({environment.jax_packages})", arguments)
    yield from _extra_steps(environment)
    if environment.has_cluster:
        yield Step("Ray, for the cluster", (*LOCKED, str(environment.project / "requirements/cluster.txt")))
    if not is_serving:
        yield _own_step(environment)


def lab_steps(environment: Environment) -> Iterator[Step]:
    """Return the calls of pip for what JupyterLab needs: the same versions of it that `steps` installs."""
    texts = [(environment.project / f"requirements/{name}.txt").read_text(encoding="utf-8") for name in LAB_LOCKS]
    names = {name for text in texts for name in PACKAGE.findall(text)}
    lock = environment.lock.read_text(encoding="utf-8")
    part = environment.folder / "lab.txt"
    part.write_text(without(lock, set(PACKAGE.findall(lock)) - names), encoding="utf-8")
    count = len(PACKAGE.findall(part.read_text(encoding="utf-8")))
    yield Step(f"JupyterLab and the runner ({count} packages)", (*LOCKED, str(part)))
    yield from _extra_steps(environment)
    yield _own_step(environment)


def _links(environment: Environment) -> tuple[str, ...]:
    return ("--find-links", environment.wheels) if environment.wheels else ()


def _frameworks(environment: Environment) -> str:
    """Return the folder of the locks with hashes of frameworks, as the beginning of a pattern."""
    return glob.escape(str(environment.project / "requirements/frameworks"))


def _extra_locks(environment: Environment) -> list[Path]:
    names = {"proxy" if name in extras.PROXIED else name for name in extras.parse(environment.extras)}
    return [environment.project / f"requirements/extras-{name}.txt" for name in sorted(names)]


def _extra_steps(environment: Environment) -> Iterator[Step]:
    for lock in _extra_locks(environment):
        yield Step(f"JupyterLab's extra {lock.stem.removeprefix('extras-')}", (*LOCKED, str(lock)))


def _own_step(environment: Environment) -> Step:
    return Step("rocmlab", ("--no-deps", "--no-build-isolation", "--editable", str(environment.project)))


def _torch_step(environment: Environment) -> Step:
    torch = f"torch=={TORCH_VERSION}"
    links = _links(environment)
    index: tuple[str, ...] = ()
    if environment.torch_index:
        name = environment.torch_index.rstrip("/").rpartition("/")[2]
        index = (ALONE, "--retries", "1", "--index-url", environment.torch_index)
        index += (HASHES, f"{_frameworks(environment)}/{glob.escape(name)}.txt")
    # The GPU builds bring libraries of their own (triton, CUDA); what the CPU and Metal builds need is locked.
    dependencies = ("--no-deps",) if environment.backend in ("cpu", "metal") else ()
    return Step(
        f"PyTorch {TORCH_VERSION} for {environment.backend}",
        # A wheel that pip already finds in a folder wins: behind a mirror PyTorch's own index cannot be reached.
        ("--no-deps", "--no-index", *links, torch),
        (*dependencies, *links, *index, torch),
        has_companions=True,
    )


def comes(environment: Environment, name: str) -> bool:
    """Return whether `steps` install a package where it is not there; rocmlab itself does not count."""
    locks = [environment.lock, *_extra_locks(environment)]
    locks += [environment.project / "requirements/cluster.txt"] if environment.has_cluster else []
    text = "".join(lock.read_text(encoding="utf-8") for lock in locks)
    names = {normal(each) for each in PACKAGE.findall(text)} | NOT_LOCKED
    return name in names or (environment.backend in ("rocm", "cuda") and name.startswith(GPU_LIBRARIES))


def without(lock: str, names: set[str]) -> str:
    """Return a locked requirements text without some packages and their hashes."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)
    return "".join(block for block in blocks if not ((name := PACKAGE.match(block)) and name[1] in names))


def pins(lock: str) -> str:
    """Return a locked requirements text without the hashes, as pip wants its constraints."""
    found = (line.removesuffix("\\").rstrip() for line in lock.splitlines() if PACKAGE.match(line))
    return "".join(f"{line}\n" for line in found)


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


def fill(environment: Environment, steps: Iterable[Step], say: Say, *, is_continued: bool = False) -> None:
    """Run these calls; `is_continued`: some of what they install is there already."""
    for step in steps:
        # One that is there is what the first arguments find.
        was_there = step.has_companions and any(environment.folder.glob(f"{packages.SITE}/torch-*.dist-info"))
        arguments = install(environment, step, say)
        if is_continued and was_there and step.fallback and arguments != step.fallback:
            run_pip(environment, step.fallback)  # what it needs may be missing; without an index it stays as it is
        if step.has_companions and arguments:
            _add_companions(environment, step.fallback if was_there and step.fallback else arguments, say)


def install(environment: Environment, step: Step, say: Say) -> tuple[str, ...]:
    """Run pip, and return the arguments that it succeeded with."""
    say(f"installing {step.title}")
    arguments = step.arguments
    code, last = run_pip(environment, arguments)
    if code and step.fallback:
        arguments = step.fallback
        code, last = run_pip(environment, arguments)
    if code:
        errors = [line.strip() for line in last if re.match(r"ERROR|\s*\w*Error:|OSError", line)] or last[-3:]
        raise RocmlabError(
            f"installing {step.title} failed",
            "\n".join(errors[-3:]),
            f"see {environment.log}; behind a mirror set TORCH_INDEX= and pip's own settings"
            + ("; to work on the CPU instead: make up BACKEND=cpu" if environment.backend != "cpu" else ""),
        )
    return arguments


def _add_companions(environment: Environment, arguments: tuple[str, ...], say: Say) -> None:
    """Install torchvision and torchaudio from where PyTorch came from; what has no matching build is omitted."""
    before = ("", *arguments)  # hashes are PyTorch's own
    options = [
        word
        for last, word in zip(before, arguments[:-1], strict=False)
        if word not in ("--no-deps", HASHES) and last != HASHES
    ]
    program = str(environment.project / "docker/build/companions.py")
    command = [str(environment.interpreter), program, "", *options]  # "": a native PyTorch has no extras
    kept = environment.descriptors
    output = process.capture(command, timeout_seconds=900, env=_with_uv(environment), keep=kept)[1]
    for line in output.strip().splitlines():
        say(line)


def run_pip(environment: Environment, arguments: tuple[str, ...]) -> tuple[int, list[str]]:
    """Run pip, or what installs in its place; return the exit code and the last lines."""
    # Python compiles what is imported, the first time; compiling every file is a third of the installation.
    options = [] if os.environ.get("PYTHONDONTWRITEBYTECODE") else ["--no-compile"]
    program = [str(environment.interpreter), str(environment.project / INSTALL)]
    command = [*program, "--disable-pip-version-check", "--no-input", *options, *arguments]
    return process.follow(
        command,
        log=environment.log,
        show=_download,
        cwd=environment.project,
        env=_with_uv(environment),
        keep=environment.descriptors,
    )


def _with_uv(environment: Environment) -> dict[str, str]:
    """Return the environment of what installs: with where uv is, and what pip needs behind a mirror or a proxy."""
    return {**os.environ, **environment.variables, "ROCMLAB_UV": str(environment.project / environments.UV)}


def get_uv(environment: Environment, say: Say) -> None:
    """Install uv apart from the environment, where its locked version is not there yet; see `INSTALL`."""
    lock, folder = environment.project / "requirements/uv.txt", environment.project / environments.UV
    version = re.search(r"^uv==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if version is None or all((folder / name).exists() for name in (f"uv-{version[1]}.dist-info", "bin/uv")):
        return
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(environment.interpreter), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--requirement", str(lock)]
    command = [*pip, "--target", str(folder), *options]
    if process.capture(command, env=_with_uv(environment), timeout_seconds=300)[0]:
        shutil.rmtree(folder, ignore_errors=True)
        say("uv cannot be installed; pip installs the packages, which takes longer")


def _download(line: str) -> str | None:
    """Return what to show of a line of uv's or pip's output, if anything: large downloads."""
    large = re.match(r"\s*Downloading (?:\S*/)?([^\s/]+?)(?:-\d\S*)? \(([\d.]+) ?([MG])i?B\)", line)
    megabytes = float(large[2]) * (1000 if large[3] == "G" else 1) if large else 0
    return f"  {large[1]} ({megabytes:.0f} MB)" if large and megabytes >= 20 else None
