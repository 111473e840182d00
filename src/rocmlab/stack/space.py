"""The room that a lab has to write, seen from the host."""

from __future__ import annotations

from pathlib import Path

from rocmlab.base import disk
from rocmlab.base.errors import Problem
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.lab import Lab
from rocmlab.stack.native import NativeLab
from rocmlab.stack.settings import Settings

ROOTS = {"docker": "{{.DockerRootDir}}", "podman": "{{.Store.GraphRoot}}"}  # where volumes are


def problem(settings: Settings, lab: Lab) -> Problem | None:
    """Return what is wrong where a disk that the lab writes to is nearly full.

    Raises:
        RocmlabError: MIN_FREE_DISK_GB is not a number.
    """
    return disk.problem(folders(settings, lab), disk.minimum_bytes({disk.NAME: settings.get(disk.NAME)}))


def folders(settings: Settings, lab: Lab) -> list[Path]:
    """Return the folders that the lab writes to, as far as this host sees them: the share, or the engine's, first."""
    if isinstance(lab, NativeLab):
        return [lab.share_folder, lab.notebooks]
    if not isinstance(lab, ContainerLab):
        return []
    share = lab.values["SHARE"]
    notebooks = settings.project / Path(settings.get("NOTEBOOKS_DIR")).expanduser()
    return [settings.project / Path(share).expanduser() if "/" in share else _of_volumes(lab), notebooks]


def _of_volumes(lab: ContainerLab) -> Path:
    """Return the folder in which the engine keeps volumes."""
    if lab.engine_root:
        return lab.disk()
    code, output = lab.engine("info", "--format", ROOTS[lab.program], timeout_seconds=10)
    return Path(output.strip()) if code == 0 and output.strip() else lab.disk()
