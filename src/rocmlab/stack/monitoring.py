"""Prometheus and Grafana next to the running lab: the overlay docker/compose.monitoring.yaml of its Compose project."""

from __future__ import annotations

import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base import files, hosts
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile, process, server, tokens
from rocmlab.stack import settings as configuration
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.lab import Say
from rocmlab.stack.project import Project

OVERLAY = "docker/compose.monitoring.yaml"
SERVICES = ("prometheus", "grafana")
CONFIGURATIONS = "docker/monitoring"
CONFIGURATION = f"{CONFIGURATIONS}/prometheus.yml"
METRICS = "rocmlab/metrics"
OWN = ("PROMETHEUS_IMAGE", "PROMETHEUS_PORT", "GRAFANA_IMAGE", "GRAFANA_PORT", "GRAFANA_PASSWORD")
START_SECONDS = 60.0
PULL_SECONDS = 900.0  # both images together are about 300 MB


@dataclass(frozen=True)
class Target:
    """The state of one scrape target of Prometheus."""

    health: str  # up, down or unknown
    error: str  # the last one; empty if there was none


class Monitoring:
    """The two services of one project, in its own network, so that they reach the lab by its name."""

    def __init__(self, project: Project, environment: Mapping[str, str] | None = None) -> None:
        """Read the settings; raise RocmlabError if the lab is not Docker's."""
        if (runtime := project.choice.runtime) != "docker":
            what = f"the monitoring needs a lab in Docker, and the runtime of this lab is {runtime}"
            own = "`rocmlab monitoring` without arguments shows how to scrape this lab with your own Prometheus"
            raise RocmlabError(what, "it is an overlay of the Compose project", own)
        assert isinstance(project.lab, DockerLab)
        self.lab = project.lab
        environment = os.environ if environment is None else environment
        given = {name: environment[name] for name in OWN if name in environment}
        self.project = project
        self.settings = configuration.load(project.settings.project, given)
        self.password = self.settings.last("GRAFANA_PASSWORD") or secrets.token_hex(24)
        self.prometheus_port = configuration.port_of(self.settings, "PROMETHEUS_PORT", "make monitoring")
        self.grafana_port = configuration.port_of(self.settings, "GRAFANA_PORT", "make monitoring")
        self.prometheus_url = f"http://127.0.0.1:{self.prometheus_port}"
        self.grafana_url = f"http://127.0.0.1:{self.grafana_port}"

    def start(self, say: Say, services: tuple[str, ...] = SERVICES) -> None:
        """Start the services, and wait until Prometheus answers."""
        if not self.lab.is_running():
            raise RocmlabError("the lab is not running", "Prometheus reads the metrics from it", "make up")
        _metrics_token(self.project)
        self._check_ports()
        open_to_readers(self.project.settings.project / CONFIGURATIONS)
        resolved = {**self.settings.written, "GRAFANA_PASSWORD": self.password}
        configuration.save(self.settings, resolved)
        say("starting Prometheus and Grafana (the first time their images are pulled)")
        code, output = self._compose("up", "--detach", "--quiet-pull", *services)
        if code:
            last = output.strip().splitlines()[-1] if output.strip() else "docker compose: no output"
            raise RocmlabError(
                "the monitoring could not be started",
                last,
                "fix the error above, or choose other images: make monitoring PROMETHEUS_IMAGE=… GRAFANA_IMAGE=…",
            )
        self._wait()

    def stop(self) -> None:
        """Remove the containers; what they have recorded stays in its volumes. Raise RocmlabError if that fails."""
        code, output = self._compose("rm", "--stop", "--force", *SERVICES)
        if code:
            raise RocmlabError("the monitoring could not be stopped", output.strip()[-400:], "docker compose ps")

    def target(self, timeout_seconds: float = 30.0) -> Target:
        """Return the state of the lab as a target of Prometheus, after its first scrape."""
        deadline = time.monotonic() + timeout_seconds
        found = Target("unknown", "")
        while time.monotonic() < deadline:
            answer = _ask(f"{self.prometheus_url}/api/v1/targets?state=active")
            if answer:
                active = json.loads(answer)["data"]["activeTargets"]
                found = Target(active[0]["health"], active[0]["lastError"]) if active else found
                if found.health != "unknown":
                    return found
            time.sleep(0.5)
        return found

    def _check_ports(self) -> None:
        running = self._running()
        for service, port, name in (
            ("prometheus", self.prometheus_port, "PROMETHEUS_PORT"),
            ("grafana", self.grafana_port, "GRAFANA_PORT"),
        ):
            if service not in running and not server.is_free(port):
                raise RocmlabError(
                    f"port {port} for {service.capitalize()} is not available",
                    "another program listens on it, or this user may not",
                    f"make monitoring {name}={server.next_free(port)}",
                )

    def _running(self) -> list[str]:
        code, output = self._compose("ps", "--services", "--status", "running")
        return output.split() if code == 0 else []

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if _ask(f"{self.prometheus_url}/-/ready"):
                return
            time.sleep(0.2)
        _, log = self._compose("logs", "--no-log-prefix", "--tail", "5", "prometheus")
        raise RocmlabError(
            "Prometheus does not answer", f"last log lines:\n{log.strip()}", "docker compose logs prometheus"
        )

    def configuration_file(self) -> Path:
        """Return Prometheus' configuration, which is a file of this lab's own if its pages are below a path."""
        usual = self.settings.project / CONFIGURATION
        if self.lab.base_url == hosts.ROOT:
            return usual
        own = self.settings.state / f"prometheus{self.lab.base_url.rstrip('/').replace('/', '-')}.yml"
        text = usual.read_text(encoding="utf-8").replace(f" /{METRICS}\n", f" {self.lab.base_url}{METRICS}\n")
        files.write_text(own, text, 0o644)  # its reader is the container's user
        return own

    def _compose(self, *arguments: str) -> tuple[int, str]:
        overlays = [name for name in self.project.values["COMPOSE_FILE"].split(":") if name != OVERLAY]
        own = {name: self.settings.get(name) for name in OWN if self.settings.get(name)}
        own |= {"ROCMLAB_PROMETHEUS_CONFIG": f"./{self.configuration_file().relative_to(self.settings.project)}"}
        own |= {"GRAFANA_PASSWORD": self.password, "COMPOSE_FILE": ":".join([*overlays, OVERLAY])}
        command = self.lab.compose("--progress", "plain", *arguments)
        return process.capture(command, env={**self.lab.environment, **own}, timeout_seconds=PULL_SECONDS)


def _ask(url: str) -> bytes | None:
    """Return what a server on the loopback answers with status 200, else None."""
    try:
        with server.OPENER.open(urllib.request.Request(url), timeout=5) as answer:
            content: bytes = answer.read()
            return content or b" "
    except (OSError, urllib.error.HTTPError):
        return None


def open_to_readers(folder: Path) -> None:
    """Let the users of the containers read what comes with the project: a clone made with umask 077 lets no one.

    Raises:
        RocmlabError: a mode cannot be changed.
    """
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode
        wanted = mode | (0o055 if path.is_dir() else 0o044)
        try:
            if wanted != mode:
                path.chmod(wanted)
        except OSError as err:
            why = "Prometheus and Grafana run as users of their own"
            raise RocmlabError(f"{path} cannot be read by others", why, f"sudo chmod -R a+rX {folder}") from err


def _metrics_token(project: Project) -> str:
    if token := project.values.get("METRICS_TOKEN"):
        return token
    raise RocmlabError("this lab has no token for Prometheus", "METRICS_TOKEN is missing in .env", "make up")


def scrape_configuration(project: Project) -> str:
    """Return what a Prometheus of your own needs in its configuration to scrape this lab; write the token's file."""
    folder = project.settings.project.resolve()
    path = tokens.path(project.settings, "METRICS_TOKEN")
    envfile.write(path, _metrics_token(project))
    return f"""\
rule_files:
  - {_quoted(folder / "docker/monitoring/rules.yml")}
scrape_configs:
  - job_name: rocmlab
    metrics_path: {project.lab.base_url}{METRICS}
    authorization:
      credentials_file: {_quoted(path)}  # mode 0600: Prometheus must run as you, or be given a copy
    static_configs:
      - targets: ["127.0.0.1:{project.values["PORT"]}"]
"""


def _quoted(path: Path) -> str:
    return json.dumps(str(path), ensure_ascii=False)  # which is YAML as well
