"""Outputs into a notebook's file: cells are found by their id, and nothing else of the file changes."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_core.utils import ensure_async

from rocmlab.base.files import replacing
from rocmlab.lab.recorder.records import Record


@dataclass
class Chain:
    """Our writes of one file that no other write came between: a page that read it at any of these times is current."""

    path: str
    before: Any  # when the file was last changed before the first of them
    after: Any = None  # and by the last of them


def merge(notebook: dict[str, Any], records: Iterable[Record]) -> list[Record]:
    """Put the outputs into the cells of a notebook, and return those that it has cells for."""
    cells = {each.get("id"): each for each in notebook["cells"] if each["cell_type"] == "code"}
    found = [each for each in records if each.cell in cells]
    for record in found:
        cell = cells[record.cell]
        cell["outputs"], cell["execution_count"] = record.rendered(), record.count
        cell["metadata"]["trusted"] = True  # as JupyterLab has it for what it executed; not in the file
    return found


async def path_of(contents: Any, paths: Sequence[str], record: Record) -> str | None:  # noqa: ANN401
    """Return which of several notebooks of one kernel has a cell; None if that is not certain."""
    having: list[tuple[str, bool]] = []
    for path in paths:
        model = await ensure_async(contents.get(path, type="notebook", content=True))
        for cell in model["content"]["cells"]:
            if cell.get("id") == record.cell:
                having.append((path, cell["source"] == record.code))
    if len(having) > 1:
        having = [each for each in having if each[1]]
    return having[0][0] if len(having) == 1 else None


@contextmanager
def _replacing(contents: Any) -> Iterator[None]:  # noqa: ANN401
    """Have a save replace the file at once: Jupyter's own empties it first, and a page may open it in that moment."""
    usual = contents.__dict__.get("atomic_writing")
    original = getattr(contents, "atomic_writing", None)

    @contextmanager
    def writing(os_path: str, *args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: ANN401
        path = Path(os.path.realpath(os_path))
        if original is None or not _is_replaceable(path):
            with original(os_path, *args, **kwargs) as file:  # type: ignore[misc]
                yield file
            return
        with replacing(path, stat.S_IMODE(path.stat().st_mode)) as draft:
            text = io.TextIOWrapper(draft, encoding="utf-8", newline="\n", write_through=True)
            yield text
            text.flush()
            os.fsync(draft.fileno())
            text.detach()

    if original is not None:
        contents.atomic_writing = writing
    try:
        yield
    finally:
        if usual is None:
            contents.__dict__.pop("atomic_writing", None)
        else:
            contents.atomic_writing = usual


def _is_replaceable(path: Path) -> bool:
    """Return whether another file in a notebook's place would have all that this one has: owner, links, attributes."""
    try:
        found = path.stat()
        is_own = found.st_uid == os.geteuid() and found.st_gid in (os.getegid(), path.parent.stat().st_gid)
        attributes = os.listxattr(path) if hasattr(os, "listxattr") else []
        return is_own and found.st_nlink == 1 and not attributes and os.access(path.parent, os.W_OK)
    except OSError:
        return False


async def write(
    contents: Any,  # noqa: ANN401  jupyter_server's ContentsManager
    chain: Chain | None,
    path: str,
    records: Sequence[Record],
) -> tuple[Chain | None, list[Record]]:
    """Write outputs into a file, unless it changes meanwhile; return the chain, and the records that it has cells for.

    Args:
        contents: of the server.
        chain: of the last write, if there was one.
        path: of the notebook, as the server calls it.
        records: what to write.
    """
    model = await ensure_async(contents.get(path, type="notebook", content=True))
    numbers = {each.request: each.changed for each in records}
    found = merge(model["content"], records)
    if not found:
        return chain, []
    now = await ensure_async(contents.get(path, type="notebook", content=False))
    if now["last_modified"] != model["last_modified"]:
        return chain, list(records)  # a user saved it: the next time
    if chain is None or chain.path != path or chain.after != model["last_modified"]:
        chain = Chain(path, model["last_modified"])
    content = {"type": "notebook", "format": "json", "content": model["content"]}
    with _replacing(contents):
        saved = await ensure_async(contents.save(content, path))
    chain.after = saved["last_modified"]
    for record in found:
        record.written = numbers[record.request]
    return chain, found
