"""Situations for checks: a small simulated host, a project that was planned on it, and a lab that only remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hosts import Gpu, make_host

from rocmlab.base.errors import Problem
from rocmlab.doctor import checks
from rocmlab.doctor.model import BLOCKS, OK, WARNS, Finding
from rocmlab.doctor.situation import Situation
from rocmlab.stack import resolve, server
from rocmlab.stack import settings as configuration
from rocmlab.stack.choice import Choice
from rocmlab.stack.engine import Engine
from rocmlab.stack.project import Project

ENGINE = Engine(is_usable=True, version="28.5.2", operating_system="Ubuntu 24.04", root="/var/lib/docker")
TWO = (Gpu(1, 0x0300, 128), Gpu(2, 0x0600, 129, unique_id=0xABCDEF0123456789))


@dataclass
class QuietLab:
    """A lab that runs or not, and has an image or not, as a test says."""

    running: bool = False
    prepared: bool = False
    built: bool = False
    engine_root: str = ""
    full: Exception | None = None
    missing: str | Problem | None = None
    lacks: tuple[str, ...] = ()  # of apt.txt

    def missing_system_packages(self) -> tuple[str, ...]:
        """As the test says."""
        return self.lacks

    def is_running(self) -> bool:
        """As the test says."""
        return self.running

    def holder(self) -> server.Holder:
        """Its own server, or another program."""
        return server.Holder(server.OURS if self.running else server.OTHER)

    def holds_port(self) -> bool:
        """Return whether that is this lab."""
        return self.holder().kind == server.OURS

    def is_prepared(self) -> bool:
        """As the test says."""
        return self.prepared

    def is_built(self) -> bool:
        """As the test says."""
        return self.built

    def unfinished(self) -> str | Problem | None:
        """As the test says."""
        return self.missing

    def disk(self) -> Path:
        """Where the test says."""
        return Path(self.engine_root or "/")

    def folders(self) -> list[Path]:
        """None that this host sees."""
        return []

    def disk_problem(self) -> None:
        """None: it has no folders."""

    def inside(self) -> None:
        """Nothing can be asked."""

    def check_disk(self) -> None:
        """Raise what the test put there."""
        if self.full:
            raise self.full


def host(root: Path, *gpus: Gpu, **options: Any) -> Path:
    """A host with the driver loaded, and the nodes owned by the user who runs the test."""
    make_host(root, *(gpus or TWO), **options)
    (root / "sys/module/amdgpu").mkdir(parents=True, exist_ok=True)
    put(root, "sys/module/amdgpu/initstate", "live")
    return root


def put(root: Path, path: str, text: str) -> Path:
    """Write a file of the host."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{text}\n")
    return target


def pci(root: Path, address: str, driver: str | None, **files: str) -> None:
    """Put an AMD GPU on the PCI bus, bound to a driver or to none; an older one of the address is replaced."""
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"vendor": "0x1002", "class": "0x030000", "device": "0x744c", **files}.items():
        (folder / name).write_text(f"{text}\n")
    link = folder / "driver"
    if link.is_symlink():
        link.unlink()
    if driver:
        link.symlink_to(f"../../../../bus/pci/drivers/{driver}")


@dataclass
class Looker:
    """Makes a fresh situation each time, for facts are gathered once."""

    root: Path
    folder: Path  # of the project
    side: str = "host"
    backend: str = "rocm"
    runtime: str = "docker"
    chosen: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    engine: Engine = ENGINE
    lab: QuietLab = field(default_factory=QuietLab)
    rootless: bool = False
    options: dict[str, Any] = field(default_factory=dict)  # more fields of the Situation

    def __call__(self, **changes: Any) -> Situation:
        """Look."""
        more = {**self.options, **changes}
        if self.side == "container":
            environment = {"ROCMLAB_BACKEND": self.backend, "ROCMLAB_RUNTIME": self.runtime, **self.environment}
            return Situation(self.root, side="container", environment=environment, **more)
        given = {"engine": self.engine, **more.pop("given", {})}
        return Situation(self.root, environment=self.environment, project=self.project(), given=given, **more)

    def project(self) -> Project:
        """A project as planned on this host."""
        self.folder.mkdir(exist_ok=True)
        settings = configuration.load(self.folder, self.chosen)
        render, video = resolve.device_groups(self.root)
        values = {
            "PORT": "0",
            "JUPYTER_TOKEN": "a-token-of-the-tests",
            "ROCMLAB_BACKEND": self.backend,
            "ROCMLAB_RUNTIME": self.runtime,
            "BASE_IMAGE": "rocm/tensorflow:rocm7.2-py3.12-tf2.20-dev",
            "COMPOSE_FILE": "compose.yaml",
            "RENDER_GID": render,
            "VIDEO_GID": video,
            **self.values,
        }
        choice = Choice(self.backend, self.runtime, "test", is_rootless=self.rootless)
        return Project(settings, choice, values, self.lab)  # type: ignore[arg-type]

    def env_file(self, **values: str) -> None:
        """Write `.env`."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def fires(situation: Situation, id: str, status: str | None = None) -> Finding:
    """Assert that a check fires, with something to read, and return the finding."""
    found = [one for one in checks.BY_ID[id].run(situation) if one.status in (BLOCKS, WARNS)]
    assert found, checks.BY_ID[id].run(situation)
    assert status in (None, found[0].status), found[0]
    assert BLOCKS not in {one.status for one in found} or checks.BY_ID[id].severity == BLOCKS
    assert found[0].problem is not None
    assert found[0].problem.what
    assert found[0].problem.why
    assert found[0].problem.fix
    return found[0]


def silent(situation: Situation, id: str) -> Finding:
    """Assert that a check applies and finds nothing wrong."""
    found = checks.BY_ID[id].run(situation)
    assert [one.status for one in found] == [OK], found
    return found[0]


def skipped(situation: Situation, id: str) -> str:
    """Assert that a check does not apply, and return why."""
    found = checks.BY_ID[id].run(situation)
    assert [one.status for one in found] == ["not applicable"], found
    assert found[0].reason
    return found[0].reason


def report(**values: Any) -> Mapping[str, Any]:
    """What a lab's own doctor would have said."""
    return {"backend": "rocm", "uid": 1000, "groups": [], "nodes": [], "devices": [], "findings": [], **values}
