"""`make demo` with Docker: inside the container, where processes have other numbers, notebooks have their names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import clients
import pytest
from clones import Clone
from containers import docker
from demos import Demo, notebooks, until

pytestmark = [pytest.mark.container, pytest.mark.labs, pytest.mark.long("the demonstration in a container")]
SHOWN = {"pretended_training.ipynb", "forgotten_kernel.ipynb"}


@pytest.fixture(scope="module")
def demo(docker_lab: Clone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demonstration."""
    docker_lab.make("build")
    running = Demo(docker_lab, tmp_path_factory.mktemp("demo") / "log")
    yield running
    running.end()


def in_the_panel(demo: Demo) -> list[dict[str, Any]]:
    """Return the processes of the panel's next sample."""
    return clients.Server(f"127.0.0.1:{demo.port}", demo.token).gpu_processes()


def in_smi(demo: Demo) -> list[dict[str, Any]]:
    """Return those of `rocmlab smi` inside the container."""
    name = docker("ps", "--quiet", "--filter", f"publish={demo.port}").strip()
    return json.loads(docker("exec", name, "start.sh", "rocmlab", "smi", "--json"))["processes"]


@pytest.mark.parametrize("shown", [in_the_panel, in_smi])
def test_inside_each_process_has_its_notebook(demo: Demo, shown: Callable[[Demo], list[dict[str, Any]]]) -> None:
    """A forgotten kernel and two jobs, each with its memory; that they are these is marked as an estimate."""
    until(lambda: len(shown(demo)) == 3 and notebooks({"processes": shown(demo)}) == SHOWN)

    found = shown(demo)
    assert sorted(row["owner"]["kind"] for row in found) == ["job", "job", "kernel"]
    assert all(row["owner"]["is_estimated"] for row in found)
    assert min(row["vram_bytes"] for row in found) > 500_000_000
    assert all(row["local_pid"] not in (None, row["pid"]) for row in found)


def test_the_host_names_the_same(demo: Demo) -> None:
    """There the numbers are its own."""
    until(lambda: notebooks(demo.smi()) == SHOWN)

    assert not any(row["is_estimated"] for row in demo.smi()["processes"])


def test_the_command_for_nvitop_that_it_prints_shows_the_cards(demo: Demo) -> None:
    """That of the lab, for this machine has none."""
    shown = demo.nvitop()

    assert "SIMULATED" in shown
    assert shown.count("RX 7900") == 4
