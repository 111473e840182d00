"""docker/start-cluster.sh: JupyterLab and a Ray node side by side, played by small programs; no engine is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docker/start-cluster.sh"
# What `rocmlab cluster node` does: it says what it does and waits; the signal ends it, and that takes a moment.
NODE = """#!/bin/bash
echo "node starts, arguments: $*"
trap 'sleep 0.2; echo "node ends"; exit 0' TERM
while true; do sleep 0.05; done
"""
LAB = """#!/bin/bash
trap 'sleep 0.3; echo "lab ends"; exit 0' TERM
echo "lab starts"
while true; do sleep 0.05; done
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that runs the script with a node and a lab of the test's; all it prints goes to `log`."""
    running: list[subprocess.Popen[bytes]] = []

    def run(node: str, lab: str) -> subprocess.Popen[bytes]:
        for name, text in (("rocmlab", node), ("lab", lab)):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}
        with open(tmp_path / "log", "wb") as log:
            process = subprocess.Popen(
                [SCRIPT, tmp_path / "lab"], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        running.append(process)
        return process

    yield run
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def printed(folder: Path, *words: str) -> list[str]:
    """Wait until the log has all the words, and return its lines."""
    deadline = time.monotonic() + 30
    while True:
        text = (folder / "log").read_text()
        if all(word in text for word in words):
            return text.splitlines()
        assert time.monotonic() < deadline, text
        time.sleep(0.02)


@pytest.mark.slow
def test_a_signal_ends_the_lab_first_and_the_node_after_it(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """As `docker stop` gives it, by way of tini, to the whole group; nothing stays."""
    process = start(NODE, LAB)
    printed(tmp_path, "lab starts", "node starts, arguments: cluster node")

    os.killpg(process.pid, signal.SIGTERM)

    assert process.wait(30) == 0
    assert printed(tmp_path)[-2:] == ["lab ends", "node ends"]


def test_the_labs_own_end_is_the_scripts(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """With its exit code, so that the engine starts the container again; the node ends as well."""
    process = start(NODE, '#!/bin/bash\nuntil grep -q starts "${0%/*}/log"; do sleep 0.05; done\nexit 7\n')

    assert process.wait(30) == 7
    assert printed(tmp_path)[-1] == "node ends"


@pytest.mark.slow
def test_a_node_that_cannot_start_is_named_and_tried_again(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The lab continues meanwhile, and what the node said is in the log."""
    tries = tmp_path / "tries"
    failing = (
        f"#!/bin/bash\necho try >>{tries}\n[[ $(wc -l <{tries}) -gt 1 ]] || {{ echo 'error: no head' >&2; exit 2; }}\n"
    )

    process = start(failing + NODE.partition("\n")[2], LAB)
    lines = printed(tmp_path, "node starts")

    assert process.poll() is None
    assert lines.count("error: no head") == 1
    assert any("ended with exit code 2, and the lab continues without it" in line for line in lines)


@pytest.mark.slow
def test_a_signal_during_the_pause_ends_it(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """No one waits for the next try."""
    process = start("#!/bin/bash\nexit 2\n", LAB)
    printed(tmp_path, "again in 2 s")

    begun = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM)

    assert process.wait(30) == 0
    assert time.monotonic() - begun < 10
