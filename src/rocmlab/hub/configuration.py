"""What the hub is started with: decided by `rocmlab hub up`, written to one file, read by JupyterHub's own process."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.hub import kept
from rocmlab.stack.choice import check_value
from rocmlab.stack.settings import Settings, port_of

UP = "make hub-up"
AUTHENTICATORS = ("pam", "native", "oauth")
FILE = "configuration.json"
SIZE = re.compile(r"([1-9][0-9]{0,14})(?:([kmgt])b?)?")
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}  # as Docker has them
EVERYONE = "*"


@dataclass(frozen=True)
class Access:
    """Who may log in, and how."""

    authenticator: str
    admins: tuple[str, ...]
    users: tuple[str, ...]
    is_open: bool  # everyone who can log in


@dataclass(frozen=True)
class Limits:
    """What one lab may use; None: no limit."""

    memory_bytes: int | None
    cpus: float | None
    pids: int | None
    idle_seconds: int  # then it is stopped; 0: never
    wait_seconds: int  # for free GPUs

    @property
    def need_cgroup(self) -> bool:
        """Whether a native lab has a cgroup of its own; the number of processes is limited without one."""
        return self.memory_bytes is not None or self.cpus is not None


@dataclass(frozen=True)
class Configuration:
    """All that JupyterHub's process is told. It holds no secret."""

    project: str  # the folder of rocmlab
    state: str  # the hub's own folder, which only its user may enter
    runtime: str  # of the labs: docker or native
    backend: str
    root: str  # `/`, or a simulated host's
    url: str  # at which the proxy listens, http or https
    certificate: str  # PEM file with key and certificates; empty without TLS
    hub_port: int  # of the hub's interface for labs and proxy
    proxy_port: int  # of the proxy's interface for the hub
    hub_address: str  # of the hub's interface: 127.0.0.1, or that of the labs' network
    access: Access
    limits: Limits
    data: str  # a folder, or empty
    common: str
    extra: str  # a configuration file of the administrator's
    leases: str  # the host's folder
    node: tuple[str, ...]  # the command that runs the proxy
    lab_python: str = ""  # native: the interpreter of the labs
    image: str = ""  # docker
    network: str = ""
    name: str = ""  # of containers, volumes and labs
    groups: tuple[str, ...] = ()  # of the GPUs' device nodes
    shm_size: str = "8gb"
    lab: dict[str, str] = field(default_factory=dict)  # settings of every lab

    def write(self, path: Path | None = None) -> Path:
        """Write it into the hub's folder, or to a path, and return the file."""
        path = path or Path(self.state, FILE)
        kept.write(path, json.dumps(asdict(self), indent=1) + "\n")
        return path

    @classmethod
    def read(cls, path: Path) -> Configuration:
        """Read what `write` has written.

        Raises:
            RocmlabError: it is damaged.
        """
        try:
            return cls._of(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            why = f"a disk was full or the power failed, or another version wrote it: {err!r}"
            fix = f"rm {path}; make hub-up"
            raise RocmlabError(f"{path} is damaged, which has what the hub was started with", why, fix) from err

    @classmethod
    def _of(cls, found: dict[str, Any]) -> Configuration:
        access: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found["access"].items()
        }
        found |= {"access": Access(**access), "limits": Limits(**found["limits"])}
        found |= {name: tuple(found[name]) for name in ("node", "groups")}
        return cls(**found)


def access(settings: Settings) -> Access:
    """Return who may log in; raise RocmlabError if that is no one, or the settings are not clear."""
    kind = settings.get("HUB_AUTH")
    check_value("HUB_AUTH", kind, AUTHENTICATORS)
    admins, users = _names(settings, "HUB_ADMINS"), _names(settings, "HUB_USERS")
    is_open = EVERYONE in users
    if kind == "native":
        if not admins:
            why = "with HUB_AUTH=native an administrator approves those who sign up"
            raise RocmlabError("HUB_ADMINS is empty", why, f"{UP} HUB_ADMINS=name")
        return Access(kind, admins, (), is_open=True)
    if not admins and not users:
        fix = f"{UP} HUB_ADMINS=$USER HUB_USERS=name,name; everyone who can log in: HUB_USERS='*'"
        raise RocmlabError("no one may use the hub", "HUB_ADMINS and HUB_USERS are empty", fix)
    return Access(kind, admins, tuple(name for name in users if name != EVERYONE), is_open=is_open)


def _names(settings: Settings, name: str) -> tuple[str, ...]:
    # JupyterHub knows users by their names in lower case.
    found = tuple(dict.fromkeys(part.strip().lower() for part in settings.get(name).split(",") if part.strip()))
    if wrong := [each for each in found if "/" in each]:
        raise RocmlabError(f"{name} has {wrong[0]}, which is no name", "a slash is in it", f"{UP} {name}=name,name")
    return found


def limits(settings: Settings, pids_default: int) -> Limits:
    """Return what each lab may use; raise RocmlabError for what is no limit."""
    memory, cpus = settings.get("HUB_MEMORY_LIMIT").lower(), settings.get("HUB_CPU_LIMIT")
    size = SIZE.fullmatch(memory)
    if memory and not size:
        why = "it is a number of bytes, with kb, mb, gb or tb behind it"
        raise RocmlabError(f"HUB_MEMORY_LIMIT={memory} is not a size", why, f"{UP} HUB_MEMORY_LIMIT=64gb")
    return Limits(
        memory_bytes=int(size[1]) * UNITS.get(size[2], 1) if size else None,
        cpus=_cpus(cpus) if cpus else None,
        pids=_count(settings, "HUB_PIDS_LIMIT", str(pids_default)) or None,
        idle_seconds=_count(settings, "HUB_IDLE_SECONDS", "0"),
        wait_seconds=_count(settings, "HUB_WAIT_SECONDS", "3600"),
    )


def _cpus(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        why = "it is a number of CPUs above 0"
        raise RocmlabError(f"HUB_CPU_LIMIT={text} is not a number of CPUs", why, f"{UP} HUB_CPU_LIMIT=4")
    return value


def _count(settings: Settings, name: str, default: str) -> int:
    text = settings.get(name) or default
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise RocmlabError(
            f"{name}={text} is not a number", "it is a whole number, at least 0", f"{UP} {name}={default}"
        )
    return int(text)


def port(settings: Settings) -> int:
    """Return the port of the hub's pages."""
    return port_of(settings, "HUB_PORT", UP)


def folder(settings: Settings, name: str) -> str:
    """Return a folder that a setting names, empty where it names none; raise RocmlabError if it is not there."""
    if not (given := settings.get(name)):
        return ""
    path = settings.path(given)
    if not path.is_dir():
        raise RocmlabError(f"{name}={given} is not a folder", f"{path} is not there", f"mkdir -p {path}")
    return str(path)


def own_file(settings: Settings, kind: str) -> str:
    """Return the administrator's own configuration file, empty where there is none.

    Raises:
        RocmlabError: it is missing, someone else could change it, or HUB_AUTH needs one.
    """
    given = settings.get("HUB_CONFIG")
    if not given:
        if kind == "oauth":
            why = "the addresses of the OAuth provider, the client's id and its secret are not known"
            raise RocmlabError(
                "HUB_AUTH=oauth needs HUB_CONFIG", why, f"write them as docs/hub.md shows; then {UP} HUB_CONFIG=file"
            )
        return ""
    path = settings.path(given)
    try:
        found = path.stat()
    except OSError as err:
        raise RocmlabError(f"HUB_CONFIG={given} cannot be read", err.strerror or str(err), f"check {path}") from err
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o077:
        mode = f"it belongs to uid {found.st_uid}, and its mode is {found.st_mode & 0o777:o}"
        why, own = f"{mode}; it runs as the hub, and holds secrets", os.geteuid()
        fix = f"sudo chown {own} {path} && sudo chmod 600 {path}"
        raise RocmlabError(f"HUB_CONFIG={given} is not private", why, fix)
    for folder in path.resolve().parents:  # whoever may rename it there decides what the hub runs
        at = folder.stat()
        is_open = at.st_mode & stat.S_IWOTH and not at.st_mode & stat.S_ISVTX
        if is_open or at.st_uid not in {*identity.own_uids(), 0}:
            why = f"{folder} belongs to uid {at.st_uid}, and its mode is {at.st_mode & 0o7777:o}; it runs as the hub"
            fix = f"move it to your own folder or root's: {UP} HUB_CONFIG=/etc/rocmlab-hub.py"
            raise RocmlabError(f"HUB_CONFIG={given} can be replaced by another user", why, fix)
    return str(path.resolve())
