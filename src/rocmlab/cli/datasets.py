"""`rocmlab datasets`: into a folder that is named, else into the lab's share; it never builds a lab."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rocmlab.base.errors import RocmlabError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rocmlab.stack.lab import Lab


def main(verb: str, arguments: Sequence[str]) -> int:
    """Fetch or list data sets: here where a share is named or this is the lab, else in the lab that was built."""
    from rocmlab.training.datasets import command

    chosen = command.parser().parse_args(arguments)
    # A share that is named on the host is a folder of the host, which a lab in a container does not see.
    if chosen.share is not None or any(map(os.environ.get, ("ROCMLAB_SHARE", "ROCMLAB_RUNTIME"))):
        return command.main(arguments)
    lab = _lab()
    if lab is not None:
        return lab.run([verb, *arguments])
    if chosen.verb == "list":
        print("no lab was built here, so what its share has is unknown: make up", file=sys.stderr)
        return command.show_catalogue(chosen.json)
    names = " ".join(chosen.names)
    raise RocmlabError(
        f"could not fetch {names}: there is no lab here",
        "data sets go into the lab's share, and this command does not build a lab",
        f"make up, then the same command; or into a folder: rocmlab datasets fetch {names} --share DIR",
    )


def _lab() -> Lab | None:
    """Return the lab that was built here; None if none was, or only its settings are left."""
    from rocmlab.stack import project as projects

    project = projects.existing(projects.find())
    return project.lab if project is not None and project.lab.is_built() else None
