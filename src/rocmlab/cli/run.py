"""`rocmlab run`: inside the lab it runs the notebooks; on the host it prepares the lab and hands the arguments in."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocmlab.cli.up import announce, note
from rocmlab.errors import RocmlabError
from rocmlab.stack import project as projects
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.project import Project


def main(verb: str, arguments: Sequence[str]) -> int:
    """Run notebooks headless, in whichever runtime the lab has."""
    if os.environ.get("ROCMLAB_RUNTIME"):
        from rocmlab.runner.command import main as run

        return run(list(arguments))
    from rocmlab.runner.command import parser

    arguments = [*arguments, *_from_make(os.environ)]
    parser().parse_args(arguments)  # a wrong word is told before anything is built
    project = projects.plan(projects.find())
    announce(project, note)
    with projects.locked(project, note):
        project = projects.prepare(project, note, persist=False)
    code = project.lab.run([verb, *(_inside(project, word) for word in arguments)])
    if isinstance(project.lab, ContainerLab) and "/" not in project.values["SHARE"]:
        note(f"the share is the {project.lab.share()}, shown in JupyterLab; with the lab up this copies its runs out:")
        note(f"  {project.lab.copy_out}")
    return code


def _from_make(environment: Mapping[str, str]) -> list[str]:
    """Return what `make run-notebooks NOTEBOOKS=… PARAMS=…` says, quotes honoured, so that no shell reads it twice."""
    try:
        notebooks, pairs = (shlex.split(environment.get(name, "")) for name in ("NOTEBOOKS", "PARAMS"))
    except ValueError as err:
        raise RocmlabError(
            "NOTEBOOKS or PARAMS cannot be read", f"{err}", "close the quotes: PARAMS='title=\"a b\"'"
        ) from err
    return [*notebooks, *(word for pair in pairs for word in ("-p", pair))]


def _inside(project: Project, word: str) -> str:
    """Return a path as the container sees it; other words as they are."""
    if not isinstance(project.lab, ContainerLab) or not word.endswith(".ipynb") or not Path(word).is_absolute():
        return word
    notebooks = (project.settings.project / project.values["NOTEBOOKS_DIR"]).resolve()
    try:
        return "/home/jovyan/work/" + str(Path(word).resolve().relative_to(notebooks))
    except ValueError as err:
        raise RocmlabError(
            f"{word} cannot be seen by the lab",
            f"the container sees {notebooks}",
            f"copy it there, or NOTEBOOKS_DIR={Path(word).parent}",
        ) from err
