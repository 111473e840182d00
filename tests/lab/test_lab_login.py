"""The login by password: what it costs to guess, and that the token is never locked out."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tornado.web import HTTPError

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import password
from rocmlab.lab.server.login import FILE, MAX_FOR_ADDRESS, MAX_IN_ALL, SECONDS, Limit, Login

TOKEN = "t" * 32
PASSWORD = "correct horse battery"


class Clock:
    """A time that passes when the test changes it."""

    now = 1000.0

    def __call__(self) -> float:
        """Return it."""
        return self.now


class Lab:
    """A server's login without its sockets: Jupyter's own provider, and requests to its form."""

    def __init__(self, folder: Path) -> None:
        from jupyter_server.auth.identity import PasswordIdentityProvider

        self.clock = Clock()
        self.file = folder / FILE
        self.settings = {"cookie_secret": b"first"}
        self.provider = PasswordIdentityProvider(token=TOKEN)
        server = SimpleNamespace(
            identity_provider=self.provider,
            config_dir=str(folder),
            web_app=SimpleNamespace(settings=self.settings),
            _default_cookie_secret=lambda: self.provider.hashed_password.encode(),
        )
        self.login = Login(server, Limit(self.clock))

    def post(self, typed: str, address: str = "192.0.2.1", new: str = "") -> object:
        """Return the user of a form that was sent, None where the login failed."""
        handler = SimpleNamespace(
            get_argument=lambda name, default="": {"password": typed, "new_password": new}.get(name, default),
            request=SimpleNamespace(remote_ip=address),
            settings={"config_dir": str(self.file.parent)},
            log=logging.getLogger("test"),
        )
        return self.provider.process_login_form(handler)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """One with a password, set as `rocmlab password` sets it."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    assert password.main("password", [], lambda _: PASSWORD) == 0
    found = Lab(tmp_path)
    found.login.follow()
    return found


@pytest.mark.slow
def test_password_and_token_log_in(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged with its address, and not what was typed."""
    assert lab.post(PASSWORD)
    assert lab.post(TOKEN)
    assert lab.post("a wrong guess") is None
    assert "a login from 192.0.2.1 failed" in caplog.text
    assert "guess" not in caplog.text


def test_it_is_kept_as_a_hash_for_its_owner(lab: Lab) -> None:
    """Jupyter's own, with argon2."""
    assert stat.S_IMODE(lab.file.stat().st_mode) == 0o600
    assert PASSWORD not in lab.file.read_text()
    assert json.loads(lab.file.read_text())["IdentityProvider"]["hashed_password"].startswith("argon2:")


@pytest.mark.slow
def test_guesses_from_one_address_have_to_wait(lab: Lab) -> None:
    """The right one too, or the answer would tell; another address and the token do not."""
    for _ in range(MAX_FOR_ADDRESS):
        assert lab.post("wrong") is None

    for typed in ("wrong", PASSWORD):
        with pytest.raises(HTTPError) as caught:
            lab.post(typed)
        assert caught.value.status_code == 429
        assert "in 60 seconds" in str(caught.value.log_message)
    assert lab.post(TOKEN)
    assert lab.post(PASSWORD, "192.0.2.2")
    lab.clock.now += SECONDS
    assert lab.post(PASSWORD)


@pytest.mark.slow
def test_guesses_from_many_addresses_have_to_wait(lab: Lab) -> None:
    """Hashing costs the server time and memory; what is remembered does not grow, and the token still logs in."""
    for number in range(MAX_IN_ALL):
        assert lab.post("wrong", f"192.0.2.{number}") is None

    for number in range(1000):
        with pytest.raises(HTTPError):
            lab.post("wrong", f"198.51.100.{number}")
    assert lab.post(TOKEN, "198.51.100.1")
    lab.clock.now += SECONDS
    assert lab.post(PASSWORD, "198.51.100.1")


@pytest.mark.slow
def test_a_changed_password_is_in_force_and_ends_logins(lab: Lab) -> None:
    """Without a restart; the same file again changes nothing."""
    secret = lab.settings["cookie_secret"]
    lab.login.follow()
    assert lab.settings["cookie_secret"] == secret

    password.main("password", [], lambda _: "another password")
    lab.login.follow()

    assert lab.post(PASSWORD) is None
    assert lab.post("another password")
    assert lab.settings["cookie_secret"] != secret


def test_a_removed_password_logs_in_no_more(lab: Lab) -> None:
    """The rest of Jupyter's configuration in that file stays."""
    found = json.loads(lab.file.read_text())
    lab.file.write_text(json.dumps({**found, "ServerApp": {"max_body_size": 7}}))

    assert password.main("password", ["--remove"]) == 0
    lab.login.follow()

    assert lab.post(PASSWORD) is None
    assert lab.post("") is None
    assert lab.post(TOKEN)
    assert json.loads(lab.file.read_text())["ServerApp"] == {"max_body_size": 7}


@pytest.mark.slow
def test_a_password_that_the_form_sets_ends_logins_too(lab: Lab) -> None:
    """At once, so that the login of this very form stays."""
    secret = lab.settings["cookie_secret"]

    assert lab.post(TOKEN, new="another password")
    ended = lab.settings["cookie_secret"]
    lab.login.follow()

    assert ended != secret
    assert lab.settings["cookie_secret"] == ended
    assert lab.post("another password")


def test_a_password_of_another_file_stays(tmp_path: Path) -> None:
    """Jupyter reads more files than the one that `rocmlab password` writes."""
    lab = Lab(tmp_path)
    lab.provider.hashed_password = "argon2:of another file"

    lab.login.follow()
    lab.file.write_text('{"ServerApp": {}}')
    lab.login.follow()

    assert lab.provider.hashed_password == "argon2:of another file"
    assert lab.settings["cookie_secret"] == b"first"


def test_a_server_without_a_token_never_loses_its_password(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """With neither, Jupyter lets everyone in."""
    lab.provider.token = ""

    assert password.main("password", ["--remove"]) == 0
    lab.login.follow()

    assert lab.provider.auth_enabled
    assert lab.post("guess") is None
    assert "stays in force" in caplog.text


def test_a_file_that_is_damaged_changes_nothing(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported in the log, without its content."""
    lab.file.write_text("{secret")

    lab.login.follow()

    assert lab.post(PASSWORD)
    assert "the password is not changed" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("typed", "what"), [(["short"], "fewer than 10"), (["long enough 1", "long enough 2"], "the passwords differ")]
)
def test_what_cannot_be_a_password_is_an_error(lab: Lab, typed: list[str], what: str) -> None:
    """And the one before stays."""
    answers = iter(typed)

    with pytest.raises(RocmlabError, match=what):
        password.main("password", [], lambda _: next(answers))

    lab.login.follow()
    assert lab.post(PASSWORD)


def test_the_end_of_the_input_interrupts(lab: Lab) -> None:
    """Ctrl-D at the prompt is no error of the program."""

    def end(_: str) -> str:
        raise EOFError

    with pytest.raises(KeyboardInterrupt):
        password.main("password", [], end)


def test_without_a_terminal_it_is_not_read(tmp_path: Path) -> None:
    """A pipe would have it from an argument or a file."""
    environment = {**os.environ, "ROCMLAB_RUNTIME": "native", "JUPYTER_CONFIG_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "rocmlab", "password"]
    done = subprocess.run(
        command, env=environment, input=PASSWORD, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert "there is no terminal" in done.stderr
    assert not (tmp_path / FILE).exists()
