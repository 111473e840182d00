"""The hub with real users: login by PAM, labs under their own accounts, GPUs, and what stays when it stops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import hubs
import pytest
from hubs import Client, Machine, wait

from rocmlab.base.errors import RocmlabError
from rocmlab.kernels.leases import Leases

pytestmark = [pytest.mark.slow, pytest.mark.native]


@pytest.fixture(scope="module")
def labs(machine: Machine) -> Iterator[tuple[Client, Client]]:
    """The labs of two users, each with one GPU of the two."""
    ada, bob = machine.client("ada"), machine.client("bob")
    for client in (ada, bob):
        client.spawn("1")
    yield ada.ready(), bob.ready()
    for client in (ada, bob):
        client.stop_lab()


@pytest.fixture(autouse=True)
def running(labs: tuple[Client, Client]) -> None:
    """Both labs run, also after a test that has stopped one."""
    for client in labs:
        client.ensure("1")


def holders(machine: Machine) -> list[str]:
    """Return whose each simulated GPU is."""
    return sorted(holder.owner or "" for holder in machine.holders())


def test_each_lab_runs_as_its_user_with_one_gpu(machine: Machine, labs: tuple[Client, Client]) -> None:
    """Each sees the GPU that it has leased, and not the other's; the lab of neither is the hub's user's."""
    shown = []
    for client in labs:
        lines = hubs.processes_of(machine.uid(client.user))
        assert any("jupyterhub.singleuser" in line for line in lines)
        devices = client.lab("GET", "rocmlab/api/devices").json()["devices"]
        shown += [each["pci_address"] for each in devices if each["backend"] == "rocm" and each["is_usable"]]

    assert len(shown) == len(set(shown)) == 2
    assert holders(machine) == ["ada", "bob"]


def test_a_kernel_of_such_a_lab_gets_its_gpu(machine: Machine, labs: tuple[Client, Client]) -> None:
    """It leases it from the lab, in a folder of the lab's own; the host's lease stays the lab's."""
    ada = labs[0]
    kernel = ada.lab("POST", "api/kernels", {"name": "torch"}).json()
    try:
        wait(lambda: [len(each["devices"]) for each in ada.lab("GET", "rocmlab/api/kernels").json()] == [1])
        assert holders(machine) == ["ada", "bob"]
    finally:
        ada.lab("DELETE", f"api/kernels/{kernel['id']}")


def test_the_start_page_shows_who_has_the_gpus(machine: Machine, labs: tuple[Client, Client]) -> None:
    """Names and times, and no path of a notebook."""
    page = machine.client("chief").get("/hub/spawn").text

    assert "0 of 2 GPUs free" in page
    assert page.count("SIMULATED") >= 2
    assert "leased to" in page
    assert "(ada)" in page
    assert "(bob)" in page


def test_who_finds_no_gpu_free_waits_and_is_served_when_one_leaves(
    machine: Machine, labs: tuple[Client, Client]
) -> None:
    """The first that waits is served first, also where a later one wants less."""
    ada, bob = labs
    chief = machine.client("chief")
    chief.spawn("2")
    with chief.session.get(f"{chief.url}/hub/api/users/chief/server/progress", stream=True, timeout=60) as answer:
        lines = (json.loads(line[6:]) for line in answer.iter_lines(decode_unicode=True) if line.startswith("data: "))
        text = next(line["message"] for line in lines if "waiting" in line["message"])
    assert "waiting for 2 GPUs" in text
    assert "(ada)" in text

    bob.stop_lab()
    bob.spawn("1")  # one is free, and the other lab is first
    assert holders(machine) == ["ada"]
    assert {client.state()["servers"][""]["pending"] for client in (bob, chief)} == {"spawn"}
    ada.stop_lab()
    chief.ready()
    assert holders(machine) == ["chief", "chief"]
    assert bob.state()["servers"][""]["pending"] == "spawn"

    chief.stop_lab()
    bob.ready()
    ada.spawn("1")
    ada.ready()
    assert holders(machine) == ["ada", "bob"]


@pytest.fixture(scope="module")
def restarted(machine: Machine, labs: tuple[Client, Client]) -> tuple[str, list[str | None]]:
    """A kernel that ran before the hub was stopped and started, and who had the GPUs while it was stopped."""
    kernel = labs[0].lab("POST", "api/kernels", {"name": "torch"}).json()["id"]
    assert machine.hub.stop(print)
    assert not machine.hub.is_running()
    meanwhile = holders(machine)
    assert machine.start()
    return kernel, meanwhile


def test_who_waits_can_give_up(machine: Machine, labs: tuple[Client, Client]) -> None:
    """By the link of the start page, which opens for this user alone; the queue is empty then."""
    chief = machine.client("chief")
    chief.spawn("1")
    with chief.session.get(f"{chief.url}/hub/api/users/chief/server/progress", stream=True, timeout=60) as answer:
        lines = (json.loads(line[6:]) for line in answer.iter_lines(decode_unicode=True) if line.startswith("data: "))
        link = next(line["html_message"].split('"')[1] for line in lines if "waiting" in line["message"])
    queue = Leases.of_host({}, root=machine.root)
    assert [waiter.holder.owner for waiter in queue.waiting()] == ["chief"]
    assert labs[0].get(link).status_code == 404

    assert chief.get(link).url.endswith("/hub/home")
    wait(lambda: not chief.state()["servers"])
    assert queue.waiting() == []


def test_labs_run_on_while_the_hub_is_stopped(
    machine: Machine, labs: tuple[Client, Client], restarted: tuple[str, list[str | None]]
) -> None:
    """A kernel keeps running, the GPUs stay leased, and the next hub finds the labs again."""
    ada = labs[0]
    kernel, meanwhile = restarted

    wait(lambda: ada.lab("GET", f"api/kernels/{kernel}").status_code == 200)
    assert ada.state()["servers"][""]["ready"]
    assert meanwhile == ["ada", "bob"]
    ada.lab("DELETE", f"api/kernels/{kernel}")


@pytest.mark.long
def test_an_edited_configuration_file_is_applied_and_labs_run_on(machine: Machine, labs: tuple[Client, Client]) -> None:
    """`make hub-up` restarts the hub with it; kernels and leases stay."""
    ada, own = labs[0], Path(machine.found.extra)
    kernel = ada.lab("POST", "api/kernels", {"name": "torch"}).json()["id"]
    before, text = machine.hub.process.find(), own.read_text()
    own.write_text(f'{text}c.JupyterHub.template_vars.update({{"announcement": "edited"}})\n')
    try:
        assert machine.start()
        assert machine.hub.process.find() != before
        assert "edited" in machine.client("bob").get("/hub/home").text
        wait(lambda: ada.lab("GET", f"api/kernels/{kernel}").status_code == 200)
        assert holders(machine) == ["ada", "bob"]
    finally:
        own.write_text(text)
        machine.start()
        wait(lambda: ada.lab("DELETE", f"api/kernels/{kernel}").ok)


def test_a_configuration_file_with_an_error_leaves_the_hub_running(machine: Machine) -> None:
    """The error names its line, and no one is locked out meanwhile."""
    own = Path(machine.found.extra)
    before, text = machine.hub.process.find(), own.read_text()
    own.write_text(f"{text}import no_such_authenticator\n")
    try:
        with pytest.raises(RocmlabError, match="was not restarted, and runs as before") as raised:
            machine.start()
    finally:
        own.write_text(text)

    assert "No module named 'no_such_authenticator'" in raised.value.problem.why
    assert str(own) in raised.value.problem.fix
    assert machine.hub.process.find() == before
    assert machine.client("bob").get("/hub/home").ok
    assert not machine.start()


def test_only_those_who_may_log_in(machine: Machine) -> None:
    """A wrong password and a name that is not listed are refused, and pages lead to the login."""
    assert Client(machine.url, "ada", "wrong").login.status_code == 403
    assert Client(machine.url, "root", "wrong").login.status_code == 403
    assert "/hub/login" in Client(machine.url, "nobody").get("/user/ada/lab").url


def test_metrics_name_user_and_lab(machine: Machine, labs: tuple[Client, Client]) -> None:
    """Of each lab its own."""
    for client in labs:
        lines = client.lab("GET", "rocmlab/metrics").text.splitlines()
        assert f'rocmlab_lab_info{{lab="{machine.found.name}",user="{client.user}"}} 1.0' in lines


def test_a_lab_that_computes_is_not_stopped_as_idle(machine: Machine, labs: tuple[Client, Client]) -> None:
    """A cell that prints nothing counts, and JupyterHub's culler stops the lab next to it, in which nothing runs."""
    ada, bob = labs
    kernel = ada.lab("POST", "api/kernels", {"name": "torch"}).json()["id"]
    ada.execute(kernel, "import time; time.sleep(3600)")

    def active(client: Client) -> datetime:
        return datetime.fromisoformat(client.state()["servers"][""]["last_activity"].replace("Z", "+00:00"))

    wait(lambda: active(ada) - active(bob) > timedelta(seconds=10))
    idle_seconds = int((datetime.now(timezone.utc) - active(bob)).total_seconds())
    chief = machine.client("chief")
    token = chief.api("POST", "/hub/api/users/chief/tokens", {"note": "culler"}).json()["token"]
    options = [f"--url={machine.url}/hub/api", f"--timeout={idle_seconds}", "--cull-every=3600"]
    command = [sys.executable, "-m", "jupyterhub_idle_culler", *options]
    with subprocess.Popen(command, env={**os.environ, "JUPYTERHUB_API_TOKEN": token}) as culler:
        try:
            wait(lambda: not bob.state()["servers"])
        finally:
            culler.terminate()

    assert ada.state()["servers"][""]["ready"]
    ada.lab("DELETE", f"api/kernels/{kernel}")
