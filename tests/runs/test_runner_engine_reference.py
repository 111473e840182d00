"""The reference: jobs of a run under the engine that papermill brings itself."""

from __future__ import annotations

import json
from pathlib import Path

import notebook_files
from watching import Watcher

from rocmlab.devices import Device
from rocmlab.kernels.leases import Leases
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import name_uniquely
from rocmlab.runs.run import run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.scheduling.plan import Rules
from rocmlab.runs.spec.preflight import examine
from rocmlab.runs.spec.selection import Found

HELD = """
import os
def locks(process):
    names = (f"/proc/{process}/fd/{number}" for number in os.listdir(f"/proc/{process}/fd"))
    return sum(os.readlink(name).endswith(".lock") for name in names if os.path.lexists(name))
print("locks", locks(os.getpid()), locks(os.getppid()), "leased", os.environ["ROCMLAB_LEASED"])
print(*(name for name in dir() if name == "leave"))
"""


def test_the_reference_runs_the_same_jobs(tmp_path: Path, cpu: Device, run_folder: RunFolder) -> None:
    """It is papermill that runs them, and the runner corrects its states."""
    redraws = "import os, sys\nfor i in range(3):\n    sys.stderr.write(f'\\r{i}')\n    sys.stderr.flush()"
    cells = {
        "good": (redraws,),
        "bad": ("1 / 0", "1"),
        "dead": ("1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "1"),
    }
    paths = [notebook_files.write(tmp_path / f"{name}.ipynb", *sources) for name, sources in cells.items()]
    jobs = name_uniquely(examine([Found(str(path), path) for path in paths], {}))

    done = run(jobs, folder=run_folder, slots=Slots([], cpu), display=Watcher(), rules=Rules(engine="papermill"))

    assert [result.status for result in done.results] == ["ok", "failed", "kernel died"]
    good = json.loads(run_folder.file("good", "notebook").read_text())
    assert "\r" in json.dumps(good["cells"][0]["outputs"]).replace("\\r", "\r")
    dead = json.loads(run_folder.file("dead", "notebook").read_text())
    states = [cell["metadata"]["papermill"]["status"] for cell in dead["cells"]]
    assert states == ["completed", "failed", "pending"]


def test_the_kernel_of_the_reference_holds_the_lease(
    tmp_path: Path, gpus: list[Device], cpu: Device, run_folder: RunFolder
) -> None:
    """It has the lock, its worker has not, the notebook's names are its own, and afterwards the GPU is free."""
    path = notebook_files.write(tmp_path / "n.ipynb", HELD)
    jobs = name_uniquely(examine([Found(str(path), path)] * 2, {}))

    done = run(jobs, folder=run_folder, slots=Slots(gpus[:1], cpu), display=Watcher(), rules=Rules(engine="papermill"))

    assert done.is_ok, [result.error for result in done.results]
    for name in ("n", "n-2"):
        printed = json.loads(run_folder.file(name, "notebook").read_text())["cells"][0]["outputs"][0]["text"]
        assert "".join(printed).splitlines() == ["locks 1 0 leased 1", ""]
    assert Leases.of_share(tmp_path / "share").is_free(gpus[0])
