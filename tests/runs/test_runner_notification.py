"""NOTIFY: a real server and real commands get one message about a long run; what goes wrong is only a warning."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from rocmlab.base import notify
from rocmlab.base.errors import RocmlabError
from rocmlab.runs.notification import Notification

JOBS = [{"status": "ok", "name": "a", "parameters": {"password": "p4ss"}}, {"status": "ok"}, {"status": "timeout"}]
RESULTS = {"run": {"status": "failed", "seconds": 754.2}, "jobs": JOBS, "simulated": True}


class Hooks(BaseHTTPRequestHandler):
    """Answers with the status that ends the path; 0: never."""

    got: list[tuple[str, Any]]

    def do_POST(self) -> None:
        """Remember the content."""
        type(self).got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        status = int(self.path.rpartition("/")[2])
        if not status:
            self.rfile.read(1)  # until the client closes
            return
        self.send_response(status)
        self.send_header("Location", "/elsewhere/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def hooks() -> Iterator[str]:
    """The address of a real server on the loopback."""
    Hooks.got = []
    with HTTPServer(("127.0.0.1", 0), Hooks) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/s3cret"
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with a report."""
    made = tmp_path / "runs/2026-night"
    made.mkdir(parents=True)
    (made / "report.html").touch()
    return made


def send(folder: Path, target: str, after: str = "0", limit_seconds: float = 5.0) -> None:
    """Report the run."""
    environment = {notify.NAME: target, notify.AFTER: after, "ROCMLAB_LAB": "rocmlab-1"}
    notification = Notification(environment, limit_seconds)
    assert notify.NAME not in environment
    notification.send(folder, RESULTS)
    notification.send(folder, RESULTS)


def test_a_webhook_gets_one_message(hooks: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Name, counts, time, host and paths, and nothing of the notebooks; a run that was short is not reported."""
    send(folder, f"{hooks}/200", after="600")
    assert Hooks.got == []

    send(folder, f"{hooks}/200")

    assert [path for path, _ in Hooks.got] == ["/s3cret/200"]
    host = socket.gethostname()
    assert Hooks.got[0][1] == {
        "text": f"run 2026-night on {host}: failed after 12:34, 2 ok, 1 timeout (SIMULATED)",
        "run": "2026-night",
        "status": "failed",
        "jobs": {"ok": 2, "timeout": 1},
        "seconds": 754.2,
        "host": host,
        "lab": "rocmlab-1",
        "folder": str(folder),
        "report": str(folder / "report.html"),
        "simulated": True,
    }
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("status", "expected"),
    [("500", "it answered 500 Internal Server Error"), ("302", "redirects are not followed"), ("0", "no answer in")],
)
def test_a_webhook_that_fails_is_one_warning(
    hooks: str, folder: Path, status: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the host and not the address, and comes within the time limit; a redirect is not followed."""
    send(folder, f"{hooks}/{status}", limit_seconds=0.2 if status == "0" else 5)

    assert len(caplog.messages) == 1
    assert expected in caplog.text
    assert "127.0.0.1" in caplog.text
    assert "s3cret" not in caplog.text
    assert len(Hooks.got) == 1


def test_no_server_is_one_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A port on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))

        send(folder, f"http://127.0.0.1:{taken.getsockname()[1]}/s3cret")

    assert len(caplog.messages) == 1
    assert "Connection refused" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_command_gets_it_on_its_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a shell and without the lab's tokens; what it prints is dropped, and its exit code is a warning."""
    monkeypatch.setenv("JUPYTER_TOKEN", "the-token")
    script = 'cat >"$1"; env >"$1.env"; echo s3cret; exit 3'

    send(folder, f"sh -c '{script}' name '{folder}/a $HOME'")

    message = json.loads((folder / "a $HOME").read_text())
    assert message["run"] == "2026-night"
    assert "p4ss" not in json.dumps(message)
    assert "the-token" not in (folder / "a $HOME.env").read_text()
    assert caplog.messages == ["NOTIFY: the end of this run was not reported to the command: exit code 3"]
    assert "s3cret" not in "".join(capfd.readouterr())


def test_a_command_that_hangs_is_killed_with_all_it_started(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the time limit."""
    pid = folder / "pid"

    send(folder, f"sh -c 'sleep 50 & echo $! >{pid}; wait'", limit_seconds=0.2)

    assert "no answer in 0.2 s, and it was killed" in caplog.text
    stat, deadline = Path(f"/proc/{pid.read_text().strip()}/stat"), time.monotonic() + 30
    while stat.exists() and stat.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_a_setting_that_cannot_work_is_reported_when_the_run_begins(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not after a night; the message does not show it."""
    Notification({notify.NAME: "ftp://host/s3cret"}).send(folder, RESULTS)
    Notification({notify.NAME: "no-such-program-s3cret"}).send(folder, RESULTS)

    assert "neither https:// nor http://" in caplog.messages[0]
    assert "was not found" in caplog.messages[1]
    assert len(caplog.messages) == 2
    assert "s3cret" not in caplog.text


def test_a_run_that_ends_with_an_error_of_its_own_is_reported(hooks: str, folder: Path) -> None:
    """It has no results, and the error is raised again."""
    notification = Notification({notify.NAME: f"{hooks}/200", notify.AFTER: "0"})

    with pytest.raises(OSError, match="full"), notification.of_failure(folder):
        raise OSError("full")

    assert Hooks.got[0][1]["status"] == "failed"
    assert Hooks.got[0][1]["jobs"] == {}


@pytest.mark.parametrize(
    "text",
    [
        *("https:///s3cret", "https://host:port/s3cret", "https://me:s3cret@host/", "https://host/a s3cret"),
        *("ftp://host/s3cret", "file:///s3cret", "sh -c 's3cret", "''", "http://[s3cret/"),
    ],
)
def test_a_malformed_setting_is_an_error_that_does_not_show_it(text: str) -> None:
    """Addresses without a host, with a password or a space, other schemes, and open quotes."""
    with pytest.raises(RocmlabError) as caught:
        notify.parse({notify.NAME: text})

    assert caught.value.problem.what.startswith("NOTIFY is not ")
    assert "s3cret" not in str(caught.value)


def test_who_is_notified_is_read_from_where_the_lab_keeps_it(tmp_path: Path) -> None:
    """The environment of the command counts first, then the file of `make up`, then that of the container's start."""
    live, runtime = tmp_path / "live", tmp_path / "runtime"
    live.mkdir()
    runtime.mkdir()
    environment = {"ROCMLAB_LIVE": str(live / "settings.json"), "JUPYTER_RUNTIME_DIR": str(runtime)}
    found = [notify.read(environment)]

    (runtime / "notify").write_text("https://start.example/")
    found.append(notify.read(environment))
    (live / notify.FILE).write_text(json.dumps({notify.NAME: "https://up.example/", notify.AFTER: "7"}))
    found.append(notify.read(environment))
    found.append(notify.read({**environment, notify.NAME: "a 'b c'"}))
    found.append(notify.read({**environment, notify.NAME: ""}))

    assert found == [
        None,
        notify.Target(60.0, url="https://start.example/"),
        notify.Target(7.0, url="https://up.example/"),
        notify.Target(7.0, ("a", "b c")),
        None,
    ]
