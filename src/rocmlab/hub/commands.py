"""What `rocmlab hub status` and its siblings ask the hub, as a service with a token of its own."""

from __future__ import annotations

import http.client
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.hub import kept
from rocmlab.hub.configuration import Configuration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SERVICE = "rocmlab-commands"
FILE = "command-token"
TIMEOUT_SECONDS = 60.0


def token(state: Path) -> str:
    """Return the token, made once; its file is the hub's user's alone."""
    if not os.access(state, os.W_OK | os.X_OK):
        why = f"{state} belongs to the user who started it"
        raise RocmlabError("only who started the hub may do this", why, "run this as that user, or with sudo")
    return kept.secret(state / FILE, lambda: secrets.token_hex(32))


def ask(found: Configuration, method: str, path: str, given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what the hub answers on its own port, which is no other program's as long as it runs.

    Raises:
        RocmlabError: it does not answer, or refuses.
    """
    connection = http.client.HTTPConnection(found.hub_address, found.hub_port, timeout=TIMEOUT_SECONDS)
    headers = {"Authorization": f"token {token(Path(found.state))}", "Content-Type": "application/json"}
    body = json.dumps(dict(given)) if given is not None else None
    try:
        connection.request(method, f"/hub/api/rocmlab/{path}", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        answered: dict[str, Any] = json.loads(content)
    except (OSError, ValueError, http.client.HTTPException) as err:
        raise RocmlabError("JupyterHub does not answer", str(err) or type(err).__name__, "make hub-up") from err
    finally:
        connection.close()
    if answer.status == 409:
        raise RocmlabError(answered["what"], answered["why"], answered["fix"])
    if answer.status != 200:
        why = f"status {answer.status}: {answered.get('message', '')}"
        raise RocmlabError("JupyterHub refuses this command", why, "make hub-up, which restarts it; labs run on")
    return answered
