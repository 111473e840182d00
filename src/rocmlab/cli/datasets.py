"""`rocmlab datasets`: inside the lab it fetches; on the host it asks the lab to, and never makes one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rocmlab.base.errors import RocmlabError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rocmlab.stack.lab import Lab


def main(verb: str, arguments: Sequence[str]) -> int:
    """Fetch or list data sets, in the lab that is here; without one, only into a folder that --share names."""
    from rocmlab.training.datasets import command

    asked = command.parser().parse_args(arguments)
    if os.environ.get("ROCMLAB_RUNTIME"):
        return command.main(arguments)
    lab = _lab()
    if lab is not None:
        return lab.run([verb, *arguments])
    if asked.share is not None:
        return command.main(arguments)
    if asked.verb == "list":
        print("there is no lab here, so what its share has is unknown: make up", file=sys.stderr)
        return command.show_catalogue(asked.json)
    raise RocmlabError(
        f"{asked.name} is not fetched: there is no lab here",
        "it goes into the lab's share, and this command does not build a lab",
        f"make up, then the same command; or into a folder: rocmlab datasets fetch {asked.name} --share DIR",
    )


def _lab() -> Lab | None:
    """Return the lab that was built here; None if there is none, or only its settings are left."""
    from rocmlab.stack import project as projects

    project = projects.existing(projects.find())
    return project.lab if project is not None and project.lab.is_built() else None
