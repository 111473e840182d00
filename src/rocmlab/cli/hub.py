"""`rocmlab hub`: JupyterHub on this machine, with a lab for each user."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rocmlab.base import extras, formatting, safe
from rocmlab.base.arguments import add_command
from rocmlab.base.errors import RocmlabError
from rocmlab.cli import stopping, up
from rocmlab.cli.main import command_parser
from rocmlab.hub import choices, commands, configuration, service
from rocmlab.hub.environment import HubEnvironment
from rocmlab.hub.service import Hub
from rocmlab.stack import project as projects
from rocmlab.stack import settings as configured
from rocmlab.stack import tls
from rocmlab.stack.native import NativeLab

COMMANDS = {
    "up": "start the hub, and print its address",
    "status": "show whether it runs, all labs, GPUs and who waits, and what each user has taken",
    "message": "tell all users something, in JupyterLab and on the hub's pages",
    "stop": "stop the lab of a user, and its kernels",
    "drain": "start no lab and give no new GPU; users are informed, and what runs continues",
    "undrain": "start labs and give GPUs again",
    "down": "stop the hub; the users' labs run on",
}
VARIABLES = {  # what make passes: argument, and what the user types
    "ROCMLAB_HUB_TEXT": ("text", "TEXT"),
    "ROCMLAB_HUB_USER": ("user", "HUB_USER"),
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
    if chosen.what == "status":
        return _status(hub, is_json=chosen.json)
    return _down(hub) if chosen.what == "down" else _act(hub, chosen)


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab hub`."""
    parser = command_parser(command, example="up", epilog="docs/hub.md explains them, and the settings HUB_….")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND", title="commands")
    added = {word: add_command(commands, word, text) for word, text in COMMANDS.items()}
    stopping.add_options(added["up"])
    added["status"].add_argument("--json", action="store_true", help="print everything known, as JSON")
    added["message"].add_argument("text", nargs="?", help="plain text; without it the message is withdrawn")
    added["stop"].add_argument("user", nargs="?", help="whose lab (or HUB_USER=name after make hub-stop)")
    added["drain"].add_argument("text", nargs="?", metavar="reason", help="which users see")
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
        project = projects.prepare(project, up.say, is_for_hub=True)
        if isinstance(project.lab, NativeLab):
            service.check_interpreter(project.lab.venv.interpreter)
        hub.make_folder()
        environment = HubEnvironment(project.settings.project, hub.state, project.settings.get("PYTHON") or "python3")
        environment.prepare(up.say)
        found = hub.configure(project, runtime, environment.proxy_command())
        is_new = hub.start(found, environment.interpreter, up.say)
        environment.remove_others()
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
    url = service.local_url(known) if known else None
    if known is None or not hub.is_running():
        found = labs(hub) if known else []
        if is_json:
            print(json.dumps({"running": False, "url": url, "labs": found}, indent=1))
            return 0
        print("JupyterHub is not running: make hub-up")
        for each in found:
            print(f"  lab of {each['user']}, since {each['since'][:19]} UTC")
        return 0
    seen = commands.ask(known, "GET", "labs")
    if is_json:
        print(json.dumps({"running": True, "url": url, **seen}, indent=1))
        return 0
    print("\n".join([f"JupyterHub is running: {url}", *_seen(seen)]))
    return 0


def _seen(seen: dict[str, Any]) -> list[str]:
    """Return for a terminal what the hub answers."""
    lines = []
    if drain := seen["drain"]:
        since = drain["since"] or "since an unknown time"
        lines.append(f"drained by {drain['by']}, {since}: {drain['text'] or 'no reason given'}")
    if message := seen["message"]:
        lines.append(f"message of {message['by']}, {message['since']}: {message['text']}")
    lines += ["", "labs" if seen["labs"] else "no lab runs"]
    gpus = {choices.CPU: "no GPU", choices.PER_KERNEL: "GPUs per kernel", None: "GPUs unknown"}
    for lab in seen["labs"]:
        chosen = gpus.get(lab["choice"]) or formatting.plural(int(lab["choice"]), "GPU")
        lines.append(f"  {lab['user']}: {lab['state']}, {chosen}, since {lab['since'] or 'an unknown time'}")
    lines += ["", "GPUs"] if seen["gpus"] else []
    for gpu in seen["gpus"]:
        who = f"leased to {gpu['lease']}" if gpu["lease"] else "free"
        lines.append(f"  {gpu['name']}{' (SIMULATED)' * gpu['simulated']}: {who}")
    lines += ["", "waiting, in this order", *(f"  {line}" for line in seen["waiting"])] if seen["waiting"] else []
    since = seen["counted_since"]
    lines += ["", f"GPU hours and energy since {since}"] if since and seen["users"] else []
    for user in seen["users"] if since else ():
        energy = formatting.energy(user["energy_joules"]) or "energy unknown"
        least = "at least " * (user["energy_joules"] is not None and not user["is_energy_whole"])
        lines.append(f"  {user['name']}: {user['gpu_hours']:.2f} h, {least}{energy}, {user['gpus']} GPUs now")
    return [safe.printable(line) for line in lines]


def _arguments(chosen: argparse.Namespace) -> dict[str, str]:
    """Return a command's arguments, or what make passes in their place.

    Raises:
        RocmlabError: make passes what this command does not take, or the user is missing.
    """
    found = {name: value or "" for name, value in vars(chosen).items() if name in ("text", "user")}
    for variable, (name, typed) in VARIABLES.items():
        passed = os.environ.get(variable, "")
        if passed and name not in found:
            why = "a message is for all users" if chosen.what == "message" else f"{typed}= is for another command"
            raise RocmlabError(f"make hub-{chosen.what} does not take {typed}={passed}", why, f"omit {typed}=")
        if passed:
            found[name] = found[name] or passed
    if found.get("user") == "":
        why = "neither an argument nor HUB_USER= names one"
        raise RocmlabError("the user whose lab to stop is missing", why, "make hub-stop HUB_USER=name")
    return found


def _act(hub: Hub, chosen: argparse.Namespace) -> int:
    given = _arguments(chosen)
    known = hub.known()
    if known is None or not hub.is_running():
        raise RocmlabError("JupyterHub is not running", "it is what does this", "make hub-up")
    note = commands.ask(known, "POST", chosen.what, given)["note"]
    done = {
        "message": "users are informed" if given.get("text") else "the message is withdrawn",
        "stop": f"the lab of {given.get('user')} is stopped",
        "drain": "this machine is drained: no lab is started, no GPU is leased; what runs continues",
        "undrain": "labs are started again, and GPUs leased",
    }
    up.say(note or done[chosen.what])
    return 0


def _down(hub: Hub) -> int:
    found = [each["user"] for each in labs(hub)] if hub.known() else []
    was_running = hub.stop(up.say)
    print("JupyterHub is stopped" if was_running else "JupyterHub was not running")
    if found:
        print(f"labs that run on: {', '.join(found)}; make hub-up finds them again, and there they can be stopped")
    return 0
