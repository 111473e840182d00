"""What watching costs: the runner and its workers are counted, the kernels are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks import supervision
from rocmlab.base.errors import RocmlabError

pytestmark = pytest.mark.slow

# A parent with a child that idles and one that has worked; the latter stands for a kernel.
FAMILY = """
import subprocess, sys, time
idle = "import sys; print('ready', flush=True); sys.stdin.read()"
busy = "import time\\nwhile time.process_time() < 0.5: pass\\n" + idle
children = [
    subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for code in (idle, busy)
]
for child in children:
    child.stdout.readline()
print(children[1].pid, flush=True)
sys.stdin.read()
"""


def test_kernels_are_left_out() -> None:
    """What a kernel has used is none of the runner's, and nothing else is missing."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        kernel = psutil.Process(int(parent.stdout.readline()))

        before = supervision._cpu_seconds(parent.pid, {kernel.pid}), sum(kernel.cpu_times()[:2])
        with_it = supervision._cpu_seconds(parent.pid, set())
        after = supervision._cpu_seconds(parent.pid, {kernel.pid}), sum(kernel.cpu_times()[:2])

        for child in psutil.Process(parent.pid).children():
            child.kill()
        parent.stdin.close()

    rounding = 1e-6
    assert before[1] > 0
    assert sum(before) - rounding <= with_it <= sum(after) + rounding  # what has been used never falls


@pytest.mark.long
@pytest.mark.parametrize(("terminal", "jobs"), [(True, 2), pytest.param(False, 2, marks=pytest.mark.long)])
def test_jobs_are_watched_side_by_side(terminal: bool, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run on some simulated GPUs, shortened; anyone who watches uses something."""
    monkeypatch.setattr(supervision, "JOBS", jobs)

    (percent,) = supervision.measure(1, terminal=terminal, cell_seconds=0.4)

    assert percent > 0


@pytest.mark.long
def test_notebooks_that_do_not_run_are_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the runner's own words."""
    original = Path.write_text

    def broken(path: Path, text: str, **options: object) -> int:
        return original(path, "{}" if path.suffix == ".ipynb" else text, **options)

    monkeypatch.setattr(Path, "write_text", broken)

    with pytest.raises(RocmlabError, match="side by side") as caught:
        supervision.measure(1, terminal=False, cell_seconds=0.1)
    assert "missing a key: cells" in caught.value.problem.why
