"""Names in /tmp that can be guessed, taken by another user first: for sockets, keys, a cluster's token and record."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import strangers
from attempts import Attempt, Group
from targets import Target

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import ray_node, record
from rocmlab.stack.native import NativeLab

PORT = 61_000


def _runtime() -> Path:
    state = SimpleNamespace(state=Path("/tmp/a-project-whose-path-is-too-long-for-a-socket/rocmlab/.rocmlab"))
    lab: Any = SimpleNamespace(settings=state)
    return NativeLab.runtime_folder(lab)


def _node() -> Path:
    folder = ray_node.usual_folder(PORT)
    ray_node.make_private(folder)
    return folder


MAKERS: dict[str, Callable[[], Path]] = {"the kernels' folder": _runtime, "the node's folder": _node}


def _clear(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def _control(target: Target) -> str | None:
    for name, make in MAKERS.items():
        path = make()
        is_private = path.lstat().st_uid == os.getuid() and not path.lstat().st_mode & 0o077
        _clear(path)
        if not is_private:
            return f"{name} is not even private where no one disturbs it"
    with _record(os.getuid()):
        return None if record.here({}) else "a node's own record is not believed"


@contextlib.contextmanager
def _record(owner: int, mode: int = 0o700) -> Iterator[Path]:
    """Leave a node's record in /tmp, with a process of that user that is called as a node is."""
    folder = ray_node.usual_folder(PORT)
    _clear(folder)
    sleeper = folder.with_name(f"{folder.name}-sleeper")
    sleeper.write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    command = [str(strangers.interpreter()), str(sleeper), "cluster", "node"]
    process = subprocess.Popen(command, user=owner, group=owner, extra_groups=[], cwd="/")
    try:
        folder.mkdir(mode=mode)
        found = record.Record(process.pid, record.READY, "192.0.2.1:6379", "192.0.2.1", PORT, True, 0, False)
        found.write(folder / "node.json")
        (folder / "token").write_text("0" * 64, encoding="utf-8")
        for path in (folder, *folder.iterdir()):
            os.chown(path, owner, owner)
        yield folder
    finally:
        process.kill()
        process.wait()
        sleeper.unlink()
        _clear(folder)


def _attempts(target: Target) -> Iterator[Attempt]:
    uid = strangers.uid()
    elsewhere = target.lab.folder.parent / "attack-tmp"
    plants: dict[str, Callable[[Path], None]] = {
        "a folder of the other user": lambda path: _folder(path, uid, 0o700),
        "a folder of the other user, open to all": lambda path: _folder(path, uid, 0o777),
        "a folder of ours that is open to all": lambda path: _folder(path, os.getuid(), 0o777),
        "a folder of ours that others may enter": lambda path: _folder(path, os.getuid(), 0o711),
        "a link to a folder of the other user": lambda path: _linked(path, elsewhere, uid),
        "a link to a folder of ours": lambda path: _linked(path, elsewhere, os.getuid()),
        "a link to nothing": lambda path: path.symlink_to("/tmp/attack-nothing"),
        "a file": lambda path: _file(path, uid),
    }
    for place, make in MAKERS.items():
        for what, plant in plants.items():
            yield Attempt(f"{place} is {what}", partial(_taken, make, plant, elsewhere))
    for mode in (0o700, 0o755, 0o777):
        yield Attempt(f"the other user's record of a node, mode {mode:o}", partial(_believed, uid, mode))


def _folder(path: Path, uid: int, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, uid, uid)


def _linked(path: Path, elsewhere: Path, uid: int) -> None:
    _folder(elsewhere, uid, 0o700)
    path.symlink_to(elsewhere)
    os.chown(path, strangers.uid(), strangers.uid(), follow_symlinks=False)


def _file(path: Path, uid: int) -> None:
    path.touch()
    os.chown(path, uid, uid)


def _taken(make: Callable[[], Path], plant: Callable[[Path], None], elsewhere: Path) -> str | None:
    path = make()  # to learn its name
    _clear(path)
    plant(path)
    try:
        return f"{make()} is used: {json.dumps(os.lstat(path).st_uid)}"
    except (RocmlabError, OSError):
        return None
    finally:
        _clear(path)
        _clear(elsewhere)


def _believed(uid: int, mode: int) -> str | None:
    with _record(uid, mode):
        found = record.here({})
        return f"{found[0].head} would be joined" if found else None


GROUPS = (
    Group("names in /tmp taken first", "sockets, keys or a token go to another user", _control, _attempts, ("native",)),
)
