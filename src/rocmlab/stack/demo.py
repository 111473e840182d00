"""A lab next to the project's own: on a simulated host, with a share, notebooks and settings that go when it ends."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from rocmlab.stack import homes, resolve, server
from rocmlab.stack import project as projects
from rocmlab.stack import settings as configuration
from rocmlab.stack.choice import CONTAINERS
from rocmlab.stack.lab import Say
from rocmlab.stack.project import Project
from rocmlab.stack.settings import Settings

GUEST = "demo"
FIRST_PORT = 8898
ONLY_FOR_THE_OWN_LAB = (
    *("ROCMLAB_ROOT", "GPUS", "BACKEND", "GPU_PASSTHROUGH", "CULL_IDLE_GPU_KERNELS_SECONDS"),
    *("BIND", "TLS_CERT", "TLS_KEY"),
)


def settings(folder: Path, port: int | None = None) -> Settings:
    """Return the settings of the demonstration: those of the project, but for what would touch its own lab."""
    found = configuration.load(folder)
    own_name = found.last("COMPOSE_PROJECT_NAME") or resolve.project_name(folder)
    found.guest = GUEST
    state = found.state
    for name in ONLY_FOR_THE_OWN_LAB:
        found.chosen.pop(name, None)
        os.environ.pop(name, None)
    found.written, found.reset = {}, frozenset()
    found.chosen |= {
        "ROCMLAB_ROOT": str(state / "host"),
        "SHARE": str(state / "share"),
        "NOTEBOOKS_DIR": str(state / "notebooks"),
        "PORT": str(port or server.next_free(FIRST_PORT - 1)),
        "JUPYTER_TOKEN": secrets.token_hex(32),
        "METRICS_TOKEN": secrets.token_hex(32),
        "COMPOSE_PROJECT_NAME": f"{own_name}-{GUEST}",
        "IDLE_GPU_WARNING_SECONDS": "60",
    }
    return found


def plan(folder: Path, given: Settings) -> Project:
    """Decide how the demonstration runs; the simulated host must be there."""
    project = projects.plan(folder, given)
    if project.choice.runtime in CONTAINERS:
        own_name = given.get("COMPOSE_PROJECT_NAME").removesuffix(f"-{GUEST}")
        project.values["ROCMLAB_IMAGE"] = f"{own_name}:{project.choice.backend}"  # the image of the own lab serves
    return project


def clear(given: Settings) -> None:
    """Remove everything that the demonstration has made, but for the image or the environment."""
    assert given.guest
    homes.hide(given.state / "home")  # a folder that is not writable cannot be emptied
    shutil.rmtree(given.state, ignore_errors=True)


def start(project: Project, say: Say, *, on_any_port: bool = False) -> Project:
    """Build or install what is missing, and start the lab; return the project, another one where it became native.

    With `on_any_port` also another one where its port was taken meanwhile: an installation takes minutes.
    """
    with projects.locked(project, say):
        project = projects.prepare(project, say, persist=False)
        if on_any_port and not server.is_free(project.lab.port):
            project.settings.chosen["PORT"] = str(server.next_free(project.lab.port))
            project = projects.prepare(plan(project.settings.project, project.settings), say, persist=False)
        try:
            project.lab.start(say)
        except BaseException:  # Ctrl-C as well
            project.lab.stop(lambda _: None)  # the caller may know another project than this one
            raise
    return project
