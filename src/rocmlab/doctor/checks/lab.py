"""The running lab, queried from the host and compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocmlab.base import hosts
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.devices import Device
from rocmlab.doctor.checks.masks import read_kernelspecs
from rocmlab.doctor.model import BLOCKS, CONTAINER, HOST, WARNS, Verdict, blocks, check, ok, skip, warns
from rocmlab.doctor.situation import Situation
from rocmlab.packages import declared, inventory, overlays, system
from rocmlab.stack import tls

NO_LAB = "no lab runs"


@check(
    "lab.answers",
    "the running lab can be queried",
    sides=(HOST,),
    looks_at="`rocmlab doctor --json --side container` inside the running lab",
    why="Many problems are visible only inside the lab.",
    fix="`make up`; an older lab: `make build && make up`",
)
def answers(s: Situation) -> Verdict:
    """Say whether there was an answer."""
    report = s.lab_report
    if report is None:
        return skip(NO_LAB + _how_to_start(s))
    if problem := report.get("problem"):
        return Verdict(WARNS, (), Problem(problem["what"], problem["why"], problem["fix"]))
    return ok(f"{len(report['findings'])} findings from inside")


@check(
    "lab.kernels",
    "TensorFlow and PyTorch are installed",
    sides=(HOST,),
    looks_at="whether the native environment is whole, and whether something installs into it",
    why="The first `make up` starts JupyterLab and installs the frameworks in the background; until then no kernel "
    "starts.",
    fix="`make up`, which continues an installation that failed or was interrupted",
)
def installed(s: Situation) -> Verdict:
    """Say how far the environment is."""
    if s.project is None:
        return skip("no project found here")
    found = s.project.lab.unfinished()
    if isinstance(found, Problem):
        return Verdict(WARNS, (), found)
    return ok(found or "nothing is missing")


@check(
    "lab.tls",
    "other machines can reach the lab over TLS (BIND)",
    sides=(HOST,),
    looks_at="the address of BIND, when the certificate ends, and who may read its key",
    why="An address that this host no longer has, or a certificate that has expired, keeps everyone out; who has the "
    "key can pretend to be the lab.",
    fix="`make up`, which renews a certificate that it has made; `chmod 600` the key",
)
def network(s: Situation) -> Verdict:
    """Look at each."""
    if s.project is None or not s.project.settings.get("BIND"):
        return skip("BIND is not set")
    settings, before = s.project.settings, s.running.settings.read_env() if s.running else {}
    try:
        tls.check_free(settings, before, as_root=s.project.choice.runtime != "native")
    except RocmlabError as err:
        return Verdict(WARNS, (), err.problem)
    key = settings.path(settings.get("TLS_KEY")) if settings.get("TLS_KEY") else tls.path_of(settings)
    if key.exists() and (mode := key.stat().st_mode & 0o077):
        return warns(f"other users may read the key {key}", f"its mode is {mode | 0o600:o}", f"chmod 600 {key}")
    if problem := tls.expiry_problem(tls.path_of(settings)):
        return Verdict(WARNS, (), problem)
    for problem in tls.own_problems(settings, s.project.values.get(hosts.BOUND, "")):
        return Verdict(WARNS, (), problem)
    days = tls.remaining_days(tls.path_of(settings))
    return ok(f"{settings.get('BIND')}" + ("" if days is None else f", the certificate is valid for {days:.0f} days"))


@check(
    "lab.packages",
    "the user's packages are installed for this image",
    sides=(CONTAINER,),
    looks_at="the list of each kernel in `packages/` of the share, `requirements.txt` or `pyproject.toml` next to the "
    "notebooks, and the overlay over its present interpreter",
    why="What is declared next to the notebooks is installed by one command. After an upgrade, or with another image, "
    "this and what `rocmlab packages` and `%pip install` have added has to be installed for the new interpreter; until "
    "then it cannot be imported.",
    fix="`rocmlab packages sync`",
)
def own_packages(s: Situation) -> Verdict:
    """Compare the lists with what is there."""
    specs = {Path(path).parent.name: spec for path, spec in read_kernelspecs(s)}
    seen: list[str] = []
    found = {
        name: overlays.of_specification(specs.get(name, {}), s.environment.get(overlays.SHARE))
        for name in ("torch", "tensorflow")
    }
    places = {name: place for name, place in found.items() if place}
    notebooks = s.environment.get("ROCMLAB_NOTEBOOKS")
    try:
        wanted = declared.by_kernel(places, Path(notebooks)) if notebooks else {}
        states = {name: inventory.state(place, wanted.get(name, ())) for name, place in places.items()}
    except RocmlabError as err:
        return Verdict(WARNS, (), err.problem)
    for name, state in states.items():
        if not state.is_synchronised:
            what = f"packages of the kernel {name} are not installed for this image"
            return warns(what, "\n".join(state.reasons), f"rocmlab packages sync --kernel {name}")
        if state.requirements:
            seen.append(f"{name}: {', '.join(state.requirements)}")
    return ok(*seen) if seen else skip("no packages were added")


@check(
    "lab.system_packages",
    "the system has what apt.txt names",
    sides=(HOST,),
    looks_at="`apt.txt` next to the notebooks, and dpkg of the host under a native lab",
    why="Notebooks may need libraries and programs that pip does not have. An image is built with them; on the host "
    "only an administrator can install them.",
    fix="the `apt-get install` that the finding has",
)
def system_packages(s: Situation) -> Verdict:
    """Compare the file with what is installed."""
    if s.project is None:
        return skip("no project found here")
    try:
        missing = s.project.lab.missing_system_packages()
    except RocmlabError as err:
        return Verdict(WARNS, (), err.problem)
    if missing:
        return warns(system.finding(missing), "notebooks here may need them", system.fix(missing))
    return ok("nothing of apt.txt is missing")


def _how_to_start(s: Situation) -> str:
    if s.project is None:
        return ""
    more = "`make up` starts it, then doctor also checks inside"
    return f"; {more}" if s.project.lab.is_built() else f" and none is built; {more}"


def _inside(s: Situation) -> Mapping[str, Any] | None:
    """Return the lab's report where it has one about GPUs of this host."""
    return None if s.lab_report is None or s.lab_report.get("problem") else s.lab_report


@check(
    "lab.devices",
    "the lab has every GPU that it should have",
    sides=(HOST,),
    looks_at="the devices as the host sees them against those the lab sees, joined by PCI address and KFD node",
    why="A GPU that is missing inside is not an error to any framework: the job runs on fewer GPUs, or on the CPU.",
    fix="what the finding suggests, mostly `make down && make up`",
    severity=BLOCKS,
)
def devices(s: Situation) -> Verdict:
    """Compare both lists."""
    report = _inside(s)
    if report is None:
        return skip(NO_LAB)
    if report.get("backend") != "rocm" and not s.simulated:
        return skip(f"the running lab's backend is {report.get('backend')}")
    if s.no_kfd_gpus:
        return skip(s.no_kfd_gpus)
    there = [one for one in report["devices"] if one["backend"] == "rocm"]
    inside = {(one["pci_address"], one["kfd_node"]): one for one in there}  # partitions share their address
    seen, missing = [], []
    for gpu in s.chosen:
        one = inside.get((gpu.pci_address, gpu.kfd_node))
        state = "absent" if one is None else one["why_not"] or f"HIP {one['index']}"
        seen.append(f"{gpu.pci_address}, KFD node {gpu.kfd_node}: host HIP {gpu.index}, lab {state}")
        if one is None or not one["is_usable"]:
            missing.append((gpu, one))
    if not missing:
        return ok(*seen)
    fire = warns if any(one["is_usable"] for one in there) else blocks
    return fire(*_missing(s, *missing[0]), *seen)


def _missing(s: Situation, gpu: Device, inside: Mapping[str, Any] | None) -> tuple[str, str, str]:
    """Return what, why and fix of a GPU that the lab cannot use, by what the lab has of it."""
    is_shared = sum(other.pci_address == gpu.pci_address for other in s.passed) > 1
    part = f"partition {gpu.partition} of " if is_shared and gpu.partition is not None else ""
    what = f"the lab does not have {part}the GPU at {gpu.pci_address}"
    why = f"inside: {inside['why_not'] if inside else 'absent'}"
    nodes = {str(node["path"]) for node in (s.lab_report or {}).get("nodes", [])}
    if gpu.render_node not in nodes:
        why += f"; {gpu.render_node} was not passed: GPUS had another value, or the GPU was added, when it was created"
    elif inside and inside["index"] is not None:  # the runtime counts it, so only a mask hides it
        return what, why, "take the mask out of .env, then: make up      # to choose GPUs: make up GPUS=…"
    elif "/dev/kfd" in nodes:
        return what, why, "see dev.perm, in the lab: a node that is here cannot be opened"
    return what, why, "make down && make up      # a container keeps the devices it was created with"


@check(
    "lab.groups",
    "the lab's user has the groups of the host's device nodes",
    sides=(HOST,),
    looks_at="the groups of the lab's process against those of the host's nodes",
    why="Files show what was configured; only the process inside shows its actual groups (docker/compose#10248).",
    fix="`make up`",
    severity=BLOCKS,
)
def groups(s: Situation) -> Verdict:
    """Compare numbers."""
    report = _inside(s)
    if report is None:
        return skip(NO_LAB)
    if not s.for_container:
        return skip("the lab has this user's groups")
    if s.no_kfd_gpus or not report["nodes"]:
        return skip(s.no_kfd_gpus or "the lab was given no device node")
    here = {node.path: node.gid for node in s.compute_nodes}
    inside = [node for node in report["nodes"] if node["mode"] & 0o006 != 0o006]  # CDI makes nodes for everybody
    lacking = {int(node["gid"]) for node in inside} - set(report["groups"])
    changed = [node for node in inside if here.get(node["path"]) not in (None, node["gid"])]
    seen = (
        *(f"{node['path']}: host group {here.get(node['path'])}, lab group {node['gid']}" for node in report["nodes"]),
        f"lab's uid {report['uid']}: groups {_listed(set(report['groups']))}",
    )
    if lacking and report["uid"] != 0 and not s.simulated:
        return blocks(
            f"the lab's user is not in group {_listed(lacking)} of the GPU's device nodes",
            "the container was started without these groups, or lost them when it changed the user",
            "make down && make up",
            *seen,
        )
    if changed:
        return warns(
            f"{changed[0]['path']} has another group on the host than in the lab",
            "it was changed, by an update or a rule of udev, after the container was created, which keeps the old one",
            "make down && make up",
            *seen,
        )
    return ok(*seen)


def _listed(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers))) or "none"
