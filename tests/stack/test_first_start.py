"""A lab whose frameworks are still being installed, as its user has it: `make up`, `status`, `doctor`, runs, `down`."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import clients
import nbformat
import pytest
from clones import Clone, clone, furnish, without_docker

from rocmlab.base import installation

pytestmark = pytest.mark.slow

WAIT_SECONDS = 60.0
INSTALLS = """
import sys, time
from pathlib import Path
while not (Path.cwd() / "go").exists():
    time.sleep(0.02)
if (Path.cwd() / "fails").exists():
    sys.exit("ERROR: no index answers")
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Clone]:
    """A clone whose environment has no frameworks yet; what would install them waits for a file."""
    found = clone(tmp_path / "rocmlab", NOTEBOOKS_DIR="./mine")
    found.environment["PATH"] = without_docker(found.environment["PATH"])
    (found.folder / "requirements/uv.txt").write_text("")
    (found.folder / "docker/build/install.py").write_text(INSTALLS)
    for name in ("companions", "verify"):
        (found.folder / f"docker/build/{name}.py").write_text("")
    cell = nbformat.v4.new_code_cell("print(6 * 7)")
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": {"name": "torch", "display_name": "x"}})
    (found.folder / "mine").mkdir()
    nbformat.write(notebook, found.folder / "mine/one.ipynb")
    furnish(found)
    whole = found.folder / ".venv" / installation.WHOLE
    whole.rename(whole.with_name(installation.PART))
    yield found
    (found.folder / "go").touch()
    found.make("down", succeeds=False)


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def rocmlab(lab: Clone, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as `scripts/rocmlab` does."""
    return subprocess.run(
        [str(lab.folder / "scripts/rocmlab"), *arguments],
        cwd=lab.folder,
        env=lab.environment,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )


def titles(lab: Clone) -> set[str]:
    """Return what JupyterLab's launcher shows."""
    found = clients.ask(lab.port, lab.env["JUPYTER_TOKEN"], "/api/kernelspecs", timeout_seconds=10)[1]
    return {each["spec"]["display_name"] for each in found["kernelspecs"].values()}


def test_jupyterlab_is_there_before_the_frameworks_and_a_run_waits_for_them(lab: Clone) -> None:
    """`make up` ends with a URL that answers; a second one changes nothing; the run begins when they are there.

    It reports its end to the command that it was given, which holds for this run alone.
    """
    first = lab.make("up").stdout

    assert lab.answers()
    assert "TensorFlow and PyTorch are being installed" in first
    assert titles(lab) == {"TensorFlow (being installed)", "PyTorch (being installed)"}
    assert "kernels    TensorFlow and PyTorch are being installed" in lab.make("status").stdout
    assert json.loads(rocmlab(lab, "status", "--json").stdout)["installation"]["state"] == "installing"
    record = (lab.folder / ".rocmlab/jupyter.json").read_text()
    assert "JupyterLab is running" in lab.make("up").stdout
    assert (lab.folder / ".rocmlab/jupyter.json").read_text() == record

    for dry in (rocmlab(lab, "run", "one", "--dry-run"), rocmlab(lab, "export", "slurm", "one", "--dry-run")):
        assert dry.returncode == 0, dry.stderr
        assert "no up-to-date lab found here" in dry.stdout

    command = [str(lab.folder / "scripts/rocmlab"), "run", "one"]
    message = lab.folder / "message"
    notified = {**lab.environment, "NOTIFY": f"sh -c 'cat >\"{message}\"'", "NOTIFY_AFTER_SECONDS": "0"}
    with subprocess.Popen(
        command, cwd=lab.folder, env=notified, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        printed = [line for _, line in zip(range(2), run.stdout, strict=False)]
        assert "waiting for TensorFlow and PyTorch, which are being installed in the background" in printed[1]
        (lab.folder / "go").touch()
        rest = run.stdout.read()
    assert run.returncode == 0, rest
    assert json.loads(message.read_text())["jobs"] == {"ok": 1}
    assert not (lab.folder / ".rocmlab/live/notify.json").exists()
    until(lambda: titles(lab) == {"TensorFlow", "PyTorch"})
    assert "kernels " not in lab.make("status").stdout
    assert (lab.folder / ".rocmlab/jupyter.json").read_text() == record


@pytest.mark.long
def test_a_failed_installation_is_shown_where_it_is_looked_for(lab: Clone) -> None:
    """By `make status` and the doctor, with its reason and what retries it; JupyterLab runs."""
    (lab.folder / "fails").touch()
    (lab.folder / "go").touch()

    lab.make("up")

    until(lambda: titles(lab) == {"TensorFlow (not installed)", "PyTorch (not installed)"})
    status = lab.make("status").stdout
    assert "kernels    TensorFlow and PyTorch could not be installed" in status
    assert "no index answers" in status
    state = json.loads(rocmlab(lab, "status", "--json").stdout)["installation"]
    assert state["state"] == "failed"
    assert state["problem"]["fix"].startswith("make up")
    found = rocmlab(lab, "doctor", "--only", "lab.kernels").stdout
    assert "TensorFlow and PyTorch could not be installed" in found
    (lab.folder / "fails").unlink()
    lab.make("up")
    until(lambda: titles(lab) == {"TensorFlow", "PyTorch"})


@pytest.mark.long
def test_make_down_ends_the_installation_and_make_up_continues_it(lab: Clone) -> None:
    """Nothing of the lab runs in between."""
    lab.make("up")
    assert installation.is_locked(lab.folder)

    lab.make("down")

    assert not installation.is_locked(lab.folder)
    assert "TensorFlow and PyTorch are not installed" in lab.make("status", succeeds=False).stdout
    (lab.folder / "go").touch()
    lab.make("up")
    until(lambda: installation.is_whole(lab.folder / ".venv"))
