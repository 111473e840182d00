"""Jupyter's login by password: how often it may fail, and that a changed password is in force without a restart.

`rocmlab password` writes Jupyter's own hash where Jupyter reads it. The token always logs in, whatever fails meanwhile.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tornado.web import HTTPError

log = logging.getLogger("rocmlab")

FILE = "jupyter_server_config.json"  # which `jupyter server password` writes as well
MAX_FOR_ADDRESS, MAX_IN_ALL, SECONDS = 5, 30, 60.0


class Limit:
    """How many logins may fail in a time; what it remembers is bounded by that number."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: deque[tuple[float, str]] = deque(maxlen=MAX_IN_ALL)

    def wait_seconds(self, address: str) -> float:
        """Return how long this address has to wait until the next attempt, 0 if it has not."""
        now = self._clock()
        while self._failed and self._failed[0][0] <= now - SECONDS:
            self._failed.popleft()
        own = [at for at, who in self._failed if who == address]
        if len(own) >= MAX_FOR_ADDRESS:
            return own[-MAX_FOR_ADDRESS] + SECONDS - now
        return self._failed[0][0] + SECONDS - now if len(self._failed) == MAX_IN_ALL else 0.0

    def note(self, address: str) -> None:
        """Remember a login that failed."""
        self._failed.append((self._clock(), address))


class Login:
    """The login of one server."""

    def __init__(self, server: Any, limit: Limit | None = None) -> None:  # noqa: ANN401  jupyter_server's ServerApp
        self._server, self._provider = server, server.identity_provider
        self._limit = limit or Limit()
        self._seen: tuple[int, ...] | None = None
        self._hashed = ""  # what the file had
        self._file = Path(server.config_dir) / FILE
        self._process = self._provider.process_login_form
        self._provider.process_login_form = self.process

    def process(self, handler: Any) -> Any:  # noqa: ANN401  the form's, and Jupyter's user or None
        """Check what was typed, unless too many attempts have failed; what it was is logged nowhere.

        Raises:
            HTTPError: too many have failed.
        """
        typed, address = handler.get_argument("password", default=""), handler.request.remote_ip
        token = self._provider.token
        is_token = bool(token) and hmac.compare_digest(typed.encode("utf-8", "replace"), token.encode())
        if not is_token and (wait := self._limit.wait_seconds(address)):
            reason = f"Too many logins failed. Retry in {math.ceil(wait)} seconds, or open the link with the token"
            raise HTTPError(429, reason, reason="Too Many Requests")
        before = self._provider.hashed_password
        user = self._process(handler)
        if self._provider.hashed_password != before:  # the form sets one as well, for who has the token
            self._hashed = self._provider.hashed_password
            self._end_logins()
        if user is None:
            self._limit.note(address)
            log.warning("a login from %s failed", address)
        return user

    def follow(self) -> None:
        """Take a password that was set or removed; the logins of before end."""
        try:
            status = self._file.stat()
            seen: tuple[int, ...] = (status.st_mtime_ns, status.st_ino, status.st_size)
        except FileNotFoundError:
            seen = ()
        except OSError:  # of a share that does not answer, say
            return
        if seen == self._seen:
            return
        self._seen = seen
        try:
            found = json.loads(self._file.read_bytes()) if seen else {}
            hashed = str(found.get("IdentityProvider", {}).get("hashed_password", ""))
        except (OSError, ValueError, AttributeError) as err:
            log.error("the password is not changed: %s: %s", self._file.name, err)
            return
        before, self._hashed = self._hashed, hashed
        if hashed == self._provider.hashed_password or not (hashed or before):  # it may be set in another file
            return
        if not hashed and not self._provider.token:
            log.error("the password stays in force until a restart: this server has no token, so anyone could get in")
            return
        self._provider.hashed_password = hashed
        self._end_logins()
        log.warning("the password was %s; every browser logs in again", "set" if hashed else "removed")

    def _end_logins(self) -> None:
        """Have every login by a cookie of before end, as Jupyter does at its start."""
        self._server.web_app.settings["cookie_secret"] = self._server._default_cookie_secret()
