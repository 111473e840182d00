"""Administrators: what they see of labs, GPUs and users, and stopping labs, telling users, draining the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import hubs
import pytest
from hubs import Client, Machine, wait

from rocmlab.base import host_limits
from rocmlab.cli import hub as command
from rocmlab.kernels.leases import Leases

pytestmark = [pytest.mark.slow, pytest.mark.native]
PAGE = "/hub/rocmlab/labs"
HTML = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def labs(machine: Machine) -> Iterator[tuple[Client, Client]]:
    """The administrator, and a user whose lab has one of the two GPUs."""
    chief, ada = machine.client("chief"), machine.client("ada")
    ada.spawn("1")
    yield chief, ada.ready()
    ada.stop_lab()


@pytest.fixture(autouse=True)
def ended(machine: Machine, labs: tuple[Client, Client]) -> Iterator[None]:
    """The lab runs before a test; after it the machine is neither drained nor has a message."""
    labs[1].ensure("1")
    yield
    chief = machine.client("chief")
    for action in ("undrain", "message"):
        assert chief.api("POST", f"/hub/api/rocmlab/{action}", {}).status_code == 200


def press(client: Client, action: str, **fields: str) -> str:
    """Send a form of the page, and return the page that follows."""
    token = re.search(r'name="_xsrf" value="([^"]+)"', client.get(PAGE).text)
    form = {"action": action, "_xsrf": token[1] if token else "", **fields}
    return client.session.post(client.url + PAGE, data=form, timeout=hubs.WAIT_SECONDS).text


def test_the_page_shows_labs_gpus_and_what_users_have_taken(machine: Machine, labs: tuple[Client, Client]) -> None:
    """It is in the navigation of administrators; the GPU of the lab, and its time, are the user's."""
    chief, ada = labs
    assert PAGE in chief.get("/hub/home").text
    assert PAGE not in ada.get("/hub/home").text

    def counted() -> dict:
        users = chief.api("GET", "/hub/api/rocmlab/labs").json()["users"]
        found = {user["name"]: user for user in users}
        return found if found["ada"]["gpu_hours"] > 0 else {}

    users = wait(counted)
    found = chief.api("GET", "/hub/api/rocmlab/labs").json()
    assert users["ada"]["gpus"] == 1  # type: ignore[index]
    assert users["bob"]["gpus"] == 0  # type: ignore[index]
    assert [(lab["user"], lab["state"], lab["choice"]) for lab in found["labs"]] == [("ada", "runs", "1")]
    assert sorted(gpu["user"] or "" for gpu in found["gpus"]) == ["", "ada"]
    assert all(gpu["simulated"] for gpu in found["gpus"])
    page = chief.get(PAGE).text
    assert page.count("(SIMULATED)") == 2
    assert "the whole lab" in page
    assert "Stop this lab" in page


def test_a_message_reaches_every_lab_as_text(machine: Machine, labs: tuple[Client, Client]) -> None:
    """By the lab's own interface, and on the hub's pages with its signs escaped; a later one is in its place."""
    chief, ada = labs

    page = press(chief, "message", text=f"maintenance\n{HTML}")

    text = f"maintenance {HTML}"
    assert HTML not in page
    assert HTML not in ada.get("/hub/home").text
    assert "maintenance &lt;img" in ada.get("/hub/home").text
    wait(lambda: [each["text"] for each in ada.lab("GET", "rocmlab/api/notices").json()["notices"]] == [text])
    assert "too long" in press(chief, "message", text="x" * 121)
    assert "maintenance" not in press(chief, "message")


def test_a_drained_machine_starts_no_lab_and_gives_no_gpu(machine: Machine, labs: tuple[Client, Client]) -> None:
    """Users see why; who waits stops waiting; the lab that runs keeps its GPU, and its kernels share it."""
    chief, ada = labs
    bob = machine.client("bob")
    bob.spawn("2")
    queue = Leases.of_host({}, root=machine.root)
    wait(queue.waiting)

    press(chief, "drain", text=f"new disk {HTML}")

    wait(lambda: not bob.state()["servers"])
    page = ada.get("/hub/home").text
    assert "No new labs and GPUs, what runs continues: new disk &lt;img" in page
    answer = bob.session.post(
        f"{bob.url}/hub/spawn/bob", data={"gpus": "cpu", "_xsrf": bob.xsrf("/hub/")}, timeout=hubs.WAIT_SECONDS
    )
    assert answer.status_code >= 500
    assert "new disk" in answer.text
    assert HTML not in answer.text
    assert queue.left() == 0
    kernel = ada.lab("POST", "api/kernels", {"name": "torch"}).json()
    wait(lambda: [len(each["devices"]) for each in ada.lab("GET", "rocmlab/api/kernels").json()] == [1])
    ada.lab("DELETE", f"api/kernels/{kernel['id']}")

    press(chief, "undrain")
    assert queue.left() is None
    assert not host_limits.path(machine.root).with_name(host_limits.DRAINED).exists()
    assert ada.state()["servers"][""]["ready"]


def test_no_one_else_may_do_or_see_any_of_it(machine: Machine, labs: tuple[Client, Client]) -> None:
    """Each route answers a user with 403, by cookie and by token, and an administrator's form without XSRF token."""
    chief, ada = labs
    token = ada.api("POST", "/hub/api/users/ada/tokens", {"note": "attack"}).json()["token"]
    assert ada.get(PAGE).status_code == 403
    form = {"action": "drain", "_xsrf": ada.xsrf("/hub/")}
    assert ada.session.post(ada.url + PAGE, data=form, timeout=hubs.WAIT_SECONDS).status_code == 403
    for method, path in [("GET", "labs"), *(("POST", name) for name in ("stop", "message", "drain", "undrain"))]:
        assert ada.api(method, f"/hub/api/rocmlab/{path}", {"user": "ada"}).status_code == 403
        by_token = hubs.requests.request(
            method, f"{ada.url}/hub/api/rocmlab/{path}", headers={"Authorization": f"token {token}"}, timeout=60
        )
        assert by_token.status_code == 403
    assert hubs.requests.get(f"{ada.url}/hub/api/rocmlab/notices", timeout=60).status_code == 403
    for fields in ({"action": "drain"}, {"action": "drain", "_xsrf": ada.xsrf("/hub/")}):
        assert chief.session.post(chief.url + PAGE, data=fields, timeout=hubs.WAIT_SECONDS).status_code == 403
    assert chief.api("GET", "/hub/api/rocmlab/labs").json()["drain"] is None
    secret = machine.hub.state / "command-token"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_the_command_does_what_the_page_does(
    machine: Machine, labs: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a service of the hub, with a token that only the hub's user can read."""
    for name in ("compose.yaml", "docker/Dockerfile"):
        Path(machine.project, name).parent.mkdir(exist_ok=True)
        Path(machine.project, name).touch()
    monkeypatch.chdir(machine.project)

    assert command.main("hub", ["message", "back at noon"]) == 0
    assert command.main("hub", ["drain", "new disk"]) == 0
    capsys.readouterr()
    assert command.main("hub", ["status", "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert command.main("hub", ["status"]) == 0
    text = capsys.readouterr().out

    assert seen["message"]["text"] == "back at noon"
    assert seen["drain"]["text"] == "new disk"
    assert "ada: runs, 1 GPU, since" in text
    assert "(SIMULATED)" in text
    assert "ada: 0.0" in text
    assert command.main("hub", ["undrain"]) == 0
    assert command.main("hub", ["stop", "ada"]) == 0
    wait(lambda: not labs[1].state()["servers"])
    with pytest.raises(hubs.RocmlabError, match="ada has no lab that runs"):
        command.main("hub", ["stop", "ada"])
