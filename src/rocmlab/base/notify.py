"""NOTIFY: to whom a run reports its end, a command or a webhook.

The address of a webhook is often a secret by itself, and a command may hold one. So neither is shown, and a lab reads
both from a file of its user alone, next to that of the settings that change without a restart.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rocmlab.base import live
from rocmlab.base.errors import RocmlabError

NAME, AFTER = "NOTIFY", "NOTIFY_AFTER_SECONDS"
DEFAULT_SECONDS = "60"
FILE = "notify.json"
FIX = f"{NAME}=https://… or {NAME}=/path/of/a/program in .env, then: make up"


@dataclass(frozen=True)
class Target:
    """A command or a webhook."""

    after_seconds: float  # shorter runs are not reported
    command: tuple[str, ...] = field(default=(), repr=False)
    url: str = field(default="", repr=False)  # where there is no command

    def __str__(self) -> str:
        return f"the webhook at {urlsplit(self.url).hostname}" if self.url else "the command"


def parse(settings: Mapping[str, str]) -> Target | None:
    """Return what NOTIFY means; None where it is not set.

    Raises:
        RocmlabError: it is malformed; the error does not show it.
    """
    text, after = settings.get(NAME, "").strip(), settings.get(AFTER) or DEFAULT_SECONDS
    if not text:
        return None
    try:
        seconds = float(after)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        why = "runs that take less time are not reported; 0: every run is"
        raise RocmlabError(f"{AFTER}={after} is not a time in seconds", why, f"make up {AFTER}={DEFAULT_SECONDS}")
    if re.match(r"[a-z][a-z0-9+.-]*:/", text, re.I):
        if why := _url_problem(text):
            raise RocmlabError(f"{NAME} is not the address of a webhook", why, FIX)
        return Target(seconds, url=text)
    try:
        command = tuple(shlex.split(text))
    except ValueError as err:
        raise RocmlabError(f"{NAME} is not a command", f"{err}: quotes are those of a shell", FIX) from err
    if not command or not command[0]:
        raise RocmlabError(f"{NAME} is not a command", "it does not name a program", FIX)
    return Target(seconds, command)


def _url_problem(text: str) -> str:
    if not re.fullmatch(r"[!-~]+", text):
        return "it has a space, or a character that an address writes as %XX"
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return "its host or port is malformed"
    if parts.scheme not in ("http", "https"):
        return "it begins with neither https:// nor http://"
    if not parts.hostname:
        return "it does not name a host"
    return "it has a user name; use a webhook with its secret in the path" if "@" in parts.netloc else ""


def read(environment: Mapping[str, str]) -> Target | None:
    """Return whom a run in this lab reports to: by the environment, by `make up`, or by `docker run -e`.

    Raises:
        RocmlabError: the setting is malformed, or its file cannot be read.
    """
    found: dict[str, str] = {}
    if path := live.path_of(environment):
        found = _content(path.with_name(FILE))
    if not found.get(NAME) and (folder := environment.get("JUPYTER_RUNTIME_DIR")):
        found[NAME] = _text(Path(folder, "notify"))  # where docker/start.sh keeps it
    return parse(found | {name: environment[name] for name in (NAME, AFTER) if name in environment})


def _content(path: Path) -> dict[str, str]:
    try:
        found = json.loads(_text(path) or "{}")
    except ValueError:
        return {}
    return {name: str(found.get(name) or "") for name in (NAME, AFTER)} if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as err:
        who = f"uid {os.geteuid()}, the lab's user"
        raise RocmlabError(f"{NAME} cannot be read by {who}", f"{path}: {type(err).__name__}", "make up") from err
