"""What the extras of a lab (the setting EXTRAS) need in Jupyter's configuration; see `configure`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from rocmlab.base import extras, hosts
from rocmlab.packages.overlays import CURRENT, Place, sites

NO_GPU = {"HIP_VISIBLE_DEVICES": "-1", "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
TENSORBOARD_SECONDS = 60.0  # where it finds TensorFlow, it imports that


def configure(c: Any, environment: MutableMapping[str, str], prefix: Path) -> None:  # noqa: ANN401  traitlets'
    """Add what the lab's extras need, in the environment of JupyterLab at `prefix`."""
    chosen = extras.parse(environment.get(extras.VARIABLE, ""))
    if "tensorboard" in chosen:
        c.ServerProxy.servers = {"tensorboard": tensorboard(environment, prefix)}
    if "proxy" in chosen:
        # `%tensorboard` in a notebook shows the page at its port's address in the lab.
        base_url = hosts.parse_base_url(environment.get(hosts.BASE_URL, ""))
        environment.setdefault("TENSORBOARD_PROXY_URL", f"{base_url}proxy/%PORT%/")
        c.ServerProxy.non_service_rewrite_response = in_own_frames
    if "lsp" in chosen:
        c.LanguageServerManager.language_servers = {"pylsp": language_server(environment, prefix)}
        # It writes what is edited to files, by default next to work/ and share/, where nothing can be saved.
        c.LanguageServerManager.virtual_documents_dir = str(runtime_folder(environment) / "virtual_documents")


def in_own_frames(response: Any) -> None:  # noqa: ANN401  jupyter-server-proxy's
    """Have a proxied page framed by the lab's pages alone, whatever it allows itself; both policies count."""
    response.headers.add("Content-Security-Policy", "frame-ancestors 'self'")


def tensorboard(environment: Mapping[str, str], prefix: Path) -> dict[str, Any]:
    """Return the launcher's entry, which starts TensorBoard for the notebooks' event files when it is opened."""
    folder = environment.get("ROCMLAB_NOTEBOOKS", os.getcwd())
    return {
        "command": [interpreter(prefix), "-P", "-m", "rocmlab.lab.serve_tensorboard", "{unix_socket}", folder],
        "environment": NO_GPU,
        "unix_socket": str(runtime_folder(environment) / "tensorboard.sock"),
        "timeout": TENSORBOARD_SECONDS,
        "rewrite_response": in_own_frames,
        "launcher_entry": {
            "title": "TensorBoard",
            "category": "Notebook",  # JupyterLab shows icons by address only here and among consoles
            "icon_path": str(Path(__file__).with_name("tensorboard.svg")),
        },
    }


def language_server(environment: Mapping[str, str], prefix: Path) -> dict[str, Any]:
    """Return python-lsp-server as jupyter_lsp describes one: it completes what the kernels can import, and ruff lints.

    What PyTorch's kernel has comes before TensorFlow's. Packages of a user's own are among it where the lab starts with
    any.
    """
    pythons = list(filter(None, (interpreter(prefix, name) for name in ("torch", "tensorflow"))))
    place = Place(Path(environment.get("ROCMLAB_SHARE", "")), "torch", pythons[0])
    plugins = {
        "jedi": {
            "environment": str(place.own / CURRENT / "bin/python") if place.current() else pythons[0],
            "extra_paths": [str(site) for python in pythons[1:] for site in sites(python)],
        },
        # In a notebook a last line shows a value, imports may follow code, and `await` needs no function.
        "ruff": {"enabled": True, "extendIgnore": ["B018", "E402", "F704", "PLE1142"]},
    }
    return {
        "version": 2,
        "argv": [str(prefix / "bin/python"), "-P", "-m", "pylsp"],
        "languages": ["python"],
        "mime_types": ["text/python", "text/x-ipython"],
        "display_name": "python-lsp-server",
        "workspace_configuration": {"pylsp": {"plugins": plugins}},
    }


def runtime_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that only the lab's user can enter."""
    return Path(environment.get("JUPYTER_RUNTIME_DIR", "/tmp/jupyter-runtime"))


def interpreter(prefix: Path, kernel: str = "torch") -> str:
    """Return the interpreter of a kernel, which has what notebooks import; empty where the lab is without it."""
    path = Path(prefix, "share/jupyter/kernels", kernel, "kernel.json")
    specification = json.loads(path.read_text(encoding="utf-8"))
    return "" if specification["metadata"]["rocmlab"].get("absent") else str(specification["argv"][0])
