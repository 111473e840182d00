"""A test that leaves something open or running fails, and only that test."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path

import leftovers
import pytest
from demos import until

pytestmark = pytest.mark.slow
pytest_plugins = "pytester"

HEADER = "import os, signal, subprocess, sys, threading, time\nimport pytest\n"


@pytest.fixture
def errors(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run a file of tests with the check in a process of its own, and return what is reported."""
    monkeypatch.setenv("PYTHONPATH", str(Path(leftovers.__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(
        "import leftovers\nfrom leftovers import _leaves_nothing_behind, pytest_configure, pytest_fixture_setup,"
        " pytest_runtest_makereport, pytest_sessionfinish\nleftovers.GRACE_SECONDS = 0.2\n"
    )

    def run(text: str, **outcomes: int) -> str:
        result = pytester.runpytest_subprocess("-p", "no:cacheprovider", pytester.makepyfile(HEADER + text))
        result.assert_outcomes(**outcomes)
        run.code = result.ret
        return result.stdout.str()

    return run


@pytest.mark.long
@pytest.mark.parametrize(
    ("leaves", "ends", "named"),
    [
        ("HELD.append(open(os.devnull))", "HELD.pop().close()", "a descriptor of /dev/null"),
        ("HELD.extend(os.pipe())", "os.close(HELD.pop()); os.close(HELD.pop())", "a descriptor of pipe:["),
        (
            "HELD.append(threading.Event()); threading.Thread(target=HELD[0].wait, name='waits').start()",
            "HELD.pop().set()",
            "thread waits ",
        ),
        (
            "HELD.append(subprocess.Popen(['sleep', '60']))",
            "HELD[0].kill(); HELD.pop().wait()",
            " (sleep)",
        ),
        ("HELD.append(subprocess.Popen(['true']))", "HELD.pop().wait()", " (true)"),
        (
            "HELD.append(signal.signal(signal.SIGPIPE, signal.SIG_DFL))",
            "signal.signal(signal.SIGPIPE, HELD.pop())",
            "SIGPIPE with <Handlers.SIG_DFL: 0>",
        ),
    ],
    ids=["file", "pipe", "thread", "process", "process no one waited for", "signal"],
)
def test_what_a_test_leaves_behind_is_an_error_of_that_test(errors, leaves: str, ends: str, named: str) -> None:
    """The test before it and the one after it, which cleans up, are not blamed."""
    text = f"HELD = []\ndef test_before(): pass\ndef test_leaves(): {leaves}\ndef test_after(): {ends}\n"

    found = errors(text, passed=3, errors=1)

    assert "ERROR at teardown of test_leaves" in found
    assert "the test left behind: " in found
    assert named in found


def test_what_its_own_fixture_closes_is_not_left_behind(errors) -> None:
    """The comparison is made after the fixtures of the test have ended, also those of `autouse`."""
    errors(
        "@pytest.fixture(autouse=True)\ndef _a():\n    with open(os.devnull): yield\n"
        "@pytest.fixture\ndef opened():\n    with open(os.devnull): yield\n"
        "def test_one(opened): pass\n",
        passed=1,
    )


@pytest.mark.parametrize("request_it", ["wide", "request"])
def test_what_a_wider_fixture_opens_is_its_own(errors, request_it: str) -> None:
    """A module's fixture stays open between tests, whether it is an argument or requested later."""
    errors(
        "@pytest.fixture(scope='module')\ndef wide():\n    with open(os.devnull): yield\n"
        f"def test_first({request_it}):\n    {request_it} == 1 or hasattr({request_it}, 'getfixturevalue')"
        f" and {request_it}.getfixturevalue('wide')\n"
        "def test_second(wide): pass\n",
        passed=2,
    )


def test_what_ends_a_moment_later_is_not_left_behind(errors) -> None:
    """A thread that was told to end may take that moment."""
    errors("def test_one(): threading.Thread(target=time.sleep, args=(0.05,)).start()\n", passed=1)


def test_what_only_a_cycle_refers_to_is_not_left_behind(errors) -> None:
    """It is collected first."""
    errors(
        "def test_one():\n    cycle = [os.fdopen(os.dup(1), closefd=False)]\n    cycle.append(cycle)\n"
        "    class Held:\n        def __init__(self): self.number = os.dup(1); self.me = self\n"
        "        def __del__(self): os.close(self.number)\n    Held()\n    os.close(cycle[0].fileno())\n",
        passed=1,
    )


def test_a_test_that_fails_has_one_failure(errors) -> None:
    """Its traceback keeps open what it opened: that is no second finding."""
    errors("def test_one():\n    file = open(os.devnull)\n    assert file is None\n", failed=1)


def test_what_a_killed_program_has_started_fails_the_run(errors) -> None:
    """It is no child of the tests any more; it is ended, so that the next run begins without it."""
    program = "import subprocess, sys; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"

    found = errors(
        f"def test_one():\n    words = [sys.executable, '-c', {program!r}]\n"
        "    print('it has', subprocess.check_output(words, text=True))\n    assert sys.exc_info()[0] is None\n",
        passed=1,
    )

    left = re.search(r"a test left behind process (\d+): test_what\S+::test_one \(call\): sleep 60", found)
    assert left, found
    assert errors.code == pytest.ExitCode.TESTS_FAILED
    until(lambda: not Path("/proc", left[1]).exists())


def test_sockets_of_kernels_that_ended_are_removed(tmp_path: Path) -> None:
    """Those of a kernel that listens, or that has not begun to, stay."""
    with contextlib.ExitStack() as stack:
        for name in ("kernel-ended", "kernel-runs"):
            (tmp_path / name).mkdir()
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(tmp_path / name / "s-1"))
            listener.listen()
            if name == "kernel-ended":
                listener.close()
        (tmp_path / "kernel-begins").mkdir()
        leftovers.remove_sockets(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel-begins", "kernel-runs"]
