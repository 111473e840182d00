"""`rocmlab cluster`: up, join, status and down on a machine; node, wait and busy inside its lab."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.base.arguments import add_command
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import stopping
from rocmlab.cli.main import command_parser

COMMANDS = {  # in the order of use
    "up": "make this machine the head of a cluster, and show how others join",
    "join": "join the cluster of a head: HEAD=host:port, with its CLUSTER_TOKEN",
    "status": "show the nodes, their GPUs and versions, and what runs where",
    "down": "leave the cluster; on the head: end it",
    "node": "run this machine's Ray node until it is stopped (the lab itself calls this)",
    "wait": "wait until the lab's node is up (`up` and `join` run this)",
    "busy": "list what runs on this node, and on the head what runs anywhere (`down` runs this)",
}


def main(name: str, arguments: Sequence[str]) -> int:
    """Run one of the cluster's commands."""
    chosen = build_parser(name).parse_args(arguments)
    if chosen.what in ("node", "wait", "busy"):
        from rocmlab.cli import cluster_inside

        return cluster_inside.main(chosen)
    if chosen.what == "status":
        return _status(chosen)
    if "ROCMLAB_RUNTIME" in os.environ:
        raise RocmlabError(
            f"rocmlab cluster {chosen.what} starts or stops the lab's node, and this is inside the lab",
            "it is for the machine itself",
            f"on the host, in the clone: make cluster-{chosen.what}",
        )
    return _down(chosen) if chosen.what == "down" else _enter(chosen)


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab cluster`."""
    parser = command_parser(command, example="join 192.168.1.10:6379", epilog="docs/cluster.md explains them.")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND", title="commands")
    added = {word: add_command(commands, word, text) for word, text in COMMANDS.items()}
    added["join"].add_argument("head", nargs="?", metavar="HOST:PORT", help="the head's address (or HEAD=HOST:PORT)")
    added["status"].add_argument("--json", action="store_true", help="print everything known, as JSON")
    for word in ("up", "join", "down"):
        stopping.add_options(added[word])
    node = added["node"]
    node.add_argument(
        "--folder", type=Path, metavar="DIR", help="for a second node of this machine: a folder of its own"
    )
    node.add_argument(
        "--cpus", type=int, metavar="N", help="how many CPUs to offer to Ray (default: those this process may use)"
    )
    node.add_argument(
        "--store-bytes", type=int, metavar="BYTES", help="size of Ray's object store (default: by /dev/shm)"
    )
    return parser


def _enter(chosen: argparse.Namespace) -> int:
    """Make this machine a node: choose it in `.env`, and start what that needs."""
    from rocmlab.cluster.node import handshake
    from rocmlab.stack import project as projects
    from rocmlab.stack import settings as configuration

    wanted = "head"
    folder = projects.find()
    before = configuration.load(folder, {})
    if chosen.what == "join":
        wanted = _head(chosen.head)
        _ask_for_token(before.get("CLUSTER_TOKEN") if before.get("CLUSTER") == wanted else "")
    if before.is_in_cluster and before.get("CLUSTER") != wanted:
        now = before.get("CLUSTER")
        raise RocmlabError(
            "this machine is the head of a cluster" if now == "head" else f"this machine is in the cluster of {now}",
            "a machine can be in one cluster at a time",
            "make cluster-down, then retry",
        )
    os.environ["CLUSTER"] = wanted
    if wanted != "head":
        handshake.reach(wanted)  # before anything is built
    return _start(chosen)


def _head(given: str | None) -> str:
    from rocmlab.cluster.node import ports

    address = given or os.environ.get("HEAD", "")
    if not address:
        raise RocmlabError(
            "the cluster to join is missing",
            "HEAD is empty",
            f"make cluster-join HEAD=192.168.1.10:{ports.FIRST} CLUSTER_TOKEN=…, as the head printed it",
        )
    ports.split(address)
    return address


def _ask_for_token(known: str) -> None:
    """Ask the user for the token where the command does not have it: a command line can be seen by others.

    Raises:
        RocmlabError: there is none.
    """
    from rocmlab.cluster.node import token

    if os.environ.get("CLUSTER_TOKEN") or known:
        return
    if sys.stdin.isatty():
        import getpass

        os.environ["CLUSTER_TOKEN"] = getpass.getpass("the cluster's token: ").strip()
    token.check(os.environ.get("CLUSTER_TOKEN", ""))


def _start(chosen: argparse.Namespace) -> int:
    from rocmlab import doctor
    from rocmlab.cli import up
    from rocmlab.stack import project as projects
    from rocmlab.stack.native import NativeLab

    project = projects.plan(projects.find())
    if isinstance(project.lab, NativeLab):
        up.announce(project, up.say)
        doctor.refuse(doctor.blocking(project))
        if stop := up.would_stop_other(project):
            stopping.check(*stop, stopping.consent(chosen), up.say)
        with projects.locked(project, up.say), projects.settings_kept_on_failure(project):
            project = projects.prepare(project, up.say)
            projects.stop_other(project, up.say)
            project.lab.start_node(up.say)  # type: ignore[attr-defined]
    elif code := up.main("up", stopping.given(chosen)):
        return code
    print("\n".join(entered(_inside(["cluster", "wait"]), project.lab.is_running())))
    return 0


def _inside(arguments: Sequence[str]) -> Any:  # noqa: ANN401
    """Run an argument inside the lab and return the JSON that it prints; raise RocmlabError if that fails."""
    from rocmlab.stack import process

    command, environment = _lab_command()
    code, output = process.capture([*command, *arguments], env=environment, timeout_seconds=300)
    try:
        found = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        found = None
    if isinstance(found, dict) and "what" in found:
        raise RocmlabError(**found)
    if code or found is None:
        raise RocmlabError(
            f"the lab does not answer `rocmlab {' '.join(arguments)}`",
            output.strip()[-400:] or "no output",
            "make logs",
        )
    return found


def _lab_command() -> tuple[list[str], Mapping[str, str]]:
    from rocmlab.stack import project as projects

    project = projects.reopen(projects.find())
    inside = project.lab.inside()
    if inside is None or not project.settings.is_in_cluster:
        raise RocmlabError(
            "this machine is not a node of a cluster",
            "the lab is not running" if project.settings.is_in_cluster else "CLUSTER is off",
            "make cluster-up, or make cluster-join HEAD=host:port CLUSTER_TOKEN=…",
            exit_code=1,
        )
    return inside


def entered(node: Mapping[str, Any], has_lab: bool) -> list[str]:
    """Return the text after `up` or `join`."""
    gpus = f"{node['gpus']} GPU{'s' * (node['gpus'] != 1)}" + " (SIMULATED)" * bool(node["simulated"] and node["gpus"])
    lines = []
    if node["is_head"]:
        lines = [f"this machine is the head of a cluster at {node['head']}, with {gpus}", ""]
        if node["address"] == "127.0.0.1":
            lines += ["  This machine has no network, so no other can join.", ""]
        else:
            lines += ["  To add another machine, in its clone of rocmlab:", f"  {join_line(node)}", ""]
    else:
        lines = [f"this machine, {node['address']}, has joined the cluster at {node['head']} with {gpus}", ""]
    lines += ["  make cluster-status            nodes, GPUs, and what runs where"]
    lines += ["  ENGINE=ray make run-notebooks  run them all on the cluster"]
    lines += ["  make cluster-down              " + ("end it" if node["is_head"] else "leave")]
    if not has_lab:
        lines += ["  make up                        JupyterLab, where `ray.init()` finds the cluster"]
    return lines


def join_line(node: Mapping[str, Any]) -> str:
    """Return the command that makes another machine join, token included."""
    from rocmlab.stack import project as projects

    values = projects.reopen(projects.find()).values
    return f"make cluster-join HEAD={node['head']} CLUSTER_TOKEN={values.get('CLUSTER_TOKEN', '')}"


def _status(chosen: argparse.Namespace) -> int:
    if "ROCMLAB_RUNTIME" in os.environ:
        from rocmlab.cli import cluster_inside

        return cluster_inside.main(chosen)
    from rocmlab.stack import process

    command, environment = _lab_command()
    arguments = [*command, "cluster", "status", *(["--json"] if chosen.json else [])]
    code = process.attach(arguments, env=environment)
    if code == 0 and not chosen.json and (node := _inside(["cluster", "wait"]))["is_head"]:
        print(f"\nto add another machine: {join_line(node)}")
    return code


def _down(chosen: argparse.Namespace) -> int:
    from rocmlab.cli import up
    from rocmlab.stack import cluster
    from rocmlab.stack import project as projects
    from rocmlab.stack.native import NativeLab

    project = projects.reopen(projects.find())
    lab = project.lab
    if not project.settings.is_in_cluster:
        print("this machine is not a node of a cluster")
        return 0
    consent = stopping.consent(chosen)
    runs = lab.node.started() is not None if isinstance(lab, NativeLab) else lab.is_running()
    if not isinstance(lab, NativeLab):
        stopping.check(lab, stopping.Stop("make cluster-down", "stops", ends_runs=True), consent, up.say)
    if runs and not consent.force:
        is_head = project.settings.get("CLUSTER") == "head"
        wait_or_refuse(consent, is_head, lambda: _inside(["cluster", "busy"]))
    with projects.locked(project, up.say):
        if isinstance(lab, NativeLab):
            lab.node.stop(up.say)
        else:
            lab.stop(up.say)
        cluster.forget(project.settings, project.values)
    print(
        "this machine has left the cluster" if runs else "this machine was in a cluster, and its node was not running"
    )
    if not isinstance(lab, NativeLab):
        print(
            "its lab is stopped, because the node ran in it; the share is kept. "
            "To start it again, without a cluster: make up"
        )
    elif lab.is_running():
        print("its JupyterLab keeps running; its kernels have lost the cluster")
    return 0


def wait_or_refuse(consent: stopping.Consent, is_head: bool, busy: Callable[[], list[str]]) -> None:
    """Wait until nothing runs on the node, or in the head's cluster, if the user wants that.

    Args:
        consent: what the user wants.
        is_head: whether the node is the head.
        busy: returns a line for each task that runs.

    Raises:
        RocmlabError: something runs, and the user does not want to wait.
    """
    from rocmlab.cli import up

    shown: list[str] = []
    while lines := busy():
        if not consent.waits:
            where = "cluster" if is_head else "machine"
            more = "" if is_head else " (jobs of `run --engine ray` start again on another node)"
            raise RocmlabError(
                f"{len(lines)} task{'s run' if len(lines) > 1 else ' runs'} on this {where}",
                "\n".join(lines),
                f"wait for them, or end them: make cluster-down FORCE=1{more}",
                exit_code=1,
            )
        if lines != shown:
            up.say(stopping.WAITING)
            for line in lines:
                up.say(f"  {line}")
            shown = lines
        time.sleep(stopping.LOOK_AGAIN_SECONDS)
