"""How the hub starts a lab under a user's account: JupyterHub's own spawner, and a program in place of the lab."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hubs import interpreter, missing
from spawning import spawner, start
from tornado import web

from rocmlab.cli import stopping
from rocmlab.cli.stopping import Consent, LabIsBusy, Stop
from rocmlab.stack import busy
from rocmlab.stack.environment import Environment
from rocmlab.stack.native import NativeLab
from rocmlab.stack.settings import Settings

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
LISTENS = """
import os, socket, time, urllib.parse
port = urllib.parse.urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port
with socket.create_server(("127.0.0.1", port)):
    time.sleep(60)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose programs every user may run."""
    with tempfile.TemporaryDirectory(prefix="rocmlab-hub-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def program(folder: Path, text: str) -> str:
    """Write what is started in place of a lab's Python, and return its path."""
    path = folder / "python"
    path.write_text(f"#!{interpreter()} -I\n{text}")
    path.chmod(0o755)
    return str(path)


def end(lab: Any) -> None:
    """End a lab's process."""
    os.kill(lab.pid, signal.SIGKILL)
    lab.proc.wait()


def test_a_lab_is_started_when_its_user_listens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process has the account's uid, no group of root's, and an umask that closes its files."""
    lab = spawner(folder, monkeypatch, "nobody", program(folder, LISTENS))
    address, port = start(lab, 0, {"gpus": ["cpu"]})
    try:
        status = Path(f"/proc/{lab.pid}/status").read_text()
        fields = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
        assert fields["Uid"] == ["65534"] * 4
        assert "0" not in (*fields["Gid"], *fields["Groups"])
        assert fields["Umask"] == ["0077"]
        socket.create_connection((address, port), timeout=60).close()
    finally:
        end(lab)


def test_a_port_that_another_user_has_taken_is_not_opened_as_a_lab(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who listens there would get the cookies of whoever opens the lab."""
    lab = spawner(folder, monkeypatch, "nobody", program(folder, "import time; time.sleep(60)"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        try:
            with pytest.raises(web.HTTPError, match="taken by another user"):
                start(lab, listener.getsockname()[1], {"gpus": ["cpu"]})
        finally:
            end(lab)


def test_a_lab_that_ends_says_why_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a GPU of its own, and not after JupyterHub's two minutes."""
    lab = spawner(folder, monkeypatch, "nobody", program(folder, "import sys; sys.exit('error: no disk')"))

    with pytest.raises(web.HTTPError, match="error: no disk"):
        start(lab, 0, {})


def test_an_environment_in_which_the_hubs_labs_run_is_not_changed_without_consent(folder: Path) -> None:
    """Kernels of other users would lose what they import later; `make down` of the own lab leaves them alone."""
    values = {"PORT": "1", "JUPYTER_TOKEN": "", "ROCMLAB_BACKEND": "cpu"}
    values |= {"SHARE": str(folder / "share"), "NOTEBOOKS_DIR": str(folder / "notebooks")}
    lab = NativeLab(Settings(folder, values), values, Environment(folder, "cpu", "python3", ""))
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    words = [str(python), "-I", "-c", "import time; time.sleep(60)", "jupyterhub.singleuser"]
    other = subprocess.Popen([str(folder / "other/bin/python"), *words[1:]], executable=sys.executable)
    try:
        assert busy.find(lab).works == ()
        user = subprocess.Popen(words, executable=sys.executable)
        try:
            with pytest.raises(LabIsBusy, match="a lab of the hub"):
                stopping.check(lab, Stop("make up", "restarts", ends_runs=True), Consent(), print)
            stopping.check(lab, Stop("make down", "stops", ends_idle=True), Consent(), print)
        finally:
            user.kill()
            user.wait()
        assert busy.find(lab).works == ()
    finally:
        other.kill()
        other.wait()
