"""`rocmlab hub`: JupyterHub on this machine, with a lab for each user."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rocmlab.base import extras
from rocmlab.base.arguments import add_command
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import stopping, up
from rocmlab.cli.main import command_parser
from rocmlab.hub import configuration, service
from rocmlab.hub.environment import HubEnvironment
from rocmlab.hub.service import Hub
from rocmlab.stack import project as projects
from rocmlab.stack import settings as configured
from rocmlab.stack import tls
from rocmlab.stack.native import NativeLab

COMMANDS = {
    "up": "start the hub, and print its address",
    "status": "show whether it runs, and whose labs do",
    "down": "stop the hub; the users' labs run on",
}
LABS = (
    "SELECT users.name, spawners.started FROM spawners JOIN users ON users.id = spawners.user_id "
    "WHERE spawners.server_id IS NOT NULL ORDER BY users.name"
)


def main(command: str, arguments: Sequence[str]) -> int:
    """Run one of the hub's commands."""
    chosen = build_parser(command).parse_args(arguments)
    if "ROCMLAB_RUNTIME" in os.environ:
        why, fix = "it is for the machine itself", f"on the host, in the clone: make hub-{chosen.what}"
        raise RocmlabError(f"rocmlab hub {chosen.what} was called inside a lab", why, fix)
    if chosen.what == "up":
        return _up(stopping.consent(chosen))
    hub = Hub(configured.load(projects.find(), {}))
    return _status(hub, is_json=chosen.json) if chosen.what == "status" else _down(hub)


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab hub`."""
    parser = command_parser(command, example="up", epilog="docs/hub.md explains them, and the settings HUB_….")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND", title="commands")
    added = {word: add_command(commands, word, text) for word, text in COMMANDS.items()}
    stopping.add_options(added["up"])
    added["status"].add_argument("--json", action="store_true", help="print everything known, as JSON")
    return parser


def _up(consent: stopping.Consent) -> int:
    folder = projects.find()
    chosen = extras.parse(configured.load(folder).get(extras.SETTING))
    os.environ[extras.SETTING] = ",".join(sorted({*chosen, "hub"}))  # which the labs need
    project = projects.plan(folder)
    runtime = service.check_runtime(project)
    configuration.access(project.settings)  # before anything is built
    up.announce(project, up.say)
    if stop := up.would_stop(project, "build"):
        stopping.check(*stop, consent, up.say)
    hub = Hub(project.settings)
    with projects.locked(project, up.say), projects.settings_kept_on_failure(project):
        project = projects.prepare(project, up.say)
        if isinstance(project.lab, NativeLab):
            service.check_interpreter(project.lab.venv.interpreter)
        hub.make_folder()
        environment = HubEnvironment(project.settings.project, hub.state, project.settings.get("PYTHON") or "python3")
        environment.prepare(up.say)
        found = hub.configure(project, runtime, environment.proxy_command())
        is_new = hub.start(found, environment.interpreter, up.say)
    up.say("JupyterHub is ready" if is_new else "JupyterHub is running")
    print(f"\n  {service.local_url(found)}\n")
    print(f"  labs      {runtime}, backend {found.backend}{' (SIMULATED)' * (found.root != '/')}")
    print(f"  login     {found.access.authenticator}")
    if found.certificate:
        print(f"  certificate SHA-256 {tls.fingerprint(Path(found.certificate).read_text(encoding='ascii'))}")
    if found.access.authenticator == "native":
        names = ", ".join(found.access.admins)
        print(f"  sign up as {names} with the password {hub.setup_password()}, then approve others at …/hub/authorize")
    print("\n  make hub-status   whose labs run\n  make hub-down     stop the hub; the labs run on")
    return 0


def labs(hub: Hub) -> list[dict[str, str]]:
    """Return whose labs the hub has started and not stopped, as its database knows it."""
    path = hub.state / "jupyterhub.sqlite"
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as database:
        return [{"user": name, "since": str(since or "")} for name, since in database.execute(LABS)]


def _status(hub: Hub, *, is_json: bool) -> int:
    known = hub.known()
    is_running, found = hub.is_running(), labs(hub) if known else []
    url = service.local_url(known) if known else None
    if is_json:
        print(json.dumps({"running": is_running, "url": url, "labs": found}, indent=1))
        return 0
    print(f"JupyterHub is running: {url}" if is_running else "JupyterHub is not running: make hub-up")
    for each in found:
        print(f"  lab of {each['user']}, since {each['since'][:19]} UTC")
    return 0


def _down(hub: Hub) -> int:
    found = [each["user"] for each in labs(hub)] if hub.known() else []
    was_running = hub.stop(up.say)
    print("JupyterHub is stopped" if was_running else "JupyterHub was not running")
    if found:
        print(f"labs that run on: {', '.join(found)}; make hub-up finds them again, and there they can be stopped")
    return 0
