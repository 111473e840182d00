"""A run executes its notebooks as they were when it began, whatever is saved over them meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import notebook_files
import pytest
from watching import Watcher

from rocmlab.devices import Device
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.run import run
from rocmlab.runs.scheduling.placement import Slots

pytestmark = pytest.mark.slow

REPLACE = "import os; os.replace({edited!r}, {path!r}); print('saved')"


@pytest.mark.long
@pytest.mark.parametrize("parameters", [{}, {"rate": 2}], ids=["plain", "with parameters"])
def test_what_is_saved_during_a_run_is_not_executed(
    tmp_path: Path, gpus: list[Device], cpu: Device, run_folder: RunFolder, parameters: dict[str, Any]
) -> None:
    """The key, by which `--resume` and comparisons go, is that of what was executed; the path stays the notebook's."""
    cells = (notebook_files.PARAMETERS + "rate = 1", "print('as it was', rate)")
    later = notebook_files.write(tmp_path / "later.ipynb", *cells)
    edited = notebook_files.write(tmp_path / "edited.ipynb", cells[0], "print('as edited', rate)")
    editor = notebook_files.write(
        tmp_path / "editor.ipynb", cells[0], REPLACE.format(edited=str(edited), path=str(later))
    )
    jobs = notebook_files.jobs([editor, later], parameters)

    done = run(jobs, folder=run_folder, slots=Slots(gpus[:1], cpu), display=Watcher())

    executed = json.loads(run_folder.file("later", "notebook").read_text(encoding="utf-8"))
    assert done.is_ok
    assert "as edited" in later.read_text(encoding="utf-8")
    assert f"as it was {parameters.get('rate', 1)}" in json.dumps(executed)
    assert executed["metadata"]["papermill"]["input_path"] == str(later)


@pytest.mark.long
def test_a_notebook_that_is_removed_during_a_run_is_executed(
    tmp_path: Path, gpus: list[Device], cpu: Device, run_folder: RunFolder
) -> None:
    """It is needed no more."""
    later = notebook_files.write(tmp_path / "later.ipynb", "print('still here')")
    remover = notebook_files.write(tmp_path / "remover.ipynb", f"import os; os.remove({str(later)!r})")

    done = run(notebook_files.jobs([remover, later]), folder=run_folder, slots=Slots(gpus[:1], cpu), display=Watcher())

    assert done.is_ok
    assert "still here" in run_folder.file("later", "notebook").read_text(encoding="utf-8")
