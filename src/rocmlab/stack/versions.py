"""Which version of rocmlab a project's lab runs, and which one it ran before: `.rocmlab/versions.json`.

It is written when a lab has answered: what is called current and previous has worked.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile, environment, source
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.native import NativeLab
from rocmlab.stack.project import Project
from rocmlab.stack.settings import Settings


@dataclass(frozen=True)
class Version:
    """One version of rocmlab, as a lab ran it."""

    version: str = ""
    commit: str = ""  # empty: not known
    runtime: str = ""
    image: str = ""  # its id; empty natively
    environment: str = ""  # the folder; empty in a container

    def shown(self, project: Path) -> str:
        """Return it as text: version, commit and date."""
        name, date = source.described(project, self.commit)
        parts = [self.version, name and f"commit {name}", date and f"of {date}"]
        return " ".join(part for part in parts if part) or "unknown"


def path_of(settings: Settings) -> Path:
    """Return the file that remembers the versions."""
    return settings.state / "versions.json"


def read(settings: Settings) -> tuple[Version | None, Version | None]:
    """Return the current and the previous version; None: it is not known."""
    found = envfile.read_json(path_of(settings))
    current, previous = found.get("current"), found.get("previous")
    try:
        return (Version(**current) if current else None), (Version(**previous) if previous else None)
    except TypeError:
        return None, None


def write(settings: Settings, current: Version | None, previous: Version | None) -> None:
    """Remember both."""
    found = {"current": current and asdict(current), "previous": previous and asdict(previous)}
    text = json.dumps(found, indent=1) + "\n"
    if envfile.read(path_of(settings)) != text:
        envfile.write(path_of(settings), text)


def here(project: Project, commit: str | None = None) -> Version:
    """Return the version that is built now, from the commit that is checked out unless another one is named."""
    commit = source.head(project.settings.project) if commit is None else commit
    lab = project.lab
    if isinstance(lab, ContainerLab):
        return Version(__version__, commit, project.choice.runtime, image=lab.image_id(lab.image))
    environment = str(lab.venv.folder.resolve()) if isinstance(lab, NativeLab) else ""
    return Version(__version__, commit, project.choice.runtime, environment=environment)


def record(project: Project) -> None:
    """Remember that this version's lab has answered; the one before it is the previous one from now on."""
    current, previous = read(project.settings)
    lab = project.lab
    found = lab.jupyter.recorded().get("commit") if isinstance(lab, NativeLab) and lab.is_running() else None
    now = here(project, found if isinstance(found, str) else None)  # a server continues after a `git pull`
    if current is None or current == now:
        write(project.settings, now, previous)
    elif (now.image, now.runtime) == (current.image, current.runtime) and now.image:
        write(project.settings, now, previous)  # another commit that makes the same image
    else:
        write(project.settings, now, current)


def obstacle(project: Project, previous: Version) -> RocmlabError | None:
    """Return why `make rollback` cannot return to a version; None: it can."""
    lab, name = project.lab, previous.commit[: source.LETTERS] or "the version"
    if previous.runtime and previous.runtime != project.choice.runtime:
        return RocmlabError(
            "the previous version ran in another runtime",
            f"it ran in {previous.runtime}, and the lab is in {project.choice.runtime} now",
            f"make up RUNTIME={previous.runtime}",
        )
    if isinstance(lab, ContainerLab) and (not previous.image or lab.image_id(lab.previous_image) != previous.image):
        return RocmlabError(
            "the image of the previous version is missing",
            f"{lab.previous_image} was removed, or is another backend's",
            f"git checkout {name}, then make up RUNTIME={project.choice.runtime}, which builds it",
        )
    if not previous.commit:
        return RocmlabError(
            "the source of the previous version is not known",
            "its folder was not a git clone, and an image or environment of another source would be built again",
            "unpack the previous version's source over this folder, then make up",
        )
    if isinstance(lab, NativeLab):
        backend = environment.backend_of(Path(previous.environment)) if previous.environment else None
        if backend != project.choice.backend:
            why = f"it is for the backend {backend}" if backend else f"{previous.environment} was removed"
            return RocmlabError(
                "the environment of the previous version is missing",
                f"{why}, and the lab's backend is {project.choice.backend}" if backend else why,
                f"git checkout {name}, then make up RUNTIME=native, which makes it",
            )
    return None
