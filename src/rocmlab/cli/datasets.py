"""`rocmlab datasets`: inside the lab it fetches; on the host it asks the lab to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rocmlab.cli.up import note
from rocmlab.stack import project as projects


def main(verb: str, arguments: Sequence[str]) -> int:
    """Fetch or list data sets, in whichever runtime the lab has."""
    if os.environ.get("ROCMLAB_RUNTIME"):
        from rocmlab.training.datasets.command import main as datasets

        return datasets(list(arguments))
    project = projects.plan(projects.find())
    with projects.locked(project, note):
        project = projects.prepare(project, note, persist=False)
    return project.lab.run([verb, *arguments])
