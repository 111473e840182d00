"""The image that the container tests share, built through the project's own Compose files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from containers import Container, docker, mirror

REPOSITORY = Path(__file__).parents[2]
INPUTS = (
    ".dockerignore",
    "LICENSE",
    "README.md",
    "compose.yaml",
    "docker",
    "notebooks",
    "pyproject.toml",
    "requirements",
    "src",
)


@dataclass
class Project:
    """A copy of the project with a `.env` of its own, so that a lab in the working copy is left alone."""

    folder: Path
    name: str
    settings: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        """Write `.env`."""
        lines = {"COMPOSE_PROJECT_NAME": self.name, **self.settings}
        (self.folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def compose(self, *arguments: str, timeout_seconds: float = 900) -> subprocess.CompletedProcess[str]:
        """Run `docker compose` in the folder; only `.env` says what is wanted."""
        kept = ("PATH", "HOME", "DOCKER_CONFIG", "DOCKER_HOST", "XDG_RUNTIME_DIR")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        return subprocess.run(
            ["docker", "compose", "--progress", "plain", *arguments],
            cwd=self.folder,
            env={**environment, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def build(self) -> str:
        """Build the image.

        Raises:
            RuntimeError: with what the build printed.
        """
        done = self.compose("build")
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        return self.settings["ROCMLAB_IMAGE"]


@pytest.fixture(scope="session")
def make_project(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that copies the project and gives it a `.env`."""

    def make(backend: str, **settings: str) -> Project:
        folder = tmp_path_factory.mktemp(backend)
        for name in INPUTS:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.whl"))
            else:
                shutil.copy2(source, folder / name)
        overlay = [] if backend == "rocm" else [f"docker/compose.{backend}.yaml"]
        name = re.sub(r"[^a-z0-9]", "", f"rocmlabtest{os.getpid()}{folder.name}")
        given = {
            "COMPOSE_FILE": ":".join(["compose.yaml", *overlay]),
            "ROCMLAB_IMAGE": f"rocmlab:test-{backend}-{os.getpid()}",  # two runs at a time keep apart
            "JUPYTER_TOKEN": "a-token-of-the-tests",
            "METRICS_TOKEN": "m" * 64,
            "RENDER_GID": "61104",
            "VIDEO_GID": "61044",
            "PORT": "0",
            **{name: value for name, value in mirror().items() if value},
            **settings,
        }
        for path in (folder / "notebooks", *(folder / "notebooks").iterdir()):
            if os.geteuid() == 0:
                os.chown(path, 1000, 100)  # `make up` does so for root; plain Compose never does
            else:
                path.chmod(0o777 if path.is_dir() else 0o666)
        project = Project(folder, name, given)
        project.write()
        return project

    return make


@pytest.fixture(scope="session")
def image(make_project, base_image: str) -> Iterator[str]:
    """The CPU image, built once; the build cache outlives the tag."""
    tag = make_project("cpu", BASE_IMAGE=base_image).build()
    yield tag
    docker("image", "rm", tag)


@pytest.fixture(scope="session")
def extras_image(make_project, base_image: str) -> Iterator[str]:
    """The same with one more layer: all extras of JupyterLab, and JupyterHub."""
    extras = "git,hub,lsp,tensorboard"
    tag = make_project(
        "cpu", BASE_IMAGE=base_image, EXTRAS=extras, ROCMLAB_IMAGE=f"rocmlab:test-extras-{os.getpid()}"
    ).build()
    yield tag
    docker("image", "rm", tag)


@pytest.fixture(scope="module")
def lab(image: str) -> Iterator[Container]:
    """One running lab for the tests of a module that only look at it."""
    with Container(image) as container:
        yield container.wait_for_server()
