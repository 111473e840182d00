"""The variables that hide GPUs or rename them, wherever they are set."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rocmlab.base.errors import Problem
from rocmlab.devices import products, visibility
from rocmlab.devices.visibility.conflicts import MaskProblem
from rocmlab.devices.visibility.overrides import OVERRIDE, FatalOverride, OverrideProblem
from rocmlab.doctor.model import BLOCKS, CONTAINER, HOST, WARNS, Verdict, blocks, check, ok, skip, warns
from rocmlab.doctor.situation import CONTAINER_RUNTIMES, Situation
from rocmlab.stack.image import PASSED_INTO_THE_LAB

WHERE = {True: ".env", False: "environment"}


@check(
    "env.conflict",
    "the visibility masks agree",
    looks_at="HIP_, ROCR_, CUDA_ and AMD_VISIBLE_DEVICES, GPU_DEVICE_ORDINAL: of this process, or on the host of "
    "`.env`, which is all that reaches the container",
    why="ROCR_ filters first and HIP_ counts what is left; an empty value hides every GPU; a space ends the list, "
    "and an empty entry of ROCR_ stops ROCm. The usual result is a lab without GPUs (SwarmUI#565).",
    fix="HIP_VISIBLE_DEVICES alone, digits and commas",
    severity=BLOCKS,
    is_quick=True,
    unless=lambda s: s.no_kfd_gpus,
)
def conflict(s: Situation) -> Verdict | list[Verdict]:
    """Report the findings of the masks' own module."""
    masks = {name: s.lab_environment[name] for name in visibility.VARIABLES if name in s.lab_environment}
    where = WHERE[s.lab_environment is s.env_values]
    seen = tuple(f"{where}: {name}={value}" for name, value in masks.items()) or (f"{where}: no mask",)
    problems = [problem for problem in _conflicts(s) if isinstance(problem, MaskProblem)]
    if not problems:
        return ok(*seen)
    left = visibility.mark_hidden([gpu for gpu in s.passed if gpu.is_usable], masks)
    status = WARNS if any(gpu.is_usable for gpu in left) else BLOCKS
    if visibility.hides_all(masks, "rocm"):
        status = WARNS  # hidden on purpose
    return [_placed(s, Verdict(status, seen, problem)) for problem in problems]


def _conflicts(s: Situation) -> list[Problem]:
    """Return what is wrong with masks and overrides, read together: a mask may hide the GPU that an override breaks."""
    return visibility.problems(s.lab_environment, s.maskable)


def _placed(s: Situation, verdict: Verdict) -> Verdict:
    """Write a fix as lines for the place where the variable is set: `.env` decides for a container."""
    problem = verdict.problem
    if problem is None:
        return verdict
    is_in_file = any(name in problem.fix for name in s.env_values if name.startswith(OVERRIDE))  # natively
    if s.runtime not in CONTAINER_RUNTIMES and not is_in_file:
        return verdict
    about = HOST if s.side == CONTAINER else None
    return replace(verdict, problem=replace(problem, fix=for_env_file(problem.fix)), about=about)


def for_env_file(fix: str) -> str:
    """Turn `unset A; export B=1` into lines that do the same to `.env`, in the project's folder on the host."""
    kept = fix.partition("#")[0]
    removed = [name for part in re.findall(r"unset ([\w ]+)", kept) for name in part.split()]
    added = [word for part in re.findall(r"export ([^;]+)", kept) for word in part.split()]
    added = [word for word in added if word.partition("=")[0] in PASSED_INTO_THE_LAB or OVERRIDE in word]
    names = list(dict.fromkeys([*removed, *(word.partition("=")[0] for word in added)]))
    if not names:
        return fix
    lines = [f"sed -i -E '/^({'|'.join(names)})=/d' .env", *(f"echo {word} >>.env" for word in added)]
    return "\n".join([*lines, "make up"])


@check(
    "env.override",
    "HSA_OVERRIDE_GFX_VERSION fits the GPUs",
    looks_at=f"{OVERRIDE} and its per-node forms, against each GPU's target",
    why="A malformed value ends every HIP program at its start; a value for one GPU breaks another of a different "
    "generation; one that is not needed makes a supported GPU run another's kernels.",
    fix="`10.3.0` or `11.0.0` for the GPU's generation, per node where GPUs differ, else none",
    severity=BLOCKS,
    is_quick=True,
    unless=lambda s: s.no_kfd_gpus,
)
def override(s: Situation) -> Verdict | list[Verdict]:
    """Read the overrides as the runtime does."""
    environment = s.lab_environment
    given = {name: value for name, value in environment.items() if name.startswith(OVERRIDE)}
    seen = tuple(f"{name}={value}" for name, value in given.items()) or (f"{OVERRIDE} is not set",)
    problems = [problem for problem in _conflicts(s) if isinstance(problem, OverrideProblem)]
    if problems:
        stops = any(isinstance(problem, FatalOverride) for problem in problems)
        return [_placed(s, Verdict(BLOCKS if stops else WARNS, seen, problem)) for problem in problems]
    value = given.get(OVERRIDE)
    left = (
        visibility.mark_hidden(s.chosen, environment) if s.for_container else s.chosen
    )  # else they are masked already
    chosen = {gpu.gfx: gpu for gpu in left if gpu.gfx and gpu.is_usable}
    if not value or not chosen:
        return ok(*seen)
    if all(_generation(gfx) != value.split(".")[0] for gfx in chosen):
        gfx, gpu = next(iter(chosen.items()))
        verdict = blocks(
            f"{OVERRIDE}={value} is for another generation than {gfx}",
            f"it makes {gpu.name} run kernels for {value}, which crash on it",
            f"unset {OVERRIDE}",
            *seen,
            *(f"{one.pci_address} {one.gfx}" for one in chosen.values()),
        )
        return _placed(s, verdict)
    known = [products.target(gfx) for gfx in chosen]
    if all(target.is_in_tensorflow and target.support in ("yes", "partly") for target in known):
        verdict = warns(
            f"{OVERRIDE}={value} is set, and {', '.join(sorted(chosen))} needs none",
            "the libraries have kernels for this target, and the override makes them use another's",
            f"unset {OVERRIDE}",
            *seen,
        )
        return _placed(s, verdict)
    return ok(*seen)


def _generation(gfx: str) -> str:
    digits = gfx.removeprefix("gfx")
    return digits[:-2]


@check(
    "jupyter.env",
    "kernels have the environment of the lab",
    sides=(CONTAINER,),
    looks_at="the `env` of each kernelspec against this process's environment",
    why="A kernelspec's variables win over the lab's. And `!export HIP_VISIBLE_DEVICES=1` in a cell changes nothing: "
    "it sets a variable of a shell that exits immediately; `%env` works only before the framework is imported.",
    fix="take the mask out of the kernelspec; choose GPUs with `make up GPUS=…`",
)
def kernelspecs(s: Situation) -> Verdict:
    """Look for masks that a kernel would get and the lab does not have."""
    specs = dict(read_kernelspecs(s))
    if not specs:
        return skip("no kernelspec was found")
    seen, wrong = [], []
    for path, spec in specs.items():
        environment = variables(spec)
        names = [name for name in (*visibility.VARIABLES, OVERRIDE) if name in environment]
        seen.append(f"{path}: {', '.join(f'{name}={environment[name]}' for name in names) or 'no mask'}")
        wrong += [(path, name) for name in names if environment[name] != s.environment.get(name)]
    if not wrong:
        return ok(*seen)
    path, name = wrong[0]
    return warns(
        f"{path} sets {name} for its kernel",
        "notebooks with this kernel see other GPUs than the lab, the dashboard and this doctor",
        f"take {name} out of `env` in {path}; choose GPUs with: make up GPUS=0",
        *seen,
    )


def variables(spec: dict[str, object]) -> dict[str, str]:
    """Return what a kernelspec sets for its kernel."""
    found = spec.get("env")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def read_kernelspecs(s: Situation) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield path and content of every kernelspec that this lab's Jupyter offers, the user's own first."""
    home = s.environment.get("JUPYTER_DATA_DIR") or os.path.expanduser("~/.local/share/jupyter")
    listed = [part for part in s.environment.get("JUPYTER_PATH", "").split(os.pathsep) if part]
    folders = [*listed, home, f"{sys.prefix}/share/jupyter", "/opt/rocmlab/share/jupyter"]
    seen: set[str] = set()
    for folder in dict.fromkeys(folders):
        for path in sorted(Path(folder, "kernels").glob("*/kernel.json")):
            if path.parent.name in seen:
                continue
            try:
                spec = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(spec, dict):
                seen.add(path.parent.name)
                yield str(path), spec
