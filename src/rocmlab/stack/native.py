"""The lab without Docker: a virtual environment, and a JupyterLab that runs in the background of this user."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocmlab.base import confidential, extras, hosts, identity, installation, lease_folder, private
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.base.identity import Process
from rocmlab.cluster.node import record
from rocmlab.cluster.node.record import Record
from rocmlab.devices import visibility
from rocmlab.devices.discovery import discover
from rocmlab.packages import system
from rocmlab.stack import environments, homes, layout, live, making, process, server, tls, tokens
from rocmlab.stack.cluster import NativeNode
from rocmlab.stack.daemon import last_lines
from rocmlab.stack.environment import Environment, was_made_by_us
from rocmlab.stack.installing import Installer
from rocmlab.stack.lab import Lab, Say, not_answering
from rocmlab.stack.native_server import ServerProcess
from rocmlab.stack.server import Holder
from rocmlab.stack.setting_table import NAMES, OF_ONE_COMMAND
from rocmlab.stack.settings import Settings, for_frameworks

SHARE_FOLDERS = ("data", "models", "runs", "cache")
HUB = "JUPYTERHUB_"  # variables of a hub in whose terminal this is typed: they would make the lab one of its servers
STOP_SECONDS = 10.0
BUSY_SECONDS = 20.0  # a server whose machine swaps may need that long for an answer
SOCKET_FOLDER_BYTES = 50  # a socket's path has at most 104 bytes, and Jupyter adds kernel-<uuid>-ipc-<n>


class NativeLab(Lab):
    """JupyterLab from `.venv`, its log in `.rocmlab/jupyter.log`; and the Ray node, if CLUSTER asks for one."""

    def __init__(self, settings: Settings, values: dict[str, str], environment: Environment) -> None:
        super().__init__(settings, values)
        self.venv = environment
        self.share_folder = settings.path(values["SHARE"])
        self.view = settings.state / "home"  # what JupyterLab shows: work/ and share/, and nothing can be saved in it
        self.home = self.share_folder / "home"  # JupyterLab's settings, workspaces and data
        self.log = settings.state / "jupyter.log"
        self.jupyter = ServerProcess(settings.state / "jupyter.json", self.view, self.port, secrets.token_hex(16))
        self.installer = Installer(settings.project)
        self.node = NativeNode(settings, environment.interpreter)

    def is_prepared(self) -> bool:
        """Return whether `.venv` is current."""
        return self.venv.is_current()

    def is_startable(self) -> bool:
        """Return whether JupyterLab can start from `.venv`."""
        return self.venv.is_current() or self.venv.is_part()

    def unfinished(self) -> str | Problem | None:
        """Return whether the frameworks are being installed, or why they are not."""
        prefix = self.venv.folder
        if installation.is_whole(prefix):
            return None
        installing = f"{installation.FRAMEWORKS} are being installed; their kernels start when that is done"
        return installation.obstacle(prefix) or f"{installing}: {installation.LOG}"

    def missing_system_packages(self) -> tuple[str, ...]:
        """Return what of `apt.txt` this host does not have."""
        return system.missing(system.read(self.notebooks))

    def is_built(self) -> bool:
        """Return whether there is a `.venv`, current or not."""
        return self.venv.interpreter.exists()

    def disk(self) -> Path:
        """Return the project folder, where `.venv` is."""
        return self.settings.project

    def folders(self) -> list[Path]:
        """Return the share and the notebooks."""
        return [self.share_folder, self.notebooks]

    def inside(self) -> tuple[list[str], Mapping[str, str]] | None:
        """Return what runs rocmlab in `.venv`, or None where there is none."""
        if not self.is_built():
            return None
        return [str(self.venv.interpreter), "-P", "-m", "rocmlab"], self.server_environment()

    def check_disk(self) -> None:
        """Make sure that what has still to be installed fits; see `Environment.check_disk`."""
        self.venv.check_disk()

    def prepare(self, say: Say, *, always: bool = False, only_lab: bool = False) -> None:
        """Make or update `.venv`, and the folders that JupyterLab shows."""
        if always or not (self.is_startable() if only_lab else self.is_prepared()):
            if not self.venv.is_part():
                self.installer.end()  # what it installs is for other settings, and would be replaced
            with self.installer.paused(say):
                if only_lab:
                    making.make_lab(self.venv, say)
                elif always or not self.is_prepared():  # it may have been finished meanwhile
                    making.make(self.venv, say, is_part_kept=not always)
        if not self.notebooks.is_dir():
            raise RocmlabError(
                f"NOTEBOOKS_DIR={self.settings.get('NOTEBOOKS_DIR')} is not a folder",
                f"{self.notebooks} is not there",
                f"mkdir -p {self.notebooks}, or choose another one",
            )
        self.make_folders()

    def make_folders(self) -> None:
        """Make what is missing of the share, and the folder that JupyterLab shows."""
        for name in SHARE_FOLDERS:
            (self.share_folder / name).mkdir(parents=True, exist_ok=True)
        layout.prepare(self.share_folder)
        homes.make_private(self.home)
        self._show()

    def _show(self) -> None:
        homes.show(self.view, {"work": self.notebooks, "share": self.share_folder})

    def _recover(self, say: Say) -> None:
        """Move what was written next to work/ and share/, as root can, to where it is kept."""
        try:
            for line in homes.recover(self.view, self.notebooks):
                say(line)
        except OSError as err:
            why = f"{err.filename}: {err.strerror}"
            raise RocmlabError(f"files in {self.view} could not be moved to work/", why, "make up") from err
        finally:
            self._show()

    def runtime_folder(self) -> Path:
        """Return a private folder for the kernels' sockets and keys, in /tmp where the project's path is too long."""
        folder = self.settings.state.resolve() / "runtime"
        if len(os.fsencode(folder)) > SOCKET_FOLDER_BYTES:
            digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
            folder = Path(f"/tmp/rocmlab-{os.getuid()}-{digest}")
        return private.make_folder(folder, "another user could read the kernels' keys")

    def server_environment(self) -> dict[str, str]:
        """Return the environment of the server and of everything it starts."""
        scripts = str(self.venv.folder / "bin")
        env = {name: value for name, value in confidential.without(os.environ).items() if not name.startswith(HUB)}
        # Of the command that starts it: a later one, in a terminal of the lab, would be forced by FORCE=1 as well.
        of_make = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ROCMLAB_URL_HOST", "ROCMLAB_HUB_TEXT", "ROCMLAB_HUB_USER")
        for name in ("PYTHONPATH", "PYTHONHOME", "JUPYTER_PATH", *of_make, *OF_ONE_COMMAND, *NAMES):
            env.pop(name, None)
        env |= {
            "PATH": scripts + os.pathsep + env.get("PATH", ""),
            "VIRTUAL_ENV": str(self.venv.folder),
            # Paths, not the tokens themselves: kernels and terminals inherit this environment.
            "JUPYTER_TOKEN_FILE": str(tokens.path(self.settings, "JUPYTER_TOKEN")),
            "METRICS_TOKEN_FILE": str(tokens.path(self.settings, "METRICS_TOKEN")),
            "JUPYTER_CONFIG_DIR": str(self.home / ".jupyter"),
            "JUPYTER_DATA_DIR": str(self.home / ".local/share/jupyter"),
            "JUPYTER_RUNTIME_DIR": str(self.runtime_folder()),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "ROCMLAB_SHARE": str(self.share_folder),
            "ROCMLAB_NOTEBOOKS": str(self.notebooks),
            "ROCMLAB_UV": str(self.settings.project / environments.UV),
            "ROCMLAB_BACKEND": self.values["ROCMLAB_BACKEND"],
            "ROCMLAB_RUNTIME": "native",
            extras.VARIABLE: self.venv.extras,
            lease_folder.SETTING: self.settings.get(lease_folder.SETTING),
            "ROCMLAB_LAB": self.values.get("ROCMLAB_LAB", ""),
            "ROCMLAB_USER": self.values.get("ROCMLAB_USER", ""),
            hosts.SETTING: self.settings.get(hosts.SETTING),
            hosts.BASE_URL: self.base_url,
            **self._bound(),
            live.VARIABLE: str(live.path_of(self.settings)),
            "ROCMLAB_LOG": str(self.log.resolve()),
            "LOG_MAX_SIZE": self.settings.get("LOG_MAX_SIZE"),
        }
        for name, folder in (("KERAS_HOME", "keras"), ("HF_HOME", "huggingface")):
            env.setdefault(name, str(self.share_folder / "cache" / folder))
        env |= for_frameworks(self.settings.read_env()) | self.venv.variables | self.node.environment()
        backend, choice, root = self.values["ROCMLAB_BACKEND"], self.settings.get("GPUS"), Path("/")
        env.pop("ROCMLAB_ROOT", None)
        if simulated := self.settings.get("ROCMLAB_ROOT"):
            root, backend = Path(simulated), "rocm"  # whose GPUs are shown; the frameworks find none and use the CPU
            env["ROCMLAB_ROOT"] = simulated
        elif backend == "cpu":
            choice = "none"
        if backend == "metal" or choice == "all":
            return env  # a mask that the host set for this user stays
        devices = [device for device in discover(root) if device.backend == backend]
        return visibility.apply(env, visibility.select(devices, choice))

    def _bound(self) -> dict[str, str]:
        """Return what the server needs to answer other machines too."""
        names = self.values.get(hosts.BOUND)
        if not names:
            return {}
        bound = {name: self.settings.get(name) for name in ("BIND", "TLS_PORT")}
        return {**bound, hosts.BOUND: names, hosts.TLS_FOLDER: str(tls.path_of(self.settings).parent)}

    def is_running(self) -> bool:
        """Return whether the server process lives."""
        return self.jupyter.find() is not None

    def _listening(self) -> Holder:
        return self.jupyter.holder()

    def _configuration(self) -> dict[str, str]:
        kept = ("PORT", "JUPYTER_TOKEN", "METRICS_TOKEN", "SHARE", "ROCMLAB_BACKEND")
        found = {name: self.values.get(name, "") for name in kept}
        found |= {"NOTEBOOKS_DIR": str(self.notebooks), "GPUS": self.settings.get("GPUS"), "home": str(self.home)}
        found |= {name: self.settings.get(name) for name in ("ROCMLAB_ROOT", lease_folder.SETTING, hosts.SETTING)}
        found |= {hosts.BASE_URL: self.base_url} if self.base_url != hosts.ROOT else {}
        found |= self._bound() | self.node.configuration() | for_frameworks(self.settings.read_env())
        return {**found, "environment": self.venv.fingerprint()}

    def _is_configured(self) -> bool:
        return self.jupyter.recorded().get("configuration") == self._configuration()

    def is_current(self) -> bool:
        """Return whether the server runs with these settings and this environment."""
        return self.is_running() and self._is_configured()

    def family(self) -> list[int]:
        """Return the process ids of the server and of all that it started; empty where it does not run."""
        running = self.jupyter.find()
        return [each.pid for each in identity.family(running)] if running else []

    def capture_inside(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a short program on this machine."""
        return process.capture(command, timeout_seconds=15)

    def start(self, say: Say, *, force: bool = False) -> bool:
        """Start JupyterLab unless it runs as configured, wait until it answers, and return whether it was started.

        Then what is missing in `.venv` is installed, and its packages are compiled, in the background as well. `force`
        also stops and starts a server that runs as configured and does not answer; without, it runs on.
        """
        is_new = self._start(say, force=force)
        try:
            self.installer.begin(self.venv)
        except OSError as err:  # the disk is full, for example
            say(f"nothing is installed or compiled in the background: {err}; make up retries")
        if not installation.is_whole(self.venv.folder):
            self.venv.mark_kernels()
        return is_new

    def _start(self, say: Say, *, force: bool) -> bool:
        self._start_node_too(say)
        is_configured = self.is_running() and self._is_configured()
        if is_configured and server.wait(self.speaks, self.answers, self.is_running, BUSY_SECONDS):
            return False
        if self.holder().kind != server.OURS:
            server.check_free(self.port)  # before anything that runs is stopped
        if is_configured and not force and self.is_running():
            raise not_answering(f"there was no answer in {BUSY_SECONDS:.0f} s")
        if folder := self.values.get("ROCMLAB_LEASES"):
            lease_folder.ensure(Path(folder))
        self._stop_server()
        server.check_free(self.port)
        tokens.write(self.settings, self.values, self.runtime_folder())
        self._recover(say)
        for name in (".jupyter", ".local/share/jupyter"):
            (self.home / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        self._offer_kernels(say)
        # -P: nothing is imported from the folder it starts in, which is that of the notebooks.
        command = [str(self.venv.interpreter), "-P", "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1"]
        command += [f"--ServerApp.port={self.port}", f"--ServerApp.root_dir={self.view}"]
        command += ["--FileContentsManager.preferred_dir=work"]
        command += ["--allow-root"] if os.getuid() == 0 else []
        # A terminal that names no folder starts in that of the notebooks.
        child = self.jupyter.launch(
            command, self.server_environment(), self._configuration(), log=self.log, cwd=self.notebooks
        )
        if server.wait(self.speaks, self.answers, lambda: child.poll() is None):
            return True
        self._stop_server()
        raise RocmlabError(
            "JupyterLab did not start",
            last_lines(self.log),
            f"fix the error above, then `make up`; complete log: {self.log}",
        )

    def _offer_kernels(self, say: Say) -> None:
        """Write the kernelspecs for the current GPUs; where that fails the lab starts with the plain kernels."""
        command = [str(self.venv.interpreter), "-P", "-m", "rocmlab", "kernels", "install"]
        code, output = process.capture(command, env=self.server_environment())
        if code:
            lines = output.strip().splitlines() or [f"exit code {code}"]
            say(f"the launcher offers only the plain kernels, TensorFlow and PyTorch: {lines[0]}")

    def stop(self, say: Say) -> None:
        """Stop the server and every process it started, what is installed in the background, and the Ray node.

        Raises:
            RocmlabError: this process is one of them.
        """
        self._stop_server()
        self.installer.end()
        self.node.stop(say)

    def _stop_server(self) -> None:
        if running := self.jupyter.find():
            family = identity.family(running)
            if any(each.pid == os.getpid() for each in family):
                raise RocmlabError(
                    "this command would end itself half way",
                    "it stops the lab, and it is typed in a terminal of the lab, which ends with it",
                    "type it in another terminal of this machine, over ssh for example",
                )
            self._end(family)
            shutil.rmtree(self.runtime_folder(), ignore_errors=True)
        self.jupyter.forget()

    def node_record(self) -> Record | None:
        """Return the present or last record of the lab's Ray node; None where there is none."""
        last = record.read(self.node.folder / "node.json")
        return self.node.state() or (last if last and last.failure else None)

    def start_node(self, say: Say) -> bool:
        """Start this machine's Ray node unless it runs as configured, and return whether it was started."""
        return self.node.start(self.server_environment(), self.settings.get("GPUS"), say)

    def _start_node_too(self, say: Say) -> None:
        """Start the node; the lab starts also where the node cannot."""
        if not self.settings.is_in_cluster:
            return
        try:
            self.start_node(say)
        except RocmlabError as err:
            say(f"the lab starts without its Ray node: {err}")

    def _end(self, family: list[Process]) -> None:
        """Ask the server to shut down, as JupyterLab's own menu does; then end what is left, first politely."""
        is_ending = self.ask("/api/shutdown", method="POST")[0] == 200
        if not (is_ending and identity.wait_gone(family[:1], STOP_SECONDS / 2)):
            identity.send(family[:1], signal.SIGTERM)
            identity.wait_gone(family[:1], STOP_SECONDS / 2)
        identity.send(family, signal.SIGTERM)
        if not identity.wait_gone(family, 3.0):
            identity.send(family, signal.SIGKILL)

    def clean(self, say: Say) -> None:
        """Stop the lab and remove `.venv` and our own links; the share, `.env` and every file of a user stay."""
        self.stop(say)
        is_ours = was_made_by_us(self.venv.folder)
        if is_ours:
            with self.installer.paused(say):
                environments.remove_all(self.settings.project)
        if not homes.hide(self.view):
            say(f"kept {self.view}: it holds files that are not of rocmlab; the next `make up` moves them to work/")
        removed = f"removed {self.venv.folder}" if is_ours else "no environment made by rocmlab found"
        say(f"{removed}; kept the share {self.share_folder}")

    def run(self, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
        """Run `rocmlab <arguments>` with the lab's interpreter and environment."""
        command = [str(self.venv.interpreter), "-P", "-m", "rocmlab", *arguments]
        return process.attach(
            command, env={**self.server_environment(), **(variables or {})}, cwd=self.settings.project
        )

    def logs(self, follow: bool) -> int:
        """Print the server's log."""
        if not self.log.exists():
            raise RocmlabError("no log found", "the lab was never started here", "make up")
        return process.attach(["tail", "-n", "+1", *(["-f"] if follow else []), str(self.log)])

    def shell(self) -> int:
        """Open a shell with the lab's environment."""
        return process.attach([os.environ.get("SHELL") or "bash"], env=self.server_environment(), cwd=self.notebooks)
