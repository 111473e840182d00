"""A lab of the hub under the user's own account: its folders are in the user's home, its programs are the project's.

Run as `python -m rocmlab.hub.native_lab COMMAND…`, by the hub, as the user.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocmlab.base import lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.hub import lab
from rocmlab.stack import envfile, environments, homes, live
from rocmlab.stack.environment import MARKER, Environment
from rocmlab.stack.native import NativeLab
from rocmlab.stack.settings import Settings

GIVEN = "ROCMLAB_HUB_LAB"  # what the hub tells, as JSON
FOLDER = "rocmlab"  # in the user's home
SECRETS = ("JUPYTER_TOKEN_FILE", "METRICS_TOKEN_FILE")  # a lab of the hub has none: login is the hub's


class HubLab(NativeLab):
    """One user's lab."""

    def __init__(self, given: dict[str, Any], home: Path) -> None:
        folder, project = home / FOLDER, Path(given["project"])
        own = {"SHARE": str(folder / "share"), "NOTEBOOKS_DIR": str(folder / "notebooks")}
        simulated = {"ROCMLAB_ROOT": given["root"]} if given["root"] != "/" else {}
        settings = Settings(folder, {**given["settings"], **own, **simulated})
        values = {"PORT": "8888", "JUPYTER_TOKEN": "", "ROCMLAB_BACKEND": given["backend"], **own}
        values |= {name: os.environ.get(name, "") for name in ("ROCMLAB_LAB", "ROCMLAB_USER")}
        record = envfile.read_json(project / ".venv" / MARKER)
        environment = Environment(project, given["backend"], "python3", "", extras=str(record.get("extras", "")))
        super().__init__(settings, values, environment)
        self._project = project
        self._leased: dict[str, str] | None = None  # once the GPUs are leased
        self._shown = {name: Path(given[name]) for name in ("data", "common") if given[name]}

    def _show(self) -> None:
        homes.show(self.view, {"work": self.notebooks, "share": self.share_folder, **self._shown})

    def server_environment(self) -> dict[str, str]:
        """Return the environment of the server: a native lab's, what the hub has given, and the masks of its GPUs."""
        if self._leased is not None:
            return self._leased
        env = {name: value for name, value in super().server_environment().items() if name not in SECRETS}
        env |= {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("JUPYTERHUB_", "JPY_", "ROCMLAB_HUB_"))
        }
        data = self.runtime_folder() / "data"  # as in a container: the programs' own folder is root's
        env |= {"ROCMLAB_KERNELS": str(data / "kernels"), "JUPYTER_PATH": str(data)}
        env["ROCMLAB_UV"] = str(self._project / environments.UV)
        return env

    def open(self) -> None:
        """Make the user's folders, lease the GPUs, and make what JupyterLab needs with them."""
        folder = self.settings.project
        folder.mkdir(mode=0o700, exist_ok=True)
        is_new = not self.notebooks.exists()
        self.notebooks.mkdir(exist_ok=True)
        if is_new:
            lab.add_notebooks(self._project / "notebooks", self.notebooks)
        self.settings.state.mkdir(mode=0o700, exist_ok=True)
        live.write(self.settings)
        self.make_folders()
        self._recover(_say)
        shutil.rmtree(self.runtime_folder(), ignore_errors=True)  # of the user's lab before, which has ended
        self.runtime_folder()
        self._leased = lab.with_gpus(self.server_environment())
        for name in (".jupyter", ".local/share/jupyter"):
            (self.home / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._offer_kernels(_say)

    def become(self, command: Sequence[str]) -> None:
        """Run JupyterLab in place of this process, with a log of its own."""
        os.chdir(self.notebooks)
        arguments = [f"--ServerApp.root_dir={self.view}", "--FileContentsManager.preferred_dir=work"]
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        lab.run([*command, *arguments], self.server_environment())


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(arguments: Sequence[str]) -> int:
    """Become the lab; return the exit code of an error, which the hub shows to the user."""
    given = json.loads(os.environ.pop(GIVEN))
    os.environ.pop("ROCMLAB_ROOT", None)
    if given["root"] != "/":
        os.environ["ROCMLAB_ROOT"] = given["root"]
    if leases := given["settings"].get(lease_folder.SETTING):
        os.environ[lease_folder.SETTING] = leases
    try:
        found = HubLab(given, Path.home())
        found.open()
        found.become(arguments)
    except (RocmlabError, OSError) as err:
        sys.stderr.write(f"error: {err}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
