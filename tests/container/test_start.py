"""How the lab starts: who it runs as, what it may do, what it says, and who may talk to it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from containers import Container, docker, own

pytestmark = pytest.mark.container
DOCKER_DEFAULT_CAPABILITIES = 0xA80425FB
IMPORTED = """
import json, subprocess, sys
program, *arguments = json.loads(sys.argv[1])
check = subprocess.run([program, "-X", "importtime", *arguments], stderr=subprocess.PIPE, text=True)
assert check.returncode == 0, check.stderr
print(*(line.rpartition("|")[2].strip() for line in check.stderr.splitlines()[1:]))
"""


def test_token_is_required(lab: Container) -> None:
    """Only /api, which says nothing but a version, answers without a token."""
    assert lab.request("/api", token=None)[0] == 200
    assert lab.request("/api/status", token=None)[0] == 403
    assert lab.request("/api/status", token="another")[0] == 403
    assert lab.request("/api/status", token=lab.token)[0] == 200


def test_empty_token_is_refused(image: str) -> None:
    """Without a token the lab does not start, and says what to do."""
    with Container(image, token="") as container:
        assert container.wait() == 2
        assert "JUPYTER_TOKEN is empty" in container.logs()
        assert "make up" in container.logs()


def test_server_and_kernel_have_no_privileges(lab: Container) -> None:
    """Both run as uid 1000 in no group but users, and hold no capability, nor could they gain one."""
    server = lab.server_status()
    printed = lab.execute("torch", "print(open('/proc/self/status').read())")
    kernel = dict(line.split(":\t", 1) for line in printed.splitlines() if line)

    for status in (server, kernel):
        assert set(status["Uid"].split()) == {"1000"}
        assert status["Groups"].split() == ["100"]
        assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == int(status["CapInh"], 16) == 0
        assert int(status["CapBnd"], 16) & ~DOCKER_DEFAULT_CAPABILITIES == 0
        assert status["NoNewPrivs"].strip() == "1"


def test_log_of_a_session_has_no_warning(image: str) -> None:
    """Start, one kernel of each kind, stop: the log holds no line of level warning or error."""
    with Container(image, warm="on") as container:
        container.wait_for_server()
        assert "42" in container.execute("tensorflow", "print(6 * 7)")
        assert "42" in container.execute("torch", "print(6 * 7)")
        container.wait_for_health()
        docker("stop", container.id)
        log = container.logs()

    assert "Jupyter Server" in log
    assert not re.findall(r"^.*(?:WARN|ERROR|Traceback|\[[WE] ).*$", log, flags=re.MULTILINE)


def test_health_check_turns_healthy_fast_and_costs_little(image: str) -> None:
    """Healthy long before the usual interval; a check imports neither packages nor what Python adds at each start."""
    with Container(image) as container:
        assert container.wait_for_health() == "healthy"
        check = json.loads(container.inspect("{{json .Config.Healthcheck.Test}}"))[1:]
        imported = set(container.exec("python3", "-c", IMPORTED, json.dumps(check)).split())

    assert "http.client" in imported
    assert not imported & {"site", "asyncio", "jupyter_core", "jupyter_server", "rocmlab", "tornado"}


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        (["--env", "NOTEBOOK_ARGS=--ServerApp.base_url=/deep/down/ --ServerApp.port=9999"], []),
        (["--env", "HTTP_PROXY=http://192.0.2.1:9", "--env", "http_proxy=http://192.0.2.1:9"], []),
        (
            [],
            [
                "bash",
                "-c",
                "cd && openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=lab -keyout key.pem -out lab.pem 2>/dev/null"
                " && exec start-notebook.sh --ServerApp.certfile=lab.pem --ServerApp.keyfile=key.pem",
            ],
        ),
    ],
    ids=["base_url and port", "proxy", "TLS"],
)
def test_health_check_finds_the_server_wherever_it_listens(image: str, settings: list[str], command: list[str]) -> None:
    """Port, base URL and TLS are the server's own, and proxies are not asked."""
    with Container(image, *settings, command=command) as container:
        assert container.wait_for_health() == "healthy", container.logs()


def test_everything_is_below_the_path_that_the_setting_names(image: str) -> None:
    """The health check follows, the panel as well, and nothing is left at the root."""
    with Container(image, "--env", "LAB_BASE_URL=/deep/down") as container:
        assert container.wait_for_health() == "healthy", container.logs()
        answers = [
            container.request(f"{path}{page}", token=container.token)[0]
            for path in ("/deep/down", "")
            for page in ("/api/status", "/rocmlab/api/devices")
        ]

    assert answers == [200, 200, 404, 404]


def test_health_check_fails_without_a_server(image: str) -> None:
    """A lab whose server is gone is unhealthy, with a reason."""
    often = ["--health-retries=1", "--health-start-period=1ms", "--health-interval=1s"]
    with Container(image, *often, command=["sleep", "60"]) as container:
        assert container.wait_for_health() == "unhealthy"
        assert "no server has written its address" in container.inspect("{{json .State.Health.Log}}")


def test_other_user_ids_are_honoured(image: str, tmp_path: Path) -> None:
    """NB_UID and NB_GID change who the lab is; it can write its home, the share and that user's notebooks."""
    own(image, tmp_path, 4321, 61500)
    code = """
import os, pathlib, getpass
print(os.getuid(), os.getgid(), sorted(os.getgroups()), getpass.getuser(), pathlib.Path.home())
for folder in ("~", "~/share", "~/share/runs", "~/work"):
    path = pathlib.Path(folder).expanduser() / "probe"
    path.write_text("x"); path.unlink()
"""
    mount = f"--volume={tmp_path}:/home/jovyan/work"
    with Container(image, mount, "--env=NB_UID=4321", "--env=NB_GID=61500") as container:
        container.wait_for_server()
        printed = container.execute("torch", code)
    own(image, tmp_path, os.getuid(), os.getgid())

    assert printed == "4321 61500 [100] jovyan /home/jovyan/share/home\n"


@pytest.mark.parametrize("value", ["0", "-1", "jovyan"])
def test_impossible_user_id_is_refused(image: str, value: str) -> None:
    """The lab never runs as root, and reports it."""
    with Container(image, "--env", f"NB_UID={value}") as container:
        assert container.wait() == 2
        assert f"NB_UID={value}" in container.logs()


def test_hooks_run_before_and_after_the_switch(image: str, tmp_path: Path) -> None:
    """A sourced hook changes the environment, an executable runs, and a failing one is reported and does no harm."""
    before = 'export FROM_HOOK="root:$(id -u)"'
    hooks = {
        "start-notebook.d/10-first.sh": before,
        "start-notebook.d/20-failing.sh": "false",
        "before-notebook.d/10-program": '#!/bin/sh\necho "program:$(id -u)"',
        "before-notebook.d/20-failing": "#!/bin/sh\nexit 7",
        "before-notebook.d/30-last.sh": 'export FROM_HOOK="$FROM_HOOK lab:$(id -u)"',
    }
    for name, text in hooks.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
        path.chmod(0o755)
    tmp_path.chmod(0o755)
    folders = ("start-notebook.d", "before-notebook.d")
    mounts = [f"--volume={tmp_path}/{name}:/usr/local/bin/{name}:ro" for name in folders]
    with Container(image, *mounts) as container:
        container.wait_for_server()
        seen = container.execute("torch", "import os; print(os.environ['FROM_HOOK'])")
        container.as_lab_user("true")
        log = container.logs()

    assert seen == "root:0 lab:1000\n"
    assert log.count("program:1000") == 1
    assert "20-failing.sh failed with exit code 1" in log
    assert "20-failing failed with exit code 7" in log


def test_exec_is_quiet(lab: Container) -> None:
    """`docker exec … start.sh COMMAND` prints what the command prints, as the lab user, and nothing else."""
    printed = lab.as_lab_user("bash", "-c", "id -un; id -G; echo $HOME $ROCMLAB_RUNTIME $MIOPEN_USER_DB_PATH")

    share = "/home/jovyan/share"
    assert printed.split() == ["jovyan", "100", f"{share}/home", "docker", f"{share}/cache/cpu-any/miopen"]
    assert "start.sh" not in lab.logs()


def test_killed_lab_starts_again(image: str) -> None:
    """What a killed server left behind does not mislead the health check of its next start."""
    with Container(image) as container:
        container.wait_for_server()
        docker("kill", container.id)
        docker("start", container.id)
        container.wait_for_server()

        records = container.exec("bash", "-c", "ls /tmp/jupyter-runtime/jpserver-*.json").split()

    assert len(records) == 1
