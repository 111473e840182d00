"""Programs that run in a framework's own interpreter: what is installed there, and one operation on one device.

Both run in child processes with a time limit. A GPU stack that crashes, hangs or computes wrong numbers is a result.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocmlab.devices import Device, visibility
from rocmlab.doctor import child

MARK = "ROCMLAB-RESULT "
TARGETS = "ROCMLAB-TARGETS "  # before the operation, which may crash: what PyTorch has kernels for
DISTRIBUTIONS = (
    r"tensorflow([-_](rocm|cpu|gpu|intel|macos|metal))?|tf[-_]nightly([-_]\w+)?|torch|keras|tf[-_]keras"
    r"|jax|jaxlib|jax[-_]rocm\d+[-_](plugin|pjrt)|rocm[-_]sdk[-_].*|amd[-_]torch[-_]device.*"
)

INSPECT = (
    r"""
import importlib.metadata, importlib.util, json, os, re
listed, placeholders = [], []
for one in importlib.metadata.distributions():
    name = one.metadata["Name"] or ""
    if re.fullmatch(r"""
    + repr(DISTRIBUTIONS)
    + r""", name, re.I):
        listed.append([name.lower().replace("_", "-"), one.version])
        if (one.metadata["Summary"] or "").lower().startswith("placeholder"):
            placeholders.append(listed[-1][0])
def text(package, *path):
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        try:
            with open(os.path.join(folder, *path), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            pass
    return ""
print("ROCMLAB-RESULT " + json.dumps({
    "distributions": sorted(listed),
    "placeholders": sorted(placeholders),
    "build_info": text("tensorflow", "python", "platform", "build_info.py")[-8000:],
    "torch_version": text("torch", "version.py")[-8000:],
}))
"""
)

OPERATION = r"""
import json, sys
framework, size = sys.argv[1], 96
left = [[(7 * i + 3 * j) % 11 - 5 for j in range(size)] for i in range(size)]
right = [[(5 * i + 2 * j) % 13 - 6 for j in range(size)] for i in range(size)]
columns = list(zip(*right))
expected = [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in left]
try:
    if framework == "torch":
        import torch
        mps = getattr(torch.backends, "mps", None)
        kind = "cuda" if torch.cuda.is_available() else "mps" if mps and mps.is_available() else "cpu"
        if kind == "cuda":
            print("ROCMLAB-TARGETS " + " ".join(torch.cuda.get_arch_list()), flush=True)
        product = torch.tensor(left, dtype=torch.float32, device=kind) @ torch.tensor(
            right, dtype=torch.float32, device=kind)
        found = product.cpu().tolist()
        name = torch.cuda.get_device_name(0) if kind == "cuda" else kind
        version = torch.__version__
    else:
        import tensorflow as tf
        gpus = tf.config.list_physical_devices("GPU")
        for gpu in gpus:
            try:
                tf.config.experimental.set_memory_growth(gpu, True)
            except (ValueError, RuntimeError):
                pass
        with tf.device("/GPU:0" if gpus else "/CPU:0"):
            product = tf.matmul(tf.constant(left, tf.float32), tf.constant(right, tf.float32))
        found = product.numpy().tolist()
        kind = "gpu" if "GPU" in product.device else "cpu"
        name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "cpu"
        version = tf.__version__
except ImportError as error:
    print("ROCMLAB-RESULT " + json.dumps({"missing": str(error)}))
    raise SystemExit(0)
wrong = [(i, j) for i in range(size) for j in range(size) if found[i][j] != expected[i][j]]
first = [*wrong[0], found[wrong[0][0]][wrong[0][1]], expected[wrong[0][0]][wrong[0][1]]] if wrong else None
result = {"device": name, "on_gpu": kind != "cpu", "version": version, "wrong": len(wrong), "of": size * size}
result["first"] = [str(value) for value in first] if first else None
print("ROCMLAB-RESULT " + json.dumps(result), flush=True)
"""


@dataclass(frozen=True)
class Interpreter:
    """A framework's Python, and the variables that its kernelspec sets."""

    python: str
    env: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Installed:
    """What an interpreter has; None is unknown."""

    distributions: tuple[tuple[str, str], ...]  # name and version
    tensorflow_rocm: bool | None = None
    torch_hip: str | None = None
    torch_cuda: str | None = None
    placeholders: tuple[str, ...] = ()  # names of distributions that are empty


@dataclass(frozen=True)
class Outcome:
    """How one operation ended."""

    kind: str  # right, wrong, crash, limit, missing
    detail: str
    device: str = ""  # what the framework calls where it ran
    on_gpu: bool = False
    output: str = ""  # the end of what it printed
    targets: tuple[str, ...] = ()  # what PyTorch has kernels for; empty where that is unknown

    @property
    def is_right(self) -> bool:
        """Return whether the numbers are those of arithmetic."""
        return self.kind == "right"


def inspect(interpreter: Interpreter, environment: Mapping[str, str], limit_seconds: float) -> Installed | None:
    """Return what an interpreter has installed, without importing a framework; None if it does not answer."""
    command = [interpreter.python, "-c", INSPECT]
    code, output = child.run(command, {**environment, **interpreter.env}, limit_seconds)
    result = _result(output) if code == 0 else None
    if result is None:
        return None
    listed = tuple((str(name), str(version)) for name, version in result.get("distributions", []))
    rocm = re.search(r"is_rocm_build['\"]\s*[,:]\s*(True|False)", str(result.get("build_info", "")))
    return Installed(
        distributions=listed,
        tensorflow_rocm=rocm[1] == "True" if rocm else None,
        torch_hip=_assigned(str(result.get("torch_version", "")), "hip"),
        torch_cuda=_assigned(str(result.get("torch_version", "")), "cuda"),
        placeholders=tuple(map(str, result.get("placeholders", []))),
    )


def _assigned(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*(?::[^=\n]+)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def run(
    framework: str,
    interpreter: Interpreter,
    device: Device | None,
    environment: Mapping[str, str],
    limit_seconds: float,
    *,
    is_masked: bool = True,
) -> Outcome:
    """Multiply two matrices of small integers on one device, or on the CPU where that is None.

    Args:
        framework: tensorflow or torch.
        interpreter: that of its kernel.
        device: a GPU that a mask can name, or None.
        environment: the lab's.
        limit_seconds: for the whole of it, the framework's import included.
        is_masked: whether the child gets exactly that device; else it takes what it finds first.
    """
    env = {**environment, **interpreter.env}
    if is_masked:
        env = visibility.apply(env, [device] if device else [])
    env["TF_CPP_MIN_LOG_LEVEL"] = "0"  # its errors are wanted, and that it ignores a GPU is information to it
    code, output = child.run([interpreter.python, "-c", OPERATION, framework], env, limit_seconds)
    outcome = _outcome(framework, code, output, limit_seconds)
    told = re.search(rf"^{TARGETS}(.*)$", output, re.MULTILINE)
    targets = re.findall(r"\bgfx[0-9a-f]+", told[1]) if told else []
    return replace(outcome, targets=tuple(dict.fromkeys(targets)))


def _outcome(framework: str, code: int | None, output: str, limit_seconds: float) -> Outcome:
    """Return what a child's exit code and output mean."""
    last = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith((MARK, TARGETS))]
    tail = output[-4000:]
    message = _telling(last)
    if code is None:
        return Outcome("limit", f"stopped after {limit_seconds:g} s; {message}", output=tail)
    if code < 0:
        return Outcome("crash", f"{_signal_name(-code)}; {message}", output=tail)
    result = _result(output)
    if code or result is None:
        return Outcome("crash", f"exit code {code}; {message}", output=tail)
    if "missing" in result:
        return Outcome("missing", str(result["missing"]), output=tail)
    name, wrong = str(result.get("device", "")), result.get("wrong")
    if wrong != 0:
        row, column, got, expected = [*(result.get("first") or []), "?", "?", "?", "?"][:4]
        detail = f"{wrong} of {result.get('of')} numbers are wrong: [{row}, {column}] is {got} and should be {expected}"
        return Outcome("wrong", detail, name, bool(result.get("on_gpu")), tail)
    detail = f"{framework} {result.get('version')}: all {result.get('of')} numbers right"
    return Outcome("right", detail, name, bool(result.get("on_gpu")), tail)


def _telling(lines: Sequence[str]) -> str:
    """Return the most informative line of a program's output; TensorFlow's mere information is none."""
    lines = [line for line in lines if not re.match(r"\S+ \S+: I ", line)] or lines
    errors = [line for line in lines if re.search(r"error|fail|abort|fault|hsa|hip", line, re.IGNORECASE)]
    return ([*lines[-1:], *errors[-1:]] or ["it printed nothing"])[-1][:300]


def _signal_name(number: int) -> str:
    try:
        return f"ended by {signal.Signals(number).name}"
    except ValueError:
        return f"ended by signal {number}"


def _result(output: str) -> dict[str, Any] | None:
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    try:
        found = json.loads(lines[-1][len(MARK) :]) if lines else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
