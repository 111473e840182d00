"""The settings of a project, and the rule by which each gets its value.

Precedence: the environment (which is where `make up PORT=9000` puts it), then `.env`, then the default. What a user
chose is written to `.env` and stays chosen; what rocmlab wrote there itself follows the machine.
`.rocmlab/written.json` remembers what rocmlab wrote last: a line that differs from it was written by the user.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile
from rocmlab.stack.setting_table import DEFAULTS, NAMES, SETTINGS

BASE_IMAGES = {  # source and date of each tag: docs/images.md
    "radeon": "rocm/tensorflow:rocm7.2-py3.12-tf2.20-dev",
    "instinct": "rocm/tensorflow:rocm10.0-ubuntu24.04-py3.12-tf2.21",
    "cuda": "tensorflow/tensorflow:2.17.0-gpu",
    "cpu": "ubuntu:24.04",
    "slim": "ubuntu:24.04",
}
TORCH_INDEXES = {
    "rocm": "https://download.pytorch.org/whl/rocm7.2",
    "cuda": "https://download.pytorch.org/whl/cu126",
    "cpu": "https://download.pytorch.org/whl/cpu",
    "slim": "https://stable.repo.amd.com/rocm/whl-next/",  # AMD's wheels for single targets, ROCm 10
    "metal": "",  # the wheel of pip's own index has MPS
}
# What `make up` derives for Compose. These are never a choice, or a copied `.env` would speak for another machine.
INTERNAL = (
    *("ROCMLAB_BACKEND", "ROCMLAB_RUNTIME", "ROCMLAB_IMAGE", "ROCMLAB_IMAGE_KIND", "ROCMLAB_IMAGE_GFX"),
    *("ROCMLAB_LAB", "ROCMLAB_USER", "ROCMLAB_LEASES", "ROCMLAB_LIMITS", "ROCMLAB_BASE_URL", "ROCMLAB_BIND_HOSTS"),
    "COMPOSE_PATH_SEPARATOR",
)
FOR_FRAMEWORKS = (  # variables of ROCm, the frameworks and other programs: where `.env` has them, each lab gets them
    *("AMD_LOG_LEVEL", "GPU_MAX_HW_QUEUES", "HF_TOKEN", "HSA_ENABLE_SDMA", "HSA_OVERRIDE_GFX_VERSION"),
    *(f"HSA_OVERRIDE_GFX_VERSION_{node}" for node in range(1, 10)),
    *("MIOPEN_FIND_MODE", "NCCL_DEBUG", "TZ"),
)
DERIVED = (*INTERNAL, "COMPOSE_FILE", "RENDER_GID", "VIDEO_GID")
PATHS = ("WHEELS", "CA_BUNDLE", "PIP_CONFIG")  # found on this machine unless they are set
MAY_BE_EMPTY = {"TORCH_INDEX"}  # empty has a meaning: pip's own index
COMMENTS = {
    **{setting.name: setting.meaning for setting in SETTINGS},
    "COMPOSE_FILE": "which Compose files make up this backend (written by `make up`)",
    "RENDER_GID": "numeric groups of the GPU's device nodes on this host (written by `make up`)",
    "ROCMLAB_BACKEND": "what `make up` chose (written by it; set BACKEND and RUNTIME to choose yourself)",
}
HEADER = """\
# Settings of rocmlab, and of plain `docker compose` in this folder. Each is explained in docs/settings.md.
# A line that you change or add is yours and kept; the others follow the machine. Keep it private: it holds the token.
"""


@dataclass
class Settings:
    """The settings of one project folder."""

    project: Path  # the folder that holds compose.yaml
    chosen: dict[str, str]  # what a user chose, by name
    written: dict[str, str] = field(default_factory=dict)  # what rocmlab wrote into `.env` last
    reset: frozenset[str] = frozenset()  # chosen once, set back to the default by a flag
    guest: str = ""  # the name of a lab next to the project's own, which leaves `.env` as it is; empty: the own one

    @property
    def state(self) -> Path:
        """The folder for what rocmlab itself remembers."""
        return self.project / ".rocmlab" / self.guest

    @property
    def env_path(self) -> Path:
        """The `.env` file."""
        return self.project / ".env"

    @property
    def is_in_cluster(self) -> bool:
        """Return whether the lab is to be a node of a Ray cluster."""
        return self.get("CLUSTER") not in ("", "off")

    def path(self, given: str) -> Path:
        """Return a file or folder that a setting names: `~` is the user's home, and relative is to the project."""
        return (self.project / os.path.expanduser(given)).resolve()

    def read_env(self) -> dict[str, str]:
        """Return the assignments in `.env`; raise RocmlabError if it cannot be read."""
        return envfile.parse(envfile.read(self.env_path))

    def get(self, name: str) -> str:
        """Return what a user chose, else the default if it is the same on every machine, else an empty string."""
        return self.chosen.get(name) or DEFAULTS.get(name, "")

    def last(self, name: str) -> str:
        """Return what is in force: chosen, else what the last `make up` wrote, else the default."""
        return self.chosen.get(name) or self.written.get(name) or DEFAULTS.get(name, "")


def for_frameworks(values: Mapping[str, str]) -> dict[str, str]:
    """Return what the assignments of a `.env` have for ROCm, the frameworks and other programs in the lab."""
    return {name: value for name, value in values.items() if value and name in FOR_FRAMEWORKS}


def load(project: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Read a project's settings; raise RocmlabError if `.env` cannot be read."""
    environment = os.environ if environment is None else environment
    text = envfile.read(project / ".env")
    values = envfile.parse(text)
    if wrong := [name for name in envfile.expanded(text) if name in NAMES]:
        raise RocmlabError(
            f"{wrong[0]} in {project / '.env'} has a variable",
            "rocmlab replaces none there, so a folder with a $ in its name would be used",
            f"write the value out; where the $ is meant: {wrong[0]}='…' in single quotes",
        )
    written = {name: str(value) for name, value in envfile.read_json(project / ".rocmlab/written.json").items()}
    ours = {name: value for name, value in written.items() if values.get(name) == value}
    derived = INTERNAL if written else DERIVED  # without that memory it is unknown who wrote the others
    ours |= {name: values[name] for name in derived if name in values}
    ours |= {} if written else _of_another_machine(project, values)
    chosen = {name: value for name, value in values.items() if name not in ours}
    given = {name for name in NAMES if environment.get(name)} | (MAY_BE_EMPTY & set(environment))
    flags = {name: environment[name] for name in NAMES if name in given}
    root = flags.get("ROCMLAB_ROOT") or chosen.get("ROCMLAB_ROOT")
    if root:
        flags["ROCMLAB_ROOT"] = str((project / os.path.expanduser(root)).resolve())
    emptied = {name for name in NAMES if environment.get(name) == "" and name not in MAY_BE_EMPTY}
    emptied |= {"ROCMLAB_ROOT"} if flags.get("ROCMLAB_ROOT") == "/" else set()
    reset = frozenset(emptied | {name for name, value in flags.items() if DEFAULTS.get(name) == value})
    chosen = {name: value for name, value in {**chosen, **flags}.items() if name not in reset}
    return Settings(project, chosen, ours, reset)


def _of_another_machine(project: Path, values: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of another machine in a copied `.env`, one that rocmlab does not remember."""
    if "ROCMLAB_BACKEND" not in values:
        return {}  # `make up` never wrote it: every line is a user's
    images = {*BASE_IMAGES.values(), *(pinned(project, name) for name in BASE_IMAGES.values())}
    images |= {qualified(name) for name in images}
    indexes = (TORCH_INDEXES.get(values["ROCMLAB_BACKEND"]), TORCH_INDEXES["slim"])
    found = {"NB_UID": values["NB_UID"]} if "NB_UID" in values else {}
    found |= {"BASE_IMAGE": values["BASE_IMAGE"]} if values.get("BASE_IMAGE") in images else {}
    index = values.get("TORCH_INDEX")
    found |= {"TORCH_INDEX": index} if index is not None and index in indexes else {}
    paths = {name: values[name] for name in PATHS if name in values}
    return found | {name: path for name, path in paths.items() if not (project / os.path.expanduser(path)).exists()}


def pinned(project: Path, image: str) -> str:
    """Return an image with the digest that docker/bases.txt has for it, if any."""
    for line in envfile.read(project / "docker/bases.txt").splitlines():
        if line.split()[:1] == [image]:
            return "@".join(line.split())
    return image


def qualified(name: str) -> str:
    """Return an image's name with its registry, which Podman does not guess: docker.io/library/ubuntu:24.04."""
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"docker.io/{name}" if rest else f"docker.io/library/{name}"


def save(settings: Settings, resolved: Mapping[str, str]) -> None:
    """Write `.env` (mode 0600) with what was chosen and what was resolved; comments and other lines stay.

    `resolved` has the value of every name that Compose needs, chosen ones included.
    """
    text = envfile.read(settings.env_path)
    values: dict[str, str | None] = {name: None for name in settings.written if name not in resolved}
    values |= {name: settings.chosen[name] for name in NAMES if name in settings.chosen}
    values |= {name: value for name, value in resolved.items() if name not in settings.chosen}
    values |= {name: resolved.get(name) for name in settings.reset}
    updated = envfile.update(text or HEADER, values, COMMENTS)
    mode_is_private = settings.env_path.exists() and settings.env_path.stat().st_mode & 0o077 == 0
    if updated != text or not mode_is_private:
        envfile.write(settings.env_path, updated)
    settings.written = {name: value for name, value in resolved.items() if name not in settings.chosen}
    remembered = json.dumps(settings.written, indent=1, sort_keys=True) + "\n"
    path = settings.state / "written.json"
    if not path.exists() or path.read_text(encoding="utf-8") != remembered:
        envfile.write(path, remembered)


def port_of(settings: Settings, name: str = "PORT", command: str = "make up") -> int:
    """Return a setting that is a port; raise RocmlabError unless it is a number from 1 to 65535."""
    text = settings.get(name)
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    fix = f"{command} {name}={DEFAULTS[name]}"
    raise RocmlabError(f"{name}={text} is not a port", "a port is a number from 1 to 65535", fix)
