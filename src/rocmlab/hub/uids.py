"""The user ids of users without an account on this host, for their containers; a number is never given to two names."""

from __future__ import annotations

import json
import pwd
from contextlib import suppress
from pathlib import Path

from rocmlab.stack import envfile

FIRST = 200_000  # above what distributions give to accounts, below what rootless engines map


class Uids:
    """The ids of one hub's users, in a file of its own: the hub's database may give a number again."""

    def __init__(self, path: Path, *, has_accounts: bool) -> None:
        """Use a file.

        Args:
            path: of the file.
            has_accounts: users have logged in as accounts of this host, so that the same name is the same person.
        """
        self._path = path
        self._has_accounts = has_accounts

    def of(self, name: str) -> int:
        """Return the id of a user: that of the account of this name, else one of the hub's own."""
        if self._has_accounts:
            with suppress(KeyError):
                if uid := pwd.getpwnam(name).pw_uid:
                    return uid
        known: dict[str, int] = envfile.read_json(self._path)
        if name not in known:
            known[name] = max([FIRST - 1, *known.values()]) + 1
            envfile.write(self._path, json.dumps(known, indent=1) + "\n")
        return known[name]
