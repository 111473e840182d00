"""The reference: jobs of a run under the engine that papermill brings itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import notebook_files
from watching import Watcher

from rocmlab.devices import Device
from rocmlab.runner.folder import RunFolder
from rocmlab.runner.jobs import name_uniquely
from rocmlab.runner.placement import Slots
from rocmlab.runner.preflight import examine
from rocmlab.runner.runs import run
from rocmlab.runner.selection import Found
from rocmlab.runner.worker import ENGINE


def test_the_reference_runs_the_same_jobs(tmp_path: Path, cpu: Device, run_folder: RunFolder) -> None:
    """It is papermill that runs them, the kernel does not see the setting, and the runner corrects its states."""
    redraws = "import os, sys\nfor i in range(3):\n    sys.stderr.write(f'\\r{i}')\n    sys.stderr.flush()"
    cells = {
        "good": (redraws, f"print({ENGINE!r} in os.environ)"),
        "bad": ("1 / 0", "1"),
        "dead": ("1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "1"),
    }
    paths = [notebook_files.write(tmp_path / f"{name}.ipynb", *sources) for name, sources in cells.items()]
    jobs = name_uniquely(examine([Found(str(path), path) for path in paths], {}))

    done = run(
        jobs,
        folder=run_folder,
        slots=Slots([], cpu),
        display=Watcher(),
        environment={**os.environ, ENGINE: "papermill"},
    )

    assert [result.status for result in done.results] == ["ok", "failed", "kernel died"]
    good = json.loads(run_folder.file("good", "notebook").read_text())
    assert "\r" in json.dumps(good["cells"][0]["outputs"]).replace("\\r", "\r")
    assert "".join(good["cells"][1]["outputs"][0]["text"]) == "False\n"
    dead = json.loads(run_folder.file("dead", "notebook").read_text())
    states = [cell["metadata"]["papermill"]["status"] for cell in dead["cells"]]
    assert states == ["completed", "failed", "pending"]
