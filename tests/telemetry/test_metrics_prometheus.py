"""A real Prometheus asks `rocmlab serve` on simulated hosts: queries, alerts and both kinds of dashboards."""

from __future__ import annotations

import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import prometheus_tools as tools
import pytest
import yaml
from prometheus_tools import REPOSITORY, RULES, Running, scraping
from test_metrics_compat import INSTINCT, RADEON
from test_metrics_exposition import read
from test_metrics_serve import serving

from rocmlab.simulation import Live, write_host
from rocmlab.telemetry import metrics
from rocmlab.telemetry.metrics_server import MetricsServer
from rocmlab.telemetry.model import GpuProcess, Owner, device_id

DASHBOARD = REPOSITORY / "docker/monitoring/grafana/dashboards/rocmlab.json"
PARTS = "102-D65208-0C|102-D67305-00|102-D65209-0C"  # MI200 boards, by which AMD's dashboards choose a metric
MI300 = "102-G30211-00|102-G30211-0C|102-G30211-4C|102-G30212-0C|102-G30213-00|102-G30213-0C"


def at_once(rules: str) -> str:
    """Return rules that wait for nothing before they fire; promtool tests how long they wait."""
    return re.sub(r"^ +for: .*\n", "", rules, flags=re.MULTILINE)


class TestFiles:
    """What promtool says of the files of the monitoring."""

    @pytest.mark.slow
    def test_rules_pass_their_unit_tests(self, tmp_path: Path) -> None:
        """`promtool test rules`: each alert fires when it should, with its words, and not before."""
        shutil.copy(RULES, tmp_path)
        shutil.copy(Path(__file__).parent / "alerts.yml", tmp_path)

        done = tools.run(tools.promtool(), "test", "rules", tmp_path / "alerts.yml")

        assert done.returncode == 0, done.stdout

    def test_every_alert_is_tested_and_says_how_to_mend_it(self) -> None:
        """Each has a severity, a summary and a fix, says SIMULATED, and is expected to fire by some unit test."""
        rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
        tests = yaml.safe_load((Path(__file__).parent / "alerts.yml").read_text(encoding="utf-8"))["tests"]

        fired = {check["alertname"] for test in tests for check in test["alert_rule_test"] if check.get("exp_alerts")}
        assert {rule["alert"] for rule in rules} == fired
        for rule in rules:
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert set(rule["annotations"]) == {"summary", "fix"}
            assert rule["alert"] == "GpuExporterDown" or "SIMULATED" in rule["annotations"]["summary"]

    def test_rules_and_configuration_are_valid(self, tmp_path: Path) -> None:
        """`promtool check rules` and `check config`, lint included."""
        configuration = (REPOSITORY / "docker/monitoring/prometheus.yml").read_text(encoding="utf-8")
        (tmp_path / "token").write_text("geheim")
        shutil.copy(RULES, tmp_path)
        local = configuration.replace("/run/secrets/metrics_token", str(tmp_path / "token"))
        (tmp_path / "prometheus.yml").write_text(local)

        rules = tools.run(tools.promtool(), "check", "rules", "--lint=all", "--lint-fatal", RULES)
        config = tools.run(
            tools.promtool(), "check", "config", "--lint=all", "--lint-fatal", tmp_path / "prometheus.yml"
        )

        assert rules.returncode == 0, rules.stdout
        assert config.returncode == 0, config.stdout
        assert local != configuration


class TestAlerts:
    """Faults of a simulated host, as its operator would learn of them."""

    @pytest.mark.slow
    def test_a_host_in_trouble_raises_its_alerts(self, tmp_path: Path) -> None:
        """Hot, with errors, on half its lanes, with a card that goes: each by name; a healthy host raises none."""
        root, healthy = tmp_path / "host", write_host(tmp_path / "healthy", profile="instinct", gpus=1)
        live = Live(root, profile="instinct", gpus=2, faults=["ecc:0", "degraded-link:0", "vanish:1:1000"])
        bad, gone = (gpu.address for gpu in live.host.gpus)
        hot = next(root.glob(f"sys/devices/*/*/{bad}/hwmon/hwmon*/temp2_input"))
        (tmp_path / "prometheus").mkdir()
        with ExitStack() as stack:
            targets = [stack.enter_context(serving(each))[0] for each in (root, healthy)]
            rules = at_once(RULES.read_text(encoding="utf-8"))
            running = stack.enter_context(scraping(tmp_path / "prometheus", targets, rules=rules))
            running.wait_for('up{job="rocmlab"} == 1', 2)
            hot.write_text("97000\n")

            firing = f'ALERTS{{alertstate="firing", pci="{bad}"}}'
            found = {each["metric"]["alertname"]: each["metric"] for each in running.wait_for(firing, 3)}
            counts = next(root.glob(f"sys/devices/*/*/{bad}/ras/umc_err_count"))
            counts.write_text("ue: 2\nce: 900\n")
            running.wait_for('ALERTS{alertname="GpuEccCorrected", alertstate="firing"}')
            live.step(1001)
            away = running.wait_for('ALERTS{alertname="GpuGone", alertstate="firing"}')
            alerts = running.ask("alerts")["alerts"]
            quiet = running.query(f'ALERTS{{alertname!="GpuExporterDown", instance="{targets[1]}"}}')

        assert set(found) == {"GpuTooHot", "GpuEccUncorrected", "GpuLinkDegraded"}
        assert all(each["simulated"] == "1" for each in found.values())
        assert found["GpuEccUncorrected"]["block"] == "umc"
        assert {each["metric"]["pci"] for each in away} == {gone}
        assert all(each["annotations"]["summary"].startswith("SIMULATED: ") for each in alerts)
        assert quiet == []

    @pytest.mark.slow
    def test_an_exporter_that_ends_is_missed(self, tmp_path: Path) -> None:
        """And its cards are not said to be gone: no one knows."""
        rules = at_once(RULES.read_text(encoding="utf-8"))
        with (
            serving(write_host(tmp_path / "host")) as (address, process),
            scraping(tmp_path, [address], rules=rules) as running,
        ):
            running.wait_for("rocmlab_gpu_up", 2)
            process.terminate()
            process.wait(30)

            found = running.wait_for('ALERTS{alertname="GpuExporterDown", alertstate="firing"}')

            assert found[0]["metric"]["instance"] == address
            assert running.query('ALERTS{alertname="GpuGone"}') == []

    @pytest.mark.slow
    def test_a_token_lets_prometheus_in(self, tmp_path: Path) -> None:
        """As the overlay gives it: a file that holds it."""
        (tmp_path / "token").write_text("geheim")
        words = ("--token-file", str(tmp_path / "token"))
        with (
            serving(write_host(tmp_path / "host"), *words) as (address, _),
            scraping(tmp_path, [address], token_file=tmp_path / "token") as running,
        ):
            running.wait_for('up{job="rocmlab"} == 1')


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A Prometheus that asks a Radeon host, an Instinct host, and a lab with leases and an idle kernel."""
    folder = tmp_path_factory.mktemp("answered")
    found, snapshot = read(write_host(folder / "lab", gpus=1, busy="steady"))
    idle = Owner("kernel", notebook="work/mnist.ipynb", kernel_id="k", idle_seconds=3000.0)
    kernel = GpuProcess(device_id(found[0]), 42, name="python3", user="jovyan", vram_bytes=4 << 30, owner=idle)

    def lab(accept: str, names: str | None) -> tuple[bytes, str]:
        now = replace(snapshot, time_seconds=time.time(), processes=(kernel,))
        held = [(device_id(found[0]), "work/mnist.ipynb")]
        return metrics.exposition(now, found, names="both", accept=accept, leases=held, root=folder / "lab")

    server = MetricsServer("127.0.0.1", 0, lab)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with ExitStack() as stack:
            targets = [":".join(map(str, server.server_address[:2]))]
            for name, profile in (("rx", "radeon"), ("mi", "instinct")):
                root = write_host(folder / name, profile=profile, gpus=2, busy="steady", faults=["ecc"])
                targets.append(stack.enter_context(serving(root, "--names", "both"))[0])
            rules = at_once(RULES.read_text(encoding="utf-8"))
            running = stack.enter_context(scraping(folder, targets, rules=rules))
            running.wait_for("count_over_time(rocmlab_gpu_energy_joules_total[1m]) > 2", 4)
            yield running
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def queries() -> list[tuple[str, str]]:
    """Return title and query of each panel of our dashboard, with its variables as Grafana fills them for `All`."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    found = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    return [
        (title, query.replace("$__range", "1h").replace("$instance", ".*").replace("$gpu", ".*"))
        for title, query in found
    ]


class TestOurDashboard:
    """docker/monitoring/grafana: Grafana itself is missing, so its files are looked at, and its queries asked."""

    @pytest.mark.slow
    @pytest.mark.parametrize(("title", "query"), queries())
    def test_every_panel_has_data(self, answered: Running, title: str, query: str) -> None:
        """Each query of each panel returns at least one series on the simulated hosts."""
        assert answered.wait_for(query), title

    def test_variables_find_hosts_and_gpus(self, answered: Running) -> None:
        """What the two lists at the top are filled with."""
        assert len(answered.query("rocmlab_exporter_info")) == 3
        assert len(answered.query("rocmlab_gpu_info")) == 5

    def test_files_fit_together(self) -> None:
        """One data source, by its id, in each panel and variable; ids differ; nothing overlaps; no one may edit it."""
        folder = DASHBOARD.parents[1]
        sources = yaml.safe_load((folder / "datasources/prometheus.yml").read_text(encoding="utf-8"))["datasources"]
        providers = yaml.safe_load((folder / "dashboards/provider.yml").read_text(encoding="utf-8"))["providers"]
        board = json.loads(DASHBOARD.read_text(encoding="utf-8"))

        uid = sources[0]["uid"]
        used = [panel["datasource"] for panel in board["panels"]]
        used += [target["datasource"] for panel in board["panels"] for target in panel["targets"]]
        used += [variable["datasource"] for variable in board["templating"]["list"]]
        assert all(source == {"type": "prometheus", "uid": uid} for source in used)
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        cells = [
            (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + row)
            for panel in board["panels"]
            for column in range(panel["gridPos"]["w"])
            for row in range(panel["gridPos"]["h"])
        ]
        assert len(cells) == len(set(cells))
        assert max(column for column, _ in cells) < 24
        assert providers[0]["options"]["path"] == "/etc/grafana/rocmlab"
        assert not providers[0]["allowUiUpdates"]
        assert not sources[0]["editable"]


@pytest.mark.slow
class TestAmdsDashboards:
    """Queries of the shapes that AMD's four dashboards use (ours; see test_metrics_compat), with variables filled."""

    def selectors(self, running: Running) -> list[str]:
        """Return what the variables of a dashboard select: a cluster, a host, one GPU."""
        one = running.query('gpu_health{card_series=~".*7900.*"}')[0]["metric"]
        chosen = {name: one[name] for name in ("cluster_name", "hostname", "gpu_id", "gpu_uuid", "gpu_partition_id")}
        assert all(chosen.values())
        assert chosen["hostname"] == socket.gethostname()
        return [
            'cluster_name="{cluster_name}"'.format(**chosen),
            'hostname="{hostname}"'.format(**chosen),
            'gpu_uuid="{gpu_uuid}", hostname="{hostname}", gpu_id="{gpu_id}"'.format(**chosen),
        ]

    @pytest.mark.parametrize("name", sorted(RADEON))
    def test_a_radeon_is_answered(self, answered: Running, name: str) -> None:
        """Each metric by cluster, by host, and for one GPU; counts of GPUs only for the first two."""
        selectors = self.selectors(answered)[: 2 if name == "gpu_nodes_total" else 3]

        for selector in selectors:
            assert answered.query(f"sum({name}{{{selector}}})"), selector
            assert answered.query(f"sum(delta({name}{{{selector}}}[1m]))"), selector

    @pytest.mark.parametrize("name", sorted(INSTINCT))
    def test_an_instinct_is_answered(self, answered: Running, name: str) -> None:
        """Errors, which Radeon cards do not count, and their table."""
        gpu = answered.query('gpu_health{card_series=~".*MI300X.*"}')[0]["metric"]["gpu_uuid"]

        assert answered.query(f'sum(delta({name}{{gpu_uuid="{gpu}"}}[1m]))')
        assert len(answered.query(f'{{__name__=~".*ecc.*", gpu_uuid="{gpu}", hostname="{socket.gethostname()}"}}')) > 10

    @pytest.mark.parametrize(
        "query",
        [
            f'topk(5, gpu_gfx_busy_instantaneous{{cluster_name="rocmlab", card_model!~"{PARTS}"}})',
            f'avg(gpu_average_package_power{{cluster_name="rocmlab", card_model!~"{MI300}"}})',
            f'avg(gpu_edge_temperature{{cluster_name="rocmlab", card_model!~"{MI300}"}})',
            f'sum(group by (gpu_uuid) (gpu_gfx_busy_instantaneous{{job_id!="", card_model!~"{PARTS}"}} > 0))',
            'sum(group by (job_id) (gpu_gfx_busy_instantaneous{cluster_name="rocmlab", job_id!=""}))',
            'count_values("count", pcie_max_speed{cluster_name="rocmlab"})',
            "count(gpu_health < 1)",
            'sum(gpu_used_vram{job_id!="", job_id="work/mnist.ipynb"})',
        ],
    )
    def test_what_a_panel_asks_is_answered(self, answered: Running, query: str) -> None:
        """The forms in which panels ask, the choice by part number included."""
        assert answered.query(query)

    def test_power_is_not_counted_twice(self, answered: Running) -> None:
        """The overview adds the two names of power up."""
        ours = answered.query("sum(rocmlab_gpu_power_watts)")[0]["value"][1]
        added = "(sum(gpu_average_package_power) or vector(0)) + (sum(gpu_package_power) or vector(0))"

        assert float(answered.query(added)[0]["value"][1]) == pytest.approx(float(ours), rel=0.05)

    def test_variables_are_filled(self, answered: Running) -> None:
        """`label_values` of each variable: Prometheus refuses a selector that could match the empty text alone."""
        for label in ("cluster_name", "hostname", "gpu_id", "gpu_uuid", "card_model", "card_series", "driver_version"):
            found = answered.ask(f"label/{label}/values", **{"match[]": '{cluster_name="rocmlab"}'})
            assert found, label
