"""`rocmlab down`, `status`, `url`, `logs`, `shell` and `clean`."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.cli import packages, prune, stopping
from rocmlab.cli.main import command_parser
from rocmlab.cli.table import device_lines
from rocmlab.cli.up import note, say
from rocmlab.stack import environments, remote, server, tls, versions
from rocmlab.stack import project as projects
from rocmlab.stack.environment import was_made_by_us
from rocmlab.stack.project import Project

URL_HOST = "ROCMLAB_URL_HOST"  # what make passes: shells and compilers' environments have a HOST of their own
VERSIONS = ("version", "previous")  # as `status` calls them


def main(command: str, arguments: Sequence[str]) -> int:
    """Run one of the small commands on the lab of the last `make up`."""
    chosen = build_parser(command).parse_args(arguments)
    consent = stopping.consent(chosen) if command in ("down", "clean") else stopping.Consent()
    if command == "clean" and (age := prune.age_of(chosen)):
        return prune.main(chosen, age, is_forced=consent.force)
    host = (chosen.host or os.environ.get(URL_HOST, "")) if command == "url" else ""
    destination = remote.named(host) if host else None
    project = projects.reopen(projects.find())
    if command == "status":
        return status(project, chosen.json)
    if command == "logs":
        return project.lab.logs(chosen.follow)
    if command in ("down", "clean"):
        does = "stops" if command == "down" else "stops and removes"
        # Compose removes the containers of runs outside of the server, `clean` their environment.
        ends_runs = command == "clean" or project.choice.runtime == "docker"
        stop = stopping.Stop(f"make {command}", does, ends_idle=True, ends_runs=ends_runs)
        stopping.check(project.lab, stop, consent, say)
    commands: dict[str, Callable[[Project], int]] = {
        "down": down,
        "url": lambda found: url(found, destination),
        "shell": lambda found: found.lab.shell(),
        "clean": clean,
    }
    return commands[command](project)


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of one of the small commands."""
    parser = command_parser(command)
    if command == "status":
        parser.add_argument("--json", action="store_true", help="print everything known, as JSON")
    if command == "logs":
        parser.add_argument("-f", "--follow", action="store_true", help="continue until Ctrl-C")
    if command == "url":
        help_text = "also print the ssh command for this name of this machine, or USER@NAME (make url HOST=…)"
        parser.add_argument("--host", metavar="NAME", help=help_text)
    if command in ("down", "clean"):
        stopping.add_options(parser)
    if command == "clean":
        prune.add_options(parser)
    return parser


def held_by_another(project: Project) -> str:
    """Return who else listens on the lab's port, empty where no one does."""
    holder = project.lab.holder()
    if holder.kind == server.UNKNOWN:
        return f"{holder}; nothing was sent to port {project.values['PORT']}"
    if holder.kind != server.OTHER:
        return ""
    return f"port {project.values['PORT']} is held by {holder}; nothing was sent there"


def down(project: Project) -> int:
    """Stop the lab."""
    was_running = project.lab.is_running()
    project.lab.stop(say)
    outcome = "the lab is stopped" if was_running else "the lab was not running"
    say(f"{outcome}; the share is kept: {project.lab.share()}")
    return 0


def status(project: Project, as_json: bool) -> int:
    """Print what runs; exit code 0 if the lab answers, 1 if not."""
    answers = project.lab.answers()
    devices = project.lab.devices() if answers else []
    shown = versions.read(project.settings)
    if as_json:
        facts = {
            "running": answers,
            "backend": project.choice.backend,
            "runtime": project.choice.runtime,
            "port": int(project.values["PORT"]),
            "share": project.lab.share(),
            "version": {name: vars(known) if known else None for name, known in zip(VERSIONS, shown, strict=True)},
            "devices": devices,
            "cluster": cluster_state(project),
            "installation": _installation(project),
            "packages": packages.of_lab(project.lab) if answers else None,
            "disk": asdict(full) if (full := project.lab.disk_problem()) else None,
        }
        print(json.dumps(facts, indent=1))
        return 0 if answers else 1
    state = "answers" if answers else "runs but does not answer" if project.lab.is_running() else "is stopped"
    if not answers and (other := held_by_another(project)):
        state += f"; {other}"
    print(f"lab        {state} (backend {project.choice.backend}, runtime {project.choice.runtime})")
    if answers:
        print(f"url        {project.url}")
        _print_network(project)
        for number, line in enumerate(device_lines(devices)):
            print(f"{'devices' if number == 0 else '':10} {line}")
    if unfinished := project.lab.unfinished():
        print(f"kernels    {str(unfinished).replace(chr(10), chr(10) + ' ' * 9)}")
    _print_packages(project, answers)
    if (node := cluster_state(project)) is not None:
        print(
            "\n".join(f"{'cluster' if number == 0 else '':10} {line}" for number, line in enumerate(node_lines(node)))
        )
    print(f"share      {project.lab.share()}")
    for name, known in zip(VERSIONS, shown, strict=True):
        if known is not None:
            can_return = name == "previous" and versions.obstacle(project, known) is None
            print(f"{name:10} {known.shown(project.settings.project)}{'  (make rollback)' * can_return}")
    if full := project.lab.disk_problem():
        print(f"WARNING    {full}")
    return 0 if answers else 1


def _installation(project: Project) -> dict[str, Any]:
    """Return whether the frameworks are installed, are being installed, or why they will not be."""
    unfinished = project.lab.unfinished()
    if isinstance(unfinished, Problem):
        return {"state": "failed", "problem": unfinished.as_dict()}
    return {"state": "installing" if unfinished else "ready", "problem": None}


def _print_network(project: Project) -> None:
    """Print where other machines reach the lab, or why they do not."""
    try:
        lines = project.remote_lines()
    except RocmlabError as err:
        lines = [f"{err.problem.what}: {err.problem.why}"]
    for number, line in enumerate(lines):
        print(f"{'' if number else 'network':10} {line}")


def _print_packages(project: Project, answers: bool) -> None:
    for line in packages.notes(project.lab) if answers else []:
        print(f"packages   {line}")


def cluster_state(project: Project) -> dict[str, Any] | None:
    """Return the record of the lab's Ray node, without `state` if there is none; None: not in a cluster."""
    if not project.settings.is_in_cluster:
        return None
    found = project.lab.node_record()
    return {"cluster": project.settings.get("CLUSTER"), **({} if found is None else asdict(found))}


def node_lines(node: Mapping[str, Any]) -> list[str]:
    """Return the lab's node as text."""
    if problem := node.get("problem"):
        return [
            f"the Ray node is not running: {problem['what']}",
            f"  why: {problem['why']}",
            f"  fix: {problem['fix']}",
        ]
    if node.get("state") not in ("starting", "ready"):
        return ["the Ray node is not running: make up, which starts it; make logs shows what it did"]
    gpus = f"{node['gpus']} GPU{'s' * (node['gpus'] != 1)}" + " (SIMULATED)" * bool(node["simulated"] and node["gpus"])
    where = f"head of {node['head']}" if node["is_head"] else f"node {node['address']} of {node['head']}"
    return [f"{where}, with {gpus}" + ("" if node["state"] == "ready" else ", is starting")]


def url(project: Project, destination: remote.Destination | None) -> int:
    """Print the address; for a destination that was named, also the ssh command, else that as a note where it helps."""
    if not project.lab.answers():
        other = held_by_another(project)
        why = other or "it is stopped, or still starting"
        fix = "make up PORT=…, another one, which also makes a new token" if other else "make up"
        raise RocmlabError("the lab does not answer", why, fix, exit_code=1)
    print(project.url)
    if destination:
        print(destination.command(project.lab.port))
    elif not tls.address(project.settings) and (here := remote.of_this_host()):
        note(f"from your own computer: {here.command(project.lab.port)}")
    for line in project.remote_lines():
        note(line)
    return 0


def clean(project: Project) -> int:
    """Remove what was made, in either runtime."""
    project.lab.clean(say)
    if kept := tls.clean(project.settings):
        files = " ".join(shlex.quote(str(path)) for path in kept)
        say(f"kept the key and certificate made for BIND, which browsers may know (remove them with: rm {files})")
    versions.path_of(project.settings).unlink(missing_ok=True)
    environment = project.settings.project / environments.LINK
    if was_made_by_us(environment) and environments.remove_all(project.settings.project):
        say(f"removed {environment}")
    return 0
