"""`rocmlab monitoring` without Docker: the settings, what is rejected, and what one's own Prometheus is told."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from clones import free_port
from kernel_hosts import simulated_host
from panel_servers import METRICS_TOKEN, TOKEN, Server

sys.path.insert(0, str(Path(__file__).parents[1] / "telemetry"))
import prometheus_tools as tools

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import main
from rocmlab.stack import monitoring, resolve, settings
from rocmlab.stack import project as projects
from rocmlab.stack.choice import Choice
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.native_server import ServerProcess


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder, and the present one."""
    found = tmp_path / "project"
    for name in ("compose.yaml", "docker/Dockerfile"):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).touch()
    (found / "docker/monitoring").mkdir()
    (found / "docker/monitoring/rules.yml").write_text(tools.RULES.read_text(encoding="utf-8"))
    monkeypatch.chdir(found)
    return found


def describe(folder: Path, runtime: str, **more: str) -> None:
    """Write what `make up` leaves."""
    values = {
        "ROCMLAB_BACKEND": "cpu",
        "ROCMLAB_RUNTIME": runtime,
        "ROCMLAB_IMAGE": "rocmlab-test:none",
        "COMPOSE_FILE": "compose.yaml",
        "COMPOSE_PROJECT_NAME": "rocmlab-test-none",
        "JUPYTER_TOKEN": TOKEN,
        "METRICS_TOKEN": METRICS_TOKEN,
        "PORT": str(free_port()),
        "SHARE": "./share",
        **more,
    }
    settings.save(settings.load(folder, {}), values)


class TestExplained:
    """Next to a lab that is not Docker's."""

    @pytest.fixture
    def server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
        """A real Jupyter server with our extension, on a simulated host."""
        with simulated_host(tmp_path, monkeypatch) as host:
            found = Server(host, METRICS_TOKEN=METRICS_TOKEN, ROCMLAB_SERVER="m" * 32)
            try:
                yield found.up()
            finally:
                found.stop()

    @pytest.mark.slow
    def test_ones_own_prometheus_gets_in_with_what_is_printed(
        self, folder: Path, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture
    ) -> None:
        """The printed configuration, as it is, lets a real Prometheus ask a real server, whose own token it lacks."""
        describe(folder, "native", PORT=str(server.port))
        record = ServerProcess(folder / ".rocmlab/jupyter.json", folder / ".rocmlab/home", server.port, "m" * 32)
        record.remember(server.process.pid, {})

        assert main(["monitoring"]) == 0
        said = capsys.readouterr().out
        printed = said[said.index("rule_files:") : said.index("Grafana's dashboard")]
        with tools.scraping(tmp_path, [], configuration=yaml.safe_load(printed)) as running:
            running.wait_for("rocmlab_gpu_busy_ratio", 2)
            rules = running.ask("rules")["groups"][0]["rules"]

        assert len(rules) == 10
        assert server.request("rocmlab/metrics", token=None)[0] in (302, 401, 403)

    def test_the_token_is_in_a_private_file(self, folder: Path) -> None:
        """Not on the screen, and not readable for others."""
        describe(folder, "native")

        printed = monitoring.scrape_configuration(projects.reopen(folder))

        token = folder / ".rocmlab/metrics-token"
        assert METRICS_TOKEN not in printed
        assert token.read_text() == METRICS_TOKEN
        assert TOKEN not in printed + token.read_text()
        assert token.stat().st_mode & 0o777 == 0o600

    def test_an_earlier_version_s_settings_need_one_make_up(self, folder: Path, capsys: pytest.CaptureFixture) -> None:
        """A `.env` without a token for Prometheus gives it none: the next `make up` writes one, and keeps it."""
        describe(folder, "native", METRICS_TOKEN="")
        lines = (folder / ".env").read_text().splitlines(keepends=True)
        (folder / ".env").write_text("".join(line for line in lines if not line.startswith("METRICS_TOKEN")))

        with pytest.raises(RocmlabError, match="no token for Prometheus") as caught:
            monitoring.scrape_configuration(projects.reopen(folder))
        values = resolve.resolve(settings.load(folder, {}), Choice("cpu", "native", "test"), [], Path("/"))
        settings.save(settings.load(folder, {}), values)
        again = resolve.resolve(settings.load(folder, {}), Choice("cpu", "native", "test"), [], Path("/"))

        assert caught.value.problem.fix == "make up"
        assert not (folder / ".rocmlab/metrics-token").exists()
        assert len(bytes.fromhex(values["METRICS_TOKEN"])) == 32
        assert values["METRICS_TOKEN"] != values["JUPYTER_TOKEN"] == TOKEN
        assert again["METRICS_TOKEN"] == values["METRICS_TOKEN"]

    @pytest.mark.parametrize("name", ["plain", 'a "b" #c: d', "größe"])
    def test_any_folder_can_be_named(self, tmp_path: Path, name: str) -> None:
        """YAML reads the paths back, whatever they are."""
        place = tmp_path / name
        place.mkdir()
        describe(place, "podman")

        read = yaml.safe_load(monitoring.scrape_configuration(projects.reopen(place)))

        assert read["rule_files"] == [str(place / "docker/monitoring/rules.yml")]
        credentials = read["scrape_configs"][0]["authorization"]["credentials_file"]
        assert credentials == str(place / ".rocmlab/metrics-token")

    def test_promtool_accepts_it(self, folder: Path, tmp_path: Path) -> None:
        """As a whole configuration, files that it names included."""
        describe(folder, "native")
        (tmp_path / "prometheus.yml").write_text(monitoring.scrape_configuration(projects.reopen(folder)))

        done = tools.run(tools.promtool(), "check", "config", tmp_path / "prometheus.yml")

        assert done.returncode == 0, done.stdout

    def test_a_node_of_a_cluster_is_scraped_by_ones_own_prometheus(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
    ) -> None:
        """Its network is the host's, so what is printed is what to add, and not an error that says to type the same."""
        describe(folder, "docker")
        (folder / ".env").write_text((folder / ".env").read_text() + "CLUSTER=head\n")
        monkeypatch.setattr(DockerLab, "is_running", lambda _lab: True)

        assert main(["monitoring"]) == 0
        said = capsys.readouterr().out

        assert "this lab is a node of a cluster" in said
        port = projects.reopen(folder).values["PORT"]
        assert f'targets: ["127.0.0.1:{port}"]' in said

    def test_down_has_nothing_to_stop(self, folder: Path, capsys: pytest.CaptureFixture) -> None:
        """It reports it, and is done."""
        describe(folder, "native")

        assert main(["monitoring", "down"]) == 0
        assert "nothing to stop" in capsys.readouterr().out

    def test_a_lab_that_is_down_has_no_metrics(self, folder: Path, capsys: pytest.CaptureFixture) -> None:
        """The error names `make up`."""
        describe(folder, "native")

        assert main(["monitoring"]) == 2
        assert "error: the lab is not running" in capsys.readouterr().err


def test_without_a_lab_there_is_nothing_to_monitor(folder: Path, capsys: pytest.CaptureFixture) -> None:
    """Before the first `make up`."""
    assert main(["monitoring"]) == 2
    assert "no lab found here" in capsys.readouterr().err


class TestDocker:
    """What is decided before the engine is asked."""

    def opened(self, folder: Path, **given: str) -> monitoring.Monitoring:
        """A project of Docker's, with settings behind the target."""
        describe(folder, "docker")
        return monitoring.Monitoring(projects.reopen(folder), given)

    def test_ports_and_password_have_defaults(self, folder: Path) -> None:
        """The password is made with 192 bits, another each time that none is known."""
        first, second = self.opened(folder), self.opened(folder)

        assert (first.prometheus_url, first.grafana_url) == ("http://127.0.0.1:9090", "http://127.0.0.1:3000")
        assert len(first.password) == len(second.password) == 48
        assert first.password != second.password

    def test_prometheus_asks_below_the_path_of_the_lab(self, folder: Path, repository: Path) -> None:
        """Its configuration is the one that comes with rocmlab, unless the lab has a LAB_BASE_URL."""
        text = (repository / "docker/monitoring/prometheus.yml").read_text(encoding="utf-8")
        (folder / "docker/monitoring/prometheus.yml").write_text(text, encoding="utf-8")
        usual = self.opened(folder).configuration_file()
        describe(folder, "docker", ROCMLAB_BASE_URL="/gpu1/lab/")

        below = monitoring.Monitoring(projects.reopen(folder), {}).configuration_file()

        assert usual == folder / "docker/monitoring/prometheus.yml"
        assert below.stat().st_mode & 0o777 == 0o644
        asked = [yaml.safe_load(path.read_text())["scrape_configs"][0]["metrics_path"] for path in (usual, below)]
        assert asked == ["/rocmlab/metrics", "/gpu1/lab/rocmlab/metrics"]

    def test_what_is_not_its_own_is_not_taken_from_the_command(self, folder: Path) -> None:
        """`make monitoring PORT=1` must not change what `.env` says of the running lab."""
        found = self.opened(folder, PROMETHEUS_PORT="9191", PORT="1", BACKEND="rocm")

        assert found.prometheus_port == 9191
        assert "PORT" not in found.settings.chosen
        assert "BACKEND" not in found.settings.chosen

    @pytest.mark.parametrize("port", ["0", "65536", "x", "-1"])
    def test_a_wrong_port_is_refused(self, folder: Path, port: str) -> None:
        """By name and value."""
        with pytest.raises(RocmlabError, match=f"GRAFANA_PORT={port} is not a port"):
            self.opened(folder, GRAFANA_PORT=port)

    def test_a_taken_port_is_named_with_a_free_one(self, folder: Path) -> None:
        """The fix can be pasted."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            found = self.opened(folder, GRAFANA_PORT=str(port), PROMETHEUS_PORT=str(free_port()))

            with pytest.raises(RocmlabError, match=f"port {port} for Grafana is not available") as caught:
                found._check_ports()

        assert caught.value.problem.fix.startswith("make monitoring GRAFANA_PORT=")

    def test_the_password_outlives_make_up(self, folder: Path) -> None:
        """What `make monitoring` wrote is resolved again, and nothing is made where it never ran."""
        describe(folder, "native", GRAFANA_PASSWORD="geheim")
        kept = resolve.resolve(settings.load(folder, {}), Choice("cpu", "native", "test"), [], Path("/"))
        (folder / ".env").unlink()
        (folder / ".rocmlab/written.json").unlink()
        without = resolve.resolve(settings.load(folder, {}), Choice("cpu", "native", "test"), [], Path("/"))

        assert kept["GRAFANA_PASSWORD"] == "geheim"
        assert "GRAFANA_PASSWORD" not in without

    def test_only_dockers_lab_has_containers_beside_it(self, folder: Path) -> None:
        """Podman and the native lab get instructions to do it themselves."""
        describe(folder, "podman")

        with pytest.raises(RocmlabError, match="this lab is podman"):
            monitoring.Monitoring(projects.reopen(folder), {})


def test_the_containers_can_read_what_is_mounted(folder: Path) -> None:
    """Also in a clone that was made with umask 077."""
    rules = folder / "docker/monitoring/rules.yml"
    rules.chmod(0o600)
    rules.parent.chmod(0o700)

    monitoring.open_to_readers(rules.parent)

    assert (rules.parent.stat().st_mode & 0o777, rules.stat().st_mode & 0o777) == (0o755, 0o644)


def test_the_compose_file_and_the_settings_agree(repository: Path) -> None:
    """Each default stands in both, and no variable of the overlay is unknown to the settings."""
    overlay = (repository / monitoring.OVERLAY).read_text(encoding="utf-8")

    for name in ("PROMETHEUS_IMAGE", "PROMETHEUS_PORT", "GRAFANA_IMAGE", "GRAFANA_PORT"):
        assert f"${{{name}:-{settings.DEFAULTS[name]}}}" in overlay
    assert set(monitoring.OWN) <= set(settings.NAMES)
