"""The user ids of users without an account on this host, for their containers; a number is never given to two names."""

from __future__ import annotations

import itertools
import json
import pwd
import re
from collections.abc import Collection
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.hub import kept
from rocmlab.hub.configuration import Access

FILE = "uids.json"
FIRST = 70_000  # above what distributions give to accounts and services, below what they give to rootless engines
SUBORDINATE = Path("/etc/subuid")  # who is named there can become these uids
DEFINITIONS = Path("/etc/login.defs")
LEAST = 1000  # where that file does not say it


def first_of_people(definitions: Path = DEFINITIONS) -> int:
    """Return from which uid on accounts are people's, and not of services. Source: UID_MIN in login.defs(5)."""
    text = definitions.read_text(encoding="utf-8", errors="replace") if definitions.exists() else ""
    found = re.search(r"^\s*UID_MIN\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else LEAST


def _account(name: str) -> int | None:
    """Return the uid of the account of this name; None where this host knows none now."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


class Uids:
    """The ids of one hub's users, in a file of its own: the hub's database may give a number again."""

    def __init__(self, path: Path, *, has_accounts: bool, subordinate: Path = SUBORDINATE) -> None:
        """Use a file.

        Args:
            path: of the file.
            has_accounts: users have logged in as accounts of this host, so that the same name is the same person.
            subordinate: the file with the ranges of uids that accounts of this host can become.
        """
        self._path = path
        self._has_accounts = has_accounts
        self._subordinate = subordinate

    @classmethod
    def of_hub(cls, state: Path, access: Access) -> Uids:
        """Return those in a hub's folder, whose users log in so."""
        return cls(state / FILE, has_accounts=access.authenticator == "pam")

    def known(self, name: str) -> int | None:
        """Return the id of a user: that of the account of this name, else the hub's own; None before there is one.

        Raises:
            RocmlabError: the file is damaged.
        """
        if self._has_accounts and (uid := _account(name)):
            return uid
        return self._read().get(name)

    def of(self, name: str) -> int:
        """Return the id of a user, which is made where there is none.

        Raises:
            RocmlabError: the file is damaged, or cannot be written; or the user has logged in as an account that this
                host does not know now. With another id, a lab could not read what the user has written.
        """
        if (uid := self.known(name)) is not None:
            return uid
        if self._has_accounts and _account(name) is None:
            raise RocmlabError(
                f"{name} has no account on this host now",
                "labs run with the uid of the account that logs in (HUB_AUTH=pam); a directory may be down",
                f"getent passwd {name} # if nothing is printed, look at the directory's service (sssd, LDAP)",
            )
        known = self._read()
        known[name] = self._unused(set(known.values()))
        kept.write(self._path, json.dumps(known, indent=1) + "\n")
        return known[name]

    def check(self) -> None:
        """Raise RocmlabError if the file is damaged."""
        self._read()

    def _read(self) -> dict[str, int]:
        """Return the hub's own ids by name; none where there is no file, which is not the same as an empty one."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as err:
            raise self._damaged(str(err)) from err
        if not isinstance(found, dict) or not all(type(uid) is int for uid in found.values()):
            raise self._damaged("it has something else than a number for each name")
        return found

    def _damaged(self, why: str) -> RocmlabError:
        return RocmlabError(
            f"{self._path} is damaged, which has the uids of the hub's users",
            f"{why}; if it began again, it would give a user another one's uid: files in common/, quota and leases",
            f"write it again as docs/hub.md shows; if no volumes of users are there yet: rm {self._path}",
        )

    def _unused(self, known: Collection[int]) -> int:
        """Return an id that is no one's, and that no account of this host can take on."""
        text = self._subordinate.read_text(encoding="utf-8", errors="replace") if self._subordinate.exists() else ""
        found = [line.split(":")[1:] for line in text.splitlines() if line.count(":") == 2]
        ranges = [range(int(first), int(first) + int(count)) for first, count in found if (first + count).isdecimal()]
        return next(
            uid
            for uid in itertools.count(FIRST)
            if uid not in known and not any(uid in each for each in ranges) and not _has_account(uid)
        )


def _has_account(uid: int) -> bool:
    """Return whether a number is an account's; a directory knows more of them than it lists."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
