"""Make an environment's JupyterLab ours: its kernels, its server's configuration, its panel, the interface's defaults.

Run as `python -m rocmlab.lab.install --prefix PREFIX --tensorflow PYTHON --torch PYTHON`.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from rocmlab.lab import kernels

# What a user may change in JupyterLab's settings, but should not be asked at the first start.
DEFAULTS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}

log = logging.getLogger("rocmlab")

PANEL = "rocmlab-panel"  # as its package.json calls it
EXTENSIONS = {"rocmlab.lab.server": True}
BUILT = Path(__file__).with_name("labextension")


def write_defaults(prefix: Path) -> Path:
    """Write JupyterLab's `overrides.json` below `prefix`. Source: JupyterLab's documentation, "Advanced usage"."""
    path = prefix / "share/jupyter/lab/settings/overrides.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(DEFAULTS, indent=1) + "\n", encoding="utf-8")
    return path


def install_panel(prefix: Path) -> Path | None:
    """Enable the panel's half in the server, and copy the other to where JupyterLab looks; None if it is not built."""
    enabled = prefix / "etc/jupyter/jupyter_server_config.d/rocmlab.json"
    enabled.parent.mkdir(parents=True, exist_ok=True)
    enabled.write_text(
        json.dumps({"ServerApp": {"jpserver_extensions": EXTENSIONS}}, indent=1) + "\n", encoding="utf-8"
    )
    target = prefix / "share/jupyter/labextensions" / PANEL
    shutil.rmtree(target, ignore_errors=True)
    if not (BUILT / "package.json").is_file():
        return None
    shutil.copytree(BUILT, target)
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Install what the arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m rocmlab.lab.install", description=__doc__.splitlines()[0])
    parser.add_argument("--prefix", type=Path, required=True, help="the environment of JupyterLab")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="the interpreter that has TensorFlow")
    parser.add_argument("--torch", metavar="PYTHON", help="the interpreter that has PyTorch")
    parser.add_argument("--constraints", metavar="FILE", help="pip constraints for the TensorFlow kernel")
    parser.add_argument("--is-slim", action="store_true", help="a framework that is not given is not in the image")
    chosen = parser.parse_args(arguments)
    pythons = {name: python for name in kernels.TITLES if (python := getattr(chosen, name))}
    without = {"tensorflow": kernels.ABSENT} if chosen.is_slim and "tensorflow" not in pythons else {}
    kernels.install(chosen.prefix, pythons, chosen.constraints, without)
    write_defaults(chosen.prefix)
    if install_panel(chosen.prefix) is None:
        log.warning("JupyterLab gets no GPU panel: it is not built (scripts/build-frontend)")
    configuration = chosen.prefix / "etc/jupyter/jupyter_config.py"
    configuration.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("jupyter_config.py"), configuration)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
