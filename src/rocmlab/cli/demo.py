"""`rocmlab demo`: the lab on a simulated host, with simulated trainings, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import demo_work
from rocmlab.cli.main import command_parser
from rocmlab.cli.up import changes_environment, say
from rocmlab.simulation import Live
from rocmlab.stack import demo, remote, server
from rocmlab.stack import project as projects
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.lab import Lab
from rocmlab.stack.project import Project

GPUS = 4
RUN_GPUS = "1,2"  # the forgotten notebook has the first, and one is free
STEP_SECONDS = 0.5
LOOK_SECONDS = 1.0  # who has leased what
STOP_SECONDS = 20.0  # for the simulated run to save and report


def main(name: str, arguments: Sequence[str]) -> int:
    """Show what one would get: exit code 0 when it is ended by Ctrl-C, SIGTERM or --seconds."""
    chosen = build_parser(name).parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = projects.find()
    if chosen.port is not None:
        server.check_free(chosen.port, f"rocmlab {name} --port ")
    settings = demo.settings(folder, chosen.port)
    _check_nothing_runs(settings.state, folder)
    demo.clear(settings)
    live = Live(settings.state / "host", gpus=GPUS, processes=())
    demo_work.mark(settings.state)
    demo_work.write_notebooks(settings.state / "notebooks")
    try:
        project = demo.plan(folder, settings)
        _check_environment(project, folder)
    except RocmlabError:
        demo.clear(settings)
        raise
    say("SIMULATED: four GPUs that do not exist, and trainings that only wait; nothing here computes on a GPU")
    started: list[subprocess.Popen[bytes]] = []
    try:
        project = demo.start(project, say, on_any_port=chosen.port is None)
        _open_idle_notebook(project, demo_work.IDLE_NAME)
        started.append(_start_trainings(project, demo_work.TRAINING_NAME))
        _announce(project, settings.state / "host")
        _show(live, project, settings.state, chosen.seconds)
    except KeyboardInterrupt:
        pass
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        say("ending the demonstration")  # another Ctrl-C would leave the lab running
        try:
            _end(project, started)
        finally:
            demo.clear(settings)
            for number, handler in before.items():
                signal.signal(number, handler)
    return 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab demo`."""
    parser = command_parser(command)
    parser.add_argument(
        "--port", type=int, metavar="N", help="port of its JupyterLab (default: the first free one from 8898)"
    )
    parser.add_argument("--seconds", type=float, metavar="SECONDS", help="end after this time (default: at Ctrl-C)")
    return parser


def _check_nothing_runs(state: Path, folder: Path) -> None:
    """Raise RocmlabError if something runs that the demonstration would disturb."""
    if demo_work.is_running(state):
        raise RocmlabError(
            "the demonstration is already running", f"its host is {state / 'host'}", "end it with Ctrl-C there"
        )
    try:
        own = projects.reopen(folder)
    except RocmlabError:
        return  # there is none
    if own.choice.runtime == "native" and own.lab.is_running():
        raise RocmlabError(
            "a lab runs here",
            "it shares its environment, and so its list of kernels, with the demonstration",
            "make down",
        )


def _check_environment(project: Project, folder: Path) -> None:
    """Raise RocmlabError if the environment of the own lab would be made again."""
    own = projects.existing(folder)
    if own is None or own.choice.runtime != "native" or not changes_environment(project):
        return
    raise RocmlabError(
        "the demonstration would change the environment of your lab",
        f"{folder / '.venv'} is for the backend {own.choice.backend} and as the last `make up` made it; the "
        f"demonstration needs the present version of it for {project.choice.backend}",
        f"git clone {folder} {folder}-demo && cd {folder}-demo && make demo",
    )


def _open_idle_notebook(project: Project, notebook: str) -> None:
    """Have JupyterLab start a kernel that holds a GPU and does nothing."""
    specs = project.lab.ask("/api/kernelspecs", timeout_seconds=20)[1] or {}
    names = sorted(specs.get("kernelspecs", ()))
    name = next((each for each in ("torch", "tensorflow") if each in names), names[0] if names else "")
    path = f"work/{notebook}"
    body = {"path": path, "name": notebook, "type": "notebook", "kernel": {"name": name}}
    status, _ = project.lab.ask("/api/sessions", method="POST", body=body, timeout_seconds=120)
    if status != 201:
        say(f"the notebook that only holds a GPU could not be opened (HTTP {status})")


def _start_trainings(project: Project, notebook: str) -> subprocess.Popen[bytes]:
    """Start a run of simulated trainings inside the lab."""
    inside = project.lab.inside()
    assert inside is not None
    command, environment = inside
    rates = ",".join(map(str, demo_work.RATES))
    command = [*command, "run", notebook, "--gpus", RUN_GPUS, "--name", "pretended", "-p", f"lr={rates}"]
    log = project.settings.state / "run.log"
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            cwd=project.settings.state,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _announce(project: Project, host: Path) -> None:
    page = f"{project.lab.url}rocmlab/?token={project.lab.token}"
    print(f"\n  JupyterLab  {project.url}\n  its panel   {page}")
    if here := remote.of_this_host():
        print(f"  remote      {here.command(project.lab.port)}   (on your own computer; then open the URLs there)")
    print()
    print("  in another terminal:")
    print(f"    ROCMLAB_ROOT={host} scripts/rocmlab smi --watch")
    print(f"    {_nvitop(project.lab, host)}")
    print(f"    ROCMLAB_ROOT={host} scripts/rocmlab devices\n\n  Ctrl-C ends it and removes what it made\n", flush=True)


def _nvitop(lab: Lab, host: Path) -> str:
    """Return the command for nvitop, which the lab has, and this host perhaps not."""
    if isinstance(lab, ContainerLab):
        return f"{lab.program} exec -it {(lab.container() or '')[:12]} start.sh rocmlab nvitop"
    return f"ROCMLAB_ROOT={host} .venv/bin/rocmlab nvitop"


def _show(live: Live, project: Project, state: Path, seconds: float | None) -> None:
    """Move the values: each leased GPU works for the kernel that has it."""
    work = demo_work.Work(live.folder)
    live.pattern = work.busy_percent
    began, looked = time.monotonic(), 0.0
    while seconds is None or time.monotonic() - began < seconds:
        passed = time.monotonic() - began
        if passed - looked >= LOOK_SECONDS or not looked:
            rows = project.lab.ask("/rocmlab/api/kernels")[1]
            work.look(rows if isinstance(rows, list) else [], passed)
            looked = passed
        live.processes = work.uses(passed)
        live.step(passed)
        time.sleep(STEP_SECONDS)


def _end(project: Project, started: Sequence[subprocess.Popen[bytes]]) -> None:
    for each in started:
        each.send_signal(signal.SIGINT)
    for each in started:
        try:
            each.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()
    project.lab.stop(lambda _: None)
