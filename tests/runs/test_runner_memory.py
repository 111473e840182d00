"""A notebook that eats all memory under a real limit: the system kills it, and the run reports it and continues."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import notebook_files
import pytest

pytestmark = pytest.mark.slow

LIMIT_BYTES = 900_000_000  # for the runner, its workers and a kernel; without the hungry one they need a third of it
GROUPS = Path("/sys/fs/cgroup")
EAT = "print('it eats', flush=True)\nheap = []\nwhile True: heap.append(b'x' * 20_000_000)"
EAT_ONCE = """
import pathlib
seen = pathlib.Path({path!r})
is_first, heap = not seen.exists(), []
seen.touch()
while is_first:
    heap.append(b"x" * 20_000_000)
"""


@contextlib.contextmanager
def group() -> Iterator[list[str] | None]:
    """Yield a command that starts another one in a control group with a limit on memory; None: none is available."""
    name = f"rocmlab-test-{secrets.token_hex(4)}"
    kinds = (  # where groups are, and the files of the limits
        (GROUPS, ("memory.max", "memory.swap.max")),
        (GROUPS / "memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")),
    )
    for parent, (limit, swap) in kinds:
        folder = parent / name
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if not (folder / limit).exists() or not (folder / "cgroup.procs").exists():
                continue
            (folder / limit).write_text(str(LIMIT_BYTES))
            with contextlib.suppress(OSError):
                (folder / swap).write_text("0" if swap == "memory.swap.max" else str(LIMIT_BYTES))
            yield ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
            return
        finally:
            remove(folder)
    yield of_systemd()


def of_systemd() -> list[str] | None:
    """Return the same by the user's own service manager, for those who are not root."""
    limits = ["-p", f"MemoryMax={LIMIT_BYTES}", "-p", "MemorySwapMax=0"]
    command = ["systemd-run", "--user", "--scope", "--quiet", *limits, "--"]
    if not shutil.which(command[0]):
        return None
    try:
        works = subprocess.run([*command, "true"], capture_output=True, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        works = False
    return command if works else None


def remove(folder: Path) -> None:
    """Remove a group when its last process has been reaped."""
    end = time.monotonic() + 30
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            assert time.monotonic() < end, f"{folder} still has processes"
            time.sleep(0.05)


@pytest.mark.long
def test_a_notebook_that_the_system_kills_for_want_of_memory(tmp_path: Path) -> None:
    """It is killed (137) and the message says memory; states are true, others go on, and a retry may have more luck."""
    notebook_files.write(tmp_path / "notebooks/eats.ipynb", "print('before')", EAT, "print('after')")
    notebook_files.write(tmp_path / "notebooks/once.ipynb", EAT_ONCE.format(path=str(tmp_path / "seen")), "print(1)")
    notebook_files.write(tmp_path / "notebooks/small.ipynb", "print('small')")
    words = ["eats", "once", "small", "--gpus", "none", "--retries", "1", "--warm", "off", "--json"]
    environment = {**os.environ, "ROCMLAB_RUNTIME": "native"}
    with group() as within:
        if within is None:
            pytest.skip("no limit on memory can be set here: it takes root and a cgroup, or systemd-run --user")
        ended = subprocess.run(
            [*within, sys.executable, "-m", "rocmlab", "run", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    assert ended.returncode == 1, ended.stderr
    results = json.loads(ended.stdout)
    eats, once, small = results["jobs"]
    assert (eats["status"], eats["exit_code"]) == ("killed", 137)
    assert eats["error"]["value"].endswith("because the memory was full")
    assert (eats["cells_done"], eats["cells_total"], eats["error"]["cell"]) == (1, 3, 2)
    assert [each["status"] for each in eats["attempts"]] == ["killed"]
    assert "memory" in eats["attempts"][0]["message"]
    assert (once["status"], [each["status"] for each in once["attempts"]]) == ("ok", ["killed"])
    assert (small["status"], small["attempts"]) == ("ok", [])
    notebook = json.loads((Path(results["run"]["folder"]) / "eats.ipynb").read_text())
    assert [cell["metadata"]["papermill"]["status"] for cell in notebook["cells"]] == ["completed", "failed", "pending"]
    assert "it eats" in json.dumps(notebook["cells"][1]["outputs"])
    assert "✗ eats  killed" in ended.stderr


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="no oom_score_adj: this is not Linux")
@pytest.mark.parametrize("warm", ["auto", "off"])
def test_where_memory_runs_out_the_kernels_go_before_the_runner(tmp_path: Path, warm: str) -> None:
    """The system is told so, for kernels that are started cold and for those that are forked."""
    cell = "import pathlib, rocmlab\nrocmlab.record(adj=int(pathlib.Path('/proc/self/oom_score_adj').read_text()))"
    for name in ("a", "b"):
        notebook_files.write(tmp_path / f"notebooks/{name}.ipynb", cell)
    environment = {**os.environ, "ROCMLAB_RUNTIME": "native"}
    command = [sys.executable, "-m", "rocmlab", "run", "a", "b", "--gpus", "none", "--warm", warm, "--json"]

    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    assert ended.returncode == 0, ended.stderr
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert {job["recorded"]["adj"] for job in json.loads(ended.stdout)["jobs"]} == {max(own, 300)}
