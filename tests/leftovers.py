"""A test fails if it leaves descriptors open, threads or child processes running, or signals with another effect.

Compared is before a test's first own fixture and after its last one. What fixtures of a wider scope open in between is
theirs. A test that fails has failed: the frames of its traceback keep open what they refer to.

Processes that are no longer children, such as those of a program that was killed, are looked for when all tests are
done: these are ended, and the run fails.
"""

from __future__ import annotations

import gc
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

MARK = "TESTS_OF_RUN"  # an environment variable
GRACE_SECONDS = 5.0  # what has been told to end takes a moment
LIBRARIES = tuple(os.path.join(os.path.realpath(path), "lib", "") for path in (sys.prefix, sys.base_prefix))
ELSEWHERE = ("container", "podman", "browser", "native", "oracle", "cluster", "frameworks")

SHARED_THREADS = "rocmlab-tests"  # of the event loop that jupyter_client keeps
shared: Counter[str] = Counter()  # what tests hand on to each other on purpose

SIGNALS = {number: signal.getsignal(number) for number in signal.valid_signals()}

_before = pytest.StashKey[Counter[str]]()
_has_failed = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compare around a test; its name is the first of all such fixtures, and so this one is the outermost."""
    stash = request.config.stash
    if any(map(request.node.get_closest_marker, ELSEWHERE)):
        yield
        return
    stash[_before] = held()
    yield
    before = stash[_before]
    del stash[_before]
    if not request.node.stash.get(_has_failed, False) and (left := _left(before)):
        pytest.fail("the test left behind: " + ", ".join(sorted(left.elements())), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Count what a fixture of a wider scope opens as held before the test that happens to be the first with it."""
    stash = request.config.stash
    if fixturedef.scope == "function" or _before not in stash:
        return (yield)
    before = held()
    try:
        return (yield)
    finally:
        stash[_before] += held() - before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember that a test has failed."""
    report = yield
    item.stash[_has_failed] = item.stash.get(_has_failed, False) or report.failed
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Mark what this run starts, also through pytest-xdist's processes, by its environment."""
    if not hasattr(config, "workerinput"):
        os.environ[MARK] = secrets.token_hex(8)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """Remove the sockets of kernels whose clients were killed, as tests do, so that no one else removed them."""
    yield  # pytest-xdist ends its processes here
    if hasattr(session.config, "workerinput"):
        return
    remove_sockets(Path(tempfile.gettempdir()))
    is_divided = session.config.getoption("dist", "no") != "no"  # as hermetic tests are; then no item is here
    if is_divided or not any(item.get_closest_marker(name) for item in session.items for name in ELSEWHERE):
        end = time.monotonic() + GRACE_SECONDS
        while (left := orphans()) and time.monotonic() < end:
            time.sleep(0.1)
        for pid, words in left.items():
            sys.stdout.write(f"\na test left behind process {pid}: {words}\n")
            os.kill(pid, signal.SIGKILL)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def orphans() -> dict[int, str]:
    """Return what runs with this run's mark: by number, the test that started it, and its command line."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        variables = dict(line.partition("=")[::2] for line in _read(f"{name}/environ").split("\0"))
        if variables.get(MARK) == os.environ[MARK]:
            words = _read(f"{name}/cmdline").replace("\0", " ").strip()
            found[int(name)] = f"{variables.get('PYTEST_CURRENT_TEST', '?')}: {words}"
    return found


def remove_sockets(parent: Path) -> None:
    """Remove each folder of a kernel that no longer listens; see `rocmlab.kernels.connection.make_folder`."""
    for path in parent.glob("kernel-*/s-1"):
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except ConnectionRefusedError:
                shutil.rmtree(path.parent, ignore_errors=True)
            except OSError:  # another user's, or gone
                continue


def held() -> Counter[str]:
    """Return what this process has open and what it runs."""
    return Counter([*_descriptors(), *_threads(), *_children(), *_signals()])


def _left(before: Counter[str]) -> Counter[str]:
    """Return what is held now and was not before; the cheap case, nothing, needs neither time nor a collection."""
    if not (left := held() - before - shared):
        return left
    end = time.monotonic() + GRACE_SECONDS
    while left and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
        left = held() - before - shared
    return left


def _descriptors() -> Iterator[str]:
    """Name what each descriptor of this process is open on; a socket and a pipe have a number of their own.

    What libraries keep open of their own files, such as fonts, is not a test's.
    """
    folder = "/proc/self/fd"
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:  # the one that listed them
            continue
        if not target.startswith(LIBRARIES):
            yield f"a descriptor of {target}"


def _threads() -> Iterator[str]:
    """Name each thread."""
    for thread in threading.enumerate():
        if not thread.name.startswith(SHARED_THREADS):
            yield f"thread {thread.name} {thread.ident}"


def _children() -> Iterator[str]:
    """Name each child, also one that has ended and that no one has waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # the usual case, and a thousand times as cheap as looking for them
        return
    for thread in os.listdir("/proc/self/task"):
        for child in _read(f"self/task/{thread}/children").split():
            yield f"process {child} ({_read(f'{child}/comm').strip()})"


def _read(name: str) -> str:
    """Return a file of /proc; nothing where what it was of has ended."""
    try:
        return Path("/proc", name).read_text(errors="replace")
    except OSError:
        return ""


def _signals() -> Iterator[str]:
    """Name each signal that has another effect than at first, such as SIGPIPE that ends this process."""
    for number, first in SIGNALS.items():
        if (now := signal.getsignal(number)) != first:
            yield f"{signal.Signals(number).name} with {now!r}"
