"""Jobs of a run whose kernel has packages of the user's own: a real installation from a folder of wheels."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import notebook_files
import pytest
from watching import Watcher
from wheel_files import wheel

from rocmlab.devices import Device
from rocmlab.packages import installing, overlays
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.run import run
from rocmlab.runs.scheduling.placement import Slots

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")]
SAYS = "import os, sys, harmless; print('runs', sys.executable, 'tabnanny' in sys.modules, harmless.answer, 'end')"


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
def test_jobs_have_them_cold_and_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[Device], cpu: Device, count: int
) -> None:
    """One job starts cold, two are forked from a server that runs the overlay's interpreter."""
    wheel(tmp_path, "harmless", "1.0", {"harmless.py": "answer = 42\n"})
    notebook_files.write_kernel(tmp_path / "jupyter/kernels/torch", sys.executable)
    path = tmp_path / "jupyter/kernels/torch/kernel.json"
    ours = {"framework": "torch", "preload": ["tabnanny"]}
    env = {overlays.KERNEL: "torch", overlays.PYTHON: sys.executable}
    path.write_text(json.dumps({**json.loads(path.read_text()), "metadata": {"rocmlab": ours}, "env": env}))
    share = tmp_path / "share"
    values = {"JUPYTER_PATH": str(tmp_path / "jupyter"), overlays.SHARE: str(share), installing.UV: sys.prefix}
    values |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    place = Place(share, "torch", sys.executable)
    installing.add(place, [Requirement("harmless")], print)
    notebook = notebook_files.write(tmp_path / "notebooks/n.ipynb", SAYS, kernel="torch")

    jobs = notebook_files.jobs([notebook] * count)
    done = run(jobs, folder=RunFolder.create(share, "test"), slots=Slots(gpus, cpu), display=Watcher())

    assert [(result.status, result.warnings) for result in done.results] == [("ok", [])] * count
    logs = [done.folder.file(result.name, "log").read_text() for result in done.results]
    python = str((place.current() or Path()) / "bin/python")
    assert [log.partition("runs ")[2].split()[:3] for log in logs] == [[python, str(count == 2), "42"]] * count
