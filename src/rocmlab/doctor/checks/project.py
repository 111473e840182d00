"""The project folder: can the lab be planned, and do its files still describe this machine."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from rocmlab.base import disk as free_space
from rocmlab.base import live, notify
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.doctor.model import BLOCKS, CONTAINER, HOST, WARNS, Repair, Verdict, blocks, check, ok, skip, warns
from rocmlab.doctor.situation import Situation
from rocmlab.stack import project as projects
from rocmlab.stack import resolve, server
from rocmlab.stack import settings as configuration

NO_PLAN = "nothing could be planned"
SPARE_BYTES = 5e9
WRITTEN = ("ROCMLAB_SHARE", "ROCMLAB_NOTEBOOKS")


@check(
    "lab.plan",
    "`make up` can choose what to start",
    sides=(HOST,),
    looks_at="`.env`, the settings in force, GPUs, engine and Python: everything that `make up` chooses by",
    why="What `make up` would reject is also reported here.",
    fix="what the finding suggests",
    severity=BLOCKS,
    is_quick=True,
)
def plan(s: Situation) -> Verdict:
    """Report the problem of planning."""
    if s.plan_problem:
        return Verdict(BLOCKS, (), s.plan_problem)
    if s.project is None:
        return skip("no project found here")
    choice = s.project.choice
    return ok(f"backend {choice.backend}, runtime {choice.runtime} ({choice.why})")


@check(
    "groupname",
    "Compose files name groups by number",
    sides=(HOST,),
    looks_at="`group_add` in the files of COMPOSE_FILE",
    why="A name is looked up in the image, which has other groups or none: `Unable to find group render`.",
    fix="the numeric group (`stat -c %g /dev/dri/renderD128`)",
    severity=BLOCKS,
    is_quick=True,
)
def groupname(s: Situation) -> Verdict:
    """Read the `group_add` lists."""
    if s.project is None:
        return skip(NO_PLAN)
    if s.runtime != "docker":
        return skip("the lab does not use Compose")
    folder = s.project.settings.project
    files = s.project.values.get("COMPOSE_FILE", "compose.yaml").split(":")
    found = [(name, group) for name in files for group in _named_groups(folder / name)]
    if not found:
        return ok(*(f"{name}: only numbers" for name in files))
    name, group = found[0]
    return blocks(
        f"{name} adds the group {group!r} by name",
        "the name is looked up in the image, where it is another number or missing",
        "write ${RENDER_GID} in its place, which `make up` fills from the device nodes",
        *(f"{name}: group_add: {group}" for name, group in found),
    )


def _named_groups(path: Path) -> list[str]:
    """Return the groups given by name in a Compose file's `group_add`, block or flow style."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    found: list[str] = []
    pattern = (
        r"^([ \t]*)group_add:[^\S\n]*(?:!\w+[^\S\n]*)?(\[[^\]]*\])?[^\n]*\n((?:\1[ \t]*-[^\n]*\n?|[ \t]*#[^\n]*\n)*)"
    )
    for match in re.finditer(pattern, text, re.MULTILINE):
        items = (match[2] or "").strip("[]").split(",") if match[2] else re.findall(r"-\s*([^\n#]+)", match[3])
        found += [item.strip().strip("'\"") for item in items]
    return [group for group in found if group and not group.isdigit() and not group.startswith(("$", "keep-groups"))]


@check(
    "port",
    "the lab's port is free, or the lab's own",
    sides=(HOST,),
    looks_at="a listener on 127.0.0.1 at PORT",
    why="Users would not find the lab at another port, so `make up` does not choose one.",
    fix="`make up PORT=…`",
    severity=BLOCKS,
    is_quick=True,
)
def port(s: Situation) -> Verdict:
    """Ask who listens."""
    if s.project is None:
        return skip(NO_PLAN)
    number = int(s.project.values["PORT"])
    if server.is_free(number):
        return ok(f"127.0.0.1:{number} is free")
    if projects.holds_port(s.project):
        return ok(f"127.0.0.1:{number} is the lab's own")
    server.check_free(number)
    return ok(f"127.0.0.1:{number} has become free")


@check(
    "disk",
    "there is enough disk space for the image",
    sides=(HOST,),
    looks_at="the free space where the engine keeps images, or of the project's disk",
    why="ROCm's images unpack to 30 to 50 GB; a full disk ends a build at its end (ROCm#3935, ROCm-docker#120).",
    fix="`docker system prune`, or a larger disk for the engine",
    severity=BLOCKS,
)
def disk(s: Situation) -> Verdict:
    """Ask the lab's own preparation, then look for a disk that is nearly full."""
    if s.project is None:
        return skip(NO_PLAN)
    lab = s.project.lab
    lab.check_disk()
    folder = str(lab.disk())
    if not os.path.isdir(folder):
        return skip(f"{folder} is not visible from here")
    free = shutil.disk_usage(folder).free
    seen = f"{folder}: {free / 1e9:.1f} GB free"
    if free >= SPARE_BYTES:
        return ok(seen)
    return warns(
        f"the disk of {folder} has {free / 1e9:.1f} GB free",
        "the next build, data set or checkpoint may not fit",
        "docker system prune" if s.runtime == "docker" else f"du -sh {folder}/* | sort -h",
        seen,
    )


@check(
    "disk.low",
    "there is enough disk space for what the lab writes",
    looks_at="the free space on the disks of the share and the notebooks folder, against MIN_FREE_DISK_GB",
    why="On a full disk a notebook cannot be saved, and a checkpoint of a night's training is lost.",
    fix="`make clean RUNS=30d`, which lists old runs and then removes them; or free space there",
)
def low(s: Situation) -> Verdict:
    """Look at what the lab writes to: from its inside, or as the host sees it."""
    if s.side == CONTAINER:
        folders = [Path(s.environment[name]) for name in WRITTEN if s.environment.get(name)]
        minimum = free_space.minimum_bytes(live.values(s.environment))
    elif s.project is None:
        return skip(NO_PLAN)
    else:
        folders = s.project.lab.folders()
        minimum = free_space.minimum_bytes({free_space.NAME: s.project.settings.get(free_space.NAME)})
    if not minimum or not folders:
        return skip("MIN_FREE_DISK_GB=0: not checked" if not minimum else "no folder of the lab is visible from here")
    problem = free_space.problem(folders, minimum, environment=s.environment)
    seen = tuple(f"{folder}: at least {minimum / 1e9:g} GB wanted" for folder in folders)
    return Verdict(WARNS, seen, problem) if problem else ok(*seen)


@check(
    "notify",
    "NOTIFY is the address of a webhook, or a command",
    looks_at="NOTIFY and NOTIFY_AFTER_SECONDS, without calling anything",
    why="A run that cannot report its end shows that only in a warning.",
    fix="another NOTIFY in `.env`, then `make up`",
)
def notified(s: Situation) -> Verdict:
    """Read the setting, and look for its program where runs look for it."""
    if s.side == HOST and s.project is None:
        return skip(NO_PLAN)
    chosen = {name: s.project.settings.get(name) for name in (notify.NAME, notify.AFTER)} if s.project else {}
    try:
        target = notify.read(s.environment) if s.side == CONTAINER else notify.parse(chosen)
    except RocmlabError as err:
        return Verdict(WARNS, (), err.problem)
    if target is None:
        return skip("NOTIFY is not set")
    is_seen = s.side == CONTAINER or s.runtime == "native"
    if is_seen and target.command and not shutil.which(target.command[0]):
        why = "runs look for it on the PATH of the lab" + ("'s container" if s.side == CONTAINER else "")
        return warns("the program of NOTIFY was not found", why, notify.FIX)
    return ok(f"runs of {target.after_seconds:g} s and more are reported to {target}")


@check(
    "env.stale",
    "`.env` describes this machine",
    sides=(HOST,),
    looks_at="RENDER_GID and VIDEO_GID in `.env` against the groups of the device nodes now",
    why="After an update, or in a copied folder, the numbers are another machine's, and plain `docker compose up` "
    "starts a lab that cannot open the GPUs.",
    fix="`make up`, or `rocmlab doctor --fix`",
)
def stale(s: Situation) -> Verdict:
    """Compare the groups in `.env` with those of the nodes."""
    if s.project is None:
        return skip(NO_PLAN)
    if not s.env_values:
        return skip(".env does not exist yet; `make up` writes it")
    if s.no_amd or not s.compute_nodes or s.runtime != "docker":
        return skip(s.no_amd or "no device node is passed")
    now = dict(zip(("RENDER_GID", "VIDEO_GID"), resolve.device_groups(s.root), strict=True))
    then = {name: s.env_values.get(name) for name in now}
    seen = [f".env: {name}={then[name]}; now {value}" for name, value in now.items()]
    wrong = [name for name, value in now.items() if then[name] != value]
    needed = {str(node.gid) for node in s.compute_nodes}
    if not wrong or needed <= set(then.values()):
        return ok(*seen)
    mine = [name for name in wrong if name in s.project.settings.chosen]
    fix = f"take {' and '.join(mine)} out of .env, then: make up" if mine else "make up"
    problem = Problem(
        f".env has {wrong[0]}={then[wrong[0]]}, and the device nodes belong to group {', '.join(sorted(needed))}",
        "you wrote it there yourself"
        if mine
        else "it was written for other nodes: another machine, or before an update",
        f"{fix}      # or: rocmlab doctor --fix",
    )
    repair = Repair(f"rewrite {' and '.join(wrong)} in .env", lambda: _rewrite(s, now))
    return Verdict(WARNS, tuple(seen), problem, repair=repair)


def _rewrite(s: Situation, now: dict[str, str]) -> None:
    """Write what `make up` would; the groups are always those of the nodes."""
    if s.project is None:
        raise RocmlabError("no project found here", NO_PLAN, "cd to your clone of rocmlab")
    project = s.project
    for name, value in now.items():
        project.settings.chosen.pop(name, None)
        project.values[name] = value
    if project.choice.backend == "rocm":
        projects.write(project)
        return
    kept = {**s.env_values, **now}
    configuration.save(project.settings, {name: kept[name] for name in kept if name not in project.settings.chosen})
