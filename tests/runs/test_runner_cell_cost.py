"""`%%gpu` in the notebooks of a run: its line is in the executed copy, from kernels cold and forked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import notebook_files
import pytest
from watching import Watcher

from rocmlab.devices import Device, discover
from rocmlab.packages import overlays
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.run import run
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.simulation import write_host

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")]


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
def test_jobs_show_what_a_cell_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: Device, count: int) -> None:
    """One job starts cold, two are forked; each measures the GPU of its lease, and an error below it fails the job."""
    host = write_host(tmp_path / "host", gpus=2, busy="0:20,1:80", processes=[])
    monkeypatch.setenv("ROCMLAB_ROOT", str(host))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    notebook_files.write_kernel(tmp_path / "jupyter/kernels/torch", sys.executable, ["tabnanny"])
    path = tmp_path / "jupyter/kernels/torch/kernel.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "env": {overlays.KERNEL: "torch"}}))
    cells = ("import sys; print('tabnanny' in sys.modules)", "%%gpu\n1 + 1", "%%gpu\nraise KeyError('mine')")
    notebook = notebook_files.write(tmp_path / "notebooks/n.ipynb", *cells, kernel="torch")
    gpus = [device for device in discover(host, {}) if device.backend == "rocm"]

    jobs = notebook_files.jobs([notebook] * count)
    done = run(jobs, folder=RunFolder.create(tmp_path / "share", "test"), slots=Slots(gpus, cpu), display=Watcher())

    assert [result.status for result in done.results] == ["failed"] * count
    for result in done.results:
        assert "KeyError" in str(result.error)
        executed = json.loads(done.folder.file(result.name, "notebook").read_text())
        first, second, third = [cell["outputs"] for cell in executed["cells"] if cell["cell_type"] == "code"][-3:]
        assert "".join(first[0]["text"]).split() == [str(count == 2)]
        busy = {0: "busy 20 %", 1: "busy 80 %"}[result.devices[0]["index"]]
        for outputs in (second, third):
            [shown] = [output for output in outputs if output["output_type"] == "display_data"]
            text = "".join(shown["data"]["text/plain"])
            assert "· AMD Radeon RX 7900 XTX (SIMULATED) · " in text
            assert busy in text
