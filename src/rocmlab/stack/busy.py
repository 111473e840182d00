"""What runs in a lab: what a command that stops or restarts it would end."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rocmlab.base import identity
from rocmlab.stack import runs_under_way
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.lab import Lab
from rocmlab.stack.native import NativeLab
from rocmlab.stack.process import EngineSilent

ASK_TIMEOUT_SECONDS = 10.0
QUIET_SECONDS = 5.0  # a kernel that worked more recently than this may be between two cells of one `Run All`
BETWEEN_LOOKS_SECONDS = 0.6
SHARE_INSIDE = "/home/jovyan/share"
PROCESSES = ("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "tpgid=", "-o", "args=")
HUB_SERVER = "jupyterhub.singleuser"  # a word of the command line of a hub's native lab
SERVER_NAMES = ("jupyter-lab", "jupyterlab", "jupyter_server")
NO_SUCH_PROGRAM = (126, 127)  # exit codes of `exec`; for its own trouble an engine has others
SHOWN_LETTERS = 80  # of a command line

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """One thing that runs: a kernel, a headless run, or a program in a terminal."""

    what: str
    how: str  # what it does, and since when
    is_busy: bool  # it computes, or its state is unknown
    is_open: bool = True  # it belongs to the lab's server and ends with it; False: a run outside of the server
    gpus: tuple[str, ...] = ()
    last_activity: str = ""  # of a kernel: changes with each message

    @property
    def is_fresh(self) -> bool:
        """Whether it sent a message in the last few seconds."""
        return time.time() - (_unix(self.last_activity) or 0.0) < QUIET_SECONDS

    def __str__(self) -> str:
        """Return it in one line."""
        where = f", on {', '.join(self.gpus)}" if self.gpus else ""
        line = f"{self.what}: {self.how}{where}"
        return "".join(letter if letter.isprintable() else "?" for letter in line)


@dataclass(frozen=True)
class Found:
    """All that runs in a lab."""

    works: tuple[Work, ...] = ()
    unknown: str = ""  # why it is unknown what runs; empty: it is known


def find(lab: Lab) -> Found:
    """Return what runs in a lab and, for a container, in those of `docker compose run` next to it; it changes nothing.

    A kernel that has just become idle is looked at twice: it may be between two cells.
    """
    first = _look(lab)
    recent = [work for work in first.works if work.is_fresh and not work.is_busy]
    if first.unknown or not recent:
        return first
    time.sleep(BETWEEN_LOOKS_SECONDS)
    second = _look(lab)
    known = {(work.what, work.last_activity) for work in first.works}
    works = []
    for work in second.works:
        has_moved = work.last_activity and not work.is_busy and (work.what, work.last_activity) not in known
        works.append(replace(work, how="busy, between two cells", is_busy=True) if has_moved else work)
    return Found(tuple(works), second.unknown)


def _look(lab: Lab) -> Found:
    """Look once; where the engine does not answer, what runs is unknown, which is not "nothing"."""
    try:
        is_running = lab.is_known_to_run()
        kernels = _kernels(lab) if is_running else None
        if kernels is not None:
            return Found((*kernels, *_runs(lab), *_terminals(lab), *_hub_labs(lab)))
        is_silent = is_running and not _has_no_server(lab)
        return Found((*_runs(lab), *_hub_labs(lab)), "its server runs and does not answer" if is_silent else "")
    except EngineSilent as err:
        return Found((), f"{err.problem.what}: {err.problem.why}")


def _kernels(lab: Lab) -> list[Work] | None:
    """Return the kernels of the lab's server; None if it does not answer."""
    status, kernels = lab.ask("/api/kernels", timeout_seconds=ASK_TIMEOUT_SECONDS)
    if status != 200 or not isinstance(kernels, list):
        return None
    if not kernels:
        return []
    sessions = _list(lab, "/api/sessions")
    paths = {str(each.get("kernel", {}).get("id")): each.get("path") or each.get("name") for each in sessions}
    ours = {str(each.get("kernel_id")): each for each in _list(lab, "/rocmlab/api/kernels")}
    return [_kernel(each, paths.get(str(each.get("id"))), ours.get(str(each.get("id")), {})) for each in kernels]


def _list(lab: Lab, path: str) -> list[Row]:
    status, found = lab.ask(path, timeout_seconds=ASK_TIMEOUT_SECONDS)
    return [each for each in found if isinstance(each, dict)] if status == 200 and isinstance(found, list) else []


def _kernel(kernel: Row, path: object, ours: Row) -> Work:
    name, state = str(kernel.get("name") or "kernel"), str(kernel.get("execution_state") or "in an unknown state")
    activity = str(kernel.get("last_activity") or "")
    since = f", last activity {_clock(activity)}" if activity else ""
    is_busy = state not in ("idle", "starting", "dead")
    how = f"{state}{since}" if is_busy or not activity else f"{state} since {_clock(activity)}"
    gpus = tuple(str(device) for device in ours.get("devices") or ())
    if gpus and ours.get("since"):
        gpus = (*gpus[:-1], f"{gpus[-1]} since {_clock(str(ours['since']))}")
    what = f"{path} ({name})" if path else f"a kernel {name} without a notebook"
    return Work(what, how, is_busy, gpus=gpus, last_activity=activity)


def _unix(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _clock(text: str) -> str:
    """Return a time of Jupyter's as text: 14:05:09 UTC (3 min ago)."""
    seconds = _unix(text)
    if seconds is None:
        return text or "an unknown time"
    ago = max(0.0, time.time() - seconds)
    shown = f"{ago:.0f} s" if ago < 90 else f"{ago / 60:.0f} min" if ago < 5400 else f"{ago / 3600:.0f} h"
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%H:%M:%S} UTC ({shown} ago)"


def _runs(lab: Lab) -> list[Work]:
    """Return the headless runs that would end: of the lab's containers, or of this machine for a native lab."""
    if isinstance(lab, NativeLab):
        family = set(lab.family())
        found = runs_under_way.under_way(lab.share_folder / "runs")
        here = [run for run in found if run["host"] in (None, socket.gethostname())]
        return [_run(run, is_open=run["pid"] in family) for run in here]
    if not isinstance(lab, ContainerLab):
        return []
    program = Path(runs_under_way.__file__).read_text(encoding="utf-8")
    main = lab.known_container()
    works: dict[str, Work] = {}
    for container in _containers(lab):
        python = ["/opt/rocmlab/bin/python", "-S", "-I", "-c", program, f"{SHARE_INSIDE}/runs"]
        code, output = lab.engine("exec", container, *python, timeout_seconds=30)
        if code:
            _check_nothing_runs(lab, container, code, output)
            continue
        for run in _parsed(output):
            if run.get("host") in (None, lab.describe(container).hostname):
                works.setdefault(str(run["name"]), _run(run, is_open=container == main))
    return list(works.values())


def _hub_labs(lab: Lab) -> list[Work]:
    """Return the labs of the hub's users that run in a native environment; what their kernels do is not known here."""
    if not isinstance(lab, NativeLab):
        return []
    programs = lab.venv.interpreter.parent.resolve()
    found = []
    for pid, words in identity.with_word(HUB_SERVER).items():
        if Path(words[0]).parent.resolve() == programs:
            how = f"process {pid} of uid {identity.uid_of(pid)}, in which kernels may compute"
            found.append(Work("a lab of the hub", how, True, is_open=False))
    return found


def _containers(lab: ContainerLab) -> list[str]:
    main = lab.known_container()
    return [*([main] if main else []), *lab.one_off_containers()]


def _check_nothing_runs(lab: ContainerLab, container: str, code: int, output: str) -> None:
    """Raise EngineSilent unless a container in which nothing starts has ended, or is of a kind without runs."""
    if code in NO_SUCH_PROGRAM or container not in _containers(lab):
        return
    if lab.describe(container).is_restarting:
        return
    why = output.strip()[-400:] or f"exit code {code}"
    raise EngineSilent(f"the engine does not answer `{lab.program} exec`", why, f"{lab.program} ps")


def _parsed(text: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _run(run: Row, *, is_open: bool) -> Work:
    done = f", {run['finished']} of {run['jobs']} notebooks done" if run.get("jobs") else ""
    how = f"under way since {_clock(str(run.get('since') or ''))}{done}"
    return Work(f"the headless run {run['name']}", how, True, is_open, tuple(run.get("devices") or ()))


def _terminals(lab: Lab) -> list[Work]:
    """Return the programs in the foreground of the lab's terminals, without shells that wait for a command."""
    code, table = lab.capture_inside(PROCESSES)
    if code and code not in NO_SUCH_PROGRAM and isinstance(lab, ContainerLab) and (main := lab.known_container()):
        _check_nothing_runs(lab, main, code, table)
    if code:
        return []  # no ps; kernels and runs are known all the same
    family = set(lab.family()) if isinstance(lab, NativeLab) else None
    return [Work(f"a terminal: {text}", "runs", True) for text in foreground(table, family)]


def foreground(table: str, family: set[int] | None) -> list[str]:
    """Return the command lines in the foreground of terminals, from `ps`; of a family, unless that is None."""
    rows = [line.split(None, 3) for line in table.splitlines()]
    known = {
        int(row[0]): (int(row[1]), int(row[2]), row[3])
        for row in rows
        if len(row) == 4 and row[0].isdigit() and row[1].isdigit()
    }
    found = []
    own, pid = set(), 0 if family is None else os.getpid()  # this command is not in its own way
    while pid in known and pid not in own:
        own.add(pid)
        pid = known[pid][0]
    for pid, (parent, group, text) in known.items():
        if pid in own:
            continue
        is_leader = group == pid and (family is None or pid in family)
        if is_leader and parent in known and known[parent][1] == group:  # its parent, a shell, is of the same terminal
            found.append(text[:SHOWN_LETTERS])
    return found


def _has_no_server(lab: Lab) -> bool:
    """Return whether no JupyterLab runs inside: a container that is restarted again and again, for example."""
    if isinstance(lab, NativeLab):
        return False
    code, table = lab.capture_inside(PROCESSES)
    if code == 0:
        return not any(name in line for line in table.splitlines() for name in SERVER_NAMES)
    return isinstance(lab, ContainerLab) and lab.is_restarting()


def lines(works: Sequence[Work]) -> str:
    """Return things that run, a line each, those that compute first."""
    return "\n".join(str(work) for work in sorted(works, key=lambda work: not work.is_busy))
