"""From the arguments of a command line to notebooks: paths, names, folders and globs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base.errors import Problem, RocmlabError

CHECKPOINTS = ".ipynb_checkpoints"
LISTS = (".yaml", ".yml", ".csv")
SHOWN = 8  # how many notebooks an error lists


@dataclass(frozen=True)
class Found:
    """The meaning of one argument."""

    word: str
    notebook: Path | None  # None where there is no such notebook
    problem: Problem | None = None


def notebooks_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the lab's notebooks: `$ROCMLAB_NOTEBOOKS`, else ./notebooks."""
    return Path(environment.get("ROCMLAB_NOTEBOOKS") or "notebooks").absolute()


def find(words: Sequence[str], folder: Path, here: Path | None = None) -> list[Found]:
    """Return the notebooks that the arguments name, in their order; every notebook of `folder` without arguments.

    An argument is a path, absolute or relative to here, to the project (`notebooks/a.ipynb`) or to `folder` (`a.ipynb`,
    `a`), a folder, or a glob. Here is the current folder where it is None.
    """
    if not words:
        return [Found(str(path), path) for path in _notebooks(folder)]
    return [found for word in words for found in _find(word, folder, here or Path.cwd())]


def is_list(word: str) -> bool:
    """Return whether an argument names a list of jobs and not a notebook."""
    return word.lower().endswith(LISTS)


def find_list(word: str, folder: Path) -> Path:
    """Return the file of a job list: relative to here, to the project or to the lab's notebooks.

    Raises:
        RocmlabError: there is no such file, or it is a folder.
    """
    candidates = list(_candidates(word, folder, Path.cwd()))
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if any(candidate.is_dir() for candidate in candidates):
        why = f"an argument that ends with {Path(word).suffix} is a list of jobs, which is one file"
        raise RocmlabError(
            f"{word} is a folder, not a job list", why, f"name a list in it, or its notebooks: '{word}/*.ipynb'"
        )
    raise RocmlabError(
        f"no such job list: {word}",
        f"it is neither here nor in {os.path.relpath(folder)}",
        "correct its path; docs/running.md explains how a list is written",
    )


def _find(word: str, folder: Path, here: Path) -> Iterator[Found]:
    for candidate in _candidates(word, folder, here):
        if paths := _paths(word, candidate):
            yield from (Found(word, path) for path in paths)
            return
    empty = next((each for each in _candidates(word, folder, here) if _is_folder(each)), None)
    if empty is not None:
        yield Found(word, None, _without_notebooks(word, empty))
        return
    begun = _begun(word, folder)
    if len(begun) == 1:
        yield Found(word, begun[0])
    else:
        yield Found(word, None, _ambiguous(word, begun) if begun else _missing(word, folder))


def _begun(word: str, folder: Path) -> list[Path]:
    """Return the notebooks whose names begin with an argument: `09` means the only one that does."""
    path = Path(word)
    is_complete = path.is_absolute() or path.suffix == ".ipynb" or any(sign in word for sign in "*?[")
    if not word or is_complete or ".." in path.parts:
        return []
    if path.parts and path.parts[0] in ("notebooks", "work", folder.name):
        path = Path(*path.parts[1:])
    try:
        return [each for each in _notebooks((folder / path).parent) if path.name and each.name.startswith(path.name)]
    except (OSError, ValueError):
        return []


def _ambiguous(word: str, begun: Sequence[Path]) -> Problem:
    names = [path.name.removesuffix(".ipynb") for path in begun]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    why = f"these begin with it: {', '.join(names[:SHOWN])}{more}"
    return Problem(f"{word} matches several notebooks", why, f"name one of them, or all: '{word}*.ipynb'")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # no path on any system
        return False


def _paths(word: str, candidate: Path) -> list[Path]:
    try:
        if candidate.is_dir():
            return _notebooks(candidate)
        if any(sign in word for sign in "*?[") and not candidate.exists():
            anchor = Path(candidate.anchor)
            return _visible(anchor.glob(str(candidate.relative_to(anchor))))
        return [candidate] if candidate.is_file() else []
    except (OSError, ValueError):  # no path on any system: far too long, or a pattern such as `**a`
        return []


def _candidates(word: str, folder: Path, here: Path) -> Iterator[Path]:
    path = Path(word).expanduser()
    yield here / path
    if not path.is_absolute():
        # Inside a container the project's folder `notebooks` is called `work`; both names mean the lab's notebooks.
        if path.parts and path.parts[0] in ("notebooks", "work", folder.name):
            path = Path(*path.parts[1:])
        yield folder / path
    if path.suffix != ".ipynb" and path.name:
        yield (folder / path).with_name(f"{path.name}.ipynb")


def _notebooks(folder: Path) -> list[Path]:
    return _visible(folder.glob("*.ipynb"))


def _visible(paths: Iterator[Path]) -> list[Path]:
    kept = (path for path in paths if path.suffix == ".ipynb" and CHECKPOINTS not in path.parts)
    return sorted(path for path in kept if path.is_file() and not path.name.startswith("."))


def _without_notebooks(word: str, folder: Path) -> Problem:
    lists = sorted(path.name for path in folder.iterdir() if is_list(path.name))
    more = f", and this one has lists: {', '.join(lists[:SHOWN])}" if lists else ""
    why = f"a folder means the .ipynb files in it{more}"
    fix = f"rocmlab run {os.path.join(word, lists[0])}" if lists else "name another folder, or a notebook"
    return Problem(f"no notebook found in {word}", why, fix)


def _missing(word: str, folder: Path) -> Problem:
    here = [path.name for path in _notebooks(folder)]
    more = f" and {len(here) - SHOWN} more" if len(here) > SHOWN else ""
    shown = ", ".join(here[:SHOWN]) + more if here else "none"
    return Problem(
        f"no such notebook: {word}",
        f"available in {os.path.relpath(folder)}: {shown}",
        "name one of them, a folder, or a glob such as '0*.ipynb'",
    )
