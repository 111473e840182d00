"""The lab's tokens: the files from which a server reads them, and those that another process may know.

Where no engine writes them into a container, a server reads `.rocmlab/*-token`. A process that held the lab's port may
know a token, because a browser's tab sends it to whichever process listens; rocmlab itself never does (`server.ask`).
What was seen is kept in `.rocmlab/exposed.json` until the next `make up` has replaced the tokens: their digests, not
the tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base import files
from rocmlab.stack import envfile
from rocmlab.stack.server import OTHER, Holder
from rocmlab.stack.settings import Settings

NAMES = ("JUPYTER_TOKEN", "METRICS_TOKEN")
FILE = "exposed.json"


def path(settings: Settings, name: str) -> Path:
    """Return the file of a token, which is for its owner alone."""
    return settings.state.resolve() / name.lower().replace("_", "-")


def write(settings: Settings, values: Mapping[str, str], runtime: Path | None = None) -> None:
    """Write the token files (mode 0400).

    With another token than before, logins by a cookie end as well: who held the port has the browser's cookie too.
    Their key is in the runtime folder, which a server that crashed has left.
    """
    if runtime and envfile.read(path(settings, NAMES[0])) != values.get(NAMES[0], ""):
        (runtime / "jupyter_cookie_secret").unlink(missing_ok=True)
    for name in NAMES:
        envfile.write(path(settings, name), values.get(name, ""), mode=0o400)  # no newline: it would be part of it


def digest(values: Mapping[str, str]) -> str:
    """Return what differs when a token does, and reveals nothing about it."""
    return hashlib.sha256("\n".join(values.get(name, "") for name in NAMES).encode()).hexdigest()


def note(settings: Settings, port: int, holder: Holder) -> Holder:
    """Remember that another process holds the port of `.env`, where browsers send tokens; return the holder."""
    state = settings.state
    written = settings.read_env() if holder.kind == OTHER else {}
    if written.get("PORT") != str(port) or not os.access(state, os.W_OK):
        return holder
    if files.is_locked(state / "lock"):  # a command starts or stops the lab: its server may not be known just now
        return holder
    known = _read(state)
    found = {**known, **{_digest_of(written[name]): f"port {port}: {holder}" for name in NAMES if written.get(name)}}
    if found.keys() != known.keys():
        envfile.write(state / FILE, json.dumps(found, indent=1) + "\n")
    return holder


def renew(settings: Settings) -> list[str]:
    """Forget tokens that another process may know, so that new ones are made, and return a line for each."""
    known = _read(settings.state)
    lines = []
    for name in NAMES:
        where = known.get(_digest_of(settings.last(name)))
        if where is None:
            continue
        if name in settings.chosen:
            lines.append(
                f"warning: another process held the lab's port and may know {name} ({where}); you chose it in .env or "
                f"the environment: change it, or remove the line and a new one is made"
            )
        else:
            del settings.written[name]
            hint = (
                "; if the monitoring runs, it gets the new one by: make monitoring" if name == "METRICS_TOKEN" else ""
            )
            lines.append(f"{name} is new: another process held the lab's port and may know the old one ({where}){hint}")
    return lines


def forget(settings: Settings, values: Mapping[str, str]) -> None:
    """Forget what was seen, but for tokens that are still in force; refresh the file of a Prometheus of the user's."""
    file = settings.state / FILE
    known = _read(settings.state)
    in_force = {_digest_of(values.get(name, "")) for name in NAMES}
    kept = {digest: where for digest, where in known.items() if digest in in_force}
    if kept:
        envfile.write(file, json.dumps(kept, indent=1) + "\n")
    elif known:
        file.unlink(missing_ok=True)
    token, prometheus = values.get("METRICS_TOKEN", ""), path(settings, "METRICS_TOKEN")
    is_stale = prometheus.exists() and envfile.read(prometheus).strip() != token
    if len(kept) < len(known) and token and is_stale:
        envfile.write(prometheus, token)


def _read(state: Path) -> dict[str, str]:
    return {digest: str(where) for digest, where in envfile.read_json(state / FILE).items()}


def _digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest() if token else ""
