"""Outputs into a notebook's file: cells are found by their id, and nothing else of the file changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.utils import ensure_async
from jupyter_server.services.contents.fileio import atomic_writing
from tornado.web import HTTPError

from rocmlab.base.files import replacing
from rocmlab.lab.recorder.records import Record

is_writing: ContextVar[bool] = ContextVar("is_writing", default=False)  # a save that comes from here


@dataclass
class Chain:
    """Our writes of one file that no other write came between: a page that read it at any of these times is current."""

    path: str
    before: Any  # when the file was last changed before the first of them
    first: Any
    after: Any  # the last of them
    stamp: tuple[int, ...]  # of the file after it


def is_known(contents: Any) -> bool:  # noqa: ANN401
    """Return whether files are Jupyter's own: another manager may keep a notebook in two places, or elsewhere."""
    own = (getattr(getattr(type(contents), name, None), "__module__", "") for name in ("get", "save", "_get_os_path"))
    return all(each.startswith("jupyter_server.") for each in own)


def merge(notebook: dict[str, Any], records: Iterable[Record]) -> list[Record]:
    """Put the outputs into the cells of a notebook, and return those that it has cells for."""
    cells = notebook.get("cells", [])  # before nbformat 4 there are others, without ids
    times = Counter(each.get("id") for each in cells)  # an id that two cells have tells nothing
    known = {each["id"]: each for each in cells if each["cell_type"] == "code" and times[each.get("id")] == 1}
    found = [each for each in records if each.cell in known]
    for record in found:
        cell = known[record.cell]
        text = json.dumps(record.rendered(), ensure_ascii=False)  # a lone surrogate is possible there, but in no file
        cell["outputs"], cell["execution_count"] = json.loads(text.encode("utf-8", "replace")), record.count
        cell.setdefault("metadata", {})["trusted"] = True  # as JupyterLab has it for what it executed; not in the file
    return found


async def paths_of(
    contents: Any,  # noqa: ANN401
    paths: Sequence[str],
    records: Sequence[Record],
) -> tuple[dict[str, str], dict[str, Exception]]:
    """Return, by request, which notebook of a kernel has its cell, where that is certain or there is only one notebook.

    The second value is which notebooks could not be read, and why: they may have what no other has.
    """
    if len(paths) == 1:
        return dict.fromkeys((each.request for each in records), paths[0]), {}
    by_cell = {each.cell: each for each in records}
    having: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    unread: dict[str, Exception] = {}
    for path in paths:
        try:
            notebook = (await _read(contents, path))[1]
            cells = [(cell.get("id"), cell["source"]) for cell in notebook.get("cells", [])]
        except Exception as err:  # whatever the file has: the others remain
            unread[path] = err
            continue
        for record, source in ((by_cell[key], source) for key, source in cells if key in by_cell):
            having[record.request].append((path, source == record.code))
    is_all = all(getattr(err, "status_code", None) == 404 for err in unread.values())  # besides those that are gone
    certain = {
        key: found if len(found) == 1 and is_all else [each for each in found if each[1]]
        for key, found in having.items()
    }
    return {key: found[0][0] for key, found in certain.items() if len(found) == 1}, unread


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

    Raises:
        OSError: the file cannot be written, or not without a moment in which nothing of it is on disk.
    """
    os_path = contents._get_os_path(path)
    place = Path(os.path.realpath(os_path))
    seen = _stamp(place)
    model, notebook = await _read(contents, path)
    numbers = {each.request: each.changed for each in records}
    found = merge(notebook, records)
    if not found:
        return chain, []
    token = is_writing.set(True)
    try:
        given = {"type": "notebook", "format": "json", "content": notebook}
        contents.run_pre_save_hooks(model=given, path=path)
        notebook = nbformat.from_dict(given["content"])
        if contents.notary.check_cells(notebook):
            contents.notary.sign(notebook)
        text = await asyncio.to_thread(nbformat.writes, notebook, nbformat.NO_CONVERT)
        if not await _replace(place, seen, f"{text}\n".encode("utf-8", "backslashreplace")):
            return chain, list(records)  # a user saved it: the next time
        for record in found:
            record.written = numbers[record.request]
        written = _stamp(place)
        saved = await ensure_async(contents.get(path, type="notebook", content=False))
        with contextlib.suppress(HTTPError):  # of a hook of the user; Jupyter has logged it
            contents.run_post_save_hooks(model=saved, os_path=os_path)
        contents.emit(data={"action": "save", "path": path})
    finally:
        is_writing.reset(token)
    if os.path.islink(os_path) or _stamp(place) != written:
        return None, found  # Jupyter tells the times of the link; or someone has saved it since
    if chain is None or (chain.path, chain.stamp) != (path, seen):
        chain = Chain(path, model["last_modified"], saved["last_modified"], saved["last_modified"], written)
    chain.after, chain.stamp = saved["last_modified"], written
    return chain, found


async def _read(contents: Any, path: str) -> tuple[dict[str, Any], Any]:  # noqa: ANN401
    """Read a notebook as text: of one that is just being saved, Jupyter's own reader would bring the old one back."""
    model = await ensure_async(contents.get(path, type="file", format="text", content=True))
    notebook = await asyncio.to_thread(nbformat.reader.reads, model["content"])
    if notebook.get("nbformat") == nbformat.current_nbformat:
        contents.notary.mark_cells(notebook, contents.notary.check_signature(notebook))
    return model, notebook


async def _replace(place: Path, seen: tuple[int, ...], data: bytes) -> bool:
    """Replace a file's content, unless it has changed since it was seen; from that check on no save gets in between."""
    found = place.stat()
    if not found.st_mode & stat.S_IWUSR or not os.access(place, os.W_OK):
        raise PermissionError("the file is read-only")
    if not os.access(place.parent, os.W_OK):
        raise PermissionError("its folder is read-only")
    if _is_replaceable(place, found):
        with contextlib.suppress(FileExistsError), replacing(place, stat.S_IMODE(found.st_mode)) as draft:
            await asyncio.to_thread(_fill, draft, data)
            if _stamp(place) != seen:
                raise FileExistsError
            return True
        return False
    if _stamp(place) != seen:
        return False
    with atomic_writing(str(place), text=False) as file:
        _fill(file, data)
    return True


def _fill(file: Any, data: bytes) -> None:  # noqa: ANN401
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _is_replaceable(path: Path, found: os.stat_result) -> bool:
    """Return whether another file in a notebook's place would have all that this one has: owner, links, attributes."""
    folder = path.parent.stat()
    group = folder.st_gid if folder.st_mode & stat.S_ISGID else os.getegid()
    attributes = os.listxattr(path) if hasattr(os, "listxattr") else []
    return (found.st_uid, found.st_gid, found.st_nlink) == (os.geteuid(), group, 1) and not attributes


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
