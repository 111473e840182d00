"""What the hub's process and its proxy read once, when they start: what has changed since then needs a restart."""

from __future__ import annotations

import hashlib
from pathlib import Path

import rocmlab
from rocmlab.base.errors import RocmlabError
from rocmlab.hub import authenticators, commands
from rocmlab.hub.configuration import Configuration
from rocmlab.stack import source

PACKAGE = Path(rocmlab.__file__).parent


def fingerprint(found: Configuration, interpreter: Path, package: Path) -> str:
    """Return one digest of all of it, from which no secret can be guessed: a long random one is part of it.

    Args:
        found: what the hub is told.
        interpreter: of an environment with JupyterHub, which stays in its place.
        package: the folder of rocmlab's own code; an upgrade changes it under the hub.

    Raises:
        RocmlabError: a file cannot be read, or a secret that the hub needs cannot be made.
    """
    state = Path(found.state)
    facts = {"version": rocmlab.__version__, "interpreter": str(interpreter), "command token": commands.token(state)}
    if found.access.authenticator == "native":
        facts["password for administrators"] = authenticators.setup_password(state)
    facts |= {name: _digest(name, path) for name, path in _files(found).items() if path}
    return source.digest(package.parent, (package.name,), facts)


def _files(found: Configuration) -> dict[str, str]:
    return {"the certificate with its key": found.certificate, "HUB_CONFIG": found.extra}


def _digest(name: str, path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as err:
        raise RocmlabError(f"{name} cannot be read", f"{path}: {err.strerror or err}", f"check {path}") from err
