"""Every setting in one table, and the rule by which it gets its value.

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


@dataclass(frozen=True)
class Setting:
    """One name that a user may set."""

    name: str
    default: str  # empty: see `otherwise`
    meaning: str
    otherwise: str = ""  # what holds where no default is fixed
    details: str = ""  # for the documentation, in Markdown
    page: str = ""  # of docs/, that explains it

    @property
    def usual(self) -> str:
        """What holds where the user has chosen nothing, as plain text."""
        return self.default or self.otherwise.replace("`", "")


SETTINGS = (
    Setting("BACKEND", "auto", "the hardware to use: rocm, cuda, metal, cpu, or auto"),
    Setting(
        "RUNTIME",
        "auto",
        "where the lab runs: docker, podman, native (a virtual environment), or auto",
        details="`auto` takes the first of these that works.",
        page="engines.md",
    ),
    Setting(
        "GPUS",
        "all",
        "the GPUs the lab gets: all, none, indices (0,2 or 0-3), PCI addresses, or unique ids",
        details="The numbers are those of HIP.",
    ),
    Setting(
        "GPU_PASSTHROUGH",
        "nodes",
        "how AMD GPUs are passed to Docker: nodes (device files) or cdi (CDI names)",
        page="engines.md",
    ),
    Setting(
        "ROCMLAB_ROOT",
        "",
        "the folder of a simulated host; empty or /: this machine again",
        otherwise="this machine",
        details="Its GPUs are shown as SIMULATED, and the CPU computes; in the project's folder `scripts/rocmlab "
        "devices` and `cdi` show it also.",
        page="simulate.md",
    ),
    Setting("PORT", "8888", "the port of JupyterLab on 127.0.0.1"),
    Setting(
        "SHARE",
        "",
        "the folder or volume that is kept when the lab is removed",
        otherwise="the volume `share` in a container, `./share` natively",
        details="The word `share` is the volume, anything else a folder.",
    ),
    Setting("NOTEBOOKS_DIR", "./notebooks", "the folder shown as work/ in JupyterLab"),
    Setting(
        "JUPYTER_TOKEN",
        "",
        "the token that JupyterLab requires",
        otherwise="256 random bits, made once",
        details="It is replaced if another process held the lab's port.",
    ),
    Setting(
        "METRICS_TOKEN",
        "",
        "a token that allows only reading the metrics",
        otherwise="256 random bits, made once",
        details="For Prometheus; it is replaced if another process held the lab's port.",
        page="monitoring.md",
    ),
    Setting(
        "ALLOWED_HOSTS",
        "",
        "names or addresses, separated by commas, under which your reverse proxy serves the lab",
        otherwise="none",
        details="For example `lab.example.org,192.168.1.20`. Requests under any name but these and the loopback's get "
        "403.",
        page="security.md",
    ),
    Setting(
        "BASE_IMAGE",
        "",
        "the image to build on, by tag or digest",
        otherwise="by backend and GPU",
        page="images.md",
    ),
    Setting(
        "TORCH_INDEX",
        "",
        "where the PyTorch wheel comes from; empty: pip's own index",
        otherwise="PyTorch's own, by backend",
        details="No credentials in it: the image's history shows it, `PIP_CONFIG` does not.",
    ),
    Setting(
        "JAX_PACKAGES",
        "",
        "pip's arguments for JAX's plugin for the GPU, of the locked JAX's version",
        otherwise="none: JAX on the CPU",
        details="For the kernel `torch`, for example `jax-rocm7-plugin==0.10.2 jax-rocm7-pjrt==0.10.2` or "
        "`jax-cuda13-plugin[with-cuda]==0.10.2`; the build fails if JAX would not find it.",
        page="images.md",
    ),
    Setting(
        "TENSORFLOW_INDEX",
        "",
        "where native ROCm gets tensorflow-rocm (pip --find-links)",
        otherwise="AMD's, by the host's ROCm version",
    ),
    Setting(
        "WHEELS",
        "",
        "a folder of wheels to use before any index",
        otherwise="the folder in `PIP_FIND_LINKS`, else `docker/wheels`",
    ),
    Setting(
        "CA_BUNDLE",
        "",
        "certificates for a proxy that inspects TLS; a build secret",
        otherwise="`PIP_CERT`, `SSL_CERT_FILE`, or `cert` of pip.conf",
        details="It is never in a layer.",
    ),
    Setting(
        "PIP_CONFIG",
        "",
        "a pip.conf for the build, for example for a mirror; a build secret",
        otherwise="`PIP_CONFIG_FILE`, or your pip.conf",
    ),
    Setting(
        "NB_UID",
        "",
        "the user id of the lab's user in the container",
        otherwise="the owner of the notebooks folder",
    ),
    Setting(
        "NB_GID",
        "",
        "the group id of the lab's user in the container",
        otherwise="100",
    ),
    Setting(
        "MIN_FREE_DISK_GB",
        "5",
        "below this much free space (GB) the lab warns and no run starts; 0: never",
        details="It counts for the disks of the share and of the notebooks. The warning is in the panel, `status`, "
        "the doctor and `make up`; a run under way starts no further job.",
        page="backup.md",
    ),
    Setting(
        "SHM_SIZE",
        "",
        "the size of /dev/shm in the container (data loaders, RCCL)",
        otherwise="8gb",
    ),
    Setting(
        "PIDS_LIMIT",
        "",
        "how many processes and threads the container may have; -1: no limit",
        otherwise="4096, and 256 for each CPU",
        details="A fork bomb ends there. Frameworks start several threads for each CPU, so the default grows with "
        "them.",
    ),
    Setting(
        "MEMORY_LIMIT",
        "",
        "how much memory the container may have (64gb), without swap; empty: no limit",
        otherwise="none",
        details="The process that needs more is killed, not slowed down.",
    ),
    Setting(
        "LOG_MAX_SIZE",
        "10m",
        "the size at which the container's log begins a new file; three are kept",
        details="The log is that of `make logs`. Podman keeps one file.",
    ),
    Setting(
        "CULL_IDLE_GPU_KERNELS_SECONDS",
        "0",
        "shut down a kernel that has GPUs and was idle for that many seconds, after a warning; 0: never",
        page="kernels.md",
    ),
    Setting(
        "WARM_KERNELS",
        "on",
        "fork JupyterLab's kernels from a process that has imported the framework: on or off",
        details="`off`: each kernel imports its framework itself. Only on Linux.",
        page="warm.md",
    ),
    Setting(
        "IDLE_GPU_WARNING_SECONDS",
        "600",
        "the panel warns of a kernel that is idle for that many seconds and holds GPU memory; 0: never",
        page="panel.md",
    ),
    Setting(
        "RECORD_GPUS",
        "off",
        "on: the panel's server reads the GPUs continuously, so that the history is complete; on or off",
        details="Otherwise it reads them only while a panel is open. The history is that of the charts and the 24 "
        "hours of `api/history`.",
        page="panel.md",
    ),
    Setting(
        "GPU_METRICS_NAMES",
        "rocmlab",
        "names of the metrics: rocmlab (ours), amd (its exporter's), or both",
        page="monitoring.md",
    ),
    Setting("PROMETHEUS_IMAGE", "prom/prometheus:v3.11.3", "the image of `make monitoring`'s Prometheus"),
    Setting("PROMETHEUS_PORT", "9090", "its port on 127.0.0.1"),
    Setting("GRAFANA_IMAGE", "grafana/grafana:12.3.1", "the image of `make monitoring`'s Grafana"),
    Setting("GRAFANA_PORT", "3000", "its port on 127.0.0.1"),
    Setting(
        "GRAFANA_PASSWORD",
        "",
        "the password of Grafana's user admin",
        otherwise="192 random bits, made once",
        details="It counts at Grafana's first start only; later it is changed in Grafana.",
    ),
    Setting(
        "CLUSTER",
        "off",
        "off, head (this machine starts a Ray cluster), or HOST:PORT of the head whose cluster this machine joins",
        details="`make cluster-up`, `cluster-join` and `cluster-down` set it.",
        page="cluster.md",
    ),
    Setting(
        "CLUSTER_TOKEN",
        "",
        "what every node of the cluster must know",
        otherwise="256 random bits, made once by the head",
    ),
    Setting(
        "CLUSTER_ADDRESS",
        "",
        "this machine's own address in the cluster",
        otherwise="that of the route to the head; on the head, of the default route",
        details="For a machine that has several.",
    ),
    Setting(
        "CLUSTER_PORT",
        "6379",
        "the head's port, and where the node's other ports begin",
        page="cluster.md",
    ),
    Setting("CLUSTER_NETWORK", "host", "the container's network while it is a node: host, bridge, or one of your own"),
    Setting(
        "PYTHON",
        "",
        "the interpreter of the native lab (3.11 to 3.13)",
        otherwise="python3",
    ),
    Setting(
        "COMPOSE_PROJECT_NAME",
        "",
        "the name of containers, network and volume",
        otherwise="`rocmlab-` and a hash of the folder, made once",
        details="Under Podman also.",
    ),
)
DEFAULTS = {setting.name: setting.default for setting in SETTINGS if setting.default}
BASE_IMAGES = {  # source and date of each tag: docs/images.md
    "radeon": "rocm/tensorflow:rocm7.2-py3.12-tf2.20-dev",
    "instinct": "rocm/tensorflow:rocm10.0-ubuntu24.04-py3.12-tf2.21",
    "cuda": "tensorflow/tensorflow:2.17.0-gpu",
    "cpu": "ubuntu:24.04",
}
TORCH_INDEXES = {
    "rocm": "https://download.pytorch.org/whl/rocm7.2",
    "cuda": "https://download.pytorch.org/whl/cu126",
    "cpu": "https://download.pytorch.org/whl/cpu",
    "metal": "",  # the wheel of pip's own index has MPS
}
# What `make up` derives for Compose. These are never a choice, or a copied `.env` would speak for another machine.
INTERNAL = ("ROCMLAB_BACKEND", "ROCMLAB_RUNTIME", "ROCMLAB_IMAGE", "COMPOSE_PATH_SEPARATOR")
DERIVED = (*INTERNAL, "COMPOSE_FILE", "RENDER_GID", "VIDEO_GID")
PATHS = ("WHEELS", "CA_BUNDLE", "PIP_CONFIG")  # found on this machine unless they are set
MAY_BE_EMPTY = {"TORCH_INDEX"}  # empty has a meaning: pip's own index
NAMES = tuple(setting.name for setting in SETTINGS)
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


def load(project: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Read a project's settings; raise RocmlabError if `.env` cannot be read."""
    environment = os.environ if environment is None else environment
    values = envfile.parse(envfile.read(project / ".env"))
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
    images = {*BASE_IMAGES.values(), *(qualified(name) for name in BASE_IMAGES.values())}
    index = TORCH_INDEXES.get(values["ROCMLAB_BACKEND"])
    found = {"NB_UID": values["NB_UID"]} if "NB_UID" in values else {}
    found |= {"BASE_IMAGE": values["BASE_IMAGE"]} if values.get("BASE_IMAGE") in images else {}
    found |= {"TORCH_INDEX": index} if index is not None and values.get("TORCH_INDEX") == index else {}
    paths = {name: values[name] for name in PATHS if name in values}
    return found | {name: path for name, path in paths.items() if not (project / os.path.expanduser(path)).exists()}


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
