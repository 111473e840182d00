"""`rocmlab monitoring`: Prometheus and Grafana next to the lab, or how to point your own Prometheus at it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import command_parser
from rocmlab.cli.up import say
from rocmlab.stack import monitoring
from rocmlab.stack import project as projects
from rocmlab.stack.project import Project


def main(command: str, arguments: Sequence[str]) -> int:
    """Start or stop the monitoring of the lab that the last `make up` left."""
    chosen = build_parser(command).parse_args(arguments)
    project = projects.reopen(projects.find())
    if project.choice.runtime != "docker" or (project.settings.is_in_cluster and chosen.what == "up"):
        return _explain(project, chosen.what)
    with projects.locked(project, say):
        found = monitoring.Monitoring(project)
        if chosen.what == "down":
            found.stop()
            say("the monitoring is stopped; its data are kept")
            return 0
        found.start(say)
    target = found.target()
    print(f"\n  Grafana     {found.grafana_url}   user admin, password {found.password}")
    print(f"  Prometheus  {found.prometheus_url}   alerts: {found.prometheus_url}/alerts\n")
    if target.health == "up":
        print("Prometheus scrapes the lab every 15 s. make monitoring-down stops it, and so does make down.")
        return 0
    raise RocmlabError(
        "Prometheus is running, but gets no metrics from the lab",
        target.error or "it was not scraped yet",
        "make logs; if the lab is older than this clone: make up",
        exit_code=1,
    )


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab monitoring`."""
    parser = command_parser(command, epilog="Settings: PROMETHEUS_PORT, GRAFANA_PORT and others, docs/settings.md.")
    parser.add_argument(
        "what",
        nargs="?",
        default="up",
        choices=("up", "down"),
        help="up: start; down: stop, and keep the data (default: up)",
    )
    return parser


def _explain(project: Project, what: str) -> int:
    runtime = project.choice.runtime
    if what == "down":
        say(f"nothing to stop: the monitoring needs a lab in Docker, and the runtime of this one is {runtime}")
        return 0
    if not project.lab.is_running():
        raise RocmlabError("the lab is not running", "its metrics come from itself", "make up")
    why = f"this lab's runtime is {runtime}; the containers of the monitoring need Docker"
    if runtime == "docker":
        why = (
            "this lab is a node of a cluster: on the host's own network, which the monitoring's containers do not reach"
        )
    say(f"{why}.\nTo scrape this lab with your own Prometheus, add this to its configuration:\n")
    print(monitoring.scrape_configuration(project))
    say("Grafana's dashboard: docker/monitoring/grafana/dashboards/rocmlab.json; more in docs/monitoring.md")
    return 0
