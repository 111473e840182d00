"""The overlay of the monitoring: as Compose understands it, and its Prometheus next to a real lab in a container.

No registry is reached here: Prometheus' image is made from Debian's package. Grafana is not packaged there, so its
service is only looked at; its dashboard's queries are asked in tests/telemetry/test_metrics_prometheus.py.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import Clone, free_port
from containers import docker
from second_user import open_to_others

sys.path.insert(0, str(Path(__file__).parents[1] / "telemetry"))
import prometheus_tools as tools

from rocmlab.simulation import write_host

pytestmark = [pytest.mark.container, pytest.mark.images]

OVERLAY = "docker/compose.monitoring.yaml"
SECRETS = {"GRAFANA_PASSWORD": "a-password-of-the-tests", "METRICS_TOKEN": "m" * 64}


def services(project) -> dict:
    """Return all of the project as Compose understands it."""
    done = project.compose("config", "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def monitored(make_project):
    """The CPU's files with the overlay on top."""
    project = make_project("cpu", **SECRETS)
    project.settings["COMPOSE_FILE"] += f":{OVERLAY}"
    project.write()
    return project


def test_configuration_is_valid_and_careful(monitored) -> None:
    """The loopback only, nothing privileged, no engine's socket, no host network, configuration that is read-only."""
    found = services(monitored)

    assert set(found["services"]) == {"lab", "prometheus", "grafana"}
    for name in ("prometheus", "grafana"):
        service = found["services"][name]
        assert [port["host_ip"] for port in service["ports"]] == ["127.0.0.1"]
        assert not {"privileged", "network_mode", "container_name", "cap_add", "pid", "devices", "build"} & set(service)
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true", "label=disable"]
        assert not any("docker.sock" in volume["source"] for volume in service["volumes"])
        assert all(volume["read_only"] for volume in service["volumes"] if volume["type"] == "bind")
        assert all(Path(volume["source"]).exists() for volume in service["volumes"] if volume["type"] == "bind")
        assert [volume["source"] for volume in service["volumes"] if volume["type"] == "volume"] == [name]
        assert ":" in service["image"]
        assert not service["image"].endswith(":latest")
    assert [port["published"] for port in found["services"]["prometheus"]["ports"]] == ["9090"]
    assert [port["published"] for port in found["services"]["grafana"]["ports"]] == ["3000"]


def test_secrets_come_from_the_settings(monitored) -> None:
    """Prometheus gets a token for metrics alone, Grafana its password, each as a file; no environment holds either."""
    found = services(monitored)

    prometheus, grafana = found["services"]["prometheus"], found["services"]["grafana"]
    assert [each["source"] for each in prometheus["secrets"]] == ["metrics_token"]
    assert [each["source"] for each in grafana["secrets"]] == ["grafana_password"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"
    assert grafana["environment"]["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    text = json.dumps([prometheus, grafana])
    assert not any(secret in text for secret in (*SECRETS.values(), monitored.settings["JUPYTER_TOKEN"]))


def test_the_lab_is_the_same_with_it(make_project, monitored) -> None:
    """The overlay does not touch the lab, so starting the monitoring does not restart it."""
    alone = make_project("cpu")
    alone.name = monitored.name
    alone.write()

    hashes = [project.compose("config", "--hash", "lab").stdout.split()[-1] for project in (alone, monitored)]
    folders = [str(project.folder) for project in (alone, monitored)]

    if folders[0] == folders[1]:
        assert hashes[0] == hashes[1]
    lab, other = (json.dumps(services(project)["services"]["lab"]) for project in (alone, monitored))
    assert lab.replace(folders[0], "") == other.replace(folders[1], "")


def test_images_and_ports_are_settings(monitored) -> None:
    """Each of the four can be another one."""
    monitored.settings |= {
        "PROMETHEUS_IMAGE": "mine/prometheus:1",
        "PROMETHEUS_PORT": "19090",
        "GRAFANA_IMAGE": "mine/grafana:1",
        "GRAFANA_PORT": "13000",
    }
    monitored.write()

    found = services(monitored)["services"]

    assert (found["prometheus"]["image"], found["grafana"]["image"]) == ("mine/prometheus:1", "mine/grafana:1")
    assert found["prometheus"]["ports"][0]["published"] == "19090"
    assert found["grafana"]["ports"][0]["published"] == "13000"


@pytest.fixture(scope="module")
def prometheus_image(tmp_path_factory: pytest.TempPathFactory, base_image: str) -> Iterator[str]:
    """Debian's Prometheus in an image that is laid out as the official one."""
    folder = tmp_path_factory.mktemp("prometheus")
    shutil.copy(tools.prometheus(), folder / "prometheus")
    (folder / "Dockerfile").write_text(
        f"FROM {base_image}\n"
        "COPY --chmod=755 prometheus /bin/prometheus\n"
        "RUN mkdir /etc/prometheus /prometheus && chown 65534:65534 /prometheus\n"
        "USER 65534\n"
        'ENTRYPOINT ["/bin/prometheus"]\n'
    )
    tag = f"rocmlab-test/prometheus:{os.getpid()}"
    docker("build", "--quiet", "--tag", tag, str(folder))
    yield tag
    docker("image", "rm", "--force", tag)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A busy simulated host that the lab's user may read, errors on its first card."""
    root = write_host(
        tmp_path_factory.mktemp("monitored") / "host", profile="instinct", gpus=2, busy="steady", faults=["ecc:0"]
    )
    open_to_others(root.parent)
    return root


@pytest.fixture(scope="module")
def monitoring(docker_lab: Clone, host: Path, prometheus_image: str) -> Iterator[str]:
    """What `make monitoring` prints next to a running lab; without a Grafana, whose image is not available here.

    A second Prometheus image stands where Grafana's would: it starts, and answers nothing.
    """
    ports = {"PROMETHEUS_PORT": str(free_port()), "GRAFANA_PORT": str(free_port())}
    docker_lab.make("up", ROCMLAB_ROOT=str(host))
    try:
        images = {"PROMETHEUS_IMAGE": prometheus_image, "GRAFANA_IMAGE": prometheus_image}
        yield docker_lab.make("monitoring", **images, **ports).stdout
    finally:
        docker_lab.make("down", succeeds=False)
        docker_lab.make("up", ROCMLAB_ROOT="", succeeds=False)
        name = docker_lab.env["COMPOSE_PROJECT_NAME"]
        docker("volume", "rm", "--force", f"{name}_prometheus", f"{name}_grafana")


def test_make_monitoring_prints_where_both_are(docker_lab: Clone, monitoring: str) -> None:
    """Both addresses, and the password that it made; what it made stays in the private `.env`."""
    settings = docker_lab.env

    assert (
        f"http://127.0.0.1:{settings['GRAFANA_PORT']}   user admin, password {settings['GRAFANA_PASSWORD']}"
        in monitoring
    )
    assert f"Prometheus  http://127.0.0.1:{settings['PROMETHEUS_PORT']}" in monitoring
    assert len(settings["GRAFANA_PASSWORD"]) == 48
    assert (docker_lab.folder / ".env").stat().st_mode & 0o777 == 0o600


def test_prometheus_knows_the_labs_gpus(docker_lab: Clone, monitoring: str) -> None:
    """It asks the lab with its token, over the network of the project; the alert for the card's errors is there."""
    running = tools.Running(f"http://127.0.0.1:{docker_lab.env['PROMETHEUS_PORT']}")

    busy = running.wait_for("rocmlab_gpu_busy_ratio", 2)
    alert = running.wait_for('ALERTS{alertname="GpuEccUncorrected", alertstate="firing"}')

    assert {each["metric"]["instance"] for each in busy} == {"lab:8888"}
    assert all(each["metric"]["simulated"] == "1" for each in busy)
    assert [float(each["value"][1]) for each in busy] == [0.97, 0.97]
    assert alert[0]["metric"]["gpu"] == "0"


def test_another_make_up_keeps_it(docker_lab: Clone, monitoring: str) -> None:
    """The password that Grafana knows stays, and Prometheus runs on."""
    before = docker_lab.env["GRAFANA_PASSWORD"]

    docker_lab.make("up")

    assert docker_lab.env["GRAFANA_PASSWORD"] == before
    assert tools.Running(f"http://127.0.0.1:{docker_lab.env['PROMETHEUS_PORT']}").query("up")


def test_down_stops_it_and_keeps_what_it_recorded(docker_lab: Clone, monitoring: str) -> None:
    """Its containers go, its volumes stay, the lab runs on; and without a lab it does not start."""
    project = docker_lab.env["COMPOSE_PROJECT_NAME"]
    docker_lab.make("monitoring-down")
    left = docker("ps", "--filter", f"label=com.docker.compose.project={project}", "--format", "{{.Names}}").split()
    volumes = docker("volume", "ls", "--quiet", "--filter", f"name={project}_").split()

    docker_lab.make("down")
    refused = docker_lab.make("monitoring", succeeds=False)

    assert [name for name in left if "prometheus" in name or "grafana" in name] == []
    assert any("lab" in name for name in left)
    assert {f"{project}_prometheus", f"{project}_grafana"} <= set(volumes)
    assert refused.returncode
    assert "error: the lab is not running" in refused.stdout
    assert "fix: make up" in refused.stdout
