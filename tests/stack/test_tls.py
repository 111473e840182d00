"""BIND: certificates that are made or given, and what is rejected before anything is started."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clones import free_port

from rocmlab.base import hosts
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import project as projects
from rocmlab.stack import settings as configuration
from rocmlab.stack import tls
from rocmlab.stack.settings import Settings

Chosen = Callable[..., Settings]


@pytest.fixture
def chosen(tmp_path: Path) -> Chosen:
    """Settings of a project folder, as `make up NAME=value` gives them."""
    return lambda **given: configuration.load(tmp_path, given)


def prepared(settings: Settings) -> str:
    """Have the file written that the lab serves, and return its text."""
    tls.prepare(settings, tls.values(settings, "gpu1"))
    return tls.path_of(settings).read_text()


def shown(path: Path) -> str:
    """Return what openssl says of a certificate."""
    return subprocess.check_output(["openssl", "x509", "-noout", "-text", "-in", str(path)], text=True)


def test_without_bind_nothing_is_made(chosen: Chosen, tmp_path: Path) -> None:
    """No value, no file, no openssl; a file of before is removed."""
    prepared(chosen(BIND="127.0.0.1"))

    tls.prepare(chosen(), tls.values(chosen()))

    assert tls.values(chosen()) == {}
    assert not tls.path_of(chosen()).exists()


def test_a_certificate_is_made_once_for_the_address_and_the_hosts_name(chosen: Chosen) -> None:
    """For the owner alone; it stays the same, also after another address; its fingerprint is that of openssl."""
    settings = chosen(BIND="127.0.0.2")
    text = prepared(settings)
    path = tls.path_of(settings)
    printed = subprocess.check_output(["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", path], text=True)

    assert tls.values(settings, "gpu1") == {hosts.BOUND: "127.0.0.2,gpu1,gpu1.local"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(each.stat().st_mode) for each in settings.state.glob("*.pem")} == {0o600}
    assert "DNS:gpu1, DNS:gpu1.local" in shown(path)
    assert "IP Address:127.0.0.2" in shown(path)
    assert printed.strip().partition("=")[2] == tls.fingerprint(text)
    assert prepared(chosen(BIND="127.0.0.3")) != text
    assert prepared(settings) == text


def test_a_certificate_is_renewed_before_it_expires(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next `make up` makes another one."""
    monkeypatch.setattr(tls, "VALID_DAYS", tls.RENEW_DAYS - 1)
    short = prepared(chosen(BIND="::1"))
    monkeypatch.setattr(tls, "VALID_DAYS", tls.RENEW_DAYS + 2)

    renewed = prepared(chosen(BIND="::1"))

    assert renewed != short
    assert prepared(chosen(BIND="::1")) == renewed


def test_a_certificate_of_a_clock_that_was_ahead_is_made_again(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Browsers would reject it until that day has come."""
    monkeypatch.setattr(tls, "VALID_DAYS", tls.VALID_DAYS + 30)
    ahead = prepared(chosen(BIND="::1"))
    monkeypatch.undo()

    assert prepared(chosen(BIND="::1")) != ahead


def test_a_make_up_that_fails_leaves_the_certificate_of_the_lab_that_runs(chosen: Chosen) -> None:
    """As it leaves the settings."""
    before = prepared(chosen(BIND="127.0.0.1"))

    project: Any = SimpleNamespace(settings=chosen(BIND="127.0.0.2"))
    with pytest.raises(ZeroDivisionError), projects.settings_kept_on_failure(project):
        _ = 1 / len(prepared(project.settings)[:0])

    assert tls.path_of(project.settings).read_text() == before
    assert stat.S_IMODE(tls.path_of(project.settings).stat().st_mode) == 0o600


def test_a_key_that_the_labs_user_could_not_read_is_an_error(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the lab starts: it would only not answer. Rootless, the lab's user is who calls this."""
    settings = chosen(BIND="127.0.0.1")
    values = {**tls.values(settings, "gpu1"), "NB_UID": "1001"}
    monkeypatch.setattr(os, "geteuid", lambda: 1234)

    with pytest.raises(RocmlabError, match="could not read the key") as caught:
        tls.prepare(settings, values)
    tls.prepare(settings, values, is_rootless=True)

    assert "make up NB_UID=1234" in caught.value.problem.fix


def test_an_own_certificate_is_served(chosen: Chosen, tmp_path: Path) -> None:
    """And one that was renewed, after `make up`."""
    prepared(chosen(BIND="127.0.0.1"))
    made = next((tmp_path / ".rocmlab").glob("certificate-*.pem")).read_text()
    key, _, certificate = made.partition("-----BEGIN CERTIFICATE")
    (tmp_path / "key.pem").write_text(key)
    (tmp_path / "chain.pem").write_text("-----BEGIN CERTIFICATE" + certificate)

    text = prepared(chosen(BIND="127.0.0.9", TLS_KEY="key.pem", TLS_CERT="chain.pem"))

    assert tls.fingerprint(text) == tls.fingerprint(made)


@pytest.mark.parametrize(
    ("given", "what", "fix"),
    [
        ({"BIND": "gpu1"}, "BIND=gpu1 is not an IP address", "make up BIND=0.0.0.0"),
        ({"BIND": "[::1]"}, "BIND=[::1] is not an IP address", "make up BIND="),
        ({"BIND": "10.0.0.0/8"}, "is not an IP address", "BIND="),
        ({"BIND": "127.0.0.1", "TLS_PORT": "8888"}, "TLS_PORT and PORT are the same", "TLS_PORT=8889"),
        ({"BIND": "127.0.0.1", "TLS_PORT": "https"}, "TLS_PORT=https is not a port", "make up TLS_PORT=8443"),
        ({"BIND": "127.0.0.1", "TLS_CERT": "chain.pem"}, "TLS_KEY is not set", "make up TLS_KEY="),
        ({"BIND": "127.0.0.1", "TLS_KEY": "key.pem"}, "TLS_CERT is not set", "make up TLS_CERT="),
        ({"BIND": "127.0.0.1", "TLS_KEY": "none", "TLS_CERT": "none"}, "cannot be used", "both empty: one is made"),
    ],
)
def test_what_cannot_be_meant_is_an_error(chosen: Chosen, given: dict[str, str], what: str, fix: str) -> None:
    """It names the setting and the command that is right."""
    with pytest.raises(RocmlabError) as caught:
        tls.values(chosen(**given))

    assert what in caught.value.problem.what
    assert fix in caught.value.problem.fix


def test_a_key_of_another_certificate_is_an_error(chosen: Chosen, tmp_path: Path) -> None:
    """The lab would start and no one could connect."""
    for bind in ("127.0.0.1", "127.0.0.2"):
        prepared(chosen(BIND=bind))
    one, other = (tmp_path / ".rocmlab").glob("certificate-*.pem")
    (tmp_path / "key.pem").write_text(one.read_text().partition("-----BEGIN CERTIFICATE")[0])

    with pytest.raises(RocmlabError, match="cannot be used"):
        tls.values(chosen(BIND="127.0.0.1", TLS_KEY="key.pem", TLS_CERT=str(other)))


def test_without_openssl_the_own_certificate_is_the_fix(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab never answers other machines in the clear instead."""
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(RocmlabError, match="openssl is not installed") as caught:
        prepared(chosen(BIND="127.0.0.1"))

    assert "TLS_CERT=" in caught.value.problem.fix


def test_an_address_that_this_host_does_not_have_is_an_error(chosen: Chosen) -> None:
    """Before anything that runs is stopped."""
    with pytest.raises(RocmlabError, match=r"BIND=198\.51\.100\.7 is not an address of this host"):
        tls.check_free(chosen(BIND="198.51.100.7"), {}, as_root=False)


def test_a_port_in_use_is_an_error_unless_this_lab_has_it(chosen: Chosen) -> None:
    """`make up` again is no conflict with itself."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        given = {"BIND": "127.0.0.1", "TLS_PORT": str(taken.getsockname()[1])}

        tls.check_free(chosen(**given), given, as_root=False)
        with pytest.raises(RocmlabError, match="nothing can listen on TLS_PORT"):
            tls.check_free(chosen(**given), {}, as_root=True)


def test_an_answer_that_is_not_the_labs_is_an_error(chosen: Chosen) -> None:
    """A port where something else listens, or nothing, is never printed as the lab's."""
    settings = chosen(BIND="127.0.0.1", TLS_PORT=str(free_port()))
    prepared(settings)

    with pytest.raises(RocmlabError, match="the lab does not answer at https://127"):
        tls.served(settings, timeout_seconds=0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_user_of_a_container_may_read_the_key(chosen: Chosen) -> None:
    """Where root runs `make up`, the lab's user inside is another one."""
    settings = chosen(BIND="127.0.0.1")

    tls.prepare(settings, {**tls.values(settings, "gpu1"), "NB_UID": "1000"})

    assert tls.path_of(settings).stat().st_uid == 1000
    assert stat.S_IMODE(tls.path_of(settings).stat().st_mode) == 0o600


def own(project: Path, names: str, days: int = 100) -> dict[str, str]:
    """Return the settings of an own certificate for these names, which openssl makes."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=own", "-addext", f"subjectAltName={names}", "-days", str(days)]
    command += ["-keyout", str(project / "key.pem"), "-out", str(project / "chain.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return {"TLS_KEY": "key.pem", "TLS_CERT": "chain.pem"}


@pytest.mark.parametrize(
    ("bind", "names", "allowed", "fix"),
    [
        ("127.0.0.1", "DNS:lab.example.org", "", "make up ALLOWED_HOSTS=lab.example.org"),
        ("127.0.0.1", "DNS:*.example.org", "other.example", "make up ALLOWED_HOSTS=lab.example.org"),
        ("127.0.0.1", "IP:127.0.0.2", "", "make up ALLOWED_HOSTS=127.0.0.2"),
        ("127.0.0.1", "DNS:lab.example.org,DNS:www.example.org", "lab.example.org", ""),
        ("127.0.0.1", "DNS:*.example.org", "Lab.example.org", ""),
        ("127.0.0.1", "IP:127.0.0.1", "", ""),
        ("::1", "IP:0:0:0:0:0:0:0:1", "", ""),
        ("127.0.0.1", "DNS:GPU1.local", "", ""),
    ],
)
def test_an_own_certificate_for_no_name_of_the_lab_is_named(
    chosen: Chosen, tmp_path: Path, bind: str, names: str, allowed: str, fix: str
) -> None:
    """A browser would reject the certificate under the lab's names, and the lab the browser under the certificate's."""
    settings = chosen(BIND=bind, ALLOWED_HOSTS=allowed, **own(tmp_path, names))

    found = tls.own_problems(settings, tls.values(settings, "gpu1")[hosts.BOUND])

    assert [each.fix for each in found] == ([fix] if fix else [])


def test_an_own_certificate_that_soon_ends_is_named(chosen: Chosen, tmp_path: Path) -> None:
    """By `make up`, which renews only those that it has made."""
    settings = chosen(BIND="127.0.0.1", **own(tmp_path, "IP:127.0.0.1", days=3))

    found = tls.own_problems(settings, tls.values(settings, "gpu1")[hosts.BOUND])

    assert [each.what for each in found] == ["the lab's certificate ends in 3 days"]
    assert tls.own_problems(settings, "") == []  # without BIND no one is served with it


def test_clean_removes_the_copy_of_an_own_key_and_names_what_it_keeps(chosen: Chosen, tmp_path: Path) -> None:
    """The certificate that was made stays: browsers know its fingerprint."""
    prepared(chosen(BIND="127.0.0.1"))
    made = list((tmp_path / ".rocmlab").glob("certificate-*.pem"))
    settings = chosen(BIND="127.0.0.1", **own(tmp_path, "IP:127.0.0.1"))
    prepared(settings)

    assert tls.clean(settings) == made
    assert not tls.path_of(settings).exists()
    assert (tmp_path / "key.pem").exists()
