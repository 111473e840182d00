"""Prometheus and promtool of the machine that tests, and a Prometheus that a test runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from clones import free_port

REPOSITORY = Path(__file__).parents[2]
RULES = REPOSITORY / "docker/monitoring/rules.yml"
HOW = "sudo apt install prometheus, or set PROMETHEUS and PROMTOOL to their paths; .ci/run provides them"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the loopback needs no proxy


def promtool() -> str:
    """Return the path of promtool, or skip the test."""
    return _tool("PROMTOOL", "promtool")


def prometheus() -> str:
    """Return the path of Prometheus, or skip the test."""
    return _tool("PROMETHEUS", "prometheus")


def _tool(variable: str, name: str) -> str:
    found = os.environ.get(variable) or shutil.which(name)
    if not found:
        pytest.skip(f"no {name}: {HOW}")
    return found


def run(*command: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command and return what it printed, both streams as one."""
    return subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


class Running:
    """A Prometheus that asks every two seconds."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        with OPENER.open(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression gives now: `metric` and `value`."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def wait_for(self, expression: str, count: int = 1, timeout_seconds: float = 60) -> list[dict[str, Any]]:
        """Return the series of an expression as soon as there are so many."""
        deadline = time.monotonic() + timeout_seconds
        while len(found := self.query(expression)) < count:
            assert time.monotonic() < deadline, f"{expression} gives {found}\n{self.ask('targets')}"
            time.sleep(0.2)
        return found


@contextmanager
def scraping(
    folder: Path,
    targets: Sequence[str],
    *,
    rules: str = "",
    token_file: Path | None = None,
    configuration: dict[str, Any] | None = None,
) -> Iterator[Running]:
    """Run a Prometheus on the loopback that asks these targets (host:port) for /metrics as job `rocmlab`.

    Args:
        folder: for its configuration and data.
        targets: what it asks.
        rules: the text of a file of rules.
        token_file: holds the token that the targets demand.
        configuration: in place of all this, but for how often it asks.
    """
    program = prometheus()
    (folder / "rules.yml").write_text(rules)
    job: dict[str, Any] = {"job_name": "rocmlab", "static_configs": [{"targets": list(targets)}]}
    if token_file is not None:
        job["authorization"] = {"credentials_file": str(token_file)}
    times = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
    chosen = configuration or {"rule_files": ["rules.yml"], "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(json.dumps({"global": times, **chosen}))  # JSON is YAML
    port = free_port()
    with open(folder / "prometheus.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        running = Running(f"http://127.0.0.1:{port}")
        deadline = time.monotonic() + 60
        while not _is_ready(running.url):
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            assert time.monotonic() < deadline, (folder / "prometheus.log").read_text()
            time.sleep(0.1)
        yield running
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(url: str) -> bool:
    try:
        with OPENER.open(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
