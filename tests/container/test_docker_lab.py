"""A clean clone on a machine with a Docker engine: `make up`, `make run-notebooks` and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import clients
import pytest
from clones import REPOSITORY, Clone, clone, free_port, printed_url
from containers import docker, watched_container
from intruders import intruder

from rocmlab.base import identity
from rocmlab.stack import server, tls

pytestmark = [pytest.mark.container, pytest.mark.labs]
# By venv, with the ipykernel of the lab's own PyTorch.
ENVIRONMENT = """
/opt/torch/bin/python -m venv --without-pip "$1"
/opt/torch/bin/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
  >"$(echo "$1"/lib/python3*/site-packages)/base.pth"
"""
# Ranks that add up for some seconds, in which all that they open is seen.
TWO_RANKS = """
import tempfile, time
from pathlib import Path
from rocmlab.training import launch
program = '''
import os, time, torch
import torch.distributed as dist
dist.init_process_group(os.environ["ROCMLAB_COLLECTIVES"])
for _ in range(30):
    value = torch.ones(8)
    dist.all_reduce(value)
    time.sleep(0.1)
print("sum", int(value[0]))
dist.destroy_process_group()
'''
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "add.py").write_text(program)
    launch.run(Path(folder, "add.py"), processes=2)
"""
NOTEBOOKS = [path.stem for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb"))]
SKIPPED = {
    "09_opencl_kernels": "PoCL's wheel cannot link a kernel for this CPU",
    "16_triton_kernel": "triton is not installed in this kernel",
}


@pytest.fixture(scope="module")
def lab(docker_lab: Clone) -> Clone:
    """The clone whose lab runs in a container."""
    return docker_lab


@pytest.fixture(scope="module")
def first_up(lab: Clone) -> str:
    """What the first `make up` prints."""
    return lab.make("up").stdout


def container(lab: Clone) -> str:
    """Return the id of the running container, found by plain `docker compose` in the folder."""
    return compose(lab, "ps", "--quiet", "lab").stdout.strip()


def only_job(lab: Clone, printed: str) -> dict:
    """Return the result of a run of one notebook, whose folder `make run-notebooks` has printed."""
    run = printed.rsplit("share/runs/", 1)[1].split()[0]
    (job,) = json.loads(docker("exec", container(lab), "cat", f"/home/jovyan/share/runs/{run}/results.json"))["jobs"]
    return job


def compose(lab: Clone, *words: str) -> subprocess.CompletedProcess[str]:
    """Run plain `docker compose` as a user would who knows nothing of rocmlab."""
    return subprocess.run(
        ["docker", "compose", *words], cwd=lab.folder, env=lab.environment, capture_output=True, text=True, check=False
    )


def rocmlab(lab: Clone, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours on the host, as a user in the clone does."""
    command = [str(lab.folder / "scripts/rocmlab"), *words]
    return subprocess.run(command, cwd=lab.folder, env=lab.environment, capture_output=True, text=True, check=False)


class TestUp:
    """The good road."""

    def test_it_ends_with_a_url_that_answers(self, lab: Clone, first_up: str) -> None:
        """Docker alone: the CPU in a container; the line says why, the URL works, the token is needed."""
        url = printed_url(first_up)

        assert "backend cpu, runtime docker (no GPU found, Docker engine" in first_up
        assert "devices   CPU" in first_up
        assert f"Docker volume {lab.env['COMPOSE_PROJECT_NAME']}_share" in first_up
        with server.OPENER.open(url, timeout=60) as answer:
            assert answer.status == 200
        assert clients.ask(lab.port, "wrong", "/api/status")[0] == 403

    def test_env_is_private_and_complete_for_plain_compose(self, lab: Clone, first_up: str) -> None:
        """Mode 0600, a 256-bit token, and `docker compose ps` finds the lab."""
        assert (lab.folder / ".env").stat().st_mode & 0o777 == 0o600
        assert len(bytes.fromhex(lab.env["JUPYTER_TOKEN"])) == 32
        assert container(lab)

    def test_a_second_make_up_changes_nothing(self, lab: Clone, first_up: str) -> None:
        """The same container, not restarted, nothing built."""
        before = docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", container(lab))

        second = lab.make("up").stdout

        assert before == docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", container(lab))
        assert "building" not in second
        assert printed_url(second) == printed_url(first_up)

    @pytest.mark.skipif(os.geteuid() != 0, reason="ends a process of the Docker engine, which is root's: run .ci/run")
    def test_what_was_saved_survives_a_crash_of_the_engine(self, lab: Clone, first_up: str) -> None:
        """The engine's process of the container is killed: after the next `make up` every saved byte is there."""
        token, saved = lab.env["JUPYTER_TOKEN"], {}
        for folder in ("work", "share", "share/runs", "share/home"):
            path, text = f"{folder}/before the crash.txt", f"in {folder} " * 1000
            body = {"type": "file", "format": "text", "content": text}
            status, _ = clients.ask(lab.port, token, f"/api/contents/{quote(path)}", method="PUT", body=body)
            if status in {200, 201}:  # 200 where a try before this one left it
                saved[path] = text
        first = identity.find(int(docker("inspect", "--format", "{{.State.Pid}}", container(lab))))
        assert first is not None
        (shim,) = re.findall(r"^PPid:\s+(\d+)", Path(f"/proc/{first.pid}/status").read_text(), re.MULTILINE)

        os.kill(int(shim), signal.SIGKILL)
        # Not `docker wait`: the engine starts the container again, often before that command waits for its end.
        assert identity.wait_gone([first], 120)
        lab.make("up")

        assert {"work/before the crash.txt", "share/before the crash.txt"} <= set(saved)
        for path, text in saved.items():
            found = clients.ask(lab.port, lab.env["JUPYTER_TOKEN"], f"/api/contents/{quote(path)}")
            assert (found[0], found[1]["content"]) == (200, text)
            docker("exec", container(lab), "rm", f"/home/jovyan/{path}")

    @pytest.mark.long
    def test_another_port_is_taken_over(self, lab: Clone, first_up: str) -> None:
        """`make up PORT=…` moves the running lab, and the choice is remembered."""
        port = free_port()
        lab.settings["PORT"] = str(port)

        lab.make("up")

        assert lab.port == port
        assert lab.answers()

    @pytest.mark.long
    def test_a_path_is_taken_over(self, lab: Clone, first_up: str) -> None:
        """`make up LAB_BASE_URL=…` moves it below a path, where all commands find it, and the default moves it back.

        So does BIND, which adds TLS at an address of this host; its certificate is proved to be the lab's.
        """
        bound = {"BIND": "127.0.0.2", "TLS_PORT": str(free_port())}
        moved = lab.make("up", LAB_BASE_URL="/gpu1/", **bound).stdout
        token = lab.env["JUPYTER_TOKEN"]

        assert f"https://127.0.0.2:{bound['TLS_PORT']}/gpu1/lab?token={token}\n" in moved
        proof = re.search("certificate SHA-256 ([0-9A-F:]{95})\n", moved)
        assert proof
        served = ssl.get_server_certificate(("127.0.0.2", int(bound["TLS_PORT"])))
        assert tls.fingerprint(served) == proof[1]
        assert [path.stat().st_mode & 0o777 for path in lab.folder.glob(".rocmlab/tls/*")] == [0o600]
        assert f"http://127.0.0.1:{lab.port}/gpu1/lab?token={token}" in moved
        assert clients.ask(lab.port, token, "/gpu1/rocmlab/api/devices")[0] == 200
        assert clients.ask(lab.port, token, "/rocmlab/api/devices")[0] == 404
        assert "lab        answers" in lab.make("status").stdout

        lab.make("up", LAB_BASE_URL="", BIND="")

        assert lab.answers()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.2", int(bound["TLS_PORT"]))) != 0

    def test_another_user_on_the_port_gets_no_token(self, lab: Clone, first_up: str, tmp_path: Path) -> None:
        """No command sends it one while the lab is down, and the next `up`, elsewhere, has a new one and says it."""
        token, home = lab.env["JUPYTER_TOKEN"], lab.settings["PORT"]
        lab.make("down")
        with intruder(lab.port, tmp_path) as other:
            for target in ("status", "url", "smi", "doctor", "down", "up"):
                lab.make(target, succeeds=False)

            moved = lab.make("up", PORT=str(free_port())).stdout

            assert token not in other.received
            assert "Authorization" not in other.received
        assert "JUPYTER_TOKEN is new: another process held the lab's port" in moved
        assert lab.env["JUPYTER_TOKEN"] != token
        assert lab.answers()
        lab.settings["PORT"] = home
        assert "is new" not in lab.make("up").stdout

    def test_run_notebooks_computes_in_the_container(self, lab: Clone, first_up: str) -> None:
        """The run folder is on the share. Tests of the browser train in a container."""
        done = lab.make("run-notebooks", NOTEBOOKS="00_hello_gpu")

        job = only_job(lab, done.stdout)
        assert job["status"] == "ok"
        assert job["recorded"]["acceptance"]["ok"]

    @pytest.mark.long
    @pytest.mark.parametrize("name", NOTEBOOKS)
    def test_each_notebook_computes_in_the_container(self, lab: Clone, first_up: str, name: str) -> None:
        """In its quick form, with neither a GPU nor a compiler: it ends well, or says what it lacks."""
        done = lab.make("run-notebooks", NOTEBOOKS=name, PARAMS="quick=true", succeeds=False)

        assert done.returncode == 0, done.stdout[-3000:]
        job = only_job(lab, done.stdout)
        assert job["recorded"].get("skipped", "").split(";")[0] == SKIPPED.get(name, ""), job["recorded"]
        assert job["status"] == ("skipped" if name in SKIPPED else "ok")
        assert name in SKIPPED or job["recorded"]["acceptance"]["ok"]

    def test_a_single_run_goes_by_what_its_command_says(self, lab: Clone, first_up: str) -> None:
        """In the running container as well; the lab's own settings stay."""
        refused = lab.make("run-notebooks", NOTEBOOKS="00_hello_gpu", MIN_FREE_DISK_GB="1e9", succeeds=False)

        live = json.loads((lab.folder / ".rocmlab/live/settings.json").read_text())
        assert "the run does not start" in refused.stdout
        assert live["MIN_FREE_DISK_GB"] == "5"

    def test_training_on_several_devices_opens_no_port(self, lab: Clone, first_up: str) -> None:
        """PyTorch's own launcher: all that listens in the container outside its loopback is JupyterLab.

        Ray is watched in the containers of a cluster, and all notebooks in the native lab.
        """
        server = clients.Server(f"127.0.0.1:{lab.port}", lab.env["JUPYTER_TOKEN"])
        with watched_container(container(lab)) as found:
            printed = server.execute("torch", TWO_RANKS)

        assert printed.count("sum 2") == 2, printed
        assert [str(one) for one in found if (one.protocol[:3], one.port) != ("tcp", 8888)] == []

    def test_a_signal_reaches_the_run_inside(self, lab: Clone, first_up: str) -> None:
        """Without a terminal `docker exec` passes nothing on, so we do: the run ends, saves, and leaves no kernel."""
        environment = {**lab.environment, "PYTHONPATH": str(lab.folder / "src")}
        command = [sys.executable, "-m", "rocmlab", "run", "01_mnist_fc"]
        run = subprocess.Popen(
            command, cwd=lab.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        kernels = ["docker", "exec", container(lab), "pgrep", "-f", "ipykernel_launcher"]
        deadline = time.monotonic() + 60
        while subprocess.run(kernels, capture_output=True, check=False).returncode and time.monotonic() < deadline:
            time.sleep(0.2)

        run.terminate()
        printed, _ = run.communicate(timeout=60)

        assert run.returncode == 1, printed
        assert "interrupted" in printed
        assert subprocess.run(kernels, capture_output=True, check=False).returncode == 1

    @pytest.mark.long
    def test_run_notebooks_works_while_the_lab_is_down(self, lab: Clone, first_up: str) -> None:
        """A container of its own runs them, and is gone afterwards; the data fetched before is found."""
        lab.make("down")

        lab.make("run-notebooks", NOTEBOOKS="00_hello_gpu")

        assert not lab.answers()
        assert not compose(lab, "ps", "--all", "--quiet").stdout.strip()
        lab.make("up")


class TestEnvironments:
    """`kernels add` on the host, for a lab that has files of its own."""

    @pytest.mark.long
    def test_one_in_the_notebooks_or_the_share_becomes_a_kernel(self, lab: Clone, first_up: str) -> None:
        """Named as the host or as the container has it; code runs in it, and `remove` takes it from the launcher."""
        places = {"of-work": "/home/jovyan/work/env", "of-share": "/home/jovyan/share/env"}
        for folder in places.values():
            docker("exec", container(lab), "start.sh", "bash", "-c", ENVIRONMENT, "bash", folder)
        try:
            for name, path in (("of-work", "notebooks/env"), ("of-share", "/home/jovyan/share/env")):
                added = rocmlab(lab, "kernels", "add", path, "--name", name)
                assert added.returncode == 0, added.stderr
                assert f"kernel {name}: {places[name]}/bin/python (venv)" in added.stdout
            server = clients.Server(f"127.0.0.1:{lab.port}", lab.env["JUPYTER_TOKEN"])
            offered = clients.ask(lab.port, lab.env["JUPYTER_TOKEN"], "/api/kernelspecs")[1]["kernelspecs"]
            assert set(places) <= set(offered)
            assert server.execute("of-share", "import sys; print(sys.prefix)") == f"{places['of-share']}\n"
        finally:
            for name, folder in places.items():
                rocmlab(lab, "kernels", "remove", name)
                docker("exec", container(lab), "rm", "-r", folder)
        rows = json.loads(rocmlab(lab, "kernels", "list", "--json").stdout)["kernels"]
        assert {row["name"] for row in rows} == {"tensorflow", "torch"}

    def test_one_of_the_host_is_an_error(self, lab: Clone, first_up: str, tmp_path: Path) -> None:
        """Elsewhere the lab does not see it; among the notebooks its interpreter is not in the container."""
        (tmp_path / "python").symlink_to(sys.executable)
        made = lab.folder / "notebooks/of-the-host/bin"
        made.mkdir(parents=True)
        (made / "python").symlink_to(tmp_path / "python")
        try:
            elsewhere = rocmlab(lab, "kernels", "add", str(tmp_path))
            missing = rocmlab(lab, "kernels", "add", "notebooks/of-the-host")
        finally:
            shutil.rmtree(made.parent)

        assert (elsewhere.returncode, missing.returncode) == (2, 2)
        assert f"{tmp_path} cannot be seen by the lab" in elsewhere.stderr
        assert "is missing here" in missing.stderr
        assert "in a terminal of JupyterLab" in missing.stderr


class TestProblems:
    """What goes wrong is a sentence with a remedy, and leaves nothing half-started."""

    def test_a_taken_port(self, lab: Clone, first_up: str) -> None:
        """Another program's port: exit code 2, a free port in the fix, and the lab continues as it was."""
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]

            done = lab.make("up", PORT=str(port), succeeds=False)

        assert lab.answers()
        assert printed_url(lab.make("url", PORT="").stdout)
        assert f"error: port {port} is already in use" in done.stdout
        assert "fix: make up PORT=" in done.stdout
        assert "Error 2" in done.stdout

    def test_no_registry_goes_native_only_where_nobody_insisted(self, lab: Clone, first_up: str) -> None:
        """RUNTIME=docker with a base image that no registry gives is an error that says what to name instead."""
        done = lab.make("build", RUNTIME="docker", BASE_IMAGE="registry.invalid/none:1", succeeds=False)

        assert "error: could not pull the base image registry.invalid/none:1" in done.stdout
        assert "BASE_IMAGE=" in done.stdout
        lab.make("up", RUNTIME="auto")

    @pytest.mark.long
    def test_a_failed_build_says_which_check_failed(self, lab: Clone, base_image: str, first_up: str) -> None:
        """A base that cannot carry the lab ends in the failing step's own words; no container is left of it."""
        subprocess.run(
            ["docker", "build", "--quiet", "--tag", "rocmlab-test/broken:1", "-"],
            input=f"FROM {base_image}\nRUN rm -f /usr/bin/python3*\n",
            text=True,
            check=True,
            capture_output=True,
        )
        name = f"rocmlab-test-broken-{os.getpid()}"
        try:
            done = lab.make("up", BASE_IMAGE="rocmlab-test/broken:1", COMPOSE_PROJECT_NAME=name, succeeds=False)
        finally:
            docker("image", "rm", "--force", "rocmlab-test/broken:1")

        assert "failed" in done.stdout
        assert "build.log" in done.stdout
        assert not docker("ps", "--all", "--quiet", "--filter", f"label=com.docker.compose.project={name}").strip()
        lab.make("up")

    def test_a_copied_clone_does_not_take_over_the_lab(
        self, lab: Clone, first_up: str, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """`cp -r` copies `.env` with the project's name: the copy is told to take another, and the lab continues."""
        copy = tmp_path_factory.mktemp("copy") / "rocmlab"
        shutil.copytree(lab.folder, copy, symlinks=True)
        before = container(lab)

        done = Clone(copy, lab.settings, lab.environment).make("up", succeeds=False)

        assert f"belongs to the clone {lab.folder}" in done.stdout
        assert "fix: make up COMPOSE_PROJECT_NAME=" in done.stdout
        assert container(lab) == before

    def test_a_gpu_that_is_not_there(self, lab: Clone, first_up: str) -> None:
        """BASE for ROCm asked for on a host without AMD GPU: an error, never a silent CPU."""
        done = lab.make("up", BACKEND="rocm", succeeds=False)

        assert "error: BACKEND=rocm was requested" in done.stdout

    def test_without_env_compose_says_what_to_do(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        """A newcomer who types `docker compose up` first is told to type `make up`."""
        fresh = clone(tmp_path_factory.mktemp("fresh") / "rocmlab")

        done = compose(fresh, "config")

        assert done.returncode != 0
        assert "make up" in done.stderr


class TestShare:
    """What outlives the lab."""

    def test_it_survives_down_and_clean(self, lab: Clone, first_up: str) -> None:
        """`make down`, `make clean` and a new `make up` keep what was saved; only `down -v` would not."""
        docker("exec", container(lab), "start.sh", "bash", "-c", "echo kept > /home/jovyan/share/models/note")

        lab.make("down")
        lab.make("clean")
        lab.make("up")

        assert docker("exec", container(lab), "cat", "/home/jovyan/share/models/note").strip() == "kept"

    def test_a_container_with_files_of_its_own_is_not_removed(self, lab: Clone, first_up: str) -> None:
        """Its home is not on the share, as in a development version: `make up` and `make down` name the way out."""
        lab.make("up")
        earlier = f"FROM {lab.env['ROCMLAB_IMAGE']}\nENV ROCMLAB_HOME=../jovyan\nRUN chown jovyan /home/jovyan\n"
        subprocess.run(
            ["docker", "build", "--tag", "rocmlab-test/earlier:1", "-"], input=earlier, text=True, check=True
        )
        try:
            environment = {**lab.environment, "ROCMLAB_IMAGE": "rocmlab-test/earlier:1"}
            command = ["docker", "compose", "up", "--detach", "--no-build", "--wait", "lab"]
            subprocess.run(command, cwd=lab.folder, env=environment, check=True, capture_output=True)
            earlier = container(lab)

            for target in ("up", "down"):
                failed = lab.make(target, FORCE="1", succeeds=False)
                assert failed.returncode != 0
                assert f"docker cp {earlier[:12]}:/home/jovyan" in failed.stdout
            assert container(lab) == earlier
        finally:
            docker("rm", "--force", container(lab))
            docker("image", "rm", "--force", "rocmlab-test/earlier:1")
        lab.make("up")
