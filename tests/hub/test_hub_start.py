"""Whether `make hub-up` restarts a hub that runs: if something has changed that it read when it started."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from clones import free_port

from rocmlab.base.errors import RocmlabError
from rocmlab.hub import commands
from rocmlab.hub.configuration import Configuration
from rocmlab.hub.service import Hub
from rocmlab.simulation import write_host
from rocmlab.stack import project as projects
from rocmlab.stack import settings

# A stand-in for JupyterHub: it answers where the proxy would.

pytestmark = pytest.mark.slow

SERVER = """
import http.server, json, os
from urllib.parse import urlsplit

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

url = json.load(open(os.environ["ROCMLAB_HUB_FILE"]))["url"]
http.server.HTTPServer(("127.0.0.1", urlsplit(url).port), Handler).serve_forever()
"""


@dataclass
class Started:
    """A hub that runs, and what `make hub-up` passes to it."""

    folder: Path
    hub: Hub
    found: Configuration
    interpreter: Path

    def up(self) -> bool:
        """Start it again, as `make hub-up` does; return whether it was restarted, which is another process."""
        before = self.hub.process.find()
        is_new = self.hub.start(self.found, self.interpreter, print)
        assert is_new == (self.hub.process.find() != before)
        assert self.hub.is_running()
        return is_new


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """One with a certificate, a configuration of the administrator's, and users who sign up."""
    (tmp_path / "server.py").write_text(SERVER)
    interpreter = tmp_path / "python"
    loads = f'case "$*" in *PyFileConfigLoader*) exec {sys.executable} "$@" ;; esac'
    interpreter.write_text(f"#!/bin/sh\n{loads}\nexec {sys.executable} {tmp_path / 'server.py'}\n")
    interpreter.chmod(0o755)
    for name in ("certificate", "HUB_CONFIG"):
        (tmp_path / name).write_text("# a secret")
    root = write_host(tmp_path / "host", gpus=1)
    chosen = {"RUNTIME": "native", "ROCMLAB_ROOT": str(root), "HUB_ADMINS": "ada", "HUB_PORT": str(free_port())}
    given = settings.load(tmp_path, {**chosen, "HUB_AUTH": "native"})
    package = tmp_path / "rocmlab"
    package.mkdir()
    (package / "page.html").write_text("of this version")
    hub = Hub(given, package)
    hub.make_folder()
    found = hub.configure(projects.plan(tmp_path, given), "native", ("node", "proxy"))
    found = replace(found, certificate=str(tmp_path / "certificate"), extra=str(tmp_path / "HUB_CONFIG"))
    hub.start(found, interpreter, print)
    try:
        yield Started(tmp_path, hub, found, interpreter)
    finally:
        hub.stop(print)


def upgrade(started: Started) -> None:
    """Install JupyterHub of another version next to the present one."""
    started.interpreter = Path(shutil.copy(started.interpreter, started.folder / "newer-python"))


def pull(started: Started) -> None:
    """Check out another version of rocmlab."""
    (started.folder / "rocmlab/page.html").write_text("of the next version")


def renew(started: Started) -> None:
    """Renew the certificate."""
    (started.folder / "certificate").write_text("another one")


def edit(started: Started) -> None:
    """Change a secret in the administrator's file."""
    (started.folder / "HUB_CONFIG").write_text("# the new")


def lose_token(started: Started) -> None:
    """Lose the token of commands: the next one that runs makes another, which the hub refuses."""
    (started.hub.state / commands.FILE).unlink()
    commands.token(started.hub.state)


def choose(started: Started) -> None:
    """Change a setting."""
    started.found = replace(started.found, shm_size="9gb")


@pytest.mark.long
@pytest.mark.parametrize("change", [upgrade, pull, renew, edit, lose_token, choose])
def test_a_change_restarts_the_hub_once(started: Started, change: Callable[[Started], None]) -> None:
    """Before it a hub that runs is left alone, and after it as well."""
    assert not started.up()

    change(started)

    assert started.up()
    assert not started.up()


def test_no_secret_is_in_what_is_compared(started: Started) -> None:
    """Only digests, in a file that is its user's alone."""
    record = started.hub.process.record

    assert "a secret" not in record.read_text() + started.hub.file.read_text()
    assert started.hub.setup_password() not in record.read_text()
    assert commands.token(started.hub.state) not in record.read_text()
    assert record.stat().st_mode & 0o777 == 0o600


def test_a_configuration_that_cannot_be_loaded_stops_no_hub(started: Started) -> None:
    """The hub that runs stays as it is, also with an upgrade that is pending."""
    pull(started)
    (started.folder / "HUB_CONFIG").write_text("c.JupyterHub.template_vars = {\n")
    before = started.hub.process.find()

    with pytest.raises(RocmlabError, match="was not restarted, and runs as before") as raised:
        started.up()

    assert "SyntaxError" in raised.value.problem.why
    assert started.hub.process.find() == before
    assert [path.name for path in started.hub.state.glob(".configuration*")] == []
