"""The extras themselves, from the index: git, the language server with ruff, TensorBoard, and the proxy."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import clients
import engines
import language_server
import pytest
from clones import Clone

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.native
WAIT_SECONDS = 240.0  # on a busy machine the first import of TensorFlow takes more than a minute
WRITER = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
writer.add_event(Event(step=3, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.25)])))
writer.close()
"""
EDITED = "import json\nimport os\n\n"


@pytest.fixture(scope="module")
def lab(built_lab: Clone) -> Clone:
    """The running lab, which has all extras."""
    built_lab.make("up")
    return built_lab


@pytest.fixture
def repository(lab: Clone) -> Iterator[Path]:
    """A repository of git's among the notebooks, with one file that is not yet committed."""
    folder = lab.folder / "notebooks/extras-repository"
    folder.mkdir()
    (folder / "edited.py").write_text(EDITED)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    yield folder
    shutil.rmtree(folder)


def ask(lab: Clone, path: str, token: str | None = None, method: str = "GET") -> tuple[int, Any]:
    """Make a request with the lab's token, or another one."""
    token = lab.env["JUPYTER_TOKEN"] if token is None else token
    return clients.ask(
        lab.port, token, path, method=method, body={} if method == "POST" else None, timeout_seconds=WAIT_SECONDS
    )


def until(is_it: Callable[[], Any]) -> Any:
    """Return what is true at last."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := is_it()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def test_each_answers_behind_the_token(lab: Clone, repository: Path) -> None:
    """Git in the locked version and about a repository, the language server's state, the proxy's launcher entry."""
    pinned = re.search(
        r"^jupyterlab-git==(\S+)", (lab.folder / "requirements/extras-git.txt").read_text(), re.MULTILINE
    )
    git = f"/git/work/{repository.name}/status"
    assert pinned

    assert ask(lab, "/git/settings")[1]["serverVersion"] == pinned[1]
    assert [each["to"] for each in ask(lab, git, method="POST")[1]["files"]] == ["edited.py"]
    assert list(ask(lab, "/lsp/status")[1]["specs"]) == ["pylsp"]
    assert [each["name"] for each in ask(lab, "/server-proxy/servers-info")[1]["server_processes"]] == ["tensorboard"]
    for path, method in (("/git/settings", "GET"), (git, "POST"), ("/lsp/status", "GET")):
        assert ask(lab, path, "wrong", method)[0] == 403, path


@pytest.mark.long("extras of a native lab")
def test_tensorboard_shows_what_was_logged(lab: Clone) -> None:
    """The event file of a training in the notebooks' folder, without TensorFlow being started for it."""
    folder = lab.folder / "notebooks/extras-logs"
    command = [str(lab.folder / ".venv/bin/python"), "-c", WRITER, str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_SECONDS)
        until(lambda: "extras-logs" in (ask(lab, "/tensorboard/data/runs")[1] or ()))
        query = "/tensorboard/data/plugin/scalars/scalars?run=extras-logs&tag=loss"

        assert [point[1:] for point in ask(lab, query)[1]] == [[3, 0.25]]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long("extras of a native lab")
def test_the_language_server_completes_and_ruff_warns(lab: Clone) -> None:
    """Over the lab's WebSocket, as JupyterLab does: what a module has, and an import that nothing uses."""
    offered, warned = language_server.said(clients.Server(f"127.0.0.1:{lab.port}", lab.env["JUPYTER_TOKEN"]))

    assert any(label.startswith("getpriority") for label in offered)
    assert ("ruff", "F401") in warned


@pytest.mark.long("extras of a native lab")
@pytest.mark.skipif(bool(engines.missing_browser()), reason=engines.missing_browser())
def test_each_is_there_in_jupyterlab(lab: Clone, repository: Path, page: Page) -> None:
    """In Chromium: ruff's warning in an editor, the file that git does not know yet, TensorBoard from the launcher."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    token = lab.env["JUPYTER_TOKEN"]
    page.goto(f"http://127.0.0.1:{lab.port}/lab?reset&token={token}")
    with page.expect_popup() as opened:
        page.locator(".jp-LauncherCard[title^=TensorBoard]").first.click(timeout=WAIT_SECONDS * 1000)
    opened.value.locator("mat-toolbar").first.wait_for(timeout=WAIT_SECONDS * 1000)

    page.goto(f"http://127.0.0.1:{lab.port}/lab/tree/work/{repository.name}/edited.py?token={token}")
    page.locator(".jp-FileEditor .cm-lintRange").first.wait_for(timeout=WAIT_SECONDS * 1000)
    page.locator(".jp-SideBar [data-id=jp-git-sessions]").click()
    page.locator("#jp-git-sessions").get_by_text("edited.py").first.wait_for(timeout=WAIT_SECONDS * 1000)
    assert complaints == []
