"""One user of the hub against another: files, kernels, tokens, leases, the panel, and the proxy's routes."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from hubs import Client, Machine, environments_of, interpreter

from rocmlab.hub.service import UNPRIVILEGED

pytestmark = [pytest.mark.slow, pytest.mark.native]
KEPT_OUT = (302, 403, 404)
PATHS = (
    "lab",
    "api/contents",
    "api/kernels",
    "api/sessions",
    "api/terminals",
    "files/work/00_hello_gpu.ipynb",
    "rocmlab/",
    "rocmlab/api/devices",
    "rocmlab/api/kernels",
    "rocmlab/api/stream",
    "rocmlab/metrics",
)


@pytest.fixture(scope="module")
def victim(machine: Machine) -> Iterator[Client]:
    """A user whose lab runs, with a kernel."""
    ada = machine.client("ada")
    ada.spawn("1")
    ada.ready()
    ada.lab("POST", "api/kernels", {"name": "torch-cpu"})
    yield ada
    ada.stop_lab()


@pytest.fixture(scope="module")
def attacker(machine: Machine) -> Client:
    """Another user, who has logged in."""
    return machine.client("bob")


def as_user(machine: Machine, user: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command under a user's uid."""
    uid = machine.uid(user)
    return subprocess.run(
        command, user=uid, group=uid, extra_groups=[], cwd="/", env={}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("path", PATHS)
def test_no_route_of_the_proxy_leads_into_anothers_lab(victim: Client, attacker: Client, path: str) -> None:
    """Neither by a cookie of the hub, nor with an XSRF token; the owner gets an answer."""
    for mode in ("navigate", "cors"):
        headers = {"Sec-Fetch-Mode": mode, "X-XSRFToken": attacker.xsrf("/hub/")}
        answer = attacker.session.get(
            attacker.url + victim.prefix + path, headers=headers, allow_redirects=False, timeout=30
        )
        assert answer.status_code in KEPT_OUT, answer.text
    assert attacker.get(victim.prefix + path).status_code in (403, 404)


def test_a_token_opens_its_owners_lab_alone(machine: Machine, victim: Client, attacker: Client) -> None:
    """A user's own API token is no one else's."""
    made = attacker.api("POST", "/hub/api/users/bob/tokens", {"note": "attack"}).json()["token"]
    headers = {"Authorization": f"token {made}"}

    answers = [
        requests.get(machine.url + victim.prefix + "api/contents", headers=headers, timeout=30),
        requests.get(machine.url + victim.prefix + "rocmlab/metrics", headers=headers, timeout=30),
        requests.get(f"{machine.url}/hub/api/users/ada", headers=headers, timeout=30),
        requests.delete(f"{machine.url}/hub/api/users/ada/server", headers=headers, timeout=30),
        requests.get(f"{machine.url}/hub/api/users", headers=headers, timeout=30),
    ]
    assert {answer.status_code for answer in answers} <= {403, 404}


def test_the_ports_behind_the_proxy_ask_for_a_login(machine: Machine, victim: Client) -> None:
    """A user of the host reaches the lab's own port and those of hub and proxy, and gets nothing there."""
    port = next(
        line.rpartition(":")[2].partition("/")[0]
        for environment in environments_of(machine.uid("ada"))
        for line in environment.decode(errors="replace").split("\0")
        if line.startswith("JUPYTERHUB_SERVICE_URL=")
    )
    lab = f"http://127.0.0.1:{port}{victim.prefix}"
    for path in ("api/contents", "api/kernels", "rocmlab/api/devices"):
        assert requests.get(lab + path, allow_redirects=False, timeout=30).status_code in KEPT_OUT
    proxy = f"http://127.0.0.1:{machine.found.proxy_port}/api/routes"
    assert requests.get(proxy, timeout=30).status_code == 403
    assert requests.post(f"{proxy}/user/ada", json={"target": "http://127.0.0.1:9"}, timeout=30).status_code == 403
    hub = f"http://127.0.0.1:{machine.found.hub_port}/hub/api"
    assert requests.get(f"{hub}/users", timeout=30).status_code == 403


def test_files_and_secrets_are_closed_to_other_accounts(machine: Machine, victim: Client) -> None:
    """The other's home, log and kernels' keys, and the hub's database, cookie secret and configuration."""
    home = machine.folder / "homes/ada"
    runtime = next(Path("/tmp").glob(f"rocmlab-{machine.uid('ada')}-*"))
    state = machine.hub.state
    for path in (home, home / "rocmlab/.rocmlab/jupyter.log", runtime, state, state / "jupyterhub.sqlite"):
        assert path.exists()
        assert as_user(machine, "bob", "/bin/ls", str(path)).returncode or not path.is_dir()
        assert as_user(machine, "bob", "/bin/cat", str(path)).returncode
    own = as_user(machine, "ada", "/bin/cat", str(home / "rocmlab/.rocmlab/jupyter.log"))
    assert own.returncode == 0


def test_the_environment_of_hub_and_labs_is_closed(machine: Machine, victim: Client) -> None:
    """Tokens of the hub, the proxy and labs are in no argument of a process, and in no environment that others read."""
    for uid in (0, machine.uid("ada")):
        for path in Path("/proc").glob("[0-9]*"):
            try:
                text = (path / "cmdline").read_bytes().decode(errors="replace")
                if path.stat().st_uid != uid or str(machine.folder) not in text:
                    continue
            except OSError:
                continue
            assert "token" not in text.lower()
            assert as_user(machine, "bob", "/bin/cat", str(path / "environ")).returncode


def test_anothers_lease_can_be_neither_removed_nor_changed(machine: Machine, victim: Client) -> None:
    """Its lock and its note are the lab's user's, in containers as natively."""
    leases = Path(machine.found.leases)
    own = [path for path in leases.iterdir() if os.stat(path).st_uid == machine.uid("ada")]
    assert {path.suffix for path in own} == {".json", ".lock"}
    for path in own:
        assert as_user(machine, "bob", "/bin/rm", "-f", str(path)).returncode
        assert as_user(machine, "bob", "/bin/sh", "-c", f"echo x >{path}").returncode


def test_an_administrator_sees_and_stops_all_labs_and_others_do_not(
    machine: Machine, victim: Client, attacker: Client
) -> None:
    """The page of all users, and what stops a lab."""
    chief = machine.client("chief")

    found = {user["name"]: user["servers"] for user in chief.api("GET", "/hub/api/users").json()}
    assert found["ada"][""]["ready"]
    assert attacker.get("/hub/admin").status_code == 403
    assert attacker.api("DELETE", "/hub/api/users/ada/server").status_code in (403, 404)
    assert attacker.api("GET", "/hub/api/users").status_code in (200, 403)
    names = attacker.api("GET", "/hub/api/users")
    assert "ada" not in names.text


@pytest.mark.parametrize("path", PATHS)
def test_an_administrator_opens_no_lab_of_another(machine: Machine, victim: Client, path: str) -> None:
    """JupyterHub's own administrators do; these see labs and stop them."""
    chief = machine.client("chief")

    for mode in ("navigate", "cors"):
        headers = {"Sec-Fetch-Mode": mode, "X-XSRFToken": chief.xsrf("/hub/")}
        answer = chief.session.get(machine.url + victim.prefix + path, headers=headers, timeout=30)
        assert answer.status_code in (403, 404), answer.text


def test_an_administrator_takes_no_users_place(machine: Machine, victim: Client) -> None:
    """By a token, a share, another name, a password or more rights."""
    chief = machine.client("chief")
    own = chief.api("POST", "/hub/api/users/chief/tokens", {"note": "attack"}).json()["token"]

    answers = [
        requests.get(
            machine.url + victim.prefix + "api/contents", headers={"Authorization": f"token {own}"}, timeout=30
        ),
        chief.api("POST", "/hub/api/users/ada/tokens", {"note": "attack"}),
        chief.api("POST", "/hub/api/shares/ada/", {"user": "chief"}),
        chief.api("PATCH", "/hub/api/users/ada", {"name": "other"}),
        chief.api("PATCH", "/hub/api/users/chief", {"name": "ada2"}),
        chief.api("PATCH", "/hub/api/users/chief", {"admin": True}),
        chief.api("POST", "/hub/api/users", {"usernames": ["another"], "admin": True}),
        chief.api("DELETE", "/hub/api/users/ada"),
        chief.api("POST", "/hub/api/groups/new", {"users": ["chief"]}),
    ]
    assert {answer.status_code for answer in answers} <= {403, 404}
    assert chief.get("/hub/admin").status_code == 200


def test_who_is_no_longer_named_is_no_administrator(machine: Machine, attacker: Client) -> None:
    """JupyterHub's setting for administrators only adds; a hub that was started with another one forgot no one."""
    chief = machine.client("chief")
    changed = replace(machine.found, access=replace(machine.found.access, admins=("bob",)))
    assert chief.get("/hub/admin").status_code == 200
    try:
        machine.start(changed)
        assert machine.client("chief").get("/hub/admin").status_code == 403
        assert machine.client("bob").get("/hub/admin").status_code == 200
    finally:
        machine.start()
    assert machine.client("chief").get("/hub/admin").status_code == 200
    assert attacker.get("/hub/admin").status_code == 403


def test_who_is_no_longer_named_has_no_access(machine: Machine, attacker: Client) -> None:
    """Neither by the login and the token of before, nor by a new login; named again, they have."""
    token = attacker.api("POST", "/hub/api/users/bob/tokens", {"note": "before"}).json()["token"]
    changed = replace(machine.found, access=replace(machine.found.access, users=("ada", "chief")))

    def answers() -> list[int]:
        headers = {"Authorization": f"token {token}"}
        by_token = requests.get(f"{machine.url}/hub/api/users/bob", headers=headers, timeout=30)
        return [attacker.api("GET", "/hub/api/users/bob").status_code, by_token.status_code]

    assert answers() == [200, 200]
    try:
        machine.start(changed)
        assert {*answers()} <= {403, 404}
        assert machine.client("bob").login.status_code == 403
        assert machine.client("ada").get("/hub/home").status_code == 200
    finally:
        machine.start()
    assert machine.client("bob").get("/hub/home").status_code == 200


@pytest.mark.parametrize("is_open", [False, True])
def test_a_name_without_an_account_does_not_end_the_hub(machine: Machine, is_open: bool) -> None:
    """A typo, or a directory that does not answer when the machine starts."""
    access = replace(machine.found.access, admins=("chief", f"nobody-{is_open}"), is_open=is_open)
    try:
        machine.start(replace(machine.found, access=access))
        assert machine.client("chief").get("/hub/admin").status_code == 200
    finally:
        machine.start()


@pytest.mark.parametrize("options", [{"gpus": ["cpu", {}]}, {"gpus": ""}, {"gpus": {}}, {"gpus": 10**9}])
def test_what_a_user_sends_at_a_start_breaks_no_page(machine: Machine, attacker: Client, options: object) -> None:
    """The administrators' page and command show all labs; a choice that is none is rejected, or unknown."""
    attacker.api("POST", "/hub/api/users/bob/server", options)
    try:
        assert machine.client("chief").get("/hub/rocmlab/labs").status_code == 200
    finally:
        attacker.stop_lab()


def test_labs_that_ran_while_the_hub_was_stopped_are_not_taken_for_idle(machine: Machine, victim: Client) -> None:
    """They could not report that they computed; the first look at them ended them."""
    limited = replace(machine.found, limits=replace(machine.found.limits, idle_seconds=3600))
    try:
        machine.hub.stop(print)
        with closing(sqlite3.connect(machine.hub.state / "jupyterhub.sqlite")) as database:
            database.execute("update spawners set last_activity = '2020-01-01 00:00:00'")
            database.execute("update users set last_activity = '2020-01-01 00:00:00'")
            database.commit()
        machine.start(limited)
        time.sleep(3)
        assert victim.state()["servers"][""]["ready"]
    finally:
        machine.start()
    assert victim.ready()


def test_a_page_of_one_users_lab_cannot_read_the_panel_with_anothers_cookies(machine: Machine, victim: Client) -> None:
    """All labs are one origin: a script on another's page has the cookies sent, and no XSRF token for this path."""
    headers = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin", "Referer": f"{machine.url}/user/bob/lab"}
    for path in ("rocmlab/api/stream", "rocmlab/api/devices", "api/contents"):
        answer = victim.session.get(machine.url + victim.prefix + path, headers=headers, stream=True, timeout=30)
        assert answer.status_code == 403
        answer.close()
    token = victim.xsrf(victim.prefix)
    path = f"{victim.prefix}rocmlab/api/stream?_xsrf={token}"
    with victim.session.get(machine.url + path, headers=headers, stream=True, timeout=30) as answer:
        assert answer.status_code == 200
        assert any(b"snapshot" in line for line in answer.iter_lines(chunk_size=1))


def test_no_user_can_answer_in_place_of_a_hub_that_is_stopped(machine: Machine) -> None:
    """Labs that run on send their tokens to the hub's port, and believe it who a visitor is: it is one of root's."""
    if int(UNPRIVILEGED.read_text()) < 1024:
        pytest.skip("on this host any user may listen on any port")
    for port in (machine.found.hub_port, machine.found.proxy_port):
        code = f"import socket; socket.create_server(('127.0.0.1', {port}))"
        done = as_user(machine, "bob", str(interpreter()), "-I", "-c", code)
        assert "Permission denied" in done.stderr
