"""Where a lab's files are: folders of this user, or volumes that only a container of the lab's image can read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from rocmlab.backup import create, restore
from rocmlab.backup.model import Task
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile, homes, process, volumes
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.lab import Say
from rocmlab.stack.native import NativeLab
from rocmlab.stack.project import Project
from rocmlab.stack.settings import COMMENTS, DERIVED

WORKS: Mapping[str, Callable[[Task, Say], int]] = {"create": create.create, "restore": restore.restore}
INSIDE = {"share": volumes.SHARE, "notebooks": "/home/jovyan/work"}
OF_THIS_CLONE = (  # settings that say where this clone's lab is and who may enter it; a backup does not change them
    *("PORT", "SHARE", "NOTEBOOKS_DIR", "COMPOSE_PROJECT_NAME", "RUNTIME"),
    *("JUPYTER_TOKEN", "METRICS_TOKEN", "CLUSTER_TOKEN", "GRAFANA_PASSWORD"),
)


def run(project: Project, task: Task, say: Say) -> int:
    """Run a task, whose folders are filled in here, on the files of a project's lab, wherever they are."""
    if isinstance(project.lab, ContainerLab) and project.lab.is_built():
        return _in_a_container(project.lab, task)
    roots = _on_host(project)
    if task.kind == "create":
        return create.create(replace(task, roots=roots, settings=str(project.settings.project)), say)
    for folder in roots.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
    share = os.stat(roots["share"])
    owner = (share.st_uid, share.st_gid) if os.geteuid() == 0 else None
    return restore.restore(replace(task, roots=roots, owner=owner), say)


def _on_host(project: Project) -> dict[str, str]:
    lab = project.lab
    assert isinstance(lab, (NativeLab, ContainerLab))
    if isinstance(lab, ContainerLab) and lab.share_folder is None:
        raise RocmlabError(
            f"the image {lab.image} is missing",
            f"the share is the {lab.product} volume {lab.volume}, which a container of that image reads",
            "make build, then run it again",
        )
    return {"share": str(lab.share_folder), "notebooks": str(lab.notebooks)}


def _in_a_container(lab: ContainerLab, task: Task) -> int:
    """Run the task as root in a container of the lab's image that lives as long as the task, next to the lab or not."""
    is_read_only = task.kind == "create"
    mounts = [volumes.bind(Path(task.backup).resolve(), "/backup", is_read_only=not is_read_only)]
    roots = dict(INSIDE)
    if not is_read_only:
        lab.notebooks.mkdir(parents=True, exist_ok=True)
    if lab.notebooks.is_dir():
        mounts.append(volumes.bind(lab.notebooks, INSIDE["notebooks"], is_read_only=is_read_only))
    else:
        roots["notebooks"] = ""  # which the backup says
    share = volumes.share(lab, is_read_only=is_read_only)
    if share is None and task.kind == "restore":
        volumes.make(lab)
        share = volumes.share(lab, is_read_only=False)
    if share is None:
        roots["share"] = ""  # nothing was ever started, or the volume is lost, or a disk is not mounted
    else:
        mounts.append(share)
    owner: tuple[int, int] | None = os.getuid(), os.getgid()
    if lab.program == "podman" and os.geteuid() != 0:
        owner = None  # root of the container, who is the user of rootless Podman
    elif not is_read_only:
        owner = int(lab.values.get("NB_UID") or 1000), int(lab.values.get("NB_GID") or 100)
    inside = replace(
        task,
        backup="/backup",
        roots=roots,
        settings="/project" if task.kind == "create" else "",
        owner=owner,
    )
    command = volumes.command(lab, mounts, ["backup", "--job", inside.to_json()])
    return process.attach(command, env=lab.environment)


def restore_settings(project: Project, texts: Mapping[str, str], say: Say) -> None:
    """Put the choices of a backup's `.env` into this clone's, whose earlier text is kept next to it.

    What rocmlab derived there follows this machine, and this clone's location settings are kept.
    """
    values = envfile.parse(texts.get("settings/.env", ""))
    written = envfile.json_object(texts.get("settings/.rocmlab/written.json", ""))
    derived = {name for name, value in written.items() if values.get(name) == value}
    chosen = {name: value for name, value in values.items() if name not in {*derived, *DERIVED}}
    path = project.settings.env_path
    text = envfile.read(path)
    before = envfile.parse(text)
    wanted: dict[str, str | None] = {name: value for name, value in chosen.items() if name not in OF_THIS_CLONE}
    changed = [name for name, value in wanted.items() if before.get(name) != value]
    if changed:
        kept = path.with_name(f".env.before-restore-{homes.stamp()}")
        envfile.write(kept, text)
        envfile.write(path, envfile.update(text, wanted, COMMENTS))
        say(f"settings restored into .env: {', '.join(changed)} (the earlier .env is kept as {kept.name})")
    other = [name for name in chosen if name in OF_THIS_CLONE and before.get(name) != chosen[name]]
    if other:
        say(f"settings of this clone that stay as they are: {', '.join(other)}")
