"""The Compose files: valid for every backend, careful by default, and helpful when `.env` is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from containers import docker
from hosts import device

from rocmlab.devices import Device
from rocmlab.stack import gpus
from rocmlab.stack.docker import without_secrets

pytestmark = pytest.mark.container
BACKENDS = ("rocm", "cuda", "cpu")


def service(project) -> dict:
    """Return the service as Compose understands it."""
    done = project.compose("config", "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["services"]["lab"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_configuration_is_valid_and_careful(make_project, backend: str) -> None:
    """Every backend: the loopback only, a token, not privileged, no host network, no docker socket, no fixed name."""
    lab = service(make_project(backend))

    assert [port["host_ip"] for port in lab["ports"]] == ["127.0.0.1"]
    tokens = [secret for secret in lab["secrets"] if secret["source"].endswith("_token")]
    assert [secret["source"] for secret in tokens] == ["jupyter_token", "metrics_token"]
    assert {(secret["uid"], secret["gid"], secret["mode"]) for secret in tokens} == {("1000", "100", "0400")}
    assert "a-token-of-the-tests" not in json.dumps(lab)
    assert not {"privileged", "network_mode", "container_name", "cap_add", "ipc"} & set(lab)
    assert not any("docker.sock" in volume["source"] for volume in lab["volumes"])
    assert {volume["target"]: volume["type"] for volume in lab["volumes"]} == {
        "/home/jovyan/share": "volume",
        "/home/jovyan/work": "bind",
        "/run/rocmlab/live": "bind",
    }
    assert lab["build"]["args"]["BACKEND"] == backend
    assert lab["restart"] == "unless-stopped"


def test_the_engine_takes_a_dockerfile_without_secrets(image: str, make_project, base_image: str) -> None:
    """The one that `make up` makes where there is none is a Dockerfile; its first stage comes from the cache."""
    project = make_project("cpu", BASE_IMAGE=base_image)
    assert service(project)["build"]["dockerfile"] == "docker/Dockerfile"
    file = project.folder / ".rocmlab/Dockerfile"
    file.parent.mkdir()
    file.write_text(without_secrets((project.folder / "docker/Dockerfile").read_text()))
    project.environment["ROCMLAB_DOCKERFILE"] = str(file)

    docker("build", "--target=base", f"--build-arg=BASE_IMAGE={base_image}", f"--file={file}", str(project.folder))

    assert service(project)["build"]["dockerfile"] == str(file)


def test_tls_is_published_at_the_chosen_address_alone(make_project) -> None:
    """Next to the loopback's port, which stays as it is; the key comes by a folder that the lab only reads."""
    files = f"compose.yaml:docker/compose.cpu.yaml:{gpus.TLS_OVERLAY}"
    lab = service(make_project("cpu", COMPOSE_FILE=files, BIND="::1", TLS_PORT="9443", ROCMLAB_BIND_HOSTS="::1,gpu1"))

    assert [(port["host_ip"], port["target"]) for port in lab["ports"]] == [("127.0.0.1", 8888), ("::1", 8443)]
    assert lab["ports"][1]["published"] == "9443"
    assert {name: lab["environment"][name] for name in ("BIND", "ROCMLAB_BIND_HOSTS")} == {
        "BIND": "::1",
        "ROCMLAB_BIND_HOSTS": "::1,gpu1",
    }
    folder = next(volume for volume in lab["volumes"] if volume["target"] == "/run/rocmlab/tls")
    assert (folder["type"], folder["read_only"]) == ("bind", True)
    assert [port["host_ip"] for port in service(make_project("cpu", COMPOSE_FILE=files))["ports"]] == ["127.0.0.1"] * 2


def test_only_rocm_passes_amd_nodes(make_project) -> None:
    """ROCm gets the nodes and numeric groups, CUDA a reservation, the CPU neither."""
    rocm, cuda, cpu = (service(make_project(backend)) for backend in BACKENDS)

    assert [device["source"] for device in rocm["devices"]] == ["/dev/kfd", "/dev/dri"]
    assert rocm["group_add"] == ["61104", "61044"]
    for lab in (cuda, cpu):
        assert not lab.get("devices")
        assert not lab.get("group_add")
    assert cuda["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"
    assert "deploy" not in cpu


def test_gpu_settings_are_passed_only_when_set(make_project) -> None:
    """An override for one GPU reaches the lab; unset, it does not exist there (an empty one would hide GPUs)."""
    plain = make_project("rocm")
    set_ = make_project("rocm", HSA_OVERRIDE_GFX_VERSION="10.3.0", HIP_VISIBLE_DEVICES="0,1")

    assert not {name for name, value in service(plain)["environment"].items() if value == ""}
    assert service(set_)["environment"]["HSA_OVERRIDE_GFX_VERSION"] == "10.3.0"
    assert service(set_)["environment"]["HIP_VISIBLE_DEVICES"] == "0,1"


def test_processes_memory_and_logs_have_limits(make_project) -> None:
    """As many processes and as much log by default; memory where it is requested, and then without more swap."""
    plain = service(make_project("cpu"))
    chosen = service(make_project("cpu", PIDS_LIMIT="300", MEMORY_LIMIT="2gb", LOG_MAX_SIZE="1m"))
    empty = service(make_project("cpu", MEMORY_LIMIT=""))

    assert plain["pids_limit"] == 8192
    assert plain["logging"] == {"driver": "json-file", "options": {"max-file": "3", "max-size": "10m"}}
    assert chosen["pids_limit"] == 300
    assert int(chosen["mem_limit"]) == int(chosen["memswap_limit"]) == 2 << 30
    assert chosen["logging"]["options"]["max-size"] == "1m"
    assert int(empty.get("mem_limit", 0)) == 0


def test_share_can_be_a_folder(make_project) -> None:
    """SHARE with a slash is a folder of the host."""
    lab = service(make_project("cpu", SHARE="./share"))

    share = next(volume for volume in lab["volumes"] if volume["target"] == "/home/jovyan/share")
    assert share["type"] == "bind"


@pytest.mark.parametrize("overlay", ["", "docker/compose.cuda.yaml", "docker/compose.cpu.yaml"])
def test_missing_env_is_explained(make_project, overlay: str) -> None:
    """Plain `docker compose` before the first `make up` fails with the sentence that helps."""
    project = make_project("rocm")
    (project.folder / ".env").unlink()
    files = ["-f", "compose.yaml", *(["-f", overlay] if overlay else [])]

    done = project.compose(*files, "config")

    assert done.returncode != 0
    assert "run `make up` first" in done.stderr


def test_share_survives_down_and_up(make_project, image: str) -> None:
    """`docker compose down` keeps the share, `down -v` is what removes it."""
    project = make_project("cpu", ROCMLAB_IMAGE=image)
    probe = "/home/jovyan/share/runs/probe"
    try:
        assert project.compose("up", "--detach", "--wait").returncode == 0
        project.compose("exec", "-T", "lab", "start.sh", "bash", "-c", f"echo kept > {probe}")
        assert project.compose("down").returncode == 0
        assert project.compose("up", "--detach", "--wait").returncode == 0
        kept = project.compose("exec", "-T", "lab", "start.sh", "cat", probe).stdout
        logs = project.compose("logs", "--no-log-prefix", "lab").stdout
        project.compose("down")
        volumes_after_down = docker("volume", "ls", "--quiet", "--filter", f"name={project.name}").split()
    finally:
        project.compose("down", "--volumes")

    assert kept == "kept\n"
    assert "WARNING" not in logs
    assert volumes_after_down == [f"{project.name}_share"]
    assert docker("volume", "ls", "--quiet", "--filter", f"name={project.name}") == ""


def test_secrets_are_lent_and_not_kept(make_project, image: str, tmp_path: Path) -> None:
    """A pip configuration and a CA bundle reach the running lab, and neither is part of the image."""
    given = {"PIP_CONFIG": tmp_path / "pip.conf", "CA_BUNDLE": tmp_path / "ca.pem"}
    for name, path in given.items():
        path.write_text(f"# {name} of the user\n")
    project = make_project("cpu", ROCMLAB_IMAGE=image, **{name: str(path) for name, path in given.items()})
    try:
        assert project.compose("up", "--detach", "--wait").returncode == 0
        command = ("exec", "-T", "lab", "start.sh", "bash", "-c", 'cat "$PIP_CONFIG_FILE" "$SSL_CERT_FILE" "$PIP_CERT"')
        seen = project.compose(*command).stdout.splitlines()
    finally:
        project.compose("down", "--volumes")
    kept = docker("run", "--rm", "--entrypoint", "bash", image, "-c", "shopt -s nullglob; echo /run/secrets/*").split()

    assert seen == ["# PIP_CONFIG of the user", "# CA_BUNDLE of the user", "# CA_BUNDLE of the user"]
    assert kept == []


class TestCluster:
    """The overlay that `make cluster-up` and `make cluster-join` choose."""

    def merged(self, make_project, **settings: str) -> dict:
        """Return the configuration with the overlay on top."""
        project = make_project("cpu", CLUSTER="192.168.1.10:6379", CLUSTER_TOKEN="c" * 64, PORT="8899", **settings)
        project.settings["COMPOSE_FILE"] += f":{gpus.CLUSTER_OVERLAY}"
        project.write()
        return service(project)

    def test_a_node_has_the_hosts_network(self, make_project) -> None:
        """Ray is built in, and Jupyter is told its port on the loopback, for nothing is published there."""
        lab = self.merged(make_project)

        assert lab["network_mode"] == "host"
        assert lab["build"]["args"]["CLUSTER"] == "1"
        assert {name: lab["environment"][name] for name in ("CLUSTER", "CLUSTER_NETWORK", "PORT")} == {
            "CLUSTER": "192.168.1.10:6379",
            "CLUSTER_NETWORK": "host",
            "PORT": "8899",
        }

    def test_the_token_is_a_secret_and_no_variable(self, make_project) -> None:
        """`docker inspect` and the processes inside do not show it."""
        lab = self.merged(make_project)

        secret = next(secret for secret in lab["secrets"] if secret["source"] == "cluster_token")
        assert (secret["uid"], secret["mode"]) == ("1000", "0400")
        assert "jupyter_token" in [each["source"] for each in lab["secrets"]]
        assert "c" * 64 not in json.dumps(lab)

    def test_another_network_publishes_jupyter_on_the_loopback(self, make_project) -> None:
        """As without a cluster."""
        lab = self.merged(make_project, CLUSTER_NETWORK="bridge")

        assert lab["network_mode"] == "bridge"
        assert [(port["host_ip"], port["published"]) for port in lab["ports"]] == [("127.0.0.1", "8899")]

    def test_without_a_cluster_compose_says_what_to_do(self, make_project) -> None:
        """The overlay alone, manually."""
        project = make_project("cpu")

        done = project.compose("-f", "compose.yaml", "-f", gpus.CLUSTER_OVERLAY, "config")

        assert done.returncode != 0
        assert "make cluster-up" in done.stderr


class TestFewerGpus:
    """The overlay that `make up GPUS=…` writes, as Compose merges it."""

    def merged(self, make_project, backend: str, devices: list[Device]) -> dict:
        """Return the service with the overlay on top."""
        project = make_project(backend)
        (project.folder / ".rocmlab").mkdir()
        (project.folder / ".rocmlab/compose.gpus.yaml").write_text(gpus.overlay(gpus.exactly(backend, devices)))
        project.settings["COMPOSE_FILE"] += ":.rocmlab/compose.gpus.yaml"
        project.write()
        return service(project)

    def test_exactly_the_chosen_render_nodes_are_passed(self, make_project) -> None:
        """Not the whole of /dev/dri any more: a GPU whose node is absent does not exist for ROCm."""
        chosen = [device(0, render_node="/dev/dri/renderD128"), device(2, render_node="/dev/dri/renderD130")]

        lab = self.merged(make_project, "rocm", chosen)

        paths = [node["source"] for node in lab["devices"]]
        assert paths == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD130"]

    def test_none_hides_every_gpu(self, make_project) -> None:
        """The nodes stay, for a lab for AMD GPUs refuses to start without; the mask hides the devices."""
        lab = self.merged(make_project, "rocm", [])

        assert lab["environment"]["HIP_VISIBLE_DEVICES"] == lab["environment"]["CUDA_VISIBLE_DEVICES"] == "-1"
        assert not {"ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"} & set(lab["environment"])
        assert [node["source"] for node in lab["devices"]] == ["/dev/kfd", "/dev/dri"]

    def test_nvidia_gpus_are_reserved_by_their_ids(self, make_project) -> None:
        """`count: all` gives way to the chosen UUIDs."""
        lab = self.merged(make_project, "cuda", [device(1, unique_id="GPU-abc")])

        (reserved,) = lab["deploy"]["resources"]["reservations"]["devices"]
        assert reserved["device_ids"] == ["GPU-abc"]
        assert "count" not in reserved
