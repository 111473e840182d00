"""Who knows the tokens of a lab in a container, and under which names it answers."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import Server
from clones import Clone
from containers import TOKEN, Container, docker

from rocmlab.base import confidential

pytestmark = [pytest.mark.container, pytest.mark.labs]

METRICS_TOKEN = "m" * 64
GIVEN = {
    "METRICS_TOKEN": METRICS_TOKEN,
    "CLUSTER_TOKEN": "c" * 64,
    "RAY_AUTH_TOKEN": "r" * 64,
    "GRAFANA_PASSWORD": "g" * 64,
}
SECRETS = {"JUPYTER_TOKEN": TOKEN, **GIVEN}
CODE = "import os, subprocess; print(dict(os.environ)); print(subprocess.check_output('env', text=True))"
MODES = "cd /tmp/jupyter-runtime && stat -c '%n %a %u:%g' . jupyter-token metrics-token && cat jupyter-token"
EVIL = ("evil.example", "evil.example:8888", "127.0.0.1.evil.example", "localhost.", "0.0.0.0", "10.0.0.1:8888", "")


@pytest.fixture(scope="module")
def lab(image: str) -> Iterator[Container]:
    """A lab by `docker run -e`, which has its secrets in the engine's configuration."""
    options = [option for name, value in GIVEN.items() for option in ("--env", f"{name}={value}")]
    allowed = ["--env", "ALLOWED_HOSTS=lab.example.org,192.168.1.20", "--env", "HF_TOKEN=hf-of-the-user"]
    with Container(image, *options, *allowed, warm="on") as container:
        yield container.wait_for_server()


def leaks(text: str, secrets: dict[str, str]) -> list[str]:
    """Return which secrets are in a text, by name or by value."""
    return [name for name in confidential.NAMES if f"{name}'" in text or f"{name}=" in text] + [
        name for name, value in secrets.items() if value in text
    ]


def status(port: int, host: str, path: str, token: str = "") -> int:
    """Return the status of a request with this `Host` header."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as channel:
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        channel.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}Connection: close\r\n\r\n".encode())
        return int(channel.makefile("rb").readline().split()[1])


def test_no_process_for_users_is_given_a_secret(lab: Container) -> None:
    """A kernel, one of a fork server, the server itself, and `docker exec … start.sh`; HF_TOKEN stays."""
    cold = lab.execute("torch", CODE)
    warm = lab.execute("torch", CODE)
    inside = lab.as_lab_user("env")
    server = lab.as_lab_user("bash", "-c", "cat /proc/$(pgrep --oldest --full jupyter-lab)/environ | tr '\\0' '\\n'")
    processes = lab.as_lab_user("bash", "-c", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")

    for printed in (cold, warm, inside):
        assert "hf-of-the-user" in printed
        assert leaks(printed, SECRETS) == []
    for printed in (server, processes):
        assert "HF_TOKEN=hf-of-the-user" in printed
        assert [name for name, value in SECRETS.items() if value in printed] == []


def test_a_terminal_is_given_none(lab: Container) -> None:
    """A shell of JupyterLab is a child of the server."""
    name = json.loads(lab.request("/api/terminals", token=lab.token, method="POST")[1])["name"]
    shell = "for ((i = 0; i < 100; i++)); do for pid in $(pgrep -P $(pgrep -o -f jupyter-lab) -x bash); do "
    shell += "tr '\\0' '\\n' </proc/$pid/environ; exit; done; sleep 0.1; done"
    environment = lab.as_lab_user("bash", "-c", shell)  # root has no right to look, in here
    lab.request(f"/api/terminals/{name}", token=lab.token, method="DELETE")

    assert "HF_TOKEN=hf-of-the-user" in environment
    assert leaks(environment, SECRETS) == []


def test_a_job_writes_none_into_its_run(lab: Container) -> None:
    """Neither the notebook, nor the page, nor the log; and the run is not for every user of the machine."""
    notebook = {
        "cells": [
            {"cell_type": "code", "id": "a", "metadata": {}, "outputs": [], "execution_count": None, "source": CODE}
        ],
        "metadata": {"kernelspec": {"name": "torch", "display_name": "torch", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    lab.as_lab_user("tee", "/tmp/env.ipynb", text=json.dumps(notebook))

    lab.as_lab_user("rocmlab", "run", "/tmp/env.ipynb", "--name", "secrets")

    folder = lab.exec("bash", "-c", "echo /home/jovyan/share/runs/*-secrets").strip()
    text = lab.exec("bash", "-c", f"cat $(find {folder} -type f)")
    modes = lab.exec("find", folder, "-printf", "%M\n").splitlines()
    assert "hf-of-the-user" in text
    assert leaks(text, SECRETS) == []
    assert {mode.replace("s", "x") for mode in modes} == {
        "drwxr-x---",
        "-rw-r-----",
    }  # a volume's folders hand on groups


def test_the_tokens_are_files_of_the_lab_user(lab: Container) -> None:
    """In a folder that only it may enter; what the variables held is in no file but these."""
    printed = lab.exec("bash", "-c", MODES)

    assert printed.splitlines()[0] in (". 700 1000:100", ". 1700 1000:100")  # Jupyter makes it sticky
    assert printed.splitlines()[1:] == ["jupyter-token 400 1000:100", "metrics-token 400 1000:100", lab.token]


def test_only_names_of_the_lab_are_answered(lab: Container) -> None:
    """The loopback, what ALLOWED_HOSTS names, and nothing else, with and without the token."""
    port = int(lab.address.rpartition(":")[2])

    for host in ("localhost:8888", "127.0.0.1", "[::1]:1", "lab.example.org", "192.168.1.20:443"):
        assert status(port, host, "/api/status", lab.token) == 200
    for host in EVIL:
        for path in ("/api/status", "/lab", "/login", "/static/favicons/favicon.ico", "/rocmlab/", "/rocmlab/metrics"):
            assert status(port, host, path, lab.token) in (400, 403), (host, path)


def test_prometheus_in_the_network_of_compose_reads_metrics_alone(lab: Container) -> None:
    """It knows the lab as `lab:8888`, and its token is worth nothing anywhere else."""
    port = int(lab.address.rpartition(":")[2])

    assert status(port, "lab:8888", "/rocmlab/metrics", METRICS_TOKEN) == 200
    assert status(port, "lab:8888", "/rocmlab/metrics") == 403
    for path in ("/api/status", "/api/contents", "/api/kernels", "/api/terminals", "/rocmlab/api/devices", "/lab"):
        assert status(port, "lab:8888", path, METRICS_TOKEN) == 403
        assert status(port, "localhost", path, METRICS_TOKEN) in (302, 403)


def test_a_restart_keeps_the_token(image: str) -> None:
    """It is moved again from where the engine has it."""
    with Container(image) as container:
        container.wait_for_server()
        docker("restart", "--time", "0", container.id)
        container.wait_for_server()

        assert container.request("/api/status", token=TOKEN)[0] == 200
        assert container.request("/api/status", token=METRICS_TOKEN)[0] == 403


@pytest.mark.parametrize(
    ("options", "name", "text"),
    [
        (["--env", f"JUPYTER_TOKEN={TOKEN}"], "jupyter", TOKEN),
        (["--env", f"JUPYTER_TOKEN={TOKEN}", "--user", "1000:100"], "jupyter", TOKEN),
        (["--env", "JUPYTER_TOKEN_FILE=/run/mine", "--volume", "{file}:/run/mine:ro"], "jupyter", "of-a-file"),
        (["--volume", "{file}:/run/secrets/jupyter_token:ro"], "jupyter", "of-a-file"),
        (
            ["--env=CLUSTER=head", "--env=CLUSTER_ADDRESS=127.0.0.1", "--volume={file}:/run/secrets/cluster_token:ro"],
            "cluster",
            "of-a-file",
        ),
    ],
    ids=["variable", "without root", "file", "secret", "cluster"],
)
def test_a_token_can_be_given_in_each_way(image: str, tmp_path: Path, options: list[str], name: str, text: str) -> None:
    """As a variable, also where the container is not root's, or as a file that only root can read."""
    (tmp_path / "given").write_text("of-a-file\n")
    (tmp_path / "given").chmod(0o400)
    given = [option.format(file=tmp_path / "given") for option in options]

    printed = docker("run", "--rm", *given, image, "bash", "-c", f"cat $JUPYTER_RUNTIME_DIR/{name}-token; echo; env")

    assert printed.splitlines()[0] == text
    assert text not in printed.partition("\n")[2]


@pytest.fixture(scope="module")
def composed(docker_lab: Clone) -> Clone:
    """The clone whose lab Compose runs."""
    docker_lab.make("up")
    return docker_lab


def container(lab: Clone) -> str:
    """Return the id of a clone's container."""
    command = ["docker", "compose", "ps", "--quiet", "lab"]
    return subprocess.run(
        command, cwd=lab.folder, env=lab.environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_engine_does_not_show_them(composed: Clone) -> None:
    """Under Compose: not in `docker inspect`, not by a bare `docker exec`, and 0400 inside."""
    identity, env = container(composed), composed.env
    secrets = {name: env[name] for name in ("JUPYTER_TOKEN", "METRICS_TOKEN")}

    assert len(set(secrets.values())) == 2
    for printed in (docker("inspect", identity), docker("exec", identity, "env"), docker("logs", identity)):
        assert [name for name, value in secrets.items() if value in printed] == []
    for name in ("jupyter_token", "metrics_token"):
        mode, owner = docker("exec", identity, "stat", "-c", "%a %u", f"/run/secrets/{name}").split()
        assert mode == "400"
        assert owner in ("0", env["NB_UID"])  # Docker asks for the image's user, whatever Compose says
    printed = Server(f"127.0.0.1:{composed.port}", secrets["JUPYTER_TOKEN"]).execute("torch", CODE)
    assert leaks(printed, secrets) == []


def test_another_token_is_taken_over(composed: Clone) -> None:
    """`.env` without the token of metrics, as an earlier version left it, gets one; a new one reaches the server."""
    before, first = composed.env, container(composed)
    path = composed.folder / ".env"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("METRICS_TOKEN")))

    composed.make("up")

    after = composed.env
    assert len(bytes.fromhex(after["METRICS_TOKEN"])) == 32
    assert after["METRICS_TOKEN"] != before["METRICS_TOKEN"]
    assert after["JUPYTER_TOKEN"] == before["JUPYTER_TOKEN"]
    assert container(composed) != first
    assert status(composed.port, "localhost", "/rocmlab/metrics", after["METRICS_TOKEN"]) == 200
    assert status(composed.port, "localhost", "/rocmlab/metrics", before["METRICS_TOKEN"]) == 403
