"""Runs a notebook's cells as one program, without Jupyter: for tests with data or a model of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import rocmlab

SRC = Path(rocmlab.__file__).parents[1]
NOTEBOOKS = Path(__file__).parents[3] / "notebooks"

# A program of its own: the environment that the notebook sets must come before its imports.
RUN = """
import json, sys, warnings
from pathlib import Path
import matplotlib
matplotlib.use("Agg")
warnings.simplefilter("error")
import rocmlab
from rocmlab.training import metrics
notebook, parameters = json.loads(Path(sys.argv[1]).read_text()), json.loads(sys.argv[2])
exec(sys.argv[3])
rocmlab.record = lambda **values: print("RECORD " + json.dumps(metrics._plain(values, "record")))
names = {"__name__": "__main__"}
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        if "parameters" in cell["metadata"].get("tags", []):
            names.update(parameters)
"""


def run(name, parameters, share, before=""):
    """Return the finished process, and what the notebook recorded (None if it recorded nothing).

    Args:
        name: of the notebook, without `.ipynb`.
        parameters: replace those of its first code cell.
        share: the share, and the working folder.
        before: a program to run first, for example to replace a data set.
    """
    env = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "ROCMLAB_SHARE": str(share)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(NOTEBOOKS / f"{name}.ipynb"), json.dumps(parameters), before],
        env=env,
        cwd=share,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    records = [line[7:] for line in done.stdout.splitlines() if line.startswith("RECORD ")]
    return done, json.loads(records[0]) if records else None
