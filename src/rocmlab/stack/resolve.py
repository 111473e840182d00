"""From what was chosen and what was found to the values that Compose and the native lab need."""

from __future__ import annotations

import configparser
import hashlib
import os
import pwd
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from rocmlab.base import extras, hosts, lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, nodes
from rocmlab.packages import requested
from rocmlab.stack import cluster, gpus, image_kind, lab, live, tls
from rocmlab.stack.choice import CONTAINERS, Choice
from rocmlab.stack.image_kind import ImageKind
from rocmlab.stack.settings import BASE_IMAGES, TORCH_INDEXES, Settings, pinned, qualified

INSTINCT = re.compile(r"gfx9(06|08|0a|42|50)")
PIDS, PIDS_PER_CPU = 4096, 256  # a kernel with both pools of TensorFlow, OpenBLAS and a loader: about 10 per CPU
OURS = (".venv", ".git", ".rocmlab/home", ".rocmlab/environments")  # made and removed by programs
LAB_UID = 1000  # jovyan, as in docker-stacks
ADDRESSES = ("TORCH_INDEX", "TENSORFLOW_INDEX", "JAX_PACKAGES")
VIDEO_GIDS = ("44", "39")  # what Debian and Fedora call video; only used to fill a place in group_add


def resolve(
    settings: Settings, choice: Choice, devices: list[Device], root: Path, kind: ImageKind | None = None
) -> dict[str, str]:
    """Return the value of every variable that the Compose files and the native lab read."""
    kind = kind or ImageKind()
    index = TORCH_INDEXES[kind.name if kind.name == image_kind.SLIM else choice.backend]
    values = {
        "PORT": settings.get("PORT"),
        "JUPYTER_TOKEN": settings.last("JUPYTER_TOKEN") or secrets.token_hex(32),
        "METRICS_TOKEN": settings.last("METRICS_TOKEN") or secrets.token_hex(32),
        "SHARE": _share(settings, choice),
        "ROCMLAB_BACKEND": choice.backend,
        "ROCMLAB_RUNTIME": choice.runtime,
        "TORCH_INDEX": settings.chosen.get("TORCH_INDEX", index),
        **kind.values,
    }
    hosts.parse(settings.get(hosts.SETTING))
    if (base_url := hosts.parse_base_url(settings.get(hosts.BASE_URL))) != hosts.ROOT:
        values[lab.BASE_URL] = base_url
    if "/" in values["SHARE"] or choice.runtime not in CONTAINERS:
        _check_folder(settings, "SHARE", values["SHARE"])
    _check_folder(settings, "NOTEBOOKS_DIR", settings.get("NOTEBOOKS_DIR"))
    _check_addresses(settings)
    values |= {name: path for name, path in pip_environment(settings, os.environ).items() if path}
    if packages := settings.get("JAX_PACKAGES"):
        values["JAX_PACKAGES"] = packages
    if chosen := extras.parse(settings.get(extras.SETTING)):
        values[extras.SETTING] = ",".join(chosen)
    if password := settings.last("GRAFANA_PASSWORD"):  # which `make monitoring` made: Grafana knows no other any more
        values["GRAFANA_PASSWORD"] = password
    values |= cluster.values(settings) | tls.values(settings)
    if settings.guest:  # the own lab's live settings are in the folder that compose.yaml names
        values["ROCMLAB_LIVE_FOLDER"] = str(live.path_of(settings).parent)
    if choice.is_simulated:
        values["ROCMLAB_ROOT"] = str(root)
    if gpus.takes_leases(choice):
        values |= _for_leases(settings, choice, root)
    values["ROCMLAB_LAB"] = settings.last("COMPOSE_PROJECT_NAME") or project_name(settings.project)
    values["ROCMLAB_USER"] = _user()
    if choice.runtime in CONTAINERS:
        values |= _for_container(settings, choice, devices, root, kind)
    _check_overlays(settings.chosen.get("COMPOSE_FILE"), values.get("COMPOSE_FILE"))
    # A derived value that a user changed in `.env` stays: an additional overlay in COMPOSE_FILE, for example.
    found = ("SHARE", extras.SETTING)
    return values | {name: value for name, value in settings.chosen.items() if name in values and name not in found}


def _for_leases(settings: Settings, choice: Choice, root: Path) -> dict[str, str]:
    """Return the folders of the host for a lab that leases GPUs."""
    limits = gpus.limits_folder(choice, root)
    leases = leases_folder(settings, root if choice.is_simulated else Path("/"))
    return {"ROCMLAB_LEASES": str(leases), **({"ROCMLAB_LIMITS": str(limits)} if limits else {})}


def leases_folder(settings: Settings, root: Path = Path("/")) -> Path:
    """Return the host's folder of leases; raise RocmlabError if LEASES_DIR does not name one."""
    chosen = settings.get(lease_folder.SETTING)
    if not chosen.startswith("/") or os.path.normpath(chosen) == "/" or ":" in chosen:
        raise RocmlabError(
            f"{lease_folder.SETTING}={chosen} is not an absolute path of a folder",
            "every lab of this host must mean the same folder by it",
            f"make up {lease_folder.SETTING}={lease_folder.USUAL}",
        )
    return lease_folder.path({lease_folder.SETTING: os.path.normpath(chosen)}, root)


def _check_overlays(chosen: str | None, planned: str | None) -> None:
    """Raise RocmlabError for Compose files of the user's that omit a folder of the host, or the port for BIND."""
    why = {
        gpus.LEASES_OVERLAY: "the lab would not see which GPUs other labs and users of this host lease, and could take "
        "the same ones",
        gpus.LIMITS_OVERLAY: "the lab would not know the limits that this host's administrator has set for its users",
        gpus.TLS_OVERLAY: "no other machine would reach the lab at BIND",
    }
    for overlay in why:
        if chosen and planned and overlay in planned.split(":") and overlay not in chosen.split(":"):
            fix = f"write into .env:\nCOMPOSE_FILE={chosen}:{overlay}"
            raise RocmlabError(f"COMPOSE_FILE={chosen} has no {overlay}", why[overlay], fix)


def _user() -> str:
    """Return who starts the lab, as this host knows them."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def _share(settings: Settings, choice: Choice) -> str:
    wanted = os.path.expanduser(settings.get("SHARE"))
    if not wanted:
        return "share" if choice.runtime in CONTAINERS else "./share"
    if choice.runtime in CONTAINERS and "/" not in wanted and wanted != "share":
        raise RocmlabError(
            f"SHARE={wanted} is neither a folder nor the lab's volume",
            "a folder is written with a slash; the volume is called `share`",
            f"make up SHARE=./{wanted}",
        )
    return wanted


def _check_folder(settings: Settings, name: str, value: str) -> None:
    """Raise RocmlabError for a folder in which programs make, move and remove files."""
    folder = settings.path(value)
    taken = [path for path in OURS if folder.is_relative_to(settings.path(path))]
    taken += [".rocmlab"] if folder == settings.path(".rocmlab") else []
    if taken:
        raise RocmlabError(
            f"{name}={value} is not a folder for your files",
            f"{taken[0]} of this project is made, changed and removed by programs",
            f"make up {name}=/another/folder; or, for the default: make up {name}=",
        )


def _check_mounts(settings: Settings, folders: Mapping[str, str]) -> None:
    """Raise RocmlabError for a folder whose path an engine would take apart: a colon separates it from its target."""
    for name, value in folders.items():
        if "/" in value and ":" in (path := str(settings.path(value))):
            raise RocmlabError(
                f"{name}: {path} has a colon",
                "in a mount of a container it separates the folder from its place inside",
                f"make up {name}=/another/folder",
            )


def _check_addresses(settings: Settings) -> None:
    """Raise RocmlabError for an address with credentials: each process that installs has it in its arguments."""
    for name in ADDRESSES:
        value = settings.get(name)
        if requested.without_password(value) != value:
            raise RocmlabError(
                f"{name} has credentials in its address",
                "all users of the host could read them in pip's arguments, and all who get the image in its history",
                f"make up {name}=… without them; they belong in the pip.conf that PIP_CONFIG names, with {name} empty, "
                "or natively in ~/.netrc",
            )


def _for_container(
    settings: Settings, choice: Choice, devices: list[Device], root: Path, kind: ImageKind
) -> dict[str, str]:
    _check_mounts(settings, {"SHARE": _share(settings, choice), "NOTEBOOKS_DIR": settings.get("NOTEBOOKS_DIR")})
    uid = _owner(settings.path(settings.get("NOTEBOOKS_DIR")))
    render, video = device_groups(root)
    name = settings.last("COMPOSE_PROJECT_NAME") or project_name(settings.project)
    files = {"COMPOSE_FILE": ":".join(gpus.overlays(settings, choice, root)), "COMPOSE_PATH_SEPARATOR": ":"}
    tag = BASE_IMAGES[kind.name if kind.name == image_kind.SLIM else _kind(choice.backend, devices)]
    pulled = pinned(settings.project, tag)
    if choice.runtime == "docker":
        base = kind.base or pulled
    else:
        base = f"localhost/{kind.base}" if kind.base else qualified(pulled)
    return {
        **(files if choice.runtime == "docker" else {}),
        "COMPOSE_PROJECT_NAME": name,
        "BASE_IMAGE": settings.get("BASE_IMAGE") or base,
        "ROCMLAB_IMAGE": f"{name}:{choice.backend}",
        "RENDER_GID": render,
        "VIDEO_GID": video,
        "NB_UID": settings.get("NB_UID") or str(uid),
        "NB_GID": settings.get("NB_GID") or "100",
        "PIDS_LIMIT": _pids_limit(settings),
        "NOTEBOOKS_DIR": os.path.expanduser(settings.get("NOTEBOOKS_DIR")),
    }


def _pids_limit(settings: Settings) -> str:
    """Return how many processes and threads a lab may have: the frameworks start several threads for each CPU."""
    wanted = settings.get("PIDS_LIMIT") or str(PIDS + PIDS_PER_CPU * (os.cpu_count() or 1))
    if re.fullmatch(r"-1|[1-9]\d*", wanted):
        return wanted
    raise RocmlabError(
        f"PIDS_LIMIT={wanted} is not a number of processes",
        "it is a number above 0, or -1 for no limit",
        "make up PIDS_LIMIT=",
    )


def _kind(backend: str, devices: list[Device]) -> str:
    if backend != "rocm":
        return backend
    targets = [device.gfx or "" for device in devices if device.backend == "rocm"]
    return "instinct" if targets and all(INSTINCT.fullmatch(gfx) for gfx in targets) else "radeon"


def _owner(folder: Path) -> int:
    """Return who owns the notebooks, so that the lab can save them; root's are handed to the lab's own user."""
    try:
        return folder.stat().st_uid or LAB_UID
    except OSError:
        return os.getuid() or LAB_UID


def project_name(project: Path) -> str:
    """Return a Compose project name of this clone alone: another user's clone may have a folder of the same name."""
    return f"rocmlab-{hashlib.sha256(str(project.resolve()).encode()).hexdigest()[:6]}"


def device_groups(root: Path) -> tuple[str, str]:
    """Return two groups for `group_add`, of render nodes and of the GPU's other nodes; the entry point joins all.

    Compose refuses equal entries, so where all nodes share one group the second place is the usual video group.
    """
    compute = nodes.kfd(root)
    renders = [str(node.gid) for node in nodes.render_nodes(root)]
    others = [str(node.gid) for node in ([compute] if compute else []) + nodes.card_nodes(root)]
    found = list(dict.fromkeys([*renders[:1], *others, *renders, *VIDEO_GIDS]))
    return found[0], found[1]


PIP_FILES = ("~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/pip.conf")
AUTHORITIES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


def pip_environment(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a build needs behind a mirror or a proxy, found where this user's own pip finds it."""
    files = [environment.get("PIP_CONFIG_FILE", ""), *(os.path.expanduser(path) for path in PIP_FILES)]
    configuration = next((path for path in files if path and Path(path).is_file()), "")
    links = environment.get("PIP_FIND_LINKS", "") + " " + _pip_option(configuration, "find-links")
    wheels = next((path for path in links.split() if Path(path).is_dir()), "")
    authorities = [environment.get(name, "") for name in AUTHORITIES] + [_pip_option(configuration, "cert")]
    return {
        "WHEELS": settings.get("WHEELS") or wheels,
        "CA_BUNDLE": settings.get("CA_BUNDLE") or next((path for path in authorities if Path(path).is_file()), ""),
        "PIP_CONFIG": settings.get("PIP_CONFIG") or configuration,
    }


def pip_variables(settings: Settings) -> dict[str, str]:
    """Return the variables by which programs of a native lab take CA_BUNDLE and PIP_CONFIG, as in a container."""
    chosen = {name: settings.get(name) for name in ("CA_BUNDLE", "PIP_CONFIG")}
    names = {"CA_BUNDLE": (*AUTHORITIES, "CURL_CA_BUNDLE"), "PIP_CONFIG": ("PIP_CONFIG_FILE",)}
    return {each: str(settings.path(path)) for name, path in chosen.items() if path for each in names[name]}


def _pip_option(configuration: str, name: str) -> str:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(configuration, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return ""
    return parser.get("global", name, fallback="")
