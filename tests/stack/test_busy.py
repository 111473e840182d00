"""What runs in a lab, and what a command that would end it does."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import websocket
from clones import NEEDS_NATIVE_PYTHON
from test_native import _sockets_in_a_folder_of_the_test, make_lab  # noqa: F401  # the fixture is for all tests here

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import stopping
from rocmlab.cli.stopping import Consent, LabIsBusy, Stop
from rocmlab.lab import install, kernels
from rocmlab.runs.folder import RunFolder
from rocmlab.stack import busy, runs_under_way
from rocmlab.stack.native import NativeLab

pytestmark = [pytest.mark.slow, NEEDS_NATIVE_PYTHON]

DOWN = Stop("make down", "stops", ends_idle=True)
UP = Stop("make up", "restarts")
WAIT_SECONDS = 60.0
PAGES: list[websocket.WebSocket] = []  # that tests have open


def opened(url: str) -> websocket.WebSocket:
    """Connect as a page does; the fixture closes it."""
    PAGES.append(websocket.create_connection(url, timeout=WAIT_SECONDS))
    return PAGES[-1]


class Kernel:
    """A kernel of a real server, with a notebook, and a page that talks to it."""

    def __init__(self, lab: NativeLab, path: str) -> None:
        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "torch"}}
        status, session = lab.ask("/api/sessions", method="POST", body=body, timeout_seconds=WAIT_SECONDS)
        assert status == 201
        self.lab, self.identity = lab, session["kernel"]["id"]
        url = f"ws://127.0.0.1:{lab.port}/api/kernels/{self.identity}/channels?token={lab.token}"
        self.page = opened(url)
        self.request = ""

    def execute(self, code: str) -> None:
        """Have it compute, and return when it says that it does."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": "s", "username": ""}
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        self.page.send(json.dumps(message))
        self.request = header["msg_id"]
        self._until("busy")

    def finish(self) -> None:
        """Return when it computes no more, and the server knows it."""
        self._until("idle")
        end = time.monotonic() + WAIT_SECONDS
        while self.lab.ask(f"/api/kernels/{self.identity}")[1]["execution_state"] != "idle":
            assert time.monotonic() < end, "the server calls it busy"
            time.sleep(0.05)

    def _until(self, state: str) -> None:
        while True:
            heard = json.loads(self.page.recv())
            is_answer = heard["parent_header"].get("msg_id") == self.request
            if heard["msg_type"] == "status" and heard["content"]["execution_state"] == state and is_answer:
                return


@pytest.fixture(scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("busy")


@pytest.fixture(scope="module")
def running(_folder: Path) -> Iterator[NativeLab]:
    """One lab that runs for all tests of this module."""
    found = make_lab(_folder)
    found.prepare(lambda _: None)
    install.main(["--prefix", str(_folder / "prefix")])
    shutil.copytree(_folder / "prefix/etc/jupyter", found.settings.state / "config")
    kernels.install(_folder / "data-prefix", {"torch": sys.executable})
    (found.home / ".local/share/jupyter").mkdir(parents=True, exist_ok=True)
    (found.home / ".local/share/jupyter/kernels").symlink_to(_folder / "data-prefix/share/jupyter/kernels")
    found.start(lambda _: None)
    yield found
    found.stop(lambda _: None)


@pytest.fixture
def lab(running: NativeLab) -> Iterator[NativeLab]:
    """The lab, without kernels and terminals before and after each test."""
    yield running
    while PAGES:
        PAGES.pop().close()
    for kind in ("kernels", "terminals"):
        key = "id" if kind == "kernels" else "name"
        for each in running.ask(f"/api/{kind}", timeout_seconds=10)[1] or ():
            running.ask(f"/api/{kind}/{each[key]}", method="DELETE", timeout_seconds=WAIT_SECONDS)


def quiet(_: str) -> None:
    """Print nothing."""


def test_a_lab_in_which_nothing_runs_may_be_stopped(lab: NativeLab) -> None:
    """No one is asked, and nothing is said."""
    said: list[str] = []

    stopping.check(lab, DOWN, Consent(), said.append)
    stopping.check(lab, UP, Consent(), said.append)

    assert said == []


def test_a_busy_kernel_is_named_with_its_notebook_and_refuses(lab: NativeLab) -> None:
    """`down` and what restarts name the notebook, that it computes, and both ways out."""
    Kernel(lab, "work/training.ipynb").execute("import time; time.sleep(300)")

    for stop in (DOWN, UP):
        with pytest.raises(LabIsBusy) as caught:
            stopping.check(lab, stop, Consent(), quiet)

        problem = caught.value.problem
        assert f"{stop.command} {stop.does} the lab, and 1 task runs in it" in problem.what
        assert "work/training.ipynb (torch): busy" in problem.why
        assert "WHEN=idle" in problem.fix
        assert "FORCE=1" in problem.fix
        assert caught.value.exit_code == 1


def test_an_idle_kernel_refuses_a_restart_and_is_named_by_down(lab: NativeLab) -> None:
    """A user who says `down` is told what is lost; who changes a setting has not said that kernels may end."""
    kernel = Kernel(lab, "work/idle.ipynb")
    kernel.execute("1")
    kernel.finish()
    said: list[str] = []

    stopping.check(lab, DOWN, Consent(), said.append)
    with pytest.raises(LabIsBusy, match="work/idle"):
        stopping.check(lab, UP, Consent(), quiet)

    assert "variables in memory are lost" in said[0]
    assert "work/idle.ipynb (torch): idle since" in said[1]


def test_a_kernel_between_two_cells_is_busy(lab: NativeLab) -> None:
    """`Run All` is a chain of short cells; a look that falls between two of them is not deceived."""
    kernel = Kernel(lab, "work/chain.ipynb")
    ended = threading.Event()

    def run_all() -> None:
        while not ended.is_set():
            kernel.execute("1")
            kernel.finish()
            time.sleep(0.1)  # idle most of the time

    cells = threading.Thread(target=run_all)
    cells.start()
    try:
        time.sleep(0.5)
        with pytest.raises(LabIsBusy, match="work/chain"):
            stopping.check(lab, DOWN, Consent(), quiet)
    finally:
        ended.set()
        cells.join()


def test_force_names_what_it_ends(lab: NativeLab) -> None:
    """It refuses nothing, and says what is lost."""
    Kernel(lab, "work/forced.ipynb").execute("import time; time.sleep(300)")
    said: list[str] = []

    stopping.check(lab, UP, Consent(force=True), said.append)

    assert "work/forced.ipynb" in "\n".join(said)


def test_when_idle_waits_for_the_end_and_says_for_what(lab: NativeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that works again in between is noticed; then the idle one does not keep it from acting."""
    monkeypatch.setattr(stopping, "LOOK_AGAIN_SECONDS", 0.2)
    monkeypatch.setattr(busy, "QUIET_SECONDS", 1.5)
    kernel = Kernel(lab, "work/waiting.ipynb")
    kernel.execute("import time; time.sleep(2)")
    said: list[str] = []
    ended: list[float] = []

    def wait() -> None:
        stopping.check(lab, UP, Consent(waits=True), said.append)
        ended.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    kernel.finish()
    time.sleep(0.5)
    kernel.execute("import time; time.sleep(2)")
    kernel.finish()
    finished = time.monotonic()
    waiting.join(WAIT_SECONDS)

    assert ended
    assert ended[0] > finished
    assert said[0].startswith("waiting until nothing computes")
    assert "work/waiting.ipynb" in said[1]


def test_where_it_may_not_wait_it_raises(lab: NativeLab) -> None:
    """`make up` holds its lock then: it gives way, and waits without it."""
    Kernel(lab, "work/busy.ipynb").execute("import time; time.sleep(300)")

    with pytest.raises(LabIsBusy):
        stopping.check(lab, UP, Consent(waits=True), quiet, may_wait=False)


def test_a_server_that_hangs_is_unknown_and_needs_force(lab: NativeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No one can tell whether kernels compute behind it, so WHEN=idle is no way out either."""
    monkeypatch.setattr(busy, "ASK_TIMEOUT_SECONDS", 0.5)
    server = lab.family()[0]
    os.kill(server, signal.SIGSTOP)
    try:
        for consent in (Consent(), Consent(waits=True)):
            with pytest.raises(LabIsBusy, match="not known what runs") as caught:
                stopping.check(lab, DOWN, consent, quiet)
            assert "FORCE=1" in caught.value.problem.fix
        stopping.check(lab, DOWN, Consent(force=True), quiet)
    finally:
        os.kill(server, signal.SIGCONT)


@pytest.mark.skipif(sys.platform != "linux", reason="the columns of ps are compared on Linux")
def test_a_program_in_a_terminal_is_seen_and_an_idle_shell_is_not(lab: NativeLab) -> None:
    """A shell that waits for a command ends with the lab as always; a program in its foreground refuses."""
    name = lab.ask("/api/terminals", method="POST", timeout_seconds=10)[1]["name"]
    page = opened(f"ws://127.0.0.1:{lab.port}/terminals/websocket/{name}?token={lab.token}")
    time.sleep(1)
    stopping.check(lab, DOWN, Consent(), quiet)

    page.send(json.dumps(["stdin", "sleep 4321\r"]))
    deadline = time.monotonic() + WAIT_SECONDS
    while not busy.find(lab).works and time.monotonic() < deadline:
        time.sleep(0.2)

    with pytest.raises(LabIsBusy, match="sleep 4321"):
        stopping.check(lab, DOWN, Consent(), quiet)


def test_a_headless_run_beside_the_server_is_known(lab: NativeLab) -> None:
    """It does not end with a native server, but with the environment that `clean` removes; other machines' do not."""
    folder = RunFolder(lab.share_folder / "runs/2026-01-01T000000Z-own")
    folder.path.mkdir(parents=True)
    folder.lock()
    folder.log("run started", run=folder.path.name, pid=1, host=socket.gethostname(), jobs=[{}, {}])
    folder.log("job started", job="a", devices=[{"backend": "rocm", "index": 1}])
    try:
        stopping.check(lab, DOWN, Consent(), quiet)
        with pytest.raises(LabIsBusy, match="0 of 2 notebooks done, on GPU 1"):
            stopping.check(lab, Stop("make clean", "removes", ends_idle=True, ends_runs=True), Consent(), quiet)
    finally:
        folder.close()
        shutil.rmtree(folder.path)

    assert runs_under_way.under_way(lab.share_folder / "runs") == []


def test_the_text_of_the_listing_runs_on_any_python_of_a_container(tmp_path: Path) -> None:
    """It is given to the container's interpreter as text: no import of ours, no site packages."""
    program = Path(runs_under_way.__file__).read_text()

    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == []


def test_the_foreground_of_a_terminal_is_read_from_ps() -> None:
    """A shell leads its terminal while it waits; a command line that it runs leads it meanwhile."""
    table = "1 0 -1 tini\n7 1 -1 jupyter-lab\n20 7 20 bash\n30 7 31 bash\n31 30 31 vim notes\n32 31 31 vim helper\n"

    assert busy.foreground(table, None) == ["vim notes"]
    assert busy.foreground(table, {20}) == []


def test_a_command_in_a_terminal_of_the_lab_is_not_in_its_own_way(lab: NativeLab) -> None:
    """It waited for its own end; what would stop the lab says that it would end itself, and stops nothing."""
    code = (
        "import json, sys; sys.path[:0] = json.loads(sys.argv[1]); from pathlib import Path; "
        "from test_native import make_lab\n"
        "from rocmlab.stack import busy; from rocmlab.base.errors import RocmlabError\n"
        "lab = make_lab(Path(sys.argv[2]), **json.loads(sys.argv[3]))\n"
        "found = [str(one) for one in busy.find(lab).works]\n"
        "try:\n    lab.stop(print)\n"
        "except RocmlabError as err:\n    found.append(err.problem.what)\n"
        "open(sys.argv[4], 'w').write(json.dumps(found))\n"
    )
    program, answer = lab.settings.state / "program.py", lab.settings.state / "answer"
    program.write_text(code)
    values = {name: lab.values[name] for name in ("PORT", "JUPYTER_TOKEN")}
    words = [sys.executable, str(program), json.dumps(sys.path), str(lab.settings.project), json.dumps(values)]
    name = lab.ask("/api/terminals", method="POST", timeout_seconds=10)[1]["name"]
    page = opened(f"ws://127.0.0.1:{lab.port}/terminals/websocket/{name}?token={lab.token}")
    page.send(json.dumps(["stdin", shlex.join([*words, str(answer)]) + "\r"]))

    end = time.monotonic() + WAIT_SECONDS
    while not answer.exists() or not answer.read_text():
        assert time.monotonic() < end
        time.sleep(0.1)
    assert json.loads(answer.read_text()) == ["this command would end itself half way"]
    assert lab.is_running()


@pytest.mark.long
def test_when_has_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make passes WHEN and FORCE as variables; FORCE=0 is none."""
    given = argparse.Namespace(force=False, when=None)
    assert stopping.consent(given) == Consent()
    monkeypatch.setenv("FORCE", "0")
    monkeypatch.setenv("WHEN", "idle")
    assert stopping.consent(given) == Consent(waits=True)
    monkeypatch.setenv("WHEN", "later")
    with pytest.raises(RocmlabError, match="invalid WHEN=later"):
        stopping.consent(given)
