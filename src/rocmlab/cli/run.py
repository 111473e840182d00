"""`rocmlab run`: inside the lab it runs the notebooks; on the host it prepares the lab and hands the arguments in."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError

TYPE_CHECKING = False  # inside the lab nothing of the host's part is imported: a run starts sooner
if TYPE_CHECKING:
    import argparse

    from rocmlab.cluster.executor.cluster import Cluster
    from rocmlab.stack.project import Project


def main(name: str, arguments: Sequence[str]) -> int:
    """Run notebooks headless, in whichever runtime the lab has."""
    if os.environ.get("ROCMLAB_RUNTIME"):
        from rocmlab.base import installation
        from rocmlab.runs.command import main as run

        if not {"-h", "--help", "--list", "--dry-run"} & set(arguments):
            installation.wait(Path(sys.prefix), lambda line: print(line, file=sys.stderr, flush=True))
        return run(list(arguments), _connect)
    return _from_the_host(name, arguments)


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab run`."""
    from rocmlab.runs.spec import options

    return options.parser()


def _connect(address: str | None, environment: Mapping[str, str], exchange: str | None) -> Cluster:
    from rocmlab.cluster.executor.cluster import Cluster

    return Cluster(address, environment, exchange)


def _from_the_host(name: str, arguments: Sequence[str]) -> int:
    from rocmlab.cli import run_ahead
    from rocmlab.cli.up import announce, note
    from rocmlab.runs.spec.options import check
    from rocmlab.stack import live
    from rocmlab.stack import project as projects
    from rocmlab.stack.container import ContainerLab

    arguments = [*arguments, *words_from_make(os.environ)]
    parser = build_parser(name)
    args = parser.parse_intermixed_args(arguments)  # wrong arguments are reported before anything is built
    check(args)
    arguments += engine_of(args, os.environ)
    arguments = _absolute(arguments, args.notebooks, Path.cwd(), projects.find())
    args = parser.parse_intermixed_args(arguments)
    if (code := run_ahead.check(args)) is not None:
        return code
    project = projects.plan(projects.find(), stays=True)
    announce(project, note)
    if not args.list:  # which reads, and must not rebuild
        _check_environment(project)
        with projects.locked(project, note):
            project = projects.prepare(project, note, persist=False)
    try:
        code = project.lab.run([name, *(_inside(project, word) for word in arguments)], live.given(os.environ))
    finally:
        if not args.list:
            _forget_notify(project)
    if isinstance(project.lab, ContainerLab) and "/" not in project.values["SHARE"]:
        note(f"the share is the {project.lab.share()}, shown in JupyterLab; with the lab up this copies its runs out:")
        note(f"  {project.lab.copy_out}")
    return code


def _forget_notify(project: Project) -> None:
    """Have later runs report their ends by `.env` again; the exit code of this one stays, whatever happens here."""
    from rocmlab.cli.up import note
    from rocmlab.stack import project as projects
    from rocmlab.stack import settings

    try:
        projects.write_notify(project, settings.load(project.settings.project, {}))
    except (OSError, RocmlabError) as err:
        note(f"warning: NOTIFY of this run stays in force until the next `make up`: {err}")


def _check_environment(project: Project) -> None:
    """Make sure that nothing runs in a native environment that would be changed.

    Raises:
        LabIsBusy: something does, and neither FORCE nor WHEN is set.
    """
    import argparse

    from rocmlab.cli import stopping, up
    from rocmlab.stack import project as projects

    if not up.changes_environment(project):
        return
    before = projects.before(project)
    lab = before.lab if before is not None and before.choice.runtime == "native" else project.lab
    does, note = "changes the environment of", "nothing was changed"
    stop = stopping.Stop("make run-notebooks", does, ends_runs=True, note=note)
    stopping.check(lab, stop, stopping.consent(argparse.Namespace(force=False, when=None)), up.note)


def _absolute(arguments: Sequence[str], notebooks: Sequence[str], here: Path, project: Path) -> list[str]:
    """Return the arguments with absolute paths of the notebooks and lists that are files here.

    The lab starts paths elsewhere: in the project, or in its container. It must not run another file of the same name.
    """
    from rocmlab.runs.spec.selection import is_list

    files = {word for word in notebooks if word.endswith(".ipynb") or is_list(word)}
    if here == project:
        return list(arguments)
    return [str(here / word) if word in files and (here / word).is_file() else word for word in arguments]


def words_from_make(environment: Mapping[str, str]) -> list[str]:
    """Return what `make run-notebooks NOTEBOOKS=… PARAMS=… RUN=…` means, with quotes as in a shell."""
    try:
        notebooks, pairs, more = (shlex.split(environment.get(name, "")) for name in ("NOTEBOOKS", "PARAMS", "RUN"))
    except ValueError as err:
        raise RocmlabError(
            "NOTEBOOKS, PARAMS or RUN cannot be read", f"{err}", "close the quotes: PARAMS='title=\"a b\"'"
        ) from err
    return [*notebooks, *(word for pair in pairs for word in ("-p", pair)), *more]


def engine_of(args: argparse.Namespace, environment: Mapping[str, str]) -> list[str]:
    """Return the environment's engine as an option, where neither a word nor an earlier run has chosen one."""
    engine = environment.get("ENGINE") or environment.get("ROCMLAB_ENGINE")
    has_none = not engine or args.engine or args.list or args.resume or args.reproduce
    return [] if has_none else ["--engine", str(engine)]


def _inside(project: Project, word: str) -> str:
    """Return the path of a notebook or a list as the container sees it; other arguments unchanged.

    A relative path that is a list here is also translated: what the container finds by the same name may be another.
    """
    from rocmlab.runs.spec.selection import is_list
    from rocmlab.stack.container import ContainerLab

    is_path = Path(word).is_absolute() or (is_list(word) and Path(word).is_file())
    if not isinstance(project.lab, ContainerLab) or not (is_list(word) or word.endswith(".ipynb")) or not is_path:
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
