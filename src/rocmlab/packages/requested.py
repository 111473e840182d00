"""What a user wants in a kernel, kept on the share in `packages/<kernel>.json`: this outlives every image."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError
from rocmlab.packages import overlays

FOLDER = "packages"
NAME = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^]]*\])?\s*([<>=!~;@(].*|$)")
WHEEL = re.compile(r"(?:^|/)([^/]+?)-[^/]+\.whl(?:#.*)?$")
USER = re.compile(r"(?:\b(ssh):)?//([^/\s:@]*)[^/\s]*@", re.IGNORECASE)  # and password; both may have an @


@dataclass(frozen=True)
class Requirement:
    """One thing that a user asked to be installed."""

    text: str  # as pip takes it: `accelerate>=1`, a path, an address, or `-e PATH`
    options: tuple[str, ...] = ()  # of pip, which say where it is
    package: str = ""  # the name that an installation has found, where the text does not say it
    declared_in: str = ""  # the file next to the notebooks, see `packages.declared`; empty: the user added it

    @property
    def name(self) -> str:
        """The package's normalized name; the text itself where that is not known."""
        match = NAME.match(self.text) or WHEEL.search(self.text)
        return normal(match[1]) if match else self.package or self.text

    @property
    def file(self) -> str:
        """The name of the file that declares it."""
        return self.declared_in.partition("#")[0]

    @property
    def origin(self) -> str:
        """The address of its package, as `origin` has it; that of a name has no meaning."""
        path = self.text.removeprefix("-e ")
        return origin(path if "://" in path else Path(path.partition("[")[0]).absolute().as_uri())

    @property
    def bound(self) -> str:
        """The versions that it allows, as a constraint of pip, which has no extras; empty where it allows any."""
        match = NAME.match(self.text)
        return f"{match[1]}{match[2]}" if match and match[2] and match[2][0] != "@" else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """As arguments of pip."""
        return tuple(self.text.split(" ", 1)) if self.text.startswith("-") else (self.text,)


def normal(name: str) -> str:
    """Return a package's name as all compare it: `typing-extensions` for `typing_extensions`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def origin(address: str) -> str:
    """Return an address as it is compared: without user, fragment, kind and revision of a repository, and links."""
    address = re.sub(r"//[^/\s]+@", "//", address.partition("#")[0])
    if re.match(r"[a-z]+\+", address):
        address = address.partition("+")[2]
        address = address.rpartition("@")[0] or address
    return os.path.realpath(unquote(address[7:])) if address.startswith("file://") else address


def path_of(share: Path, kernel: str) -> Path:
    """Return the file with a kernel's list."""
    return share / FOLDER / f"{kernel}.json"


def read(share: Path, kernel: str) -> tuple[Requirement, ...]:
    """Return a kernel's list; empty where none was written.

    Raises:
        RocmlabError: the file is not this user's own, or cannot be read: what is in there must not be replaced.
    """
    path = path_of(share, kernel)
    try:
        with open(path, encoding="utf-8") as file:
            overlays.check_own(path, os.fstat(file.fileno()))
            found = json.load(file)["packages"]
        return tuple(
            Requirement(
                str(each["requirement"]),
                tuple(map(str, each["options"])),
                str(each.get("name", "")),
                str(each.get("declared_in", "")),
            )
            for each in found
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, LookupError, TypeError) as err:
        why = f"{type(err).__name__}: {err}"
        raise RocmlabError(f"the list of packages cannot be read: {path}", why, "correct or remove this file") from err


def write(share: Path, kernel: str, listed: Iterable[Requirement]) -> None:
    """Replace a kernel's list."""
    path = path_of(share, kernel)
    path.parent.mkdir(parents=True, exist_ok=True)
    packages: list[dict[str, object]] = []
    for each in listed:
        found = {"name": each.package} if each.package else {}
        found |= {"declared_in": each.declared_in} if each.declared_in else {}
        packages.append({**found, "requirement": each.text, "options": list(each.options)})
    files.write_text(path, files.to_json({"packages": packages}) + "\n")


def with_added(listed: Iterable[Requirement], added: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """Return a list with more requirements; one replaces an earlier one of the same package."""
    found = {each.name: each for each in listed}
    for each in added:
        found.pop(each.name, None)
        found[each.name] = each
    return tuple(found.values())


def of_file(path: str, folder: Path | None = None) -> list[str]:
    """Return what a requirements file has; the file itself where it has more than requirements, such as hashes.

    Args:
        path: of the file.
        folder: where relative paths in it start; None: the current one, as with pip.
    """
    whole = [f"-r {path if '://' in path else os.path.abspath(path)}"]
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return whole  # pip reports it, or it is an address
    lines = [line for each in text.splitlines() if (line := re.sub(r"(^|\s)#.*", "", each).strip())]
    is_plain = all(re.match(r"[A-Za-z0-9./]|-e ", each) and not re.search(r"\\| --|\$\{", each) for each in lines)
    if lines and not is_plain:
        return whole
    here = folder or Path()
    return [editable(each[3:].strip(), here) if each.startswith("-e ") else absolute(each, here) for each in lines]


def editable(text: str, folder: Path = Path()) -> str:
    """Return an editable requirement whose path does not depend on the current folder."""
    return f"-e {text if '://' in text else os.path.abspath(folder / text)}"


def absolute(text: str, folder: Path = Path()) -> str:
    """Return a requirement whose path does not depend on the current folder."""
    is_path = text.startswith(".") or ("/" in text and "://" not in text and " @ " not in text)
    is_wheel = text.endswith(".whl") and (folder / text).exists()
    return os.path.abspath(folder / text) if is_path or is_wheel else text


def without_password(text: str) -> str:
    """Return a text whose addresses have no password, and a user only for ssh: in others that may be a token."""
    return USER.sub(lambda found: f"{found[1]}://{found[2]}@" if found[1] else "//", text)


def without_secrets(requirement: Requirement) -> Requirement:
    """Return a requirement as it may be kept in a file."""
    return replace(
        requirement, text=without_password(requirement.text), options=tuple(map(without_password, requirement.options))
    )
