"""The message at the end of a long run, to a command or a webhook; see `base.notify`.

Whatever goes wrong is one warning: no result and no exit code depends on it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from rocmlab.base import background, confidential, formatting, notify
from rocmlab.base.errors import RocmlabError

log = logging.getLogger("rocmlab")

TIMEOUT_SECONDS = 10.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The address is a secret of one server, and a POST that is redirected would arrive as a GET without content."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


class Notification:
    """One message about one run, for which the time counts from now on."""

    def __init__(self, environment: MutableMapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Take the setting out of the environment, which processes of the run inherit; warn if it cannot be used."""
        self._begun = time.monotonic()
        self._timeout_seconds = timeout_seconds
        self._lab = environment.get("ROCMLAB_LAB") or None
        self._target: notify.Target | None = None
        try:
            self._target = notify.read(environment)
        except RocmlabError as err:
            log.warning("the end of this run is not reported: %s (%s)", err.problem.what, err.problem.why)
        environment.pop(notify.NAME, None)
        if self._target and self._target.command and not shutil.which(self._target.command[0]):
            log.warning("the end of this run is not reported: the program of %s was not found here", notify.NAME)
            self._target = None

    @property
    def is_due(self) -> bool:
        """Whether there is someone to tell, and the run has taken long enough."""
        return self._target is not None and time.monotonic() - self._begun >= self._target.after_seconds

    @contextlib.contextmanager
    def of_failure(self, folder: Path) -> Iterator[None]:
        """Report a run that ends with an error of its own, without results."""
        try:
            yield
        except BaseException:
            self.send(folder, {})
            raise

    def send(self, folder: Path, results: Mapping[str, Any]) -> None:
        """Report a run that took long enough; `results` is the content of `results.json`, as far as there is any."""
        is_due, target, self._target = self.is_due, self._target, None
        if target is None or not is_due:
            return
        try:
            content = json.dumps(self._message(folder, results)).encode()
            why = self._post(target.url, content) if target.url else self._call(target.command, content)
        except KeyboardInterrupt:
            why = "interrupted"
        except Exception as err:  # its text may have the address
            why = type(err).__name__
        if why:
            log.warning("%s: the end of this run was not reported to %s: %s", notify.NAME, target, why)

    def _message(self, folder: Path, results: Mapping[str, Any]) -> dict[str, Any]:
        run = results.get("run", {})
        jobs = Counter(job["status"] for job in results.get("jobs", ()))
        seconds = run.get("seconds", round(time.monotonic() - self._begun, 3))
        status, host, report = run.get("status", "failed"), socket.gethostname(), folder / "report.html"
        counts = ", ".join(f"{count} {name}" for name, count in jobs.items()) or "no results"
        simulated = " (SIMULATED)" if results.get("simulated") else ""
        return {
            "text": f"run {folder.name} on {host}: {status} after {formatting.duration(seconds)}, {counts}{simulated}",
            "run": folder.name,
            "status": status,
            "jobs": jobs,
            "seconds": seconds,
            "host": host,
            "lab": self._lab,
            "folder": str(folder),
            "report": str(report) if report.exists() else None,
            "simulated": bool(results.get("simulated")),
        }

    def _post(self, url: str, content: bytes) -> str:
        """Return why a webhook did not take it, empty if it did."""
        headers = {"Content-Type": "application/json", "User-Agent": "rocmlab"}
        request = urllib.request.Request(url, content, headers)
        opener = urllib.request.build_opener(_NoRedirects)

        def post() -> None:
            with opener.open(request, timeout=self._timeout_seconds):
                pass

        try:  # the limit of a socket counts for each step alone, and not for the look-up of the name
            background.start(post).result(self._timeout_seconds)
        except urllib.error.HTTPError as err:
            err.close()
            note = ", and redirects are not followed" if 300 <= err.code < 400 else ""
            return f"it answered {err.code} {http.client.responses.get(err.code, '')}".rstrip() + note
        except (concurrent.futures.TimeoutError, TimeoutError):
            return self._too_late
        except urllib.error.URLError as err:
            if isinstance(err.reason, TimeoutError):
                return self._too_late
            return str(err.reason) if isinstance(err.reason, OSError) else type(err.reason).__name__
        return ""

    def _call(self, command: tuple[str, ...], content: bytes) -> str:
        """Return why a command failed, empty if it did not; what it prints may show a secret, and is dropped."""
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=confidential.without(os.environ),
            start_new_session=True,
        )
        try:
            child.communicate(content, self._timeout_seconds)
        except BaseException as err:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if isinstance(err, subprocess.TimeoutExpired):
                return f"{self._too_late}, and it was killed"
            raise
        return f"exit code {child.returncode}" if child.returncode else ""

    @property
    def _too_late(self) -> str:
        return f"no answer in {self._timeout_seconds:g} s"
