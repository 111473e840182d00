"""Login by OAuth: the hub of the other tests is the provider, a second one its client, with real labs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import hubs
import pytest
import requests
from clones import free_port
from hubs import Client, Machine

from rocmlab.hub import environment as hub_environment
from rocmlab.hub.configuration import Configuration
from rocmlab.hub.service import Hub
from rocmlab.stack import project as projects
from rocmlab.stack import settings

pytestmark = [pytest.mark.slow, pytest.mark.native]


class User(Client):
    """A browser that logs in at the provider; there it knows the hub by another name, so that cookies are apart."""

    def __init__(self, client: str, provider: str, user: str) -> None:
        self.url, self.user = client, user
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Connection"] = "close"
        form = self.get("/hub/oauth_login")
        assert form.url.startswith(f"{provider}/hub/login")
        found = [each.value for each in self.session.cookies if each.name == "_xsrf" and each.domain != "127.0.0.1"]
        data = {"username": user, "password": hubs.PASSWORD, "_xsrf": found[-1]}
        self.login = self.session.post(form.url, data=data, timeout=hubs.WAIT_SECONDS)


class Other:
    """The second hub."""

    def __init__(self, machine: Machine) -> None:
        folder = machine.folder / "other"
        self.project = folder / "project"
        self.project.mkdir(parents=True)
        for name in (".venv", "notebooks"):
            (self.project / name).symlink_to(machine.project / name)
        self.provider = machine.url.replace("127.0.0.1", "localhost")
        own = folder / "hub_config.py"
        own.touch(mode=0o600)
        own.write_text(machine.sign_on.of_the_client(self.provider))
        given = {"RUNTIME": "native", "ROCMLAB_ROOT": str(machine.root), "PORT": str(free_port())}
        given |= {"HUB_PORT": str(machine.sign_on.port), "HUB_AUTH": "oauth", "HUB_CONFIG": str(own)}
        given |= {"HUB_ADMINS": "chief", "HUB_USERS": "ada"}
        found = settings.load(self.project, given)
        self.hub = Hub(found)
        self.hub.make_folder()
        command = hub_environment.proxy_command(hubs.node_folder(), machine.folder / "proxy")
        self.found: Configuration = self.hub.configure(projects.plan(self.project, found), "native", command)
        self.url = self.found.url
        self.hub.start(self.found, machine.folder / "python-with-accounts", print)

    def user(self, name: str) -> User:
        """Return a user of the provider who has tried to log in."""
        return User(self.url, self.provider, name)


@pytest.fixture(scope="module")
def other(machine: Machine) -> Iterator[Other]:
    """It, running."""
    found = Other(machine)
    yield found
    found.hub.stop(print)


def test_a_user_of_the_provider_has_a_lab_under_the_account_of_that_name(machine: Machine, other: Other) -> None:
    """And nothing of the login is in the lab, in a log or on a command line."""
    ada = other.user("ada")
    assert ada.login.url.startswith(other.url)
    ada.ensure("cpu")
    try:
        lines = "\n".join(hubs.processes_of(machine.uid("ada")))
        environments = b"".join(hubs.environments_of(machine.uid("ada")))
        every = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
        log = other.hub.log.read_text()
    finally:
        ada.stop_lab()

    assert "jupyterhub.singleuser" in lines
    assert ada.state()["admin"] is False
    assert environments
    assert machine.sign_on.secret.encode() not in environments
    assert machine.sign_on.secret not in every + log
    assert "oauth_callback?code=[secret]" in log


def test_administrators_are_those_of_the_setting(other: Other) -> None:
    """The provider has its own administrators; the name counts here."""
    assert other.user("chief").get("/hub/admin").status_code == 200
    assert other.user("ada").get("/hub/admin").status_code == 403


def test_who_may_log_in_at_the_provider_may_not_yet_here(other: Other) -> None:
    """HUB_USERS decides, and the page reports it."""
    bob = other.user("bob")

    assert bob.login.status_code == 403
    assert bob.api("GET", "/hub/api/user").status_code == 403


def test_a_login_that_the_browser_did_not_begin_is_refused(other: Other) -> None:
    """A forged state, another browser's, a forged code, and no code: none is a session."""
    tries = {"another state": ("forged", "code"), "a forged code": ("own", "forged"), "no code": ("own", "")}
    for given, code in tries.values():
        session, state = begun(other)
        query = {"state": state if given == "own" else given, "code": code}
        answer = session.get(f"{other.url}/hub/oauth_callback", params=query, timeout=60)
        assert answer.status_code in (400, 403), answer.text
        assert ("the provider of the login rejected it" in answer.text) is (code == "forged")
        assert session.get(f"{other.url}/hub/api/user", timeout=60).status_code == 403
    query = {"state": begun(other)[1], "code": "code"}
    assert begun(other)[0].get(f"{other.url}/hub/oauth_callback", params=query, timeout=60).status_code == 400


def begun(other: Other) -> tuple[requests.Session, str]:
    """Begin a login; return the browser, and the state with which it will come back."""
    session = requests.Session()
    session.trust_env = False
    answer = session.get(f"{other.url}/hub/oauth_login", allow_redirects=False, timeout=60)
    return session, parse_qs(urlsplit(answer.headers["Location"]).query)["state"][0]


def test_the_provider_sends_no_one_elsewhere(other: Other) -> None:
    """Another address than the agreed one gets no code."""
    query = {
        "client_id": "service-other",
        "response_type": "code",
        "redirect_uri": "http://127.0.0.1:1/hub/oauth_callback",
    }
    ada = other.user("ada")

    answer = ada.session.get(f"{other.provider}/hub/api/oauth2/authorize", params=query, timeout=60)

    assert answer.status_code == 400


def test_a_provider_that_does_not_answer_is_one_sentence(other: Other, machine: Machine) -> None:
    """It was reached when the login began, and is stopped meanwhile."""
    session, state = begun(other)
    machine.hub.stop(lambda _: None)
    try:
        answer = session.get(f"{other.url}/hub/oauth_callback", params={"state": state, "code": "any"}, timeout=60)
    finally:
        machine.start()

    assert answer.status_code == 502
    assert "the provider of the login does not answer" in answer.text
