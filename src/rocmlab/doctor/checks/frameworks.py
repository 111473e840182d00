"""TensorFlow and PyTorch inside the lab: still AMD's builds, and do they compute right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmlab.base import installation
from rocmlab.devices import Device
from rocmlab.devices.visibility.overrides import OVERRIDE
from rocmlab.doctor import child, operation
from rocmlab.doctor.checks.masks import read_kernelspecs, variables
from rocmlab.doctor.model import BLOCKS, CONTAINER, Check, Probe, Verdict, blocks, check, ok, skip, unknown, warns
from rocmlab.doctor.operation import Interpreter, Outcome
from rocmlab.doctor.situation import Situation

TITLES = {"tensorflow": "TensorFlow", "torch": "PyTorch"}
TYPO_WHEEL = "2.14.0.600"
TYPO_ACCEPTS = ("gfx900", "gfx906", "gfx908", "gfx90a", "gfx940", "gfx941", "gfx942")  # as it prints them
LIMIT = "limit"
FULL = re.compile(
    r"out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|OOM when allocating|hipErrorOutOfMemory|ERROR_OUT_OF_MEMORY"
)
LEASES_SECONDS = 30.0  # for `rocmlab leases`, which has its own limits for drivers that hang
OTHER_KERNELS = "see gfx.support: HSA_OVERRIDE_GFX_VERSION in .env, then: make up"

Place = tuple[str | None, int | None]  # of a GPU: its PCI address, and its partition


def find(s: Situation, framework: str) -> Interpreter | None:
    """Return the interpreter of the kernel with this name, and the variables that its kernelspec sets.

    None as well while it is being installed, see `lab.kernels`.
    """
    if not installation.is_whole(Path(sys.prefix)):
        return None
    for path, spec in read_kernelspecs(s):
        argv = spec.get("argv")
        if f"/{framework}/kernel.json" in path and isinstance(argv, list) and argv and isinstance(argv[0], str):
            if "rocmlab.lab.refusal" in argv:
                return None  # the image is made without it
            given = variables(spec)
            path_variable = given.get("PATH", "").replace("${PATH}", s.environment.get("PATH", ""))
            return Interpreter(argv[0], {**given, **({"PATH": path_variable} if path_variable else {})})
    return None


# -- is it still AMD's build ------------------------------------------------------------------------------------------


@check(
    "tf.clobbered",
    "TensorFlow is the build for this backend",
    sides=(CONTAINER,),
    looks_at="the installed distributions named tensorflow…, and the build information inside the package; nothing is "
    "imported",
    why="`pip install` of anything that requires `tensorflow` puts the CPU or CUDA build over AMD's; 2.14.0.600, the "
    "newest tensorflow-rocm of PyPI, ignores RX 6800 to 7900 because of a typo, and has no other Radeon since RX 5000.",
    fix="`make build` and `make up` (a container's own changes go with it); `make clean && make up` (native)",
    severity=BLOCKS,
)
def tensorflow_clobbered(s: Situation) -> Verdict:
    """Look at what pip installed."""
    interpreter = find(s, "tensorflow")
    if interpreter is None:
        return skip("the kernel `tensorflow` was not found")
    found = operation.inspect(interpreter, s.environment, s.limit_seconds * 5)
    if found is None:
        return unknown(f"{interpreter.python} does not report what is installed")
    seen = [f"{interpreter.python}", *(f"{name} {version}" for name, version in found.distributions)]
    seen.append(f"is_rocm_build: {found.tensorflow_rocm}")
    if s.backend != "rocm":
        return ok(*seen)
    versions = dict(found.distributions)
    refused = [gpu for gpu in s.chosen if gpu.gfx not in TYPO_ACCEPTS]
    if versions.get("tensorflow-rocm") == TYPO_WHEEL and (refused or not s.chosen):
        names = ", ".join(dict.fromkeys(f"{gpu.name} ({gpu.gfx})" for gpu in refused)) or "every Radeon since RX 5000"
        return blocks(
            f"tensorflow-rocm {TYPO_WHEEL} ignores {names}",
            "its list of targets has the typo `gfx1030gfx1100` (tensorflow-upstream#2410, #2488, #2524)",
            "pip uninstall tensorflow-rocm, then take AMD's wheel for your ROCm: make clean && make up",
            *seen,
        )
    others = [name for name in versions if name in ("tensorflow", "tensorflow-cpu", "tf-nightly")]
    if found.tensorflow_rocm is False or (others and found.tensorflow_rocm is None):
        name = others[0] if others else "tensorflow"
        return blocks(
            f"{name} {versions.get(name, '')} has replaced AMD's TensorFlow".replace("  ", " "),
            "pip installed it as a requirement of something else, over the files of tensorflow-rocm",
            _renew(s),
            *seen,
        )
    if others:
        return warns(
            f"{others[0]} {versions[others[0]]} is installed next to tensorflow-rocm",
            "both own the same files; the next upgrade of either breaks the other",
            f"{interpreter.python} -m pip uninstall {others[0]}, then: {_renew(s)}",
            *seen,
        )
    return ok(*seen)


@check(
    "torch.clobbered",
    "PyTorch is the build for this backend",
    sides=(CONTAINER,),
    looks_at="`torch/version.py`, which is read and not imported",
    why="PyPI's own torch is for CUDA; any package that requires another version brings it, without ROCm.",
    fix="`make build` and `make up`; install with the lab's pip, which keeps its constraints",
    severity=BLOCKS,
)
def torch_clobbered(s: Situation) -> Verdict:
    """Read PyTorch's version file."""
    interpreter = find(s, "torch")
    if interpreter is None:
        return skip("the kernel `torch` was not found")
    found = operation.inspect(interpreter, s.environment, s.limit_seconds * 5)
    if found is None:
        return unknown(f"{interpreter.python} does not report what is installed")
    seen = [interpreter.python, *(f"{name} {version}" for name, version in found.distributions)]
    seen.append(f"torch.version.hip: {found.torch_hip}, torch.version.cuda: {found.torch_cuda}")
    if s.backend != "rocm" or found.torch_hip:
        return ok(*seen)
    if "torch" not in dict(found.distributions):
        return blocks("PyTorch is missing", "it was uninstalled, or its installation was interrupted", _renew(s), *seen)
    kind = "CUDA" if found.torch_cuda else "CPU"
    return blocks(
        f"PyTorch {dict(found.distributions)['torch']} is a {kind} build",
        "pip took it from PyPI as a requirement of something else",
        _renew(s),
        *seen,
    )


@check(
    "rocm.packages",
    "AMD's packages are whole, and JAX's plugin fits",
    sides=(CONTAINER,),
    looks_at="the installed distributions `rocm-sdk-*`, `amd-torch-device-*`, `jaxlib` and `jax-rocm*` of both "
    "kernels; nothing is imported",
    why="On PyPI the names of AMD's packages for one GPU are empty placeholders, which install without an error. JAX "
    "ignores a plugin of another version than jaxlib's, and computes on the CPU.",
    fix="AMD's own index for the former, the same version for the latter",
)
def packages(s: Situation) -> Verdict | list[Verdict]:
    """Look at what pip installed for both kernels."""
    if s.backend != "rocm":
        return skip(f"the lab's backend is {s.backend}")
    seen: list[str] = []
    found: list[Verdict] = []
    for interpreter in filter(None, (find(s, framework) for framework in TITLES)):
        installed = operation.inspect(interpreter, s.environment, s.limit_seconds * 5)
        if installed is None:
            continue
        read = [interpreter.python, *(f"{name} {version}" for name, version in installed.distributions)]
        seen += read
        if installed.placeholders:
            names = " ".join(installed.placeholders)
            found.append(
                warns(
                    f"{installed.placeholders[0]} is an empty placeholder",
                    "PyPI has AMD's package names without their content: no kernels for this GPU were installed",
                    f"{interpreter.python} -m pip uninstall {names}, then install them from AMD's own index",
                    *read,
                )
            )
        found += _jax(interpreter, dict(installed.distributions), read)
    return found or (ok(*seen) if seen else skip("neither the kernel `tensorflow` nor `torch` was found"))


def _jax(interpreter: Interpreter, versions: dict[str, str], read: list[str]) -> list[Verdict]:
    """Return a warning for each of JAX's plugins whose version is not that of jaxlib."""
    wanted = _release(versions.get("jaxlib", ""))
    plugins = {name: version for name, version in versions.items() if name.startswith("jax-rocm")}
    return [
        warns(
            f"{name} {version} does not fit jaxlib {versions['jaxlib']}",
            "JAX ignores a plugin of another version, and computes on the CPU",
            f"{interpreter.python} -m pip install '{name}=={wanted}'      # or a jax and jaxlib {_release(version)}",
            *read,
        )
        for name, version in plugins.items()
        if wanted and _release(version) != wanted
    ]


def _release(version: str) -> str:
    """Return the first three numbers of a version, which JAX compares."""
    found = re.match(r"\d+\.\d+\.\d+", version)
    return found[0] if found else ""


def _renew(s: Situation) -> str:
    if s.in_container:
        return "make down && make up      # on the host: a new container has the image's own packages"
    return "make clean && make up"


# -- does it compute -------------------------------------------------------------------------------------------------


def _computes(framework: str) -> Probe:
    def probe(s: Situation) -> Verdict | list[Verdict]:
        if not s.with_frameworks:
            return skip("--no-frameworks")
        interpreter = find(s, framework)
        if interpreter is None:
            return skip(f"the kernel `{framework}` was not found")
        if _is_wsl(s):
            outcome = operation.run(
                framework, interpreter, None, s.environment, s.operation_limit_seconds, is_masked=False
            )
            return _judge(s, framework, None, outcome)
        devices: list[Device | None] = [*s.chosen] if s.backend == "rocm" else []
        if s.backend == "rocm" and not devices:
            return skip("the lab has no GPU that it can use, which other checks explain")
        if s.backend == "cuda":
            devices = [gpu for gpu in s.devices if gpu.backend == "cuda" and gpu.is_usable]
        leased = _leased(s) if devices else {}
        return [_on(s, framework, interpreter, device, leased) for device in devices or [None]]

    return probe


def _on(
    s: Situation, framework: str, interpreter: Interpreter, device: Device | None, leased: Mapping[Place, str]
) -> Verdict:
    """Compute on one device, or on the CPU where that is None; not on a GPU that someone has."""
    if device and (who := leased.get((device.pci_address, device.partition))):
        return skip(f"{_name(device)} is leased to {who}")
    outcome = operation.run(framework, interpreter, device, s.environment, s.operation_limit_seconds)
    return _judge(s, framework, device, outcome)


def _leased(s: Situation) -> dict[Place, str]:
    """Return who has a lease of which GPU; none where that cannot be read, which `leases.folder` explains.

    Source: `rocmlab leases --json`, for which the packages of kernels need not be loaded here.
    """
    environment = child.with_package({**s.environment, "ROCMLAB_ROOT": str(s.root)})
    command = [sys.executable, "-m", "rocmlab", "leases", "--json"]
    _, output = child.run(command, environment, LEASES_SECONDS, errors=subprocess.DEVNULL)
    try:
        gpus = json.loads(output)["gpus"]
    except (ValueError, KeyError):
        return {}
    return {(gpu["pci_address"], gpu["partition"]): _holder(gpu["lease"]) for gpu in gpus if gpu["lease"]}


def _holder(lease: Mapping[str, Any]) -> str:
    process = f"process {lease['pid']} of " if lease["pid"] else ""
    return f"{lease['notebook'] or 'an unknown notebook'} ({process}{lease['owner'] or 'an unknown user'})"


def _is_wsl(s: Situation) -> bool:
    """Return whether the GPU is behind /dev/dxg, where nothing lists it and only computing shows it."""
    return s.backend == "rocm" and s.exists("dev/dxg") and not s.exists("dev/kfd")


def _judge(s: Situation, framework: str, device: Device | None, outcome: Outcome) -> Verdict:
    title = TITLES[framework]
    where = "the GPU behind /dev/dxg" if _is_wsl(s) else "the CPU"
    where = _name(device) if device else where
    seen = [f"{where}: {outcome.detail}"] + ([f"computed on {outcome.device}"] if outcome.device else [])
    if outcome.targets:
        seen.append(f"torch.cuda.get_arch_list(): {' '.join(outcome.targets)}; this GPU: {_gfx(device)}")
    if device is None and s.simulated:
        seen.append("the GPUs are SIMULATED, so this ran on the CPU")
    if outcome.is_right and (outcome.on_gpu or (device is None and not _is_wsl(s))):
        return ok(*seen)
    if outcome.kind == "crash" and (device or _is_wsl(s)) and FULL.search(outcome.output):
        fix = "rocmlab smi      # which processes hold its memory; end those that are no longer needed, and look again"
        return warns(f"{title} could not be tried on {where}: the GPU is full", outcome.detail, fix, *seen)
    if outcome.is_right:
        what, why = f"{title} computed on the CPU and not on {where}", "it does not see the GPU that it was given"
        if told := re.search(r"Ignoring visible gpu device \(.*?\)(?: with)? (.+)", outcome.output):
            return blocks(what, f"{title} ignores it: {told[1]}", OTHER_KERNELS, *seen)
        fix = "see tf.clobbered, torch.clobbered, gfx.support and env.conflict above"
    elif outcome.kind == "missing":
        return warns(f"{title} cannot be imported", outcome.detail, _renew(s), *seen)
    elif outcome.kind == LIMIT:
        what = f"{title} did not finish one multiplication on {where} in {s.operation_limit_seconds:g} s"
        why = "the GPU hangs, or its kernels are compiled at first use; " + outcome.detail
        fix = "rocmlab doctor --only compute." + framework + " --time-limit 600\nsudo dmesg | grep -i amdgpu"
    elif outcome.kind == "crash":
        what, why, fix = _crash(s, title, where, device, outcome)
    else:
        what, why = f"{title} computed wrong numbers on {where}", outcome.detail
        fix = "do not trust this GPU's results: see pcie.atomics, gfx.support, env.override and userspace.driver above"
    return blocks(what, why, fix, *seen)


def _crash(s: Situation, title: str, where: str, device: Device | None, outcome: Outcome) -> tuple[str, str, str]:
    what = f"{title} crashed in one multiplication on {where}"
    if re.search(r"Incompatible kernel and userspace", outcome.output):
        return what, "HSA: the kernel's driver is too old for this ROCm", "see userspace.driver: install a newer driver"
    if re.search(r"hipErrorNoBinaryForGpu|invalid device function|no kernel image", outcome.output, re.IGNORECASE):
        return what, f"it has no kernels for {_gfx(device)}", OTHER_KERNELS
    is_overridden = any(name.startswith(OVERRIDE) for name in s.environment)  # then it runs another target's kernels
    if device and device.gfx and outcome.targets and device.gfx not in outcome.targets and not is_overridden:
        return what, f"it has kernels for {', '.join(outcome.targets)} and none for {device.gfx}", OTHER_KERNELS
    return what, outcome.detail, "sudo dmesg | grep -i amdgpu | tail -n 30      # on the host"


def _name(device: Device) -> str:
    return f"HIP {device.index} ({device.pci_address})"


def _gfx(device: Device | None) -> str:
    return device.gfx if device and device.gfx else "an unknown target"


def _made(framework: str) -> Check:
    title = TITLES[framework]
    return check(
        f"compute.{framework}",
        f"{title} computes correctly on every device",
        sides=(CONTAINER,),
        looks_at="one multiplication of matrices whose exact result is known, in a child process for each device "
        "that no one has leased; on the cpu backend on the CPU",
        why="Everything can look right and still crash, hang or compute wrong numbers at the first kernel.",
        fix="by how it failed: the override, the driver, the slot, or a rebuilt lab",
        severity=BLOCKS,
        is_framework=True,
    )(_computes(framework))


tensorflow_computes = _made("tensorflow")
torch_computes = _made("torch")
