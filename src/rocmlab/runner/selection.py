"""From the words of a command line to notebooks: paths, names, folders and globs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocmlab.errors import Problem

CHECKPOINTS = ".ipynb_checkpoints"
SHOWN = 8  # how many notebooks an error lists


@dataclass(frozen=True)
class Found:
    """What one word means."""

    word: str
    notebook: Path | None  # None where there is no such notebook
    problem: Problem | None = None


def notebooks_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the lab's notebooks: `$ROCMLAB_NOTEBOOKS`, else ./notebooks."""
    return Path(environment.get("ROCMLAB_NOTEBOOKS") or "notebooks").absolute()


def find(words: Sequence[str], folder: Path) -> list[Found]:
    """Return the notebooks that the words mean, in their order; every notebook of `folder` if there are no words.

    A word is a path, absolute or relative to here, to the project (`notebooks/a.ipynb`) or to `folder` (`a.ipynb`,
    `a`), a folder, or a glob.
    """
    if not words:
        return [Found(str(path), path) for path in _notebooks(folder)]
    return [found for word in words for found in _find(word, folder)]


def _find(word: str, folder: Path) -> Iterator[Found]:
    for candidate in _candidates(word, folder):
        if candidate.is_dir():
            paths = _notebooks(candidate)
        elif any(sign in word for sign in "*?[") and not candidate.exists():
            paths = _glob(candidate)
        else:
            paths = [candidate] if candidate.is_file() else []
        if paths:
            yield from (Found(word, path) for path in paths)
            return
    yield Found(word, None, _missing(word, folder))


def _candidates(word: str, folder: Path) -> Iterator[Path]:
    path = Path(word).expanduser()
    yield path.absolute()
    if not path.is_absolute():
        # Inside a container the project's folder `notebooks` is called `work`; both names mean the lab's notebooks.
        if path.parts and path.parts[0] in ("notebooks", "work", folder.name):
            path = Path(*path.parts[1:])
        yield folder / path
    if path.suffix != ".ipynb" and path.name:
        yield (folder / path).with_name(f"{path.name}.ipynb")


def _glob(pattern: Path) -> list[Path]:
    anchor = Path(pattern.anchor)
    return _visible(anchor.glob(str(pattern.relative_to(anchor))))


def _notebooks(folder: Path) -> list[Path]:
    return _visible(folder.glob("*.ipynb"))


def _visible(paths: Iterator[Path]) -> list[Path]:
    kept = (path for path in paths if path.suffix == ".ipynb" and CHECKPOINTS not in path.parts)
    return sorted(path for path in kept if path.is_file() and not path.name.startswith("."))


def _missing(word: str, folder: Path) -> Problem:
    here = [path.name for path in _notebooks(folder)]
    more = f" and {len(here) - SHOWN} more" if len(here) > SHOWN else ""
    shown = ", ".join(here[:SHOWN]) + more if here else "none"
    return Problem(
        f"no such notebook: {word}",
        f"these exist in {os.path.relpath(folder)}: {shown}",
        "name one of them, a folder, or a glob such as '0*.ipynb'",
    )
