"""`rocmlab datasets`: inside the lab it fetches; on the host it asks the lab to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rocmlab.cli.up import note
from rocmlab.errors import RocmlabError
from rocmlab.stack import project as projects
from rocmlab.stack.project import Project


def main(verb: str, arguments: Sequence[str]) -> int:
    """Fetch or list data sets, in whichever runtime the lab has."""
    if os.environ.get("ROCMLAB_RUNTIME"):
        from rocmlab.training.datasets.command import main as datasets

        return datasets(list(arguments))
    return _prepared(projects.plan(projects.find())).lab.run([verb, *arguments])


def _prepared(project: Project) -> Project:
    """Make the lab where there is none yet, in one line; how that went is told only where it fails.

    Raises:
        RocmlabError: it cannot be made.
    """
    said: list[str] = []

    def hear(line: str) -> None:
        if not said:
            note("the lab is made first, which may take minutes (`make build` shows more of it)")
        said.append(line)

    with projects.locked(project, note):
        try:
            return projects.prepare(project, hear, persist=False)
        except RocmlabError:
            for line in said:
                note(line)
            raise
