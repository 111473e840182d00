"""The ssh command that is printed for the user's own computer, and a lab reached through it."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
from collections.abc import Iterator

import clients
import pytest
import servers
from clients import Server
from clones import Clone, clone, free_port, furnish, without_docker
from servers import Sshd

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import remote
from rocmlab.stack.remote import Destination

REACHED = "203.0.113.9 50514 192.0.2.7 2222"  # client, its port, this host, its port


@pytest.mark.parametrize(
    ("environment", "system", "expected"),
    [
        ({"SSH_CONNECTION": REACHED, "DISPLAY": "localhost:10.0"}, "Linux", Destination("192.0.2.7", "", 2222)),
        ({"SSH_CONNECTION": REACHED.replace("2222", "22")}, "Darwin", Destination("192.0.2.7")),
        ({"SSH_CONNECTION": "fe80::2%eth0 1 fe80::1%eth0 22"}, "Linux", Destination("gpu1")),
        ({"SSH_CONNECTION": "2001:db8::2 1 2001:db8::1 22", "CI": "1"}, "Linux", Destination("2001:db8::1")),
        ({"SSH_CONNECTION": "what ever"}, "Linux", Destination("gpu1")),
        ({}, "Linux", Destination("gpu1")),
        ({"DISPLAY": ":0"}, "Linux", None),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "Linux", None),
        ({"WSL_DISTRO_NAME": "Ubuntu"}, "Linux", None),
        ({"CI": "true"}, "Linux", None),
        ({}, "Darwin", None),
    ],
)
def test_the_command_is_for_hosts_without_a_browser(
    environment: dict[str, str], system: str, expected: Destination | None
) -> None:
    """One reached over ssh is named as it was reached; a desktop, WSL, a Mac and an unattended job get no line."""
    found = remote.of_this_host(environment, system, "gpu1")

    assert (found and Destination(found.host, "", found.port)) == expected
    assert found is None or found.user == remote.login_name({})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("destination", "command"),
    [
        (Destination("gpu1", "ann"), "ssh -L 8888:127.0.0.1:8888 ann@gpu1"),
        (Destination("192.0.2.7", "ann", 2222), "ssh -L 8888:127.0.0.1:8888 -p 2222 ann@192.0.2.7"),
        (Destination("gpu1", "LAB\\ann"), "ssh -L 8888:127.0.0.1:8888 'LAB\\ann@gpu1'"),
        (Destination("gpu1"), "ssh -L 8888:127.0.0.1:8888 gpu1"),
    ],
)
def test_the_command_can_be_pasted(destination: Destination, command: str) -> None:
    """User and port are in it where they are known, quoted for a shell."""
    assert destination.command(8888) == command


def test_a_named_host_is_used_as_given() -> None:
    """With or without a user; without one it is the user who logs in here."""
    assert remote.named("bob@gpu1.example.org") == Destination("gpu1.example.org", "bob")
    assert remote.named("LAB\\ann@192.0.2.7") == Destination("192.0.2.7", "LAB\\ann")
    assert remote.named("2001:db8::1") == Destination("2001:db8::1", remote.login_name())


def test_the_user_is_who_logs_in_and_not_who_sudo_made_of_it() -> None:
    """Another user's SUDO_USER is of no interest, and a user without a name is left to ssh."""
    assert remote.login_name({"SUDO_USER": "ann"}, 0) == "ann"
    assert remote.login_name({"SUDO_USER": "ann"}, 65534) == pwd.getpwuid(65534).pw_name
    assert remote.login_name({}, 4123456789) == ""


@pytest.mark.parametrize(
    "text",
    [
        *("-oProxyCommand=touch attack-ran", "a b", "gpu1;id", "$(id)", "https://gpu1", "gpu1:22", "@gpu1", "ann@"),
        *("-l@gpu1", "a'b@gpu1", "", "gpu1\n", "x" * 300, "gpu1/"),
    ],
)
def test_a_name_that_ssh_or_a_shell_would_read_otherwise_is_rejected(text: str) -> None:
    """The command is there to be pasted, so nothing of it may be an option or another command."""
    with pytest.raises(RocmlabError, match="invalid HOST"):
        remote.named(text)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A clean clone without an engine, whose lab runs; nothing is installed for it."""
    found = clone(tmp_path_factory.mktemp("remote") / "rocmlab")
    found.environment["PATH"] = without_docker(found.environment["PATH"])
    for name in ("SSH_CONNECTION", "CI", *remote.WSL):
        found.environment.pop(name, None)
    found.environment["DISPLAY"] = ":0"
    furnish(found)
    found.make("up")
    yield found
    found.make("down", "FORCE=1", succeeds=False)


@pytest.mark.long
def test_local_users_see_no_line_about_ssh(lab: Clone) -> None:
    """On a desktop the URL is all, also where the environment has a HOST of its own, as shells' do."""
    lab.environment["HOST"] = "x86_64-conda-linux-gnu"

    assert "ssh" not in lab.make("up").stdout
    assert len(lab.make("url").stdout.splitlines()) == 1


@pytest.mark.slow
def test_make_url_prints_the_command_for_a_name(lab: Clone) -> None:
    """The address first, then the command; a name that is not one is an error."""
    url, command = lab.make("url", HOST="ann@gpu1.example.org").stdout.splitlines()

    assert url == f"http://127.0.0.1:{lab.port}/lab?token={lab.env['JUPYTER_TOKEN']}"
    assert command == f"ssh -L {lab.port}:127.0.0.1:{lab.port} ann@gpu1.example.org"
    assert "invalid HOST='-oProxyCommand=id'" in lab.make("url", HOST="-oProxyCommand=id", succeeds=False).stdout


@pytest.mark.long
@pytest.mark.slow
def test_the_demonstration_prints_it_for_its_own_port(lab: Clone) -> None:
    """It is what people try first on a machine that they reach by ssh."""
    port = free_port()
    lab.make("down")  # the demonstration runs next to no other lab of its folder
    done = subprocess.run(
        ["python3", "-m", "rocmlab", "demo", "--seconds", "0", "--port", str(port)],
        cwd=lab.folder,
        env={**lab.environment, "PYTHONPATH": "src", "SSH_CONNECTION": REACHED},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    lab.make("up")

    assert done.returncode == 0, done.stdout + done.stderr
    expected = f"ssh -L {port}:127.0.0.1:{port} -p 2222 {remote.login_name()}@192.0.2.7"
    assert re.search(rf"^  remote +{re.escape(expected)}   \(", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
def test_a_lab_is_used_through_the_port_that_the_printed_command_forwards(
    lab: Clone, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Logged in by ssh, `make url` and `make up` print it; through it the token opens the lab and a kernel computes."""
    with Sshd(tmp_path_factory.mktemp("sshd")).running() as sshd:
        path = shlex.quote(lab.environment["PATH"])
        leases = shlex.quote(os.environ["LEASES_DIR"])
        inside = f"cd {shlex.quote(str(lab.folder))} && export PATH={path} LEASES_DIR={leases} &&"
        asked = sshd.run(f"{inside} make url")
        started = sshd.run(f"{inside} make up")
        assert asked.returncode == started.returncode == 0, asked.stderr + started.stdout + started.stderr
        expected = f"ssh -L {lab.port}:127.0.0.1:{lab.port} -p {sshd.port} {sshd.user}@127.0.0.1"
        assert asked.stdout.count("\n") == 1, "a script that reads the URL reads nothing else"
        assert f"from your own computer: {expected}\n" in asked.stderr
        assert re.search(rf"^  remote +{re.escape(expected)}   \(", started.stdout, re.MULTILINE)

        near = free_port()  # both ends are one machine, where the lab's own port is taken
        words = shlex.split(expected.replace(f"-L {lab.port}:", f"-L {near}:"))
        log = sshd.folder / "ssh.log"
        with servers.running([sshd.client, "-N", *sshd.options(), *words[1:]], near, log):
            server = Server(f"127.0.0.1:{near}", lab.env["JUPYTER_TOKEN"])
            assert clients.ask(near, "wrong", "/api/status")[0] == 403
            assert server.request("/api/status", token=server.token)[0] == 200
            assert server.execute("torch", "print(6 * 7)") == "42\n"
