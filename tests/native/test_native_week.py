"""A week of use: whatever a user saved exists afterwards, byte for byte."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import clients
import pytest
from clones import UNUSED_TO_START, Clone, lighten

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, which needs root: run .ci/run"),
]
THEMES = "/lab/api/settings/@jupyterlab/apputils-extension:themes"
WORKSPACE = "/lab/api/workspaces/week"
LAYOUT = {"data": {"week": {"monday": 1}}, "metadata": {"id": "week"}}
CHANGED = (".env", ".rocmlab/written.json", "src/rocmlab/lab/icons.py", "requirements/native.txt")
LEVELS = 3  # of folders, below the one that JupyterLab opens


class Week:
    """A lab with a share and notebooks of its own, and all that was saved in it."""

    def __init__(self, lab: Clone, folder: Path) -> None:
        self.lab = lab
        self.share, self.notebooks = folder / "share", folder / "notebooks"
        self.saved: dict[str, str] = {}  # content by the path that the browser shows

    def ask(self, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
        """Make a request as the browser does."""
        token = self.lab.env["JUPYTER_TOKEN"]
        return clients.ask(self.lab.port, token, path, method=method, body=body, timeout_seconds=60)

    def save(self, path: str, content: str) -> bool:
        """Save a text file through the browser's interface; what it accepts must never be lost."""
        body = {"type": "file", "format": "text", "content": content}
        status, _ = self.ask(f"/api/contents/{quote(path)}", "PUT", body)
        if status in (200, 201):
            self.saved[path] = content
        return status in (200, 201)

    def folders(self, path: str = "", level: int = 0) -> Iterator[str]:
        """Yield every folder that the browser offers, to some depth."""
        yield path
        for each in self.ask(f"/api/contents/{quote(path)}?type=directory")[1]["content"] if level < LEVELS else ():
            if each["type"] == "directory":
                yield from self.folders(each["path"], level + 1)

    def on_disk(self) -> dict[str, str]:
        """Return what is on disk of all that was saved."""
        places = {"work": self.notebooks, "share": self.share}
        found = {}
        for path in self.saved:
            root, _, rest = path.partition("/")
            place = places[root] / rest if root in places else self.lab.folder / ".rocmlab/home" / path
            found[path] = place.read_text() if place.exists() else "LOST"
        return found

    def in_browser(self) -> dict[str, str]:
        """Return the same as the browser shows it."""
        return {path: (self.ask(f"/api/contents/{quote(path)}")[1] or {}).get("content", "LOST") for path in self.saved}


@pytest.fixture
def week(native_lab: Clone, tmp_path: Path) -> Iterator[Week]:
    """A share on a disk of 200 MB, and notebooks in a folder of their own."""
    made = Week(native_lab, tmp_path)
    made.share.mkdir()
    shutil.copytree(native_lab.folder / "notebooks", made.notebooks)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m", "tmpfs", str(made.share)], check=True)
    kept = {path: path.read_text() if path.exists() else None for path in map(native_lab.folder.__truediv__, CHANGED)}
    yield made
    native_lab.make("down", FORCE="1", succeeds=False)
    for path, text in kept.items():  # the lab is also that of other tests, with the share and notebooks that it had
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
            path.chmod(0o600)
    subprocess.run(["umount", "--lazy", str(made.share)], check=True)


def test_a_week_of_use_loses_nothing(week: Week, tmp_path: Path) -> None:
    """Saved at every level, settings changed, upgraded, killed, disk full, cleaned, restored: no byte is lost."""
    week.lab.make("up", SHARE=str(week.share), NOTEBOOKS_DIR=str(week.notebooks), MIN_FREE_DISK_GB="0", FORCE="1")
    monday(week)
    week.lab.make("up", CULL_IDLE_GPU_KERNELS_SECONDS="999", GPUS="none", FORCE="1")
    assert week.in_browser() == week.saved
    tuesday(week)
    wednesday(week)
    before = thursday(week, tmp_path / "backups")
    friday(week)
    saturday(week)
    sunday(week, tmp_path / "backups", before)


def monday(week: Week) -> None:
    """Save files at every level that the browser offers, and JupyterLab's own settings and workspace."""
    assert week.ask("/api/contents/work/project", "PUT", {"type": "directory"})[0] == 201
    accepted = [path for path in list(week.folders()) if week.save(f"{path}/monday.txt".lstrip("/"), f"in {path}")]
    assert {"work", "work/project", "share", "share/runs", "share/models"} <= set(accepted)
    assert week.ask(THEMES, "PUT", {"raw": '{"theme": "JupyterLab Dark"}'})[0] == 204
    assert week.ask(WORKSPACE, "PUT", LAYOUT)[0] == 204


def tuesday(week: Week) -> None:
    """Upgrade to another version: the environment is made next to the running one, and switched to."""
    with (week.lab.folder / "src/rocmlab/lab/icons.py").open("a") as source:
        source.write("\n# another version\n")
    lighten(week.lab.folder / "requirements/native.txt", *UNUSED_TO_START)  # it has fewer packages
    printed = week.lab.make("upgrade", FORCE="1").stdout
    assert "the new version works" in printed
    assert (week.lab.folder / ".venv").is_symlink()
    assert week.in_browser() == week.saved
    assert week.ask(WORKSPACE)[1]["data"] == LAYOUT["data"]


def wednesday(week: Week) -> None:
    """Kill the server; what was saved last is there after the next `make up`."""
    week.save("work/wednesday.txt", "wednesday " * 1000)
    os.kill(json.loads((week.lab.folder / ".rocmlab/jupyter.json").read_text())["pid"], signal.SIGKILL)
    week.lab.make("up", FORCE="1")
    assert week.in_browser() == week.saved
    assert "JupyterLab Dark" in week.ask(THEMES)[1]["raw"]
    assert week.ask(WORKSPACE)[1]["data"] == LAYOUT["data"]


def thursday(week: Week, backups: Path) -> dict[str, str]:
    """Back up while the lab runs, and work on; return what is in the backup."""
    week.lab.make("backup", TO=str(backups))
    before = dict(week.saved)
    assert week.save("share/thursday.txt", "after the backup")
    assert week.save("work/monday.txt", "corrected on thursday")
    return before


def friday(week: Week) -> None:
    """Fill the disk: what cannot be saved is rejected and leaves the old version, also after a restart."""
    fill(week.share / "filler")
    assert not week.save("share/monday.txt", "x" * 100_000)
    assert not week.save("share/friday.txt", "x" * 100_000)
    assert week.on_disk() == week.saved
    assert week.lab.make("backup", TO=str(week.share / "backups"), succeeds=False).returncode != 0
    week.lab.make("up")
    (week.share / "filler").unlink()
    assert week.in_browser() == week.saved


def fill(path: Path) -> None:
    """Write a file until its disk is full."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def saturday(week: Week) -> None:
    """Prune old runs, then remove everything but what is the user's."""
    week.lab.make("clean", RUNS="1h", FORCE="1")
    week.lab.make("clean", FORCE="1")
    assert week.on_disk() == week.saved


def sunday(week: Week, backups: Path, before: dict[str, str]) -> None:
    """Restore over newer files, of which both versions are then there; and again after everything was lost."""
    week.lab.make("restore", FROM=str(backups))
    assert {path.read_text() for path in week.notebooks.glob("monday.txt*")} == {"in work", "corrected on thursday"}
    assert (week.share / "thursday.txt").read_text() == "after the backup"
    for path in (*week.share.iterdir(), *week.notebooks.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    week.lab.make("restore", FROM=str(backups))
    week.saved = before
    assert week.on_disk() == before
    assert "JupyterLab Dark" in "".join(path.read_text() for path in week.share.rglob("*themes*.jupyterlab-settings"))
