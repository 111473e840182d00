"""What all tests share."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "oracle"))
sys.path.insert(0, str(Path(__file__).parent))

import engines
import leftovers
import oracle_tools
from clones import UNCOMPILED, Clone, clone, without_docker
from leftovers import (  # noqa: F401  a fixture and hooks
    _leaves_nothing_behind,
    pytest_configure,
    pytest_fixture_setup,
    pytest_runtest_makereport,
    pytest_sessionfinish,
)
from long_parts import keep_part, pytest_report_header  # noqa: F401  a hook

from rocmlab.base import extras
from rocmlab.stack import setting_table

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: children would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)

if shutil.which("node"):
    os.environ["PATH"] = os.pathsep.join([str(Path(__file__).parent / "programs"), os.environ["PATH"]])

OURS = (*setting_table.NAMES, "COMPOSE_PROJECT_NAME", "ENGINE", "HEAD", "FORCE", "TO", "FROM", "ALL", "RUNS", "WHEN")


@pytest.fixture(autouse=True)
def _environment_of_its_own() -> Iterator[None]:
    """Undo what a test, or the product in it, has changed in this process's environment: the next one has it not."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="session")
def _leases_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Paths of folders of leases, one for each test; this host's own is not touched."""
    base = tmp_path_factory.mktemp("leases")
    return (str(base / str(number)) for number in itertools.count())


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, _leases_folders: Iterator[str]) -> None:
    """Take away what the caller's environment says of rocmlab; `make test BACKEND=…` must not change a test."""
    for name in (*OURS, *(name for name in os.environ if name.startswith("ROCMLAB_"))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEASES_DIR", next(_leases_folders))


@pytest.fixture(scope="session", autouse=True)
def _jupyter_loop() -> Iterator[None]:
    """Make the event loop that all synchronous calls of jupyter_client share: the first test with one has left none."""
    from jupyter_core.utils import ensure_event_loop

    loop = ensure_event_loop()
    with ThreadPoolExecutor(thread_name_prefix=leftovers.SHARED_THREADS) as threads:
        loop.set_default_executor(threads)
        yield
    loop.close()


@pytest.fixture(autouse=True)
def _forget_simulated_hosts(request: pytest.FixtureRequest, _leaves_nothing_behind: None) -> Iterator[None]:  # noqa: F811
    """End simulated hangs with their test, and forget the GPU processes of its hosts, whose files are kept open."""
    yield
    if folder := (getattr(request.node, "funcargs", None) or {}).get("tmp_path"):  # None where it was interrupted
        for file in (*folder.glob("rocmlab-faults.json"), *folder.glob("*/rocmlab-faults.json")):
            file.unlink()
    if module := sys.modules.get("rocmlab.telemetry.processes"):
        module.finder.cache_clear()


if find_spec("hypothesis"):  # which a lab's environment, where the frameworks' tests run, has not
    import hypothesis

    # Its own bound of 200 ms on each example fails on a busy machine; a retry calls a method of a new instance.
    hypothesis.settings.register_profile(
        "without deadline",
        hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.differing_executors]),
        deadline=None,
    )
    hypothesis.settings.load_profile("without deadline")

MACHINE = {"container", "podman", "browser", "native", "oracle", "cluster"}  # what scripts/test runs in lanes


def pytest_collection_finish() -> None:
    """Exclude what all tests share from garbage collections, which look at all there is many hundred times."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs an engine or a browser where there is none, and say how to get it; order what changes a lock.

    A week of use ends with another lock, and whoever uses that lab after it waits for one more installation.
    """
    items.sort(key=lambda item: item.path.name == "test_native_week.py")
    _check_marks(items)
    keep_part(config, items)
    reasons = {
        "container": lambda: engines.missing(),
        "browser": engines.missing_browser,
        "oracle": lambda: oracle_tools.missing(),
        "podman": lambda: engines.missing_podman(),
        "rocm": lambda: engines.missing_for_rocm(),
        "cluster": lambda: "" if find_spec("ray") else "no Ray: pip install -r requirements/test.txt",
    }
    for item in items:
        for name, reason in reasons.items():
            if (mark := item.get_closest_marker(name)) and (why := reason(*mark.args)):
                item.add_marker(pytest.mark.skip(reason=why))


def _check_marks(items: list[pytest.Item]) -> None:
    """Fail where a test's file does not show what the test needs: `scripts/test` finds these files by their text."""
    texts = {item.path: item.path.read_text(encoding="utf-8") for item in items if MACHINE & _marks(item)}
    for item in items:
        if hidden := {name for name in MACHINE & _marks(item) if f"mark.{name}" not in texts[item.path]}:
            raise pytest.UsageError(f"{item.nodeid} is marked {hidden}: write pytest.mark.{min(hidden)} in its file")


def _marks(item: pytest.Item) -> set[str]:
    """Return the names of a test's marks, those of its class and file included."""
    return {mark.name for mark in item.iter_markers()}


@pytest.fixture(scope="session")
def base_image() -> str:
    """A plain Debian image with python3."""
    return engines.base_image()


@pytest.fixture(scope="session")
def native_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A clean clone that cannot see Docker; its `.venv`, with all extras, is installed from the package index once."""
    found = clone(tmp_path_factory.mktemp("native") / "rocmlab", EXTRAS=",".join(extras.NAMES))
    found.environment |= UNCOMPILED
    found.environment["PATH"] = without_docker(found.environment["PATH"])
    yield found
    found.make("clean", "FORCE=1", succeeds=False)


@pytest.fixture(scope="session")
def docker_lab(tmp_path_factory: pytest.TempPathFactory, base_image: str) -> Iterator[Clone]:
    """A clean clone whose lab runs in a container on the test base."""
    name = f"rocmlab-test-{os.getpid()}"
    found = clone(tmp_path_factory.mktemp("docker") / "rocmlab", BASE_IMAGE=base_image, COMPOSE_PROJECT_NAME=name)
    found.settings["WARM_KERNELS"] = "off"  # else each first kernel also imports a framework for a second one
    yield found
    found.make("clean", "FORCE=1", succeeds=False)
    subprocess.run(["docker", "volume", "rm", "--force", f"{name}_share"], capture_output=True, check=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """A Chromium for a module. Playwright has an event loop while it lives, so that no other module gets it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = engines.launch_chromium(playwright)
        yield found
        found.close()


@pytest.fixture
def page(browser: Any) -> Iterator[object]:
    """A page of a fresh profile of Chromium, 1280 by 860."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    yield context.new_page()
    context.close()


@pytest.fixture
def repository() -> Path:
    """The root of this source tree."""
    return Path(__file__).parents[1]


@pytest.fixture
def captures(repository: Path) -> Path:
    """Real sysfs trees of AMD hardware, which are not part of the repository."""
    for folder in (repository / ".captures", repository.parent / "shared/captures"):
        if all((folder / kind / "LICENSE").is_file() for kind in ("cards", "kfd")):  # which are fetched last
            return folder
    pytest.skip("no captures of real hardware: scripts/fetch-captures fetches them")
