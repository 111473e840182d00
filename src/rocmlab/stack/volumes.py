"""A lab's files where only a container of the lab's image reaches them: in a volume, or as the lab's own user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocmlab.base import identity
from rocmlab.base.errors import RocmlabError
from rocmlab.stack.container import ContainerLab

SHARE = "/home/jovyan/share"


def bind(source: Path, target: str, *, is_read_only: bool) -> str:
    """Return the engine's argument for a mounted folder; raise RocmlabError if its path has a comma."""
    if "," in str(source):
        raise RocmlabError(f"{source} has a comma", "the engine cannot mount it", "rename the folder")
    return f"type=bind,source={source},target={target}" + ",ro=true" * is_read_only


def share(lab: ContainerLab, *, is_read_only: bool) -> str | None:
    """Return the mount of the share, see `bind`; None where its volume or folder does not exist yet."""
    if lab.share_folder:
        return bind(lab.share_folder, SHARE, is_read_only=is_read_only) if lab.share_folder.is_dir() else None
    if lab.engine("volume", "inspect", lab.volume)[0]:
        return None
    return f"type=volume,source={lab.volume},target={SHARE}" + ",ro=true" * is_read_only


def make(lab: ContainerLab) -> None:
    """Make the share's folder, or its volume as Compose would; raise RocmlabError if the engine does not."""
    if lab.share_folder:
        identity.make_folder(lab.share_folder)
        return
    labels = []
    if lab.program == "docker":
        of = {"project": lab.values["COMPOSE_PROJECT_NAME"], "volume": lab.values["SHARE"]}
        labels = [f"--label=com.docker.compose.{name}={value}" for name, value in of.items()]
    code, output = lab.engine("volume", "create", *labels, lab.volume)
    if code:
        raise RocmlabError(f"the volume {lab.volume} could not be made", output.strip()[-400:], f"{lab.program} info")


def command(lab: ContainerLab, mounts: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return what runs `rocmlab <arguments>` of this clone as root in a container that lives as long as the command."""
    project = bind(lab.settings.project.resolve(), "/project", is_read_only=True)
    command_line = [lab.program, "run", "--rm", "--pull=never", "--network=none", "--user=0:0", "--entrypoint=tini"]
    command_line += ["--security-opt=label=disable", "--env=PYTHONPATH=/project/src", "--env=PYTHONDONTWRITEBYTECODE=1"]
    command_line += [word for mount in (project, *mounts) for word in ("--mount", mount)]
    return [*command_line, lab.image, "--", "/opt/rocmlab/bin/python", "-m", "rocmlab", *arguments]
