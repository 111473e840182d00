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
from spawning import NAME, spawner, start
from tornado import web

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import stopping
from rocmlab.cli.stopping import Consent, LabIsBusy, Stop
from rocmlab.hub.cgroups import Cgroups
from rocmlab.hub.uids import first_of_people
from rocmlab.stack import busy
from rocmlab.stack.environment import Environment
from rocmlab.stack.native import NativeLab
from rocmlab.stack.settings import Settings

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
CONTROLLERS = "/sys/fs/cgroup/cgroup.controllers"
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


def test_an_account_of_a_service_has_no_lab_where_another_machine_checks_names(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider's user may be called as it is; login.defs has where people's numbers begin."""
    definitions = folder / "login.defs"
    definitions.write_text("# UID_MIN 9\nUID_MIN\t\t  500\n")

    with pytest.raises(web.HTTPError, match="daemon has no lab here"):
        start(spawner(folder, monkeypatch, "daemon", program(folder, LISTENS)), 0, {"gpus": ["cpu"]})
    assert (first_of_people(definitions), first_of_people(folder / "missing")) == (500, 1000)


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


def hierarchy(folder: Path, *names: str) -> Path:
    """Write what a mounted cgroup v2 has: the hub's cgroup, and below it those of these names."""
    top = folder / "cgroup"
    for each in (top, top / NAME, *(top / NAME / name for name in names)):
        each.mkdir(mode=0o700)
        for file in ("cgroup.subtree_control", "cgroup.procs", "memory.max", "memory.swap.max", "cpu.max"):
            (each / file).touch()
    (top / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return top


def test_a_lab_is_in_a_cgroup_with_its_limits_before_it_is_its_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory without swap, and CPUs; the process itself, so that all it starts is in it as well."""
    top = hierarchy(folder, "uid-65534")
    given = {"HUB_MEMORY_LIMIT": "2gb", "HUB_CPU_LIMIT": "1.5"}
    lab = spawner(folder, monkeypatch, "nobody", program(folder, LISTENS), **given)
    lab.cgroups = Cgroups(NAME, top)
    start(lab, 0, {"gpus": ["cpu"]})
    end(lab)

    own = top / NAME / "uid-65534"
    assert (own / "cgroup.procs").read_text() == str(lab.pid)
    assert (own / "memory.max").read_text() == str(2 << 30)
    assert (own / "memory.swap.max").read_text() == "0"
    assert (own / "cpu.max").read_text() == "150000 100000"
    assert (top / "cgroup.subtree_control").read_text() == (top / NAME / "cgroup.subtree_control").read_text() != ""


def test_limits_that_this_host_cannot_hold_are_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub starts with them, and no lab: without cgroup v2, without a controller, or where no cgroup can be made."""
    top = hierarchy(folder)
    (top / "cgroup.controllers").write_text("cpuset io pids\n")
    with pytest.raises(RocmlabError, match="no controller memory and cpu"):
        Cgroups(NAME, top).prepare()
    (top / "cgroup.controllers").write_text("cpu memory\n")
    (top / NAME / "cgroup.subtree_control").unlink()
    with pytest.raises(RocmlabError, match="cannot limit memory and CPUs"):
        Cgroups(NAME, top).prepare()
    lab = spawner(folder, monkeypatch, "nobody", program(folder, LISTENS), HUB_MEMORY_LIMIT="2gb")
    lab.cgroups = Cgroups(NAME, folder)
    with pytest.raises(web.HTTPError, match="no cgroup v2 is mounted"):
        start(lab, 0, {"gpus": ["cpu"]})


@pytest.mark.skipif(
    not {"memory", "cpu"} <= set(Path(CONTROLLERS).read_text().split() if Path(CONTROLLERS).exists() else ()),
    reason=f"no controllers in {CONTROLLERS}",
)
def test_the_kernel_takes_the_limits() -> None:
    """A real cgroup of this host: a process that is in it has them, and afterwards it can be removed."""
    found = Cgroups("rocmlab-tests-hub")
    try:
        folder = found.make(65534, 64 << 20, 0.5)
        code = f"from rocmlab.hub import cgroups; cgroups.enter(cgroups.Path({str(folder)!r})); bytearray(256 << 20)"
        done = subprocess.run([sys.executable, "-c", code], check=False)
        assert (folder / "memory.max").read_text() == f"{64 << 20}\n"
        assert (folder / "cpu.max").read_text() == "50000 100000\n"
        assert done.returncode == -signal.SIGKILL
    finally:
        found.remove(65534)
        Path("/sys/fs/cgroup/rocmlab-tests-hub").rmdir()
