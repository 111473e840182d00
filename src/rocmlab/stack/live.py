"""Writing the settings that change without a restart, see `base.live`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rocmlab.base import identity, notify
from rocmlab.base.live import FILE, read
from rocmlab.base.live import GIVEN as GIVEN
from rocmlab.base.live import INSIDE as INSIDE
from rocmlab.base.live import NAMES as NAMES
from rocmlab.base.live import VARIABLE as VARIABLE
from rocmlab.stack import envfile
from rocmlab.stack.setting_table import DEFAULTS
from rocmlab.stack.settings import Settings


def path_of(settings: Settings) -> Path:
    """Return the file of a project's lab, on the host."""
    return settings.state / "live" / FILE


def ensure_folder(settings: Settings) -> Path:
    """Make the folder that a container mounts, readable by the lab's user, and return it."""
    folder = path_of(settings).parent
    identity.make_folder(folder)
    if folder.stat().st_uid in identity.own_uids():
        folder.chmod(0o755)
    return folder


def given(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable for a single run that has these settings of its command's environment, nothing without any.

    The lab's own stay as they are: the file is that of its server, and of runs under way.
    """
    found = {name: environment[name] for name in NAMES if environment.get(name)}
    return {GIVEN: json.dumps(found)} if found else {}


def write(settings: Settings) -> list[str]:
    """Write the file if a value changes, and return the changes, such as `RECORD_GPUS=on`."""
    path = ensure_folder(settings) / FILE
    before = read(path)
    wanted = {name: settings.get(name) for name in NAMES}
    if before != wanted:
        envfile.write(path, json.dumps(wanted, indent=1) + "\n", mode=0o644)
    return [f"{name}={value}" for name, value in wanted.items() if before.get(name, DEFAULTS.get(name, "")) != value]


def write_notify(settings: Settings, owner: tuple[str, str] | None = None) -> None:
    """Write NOTIFY for the lab's user alone, if it changes; where root writes, that is `owner` (uid and gid).

    Where that is no one whom root may give a file to, the lab cannot read it, and reports that.
    """
    path = ensure_folder(settings) / notify.FILE
    wanted = {name: settings.get(name) for name in (notify.NAME, notify.AFTER)}
    if not wanted[notify.NAME]:
        path.unlink(missing_ok=True)
        return
    if envfile.read_json(path) != wanted:
        envfile.write(path, json.dumps(wanted) + "\n")
    if owner and os.geteuid() == 0:
        with suppress(OSError, ValueError):
            os.chown(path, *map(int, owner))
