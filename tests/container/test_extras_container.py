"""The extras of JupyterLab in the container: git, the language server and TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import language_server
import pytest
from containers import TOKEN, Container

pytestmark = [pytest.mark.container, pytest.mark.long("the image with extras")]
LOGGED = """
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter("/home/jovyan/work/extras-logs") as writer:
    writer.add_scalar("loss", 0.25, 3)
"""


@pytest.fixture(scope="module")
def extras(extras_image: str) -> Iterator[Container]:
    """A lab that has them."""
    with Container(extras_image) as container:
        yield container.wait_for_server()


def test_git_has_a_repository_of_the_notebooks(extras: Container) -> None:
    """Its new file; and nothing for who has no token."""
    extras.as_lab_user("git", "init", "--quiet", "/home/jovyan/work/mine")
    extras.as_lab_user("touch", "/home/jovyan/work/mine/edited.py")
    path = "/git/work/mine/status"

    status, text = extras.request(path, token=TOKEN, method="POST", body={})

    assert status == 200
    assert [each["to"] for each in json.loads(text)["files"]] == ["edited.py"]
    assert extras.request(path, token="wrong", method="POST", body={})[0] == 403


def test_the_language_server_completes_and_ruff_warns(extras: Container) -> None:
    """As natively."""
    offered, warned = language_server.said(extras.server)

    assert any(label.startswith("getpriority") for label in offered)
    assert ("ruff", "F401") in warned


def test_tensorboard_shows_what_was_logged(extras: Container) -> None:
    """An event file of PyTorch's kernel."""
    extras.execute("torch", LOGGED)
    deadline = time.monotonic() + language_server.WAIT_SECONDS
    while "extras-logs" not in extras.request("/tensorboard/data/runs", token=TOKEN)[1]:
        assert time.monotonic() < deadline
        time.sleep(0.5)

    query = "/tensorboard/data/plugin/scalars/scalars?run=extras-logs&tag=loss"
    assert [point[1:] for point in json.loads(extras.request(query, token=TOKEN)[1])] == [[3, 0.25]]
