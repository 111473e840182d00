"""The user ids of users without an account on this host, for their containers; a number is never given to two names."""

from __future__ import annotations

import itertools
import json
import pwd
import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from rocmlab.stack import envfile

FIRST = 70_000  # above what distributions give to accounts and services, below what they give to rootless engines
SUBORDINATE = Path("/etc/subuid")  # who is named there can become these uids
DEFINITIONS = Path("/etc/login.defs")
LEAST = 1000  # where that file does not say it


def first_of_people(definitions: Path = DEFINITIONS) -> int:
    """Return from which uid on accounts are people's, and not of services. Source: UID_MIN in login.defs(5)."""
    text = definitions.read_text(encoding="utf-8", errors="replace") if definitions.exists() else ""
    found = re.search(r"^\s*UID_MIN\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else LEAST


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

    def known(self, name: str) -> int | None:
        """Return the id of a user: that of the account of this name, else the hub's own; None before there is one."""
        if self._has_accounts:
            with suppress(KeyError):
                if uid := pwd.getpwnam(name).pw_uid:
                    return uid
        found: int | None = envfile.read_json(self._path).get(name)
        return found

    def of(self, name: str) -> int:
        """Return the id of a user, which is made where there is none."""
        if (uid := self.known(name)) is not None:
            return uid
        known: dict[str, int] = envfile.read_json(self._path)
        known[name] = self._unused(set(known.values()))
        envfile.write(self._path, json.dumps(known, indent=1) + "\n")
        return known[name]

    def _unused(self, known: Collection[int]) -> int:
        """Return an id that is no one's, and that no account of this host can take on."""
        text = self._subordinate.read_text(encoding="utf-8", errors="replace") if self._subordinate.exists() else ""
        found = [line.split(":")[1:] for line in text.splitlines() if line.count(":") == 2]
        ranges = [range(int(first), int(first) + int(count)) for first, count in found if (first + count).isdecimal()]
        accounts = {account.pw_uid for account in pwd.getpwall()}
        return next(
            uid
            for uid in itertools.count(FIRST)
            if uid not in known and uid not in accounts and not any(uid in each for each in ranges)
        )
