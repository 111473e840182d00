"""The hub of one project: deciding how it runs, starting it, finding it, and stopping it without its labs."""

from __future__ import annotations

import http.client
import json
import os
import random
import secrets
import signal
import ssl
import stat
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import rocmlab
from rocmlab.base import addresses, files, host_limits, identity, lease_folder, live
from rocmlab.base.errors import RocmlabError
from rocmlab.base.identity import Process
from rocmlab.hub import configuration, inputs
from rocmlab.hub.authenticators import SETUP
from rocmlab.hub.cgroups import Cgroups
from rocmlab.hub.configuration import UP, Configuration
from rocmlab.hub.network import Network
from rocmlab.hub.uids import Uids
from rocmlab.stack import envfile, process, project_folder, resolve, tls
from rocmlab.stack import live as live_files
from rocmlab.stack.daemon import Daemon, last_lines
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.lab import Say
from rocmlab.stack.project import Project
from rocmlab.stack.settings import Settings

CONFIG = Path(rocmlab.__file__).parent / "hub/jupyterhub_config.py"
# As JupyterHub itself does, with all that this names.
LOADS = "import sys; from traitlets.config import PyFileConfigLoader; PyFileConfigLoader(sys.argv[1]).load_config()"
LINES = 8  # of its error
LOOPBACK = "127.0.0.1"
START_SECONDS = 90.0
STOP_SECONDS = 15.0
TRIES = 50
ROOTS = range(800, 850)  # ports of root's
UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
LOOK_SECONDS = 0.2


class HubProcess(Daemon):
    """JupyterHub's process, running or not. The labs are its children, and are never ended with it."""

    variable = "ROCMLAB_HUB"


class Hub:
    """The hub of a project."""

    def __init__(self, settings: Settings, package: Path = inputs.PACKAGE) -> None:
        """Use a project's settings, and rocmlab's own code, which the hub runs; nothing is decided or started yet."""
        self.package = package
        self.settings = replace(settings, guest="hub")  # files of its own, also for the certificate
        self.state = self.settings.state.resolve()
        self.log = self.state / "hub.log"
        self.process = HubProcess(self.state / "process.json", secrets.token_hex(16))

    @property
    def file(self) -> Path:
        """What the hub was last started with."""
        return self.state / configuration.FILE

    def known(self) -> Configuration | None:
        """Return what the hub was last started with; None before the first start."""
        return Configuration.read(self.file) if self.file.exists() else None

    def is_running(self) -> bool:
        """Return whether the hub's process lives."""
        return self.process.find() is not None

    def make_folder(self) -> None:
        """Make the hub's folder, which holds its database and secrets."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.state.stat()
        if found.st_uid != os.geteuid():
            why = f"it belongs to uid {found.st_uid}, which started the hub before"
            raise RocmlabError(f"{self.state} is not yours", why, "run this as that user, or with sudo")
        self.state.chmod(0o700)

    def configure(self, project: Project, runtime: str, node: tuple[str, ...]) -> Configuration:
        """Decide all that the hub's process is told; the ports that labs know stay those of the last start.

        Raises:
            RocmlabError: a setting is wrong, or a port is taken.
        """
        settings, before = self.settings, self.known()
        bound = _for_tls(settings)
        address = _renamed(lambda: tls.address(bound))
        port = configuration.port(settings)
        is_simulated = project.choice.is_simulated
        pids = int(project.values.get("PIDS_LIMIT", "0")) or resolve.PIDS + resolve.PIDS_PER_CPU * (os.cpu_count() or 1)
        access = configuration.access(settings)
        name = self._name(before)
        network = Network(name) if runtime == "docker" else None
        hub_address = network.address() if network else LOOPBACK
        certificate = ""
        if address:
            values = _renamed(lambda: tls.values(bound))
            _renamed(lambda: tls.prepare(bound, values))
            certificate = str(tls.path_of(bound))
        if not self.is_running():
            _check_port(address or LOOPBACK, port)
        hub_port = before.hub_port if before and before.hub_address == hub_address else own_port(hub_address, {port})
        if before and self._can_use(before.proxy_port):
            proxy_port = before.proxy_port
        else:
            proxy_port = own_port(LOOPBACK, {port, hub_port})
        lab = {name: settings.get(name) for name in (*live.NAMES, lease_folder.SETTING, "GPUS")}
        root = str(project.root)
        limits = configuration.limits(settings, pids if runtime == "docker" else 0)
        if runtime == "docker":
            Uids.of_hub(self.state, access).check()
        elif limits.need_cgroup:
            Cgroups(name).prepare()
        return Configuration(
            project=str(settings.project.resolve()),
            state=str(self.state),
            runtime=runtime,
            backend=project.choice.backend,
            root=root,
            url=f"{'https' if address else 'http'}://{_in_url(address or LOOPBACK)}:{port}",
            certificate=certificate,
            hub_port=hub_port,
            proxy_port=proxy_port,
            hub_address=hub_address,
            access=access,
            limits=limits,
            data=configuration.folder(settings, "HUB_DATA"),
            common=configuration.folder(settings, "HUB_COMMON"),
            extra=configuration.own_file(settings, access.authenticator),
            leases=str(resolve.leases_folder(settings, project.root if is_simulated else Path("/"))),
            node=node,
            lab_python=str(settings.project.resolve() / ".venv/bin/python") if runtime == "native" else "",
            image=project.lab.image if isinstance(project.lab, DockerLab) and runtime == "docker" else "",
            network=network.name if network else "",
            name=name,
            groups=tuple(dict.fromkeys(resolve.device_groups(project.root))) if runtime == "docker" else (),
            shm_size=settings.get("SHM_SIZE") or "8gb",
            lab={name: value for name, value in lab.items() if value},
        )

    def _name(self, before: Configuration | None) -> str:
        """Return what the users' containers and volumes are named by: a project that was moved keeps its own."""
        if before and not project_folder.is_another(before.project, self.settings.project):
            return before.name
        return f"{resolve.project_name(self.settings.project)}-hub"

    def _can_use(self, port: int) -> bool:
        """Return whether a port for the proxy is free, or is what the hub or a proxy that it has left listens at."""
        return self.is_running() or bool(self._left_proxy()) or addresses.refusal(LOOPBACK, port) is None

    def start(self, found: Configuration, interpreter: Path, say: Say, extra: Mapping[str, str] | None = None) -> bool:
        """Start the hub unless it runs from what it would read now, wait until it answers, and return whether it did.

        Args:
            found: what it is told.
            interpreter: of the environment with JupyterHub.
            say: prints a line.
            extra: more variables of its environment.

        Raises:
            RocmlabError: it does not start.
        """
        live_files.write(self.settings)
        given = {"inputs": inputs.fingerprint(found, interpreter, self.package)}
        is_same = self.known() == found and self.process.recorded().get("configuration") == given
        if self.is_running() and is_same and self.answers(found):
            return False
        env = self._environment(found, extra or {})
        if self.is_running():
            self._check_loads(found, interpreter, env)
            say("restarting the hub; labs run on")
            self.stop(say)
        lease_folder.ensure(Path(found.leases))
        if found.runtime == "docker" and found.root == "/":
            with suppress(OSError):  # only root may; containers see what is written there later
                host_limits.make_folder(host_limits.path().parent)
        found.write()
        command = [str(interpreter), "-P", "-m", "jupyterhub", "--config", str(CONFIG)]
        child = self.process.launch(command, env, given, log=self.log, cwd=self.state)
        deadline = time.monotonic() + START_SECONDS
        while child.poll() is None and time.monotonic() < deadline:
            if self.answers(found):
                return True
            time.sleep(LOOK_SECONDS)
        self.stop(lambda _: None)
        raise RocmlabError(
            "JupyterHub did not start",
            last_lines(self.log),
            f"fix the error above, then make hub-up; complete log: {self.log}",
        )

    def _environment(self, found: Configuration, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the hub's process."""
        kept = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "DOCKER_HOST", "DOCKER_CONFIG", "XDG_RUNTIME_DIR")
        env = {name: os.environ[name] for name in kept if name in os.environ}
        env |= {"PYTHONPATH": str(Path(rocmlab.__file__).parents[1]), "ROCMLAB_HUB_FILE": str(self.file), **extra}
        return env | {"PYTHONUNBUFFERED": "1"} | ({"ROCMLAB_ROOT": found.root} if found.root != "/" else {})

    def _check_loads(self, found: Configuration, interpreter: Path, env: Mapping[str, str]) -> None:
        """Raise RocmlabError unless JupyterHub can load what it is to be restarted with."""
        draft = files.draft_path(self.file)
        command = [str(interpreter), "-P", "-c", LOADS, str(CONFIG)]
        try:
            found.write(draft)
            own = {**env, "ROCMLAB_HUB_FILE": str(draft)}
            code, output = process.capture(command, env=own, timeout_seconds=START_SECONDS)
        finally:
            draft.unlink(missing_ok=True)
        if code:
            raise RocmlabError(
                "the hub was not restarted, and runs as before: its configuration cannot be loaded",
                "\n".join(output.strip().splitlines()[-LINES:]),
                f"fix {found.extra or 'the error above'}, then make hub-up",
            )

    def answers(self, found: Configuration) -> bool:
        """Return whether the hub answers through its proxy."""
        return isinstance(_ask(found, "/hub/api/"), dict)

    def stop(self, say: Say) -> bool:
        """Stop the hub and its proxy; labs run on. Return whether there was something to stop."""
        running = self.process.find()
        family = [running, *self._proxies(running)] if running else self._left_proxy()
        if not family:
            self.process.forget()
            return False
        identity.send(family[:1], signal.SIGTERM)  # it ends its proxy
        if not identity.wait_gone(family, STOP_SECONDS):
            say("the hub does not end by itself, and is killed; labs run on")
            identity.send(family, signal.SIGKILL)
            identity.wait_gone(family, STOP_SECONDS)
        self.process.forget()
        return True

    def _proxies(self, running: Process) -> list[Process]:
        """Return the hub's proxy: of its children that which the file of the proxy names."""
        return [each for each in identity.family(running) if each.pid == self._proxy_pid()]

    def _proxy_pid(self) -> int:
        with suppress(OSError, ValueError):
            return int((self.state / "proxy.pid").read_text(encoding="ascii").split()[0])
        return 0

    def _left_proxy(self) -> list[Process]:
        """Return a proxy that a killed hub has left, known by its program and its user."""
        known, found = self.known(), identity.find(self._proxy_pid())
        if known is None or found is None or identity.uid_of(found.pid) != os.geteuid():
            return []
        return [found] if known.node[-1] in identity.arguments_of(found.pid) else []

    def setup_password(self) -> str:
        """Return what an administrator signs up with, empty where there is no sign-up."""
        return envfile.read(self.state / SETUP).strip()


def check_runtime(project: Project) -> str:
    """Return where labs run, which is where the project's own lab does; raise RocmlabError where that cannot be."""
    runtime = project.choice.runtime
    if runtime == "podman":
        why = "JupyterHub's spawner for containers is Docker's"
        fix = "make hub-up RUNTIME=docker; or as root, with labs under the users' accounts: RUNTIME=native"
        raise RocmlabError("the hub does not run labs in Podman", why, fix)
    if runtime == "native":
        check_native(project.settings.project.resolve())
    return runtime


def check_native(project: Path) -> None:
    """Raise RocmlabError unless root runs this, and every user may execute the project's programs."""
    if os.geteuid() != 0:
        why = "each lab runs under the account of its user, which only root can start"
        raise RocmlabError(
            "a hub with native labs must be started by root",
            why,
            "sudo make hub-up; or in Docker: make hub-up RUNTIME=docker",
        )
    for path in (project, *project.parents):
        if not path.stat().st_mode & stat.S_IXOTH:
            why = (
                f"{path} has mode {path.stat().st_mode & 0o777:o}, so users cannot run the lab's programs in {project}"
            )
            raise RocmlabError(
                f"{path} is closed to the users of the hub", why, f"move the project to /opt, or: chmod o+x {path}"
            )


def check_interpreter(interpreter: Path) -> None:
    """Raise RocmlabError unless every user may run the labs' Python."""
    real = interpreter.resolve()
    for path in (*real.parents, real):
        if not path.stat().st_mode & stat.S_IXOTH:
            why = f"{path} has mode {path.stat().st_mode & 0o777:o}"
            fix = "make clean; make hub-up PYTHON=/usr/bin/python3, or another that all users may run"
            raise RocmlabError(f"the users of the hub cannot run {real}", why, fix)


def _for_tls(settings: Settings) -> Settings:
    """Return the settings as the lab's own TLS reads them, for the hub's address and port."""
    chosen = {**settings.chosen, "BIND": settings.get("HUB_BIND"), "TLS_PORT": settings.get("HUB_PORT")}
    return replace(settings, chosen={name: value for name, value in chosen.items() if value})


def _renamed(work: Any) -> Any:  # noqa: ANN401
    """Do something about TLS; its errors name the hub's settings."""
    try:
        return work()
    except RocmlabError as err:
        texts = []
        for text in (err.problem.what, err.problem.why, err.problem.fix):
            for name, own in (("make up", UP), ("TLS_PORT", "HUB_PORT"), ("BIND", "HUB_BIND")):
                text = text.replace(name, own)
            texts.append(text)
        raise RocmlabError(*texts) from err


def _check_port(address: str, port: int) -> None:
    err = addresses.refusal(address, port)
    if err is not None:
        raise RocmlabError(f"nothing can listen at {address}:{port}", str(err), f"{UP} HUB_PORT={port + 1}")


def own_port(address: str, taken: Collection[int]) -> int:
    """Return any port that is free at an address, for root one that no one else may listen on.

    Labs run on while the hub is stopped. They ask whoever listens at its port who a visitor is, with their tokens.

    Raises:
        RocmlabError: none is free, or the address is not one of this host.
    """
    refusal = addresses.refusal(address, 0)
    if refusal is not None:
        why = f"{refusal.strerror}: the engine runs in a machine of its own, or is a remote one"
        fix = f"use an engine of this host itself, or as root labs without one: {UP} RUNTIME=native"
        raise RocmlabError(f"the labs' network has no address on this host: {address}", why, fix)
    above = max(taken)
    roots = ROOTS if os.geteuid() == 0 and _first_unprivileged() >= ROOTS.stop else range(0)
    others = range(above + 1, min(above + 1 + TRIES, 65535))
    chance = random.SystemRandom()  # the same seed in two processes would choose the same ports
    for port in (*chance.sample(roots, len(roots)), *chance.sample(others, len(others))):
        if port not in taken and addresses.refusal(address, port) is None:
            return port
    raise RocmlabError(
        f"no port is free at {address} from {above + 1} on",
        "other programs listen there",
        f"{UP} HUB_PORT={above + 100}",
    )


def _first_unprivileged() -> int:
    try:
        return int(UNPRIVILEGED.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 1024


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def local_url(found: Configuration) -> str:
    """Return the address of the hub's pages on this host."""
    return found.url.replace("//0.0.0.0", f"//{LOOPBACK}").replace("//[::]", "//[::1]") + "/hub/"


def _ask(found: Configuration, path: str) -> Any:  # noqa: ANN401  JSON
    """Return the JSON that the hub answers without a login, None where it does not."""
    scheme, _, where = local_url(found).removesuffix("/hub/").partition("://")
    if scheme == "https":
        context = ssl._create_unverified_context()  # nothing secret is sent
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(where, timeout=5, context=context)
    else:
        connection = http.client.HTTPConnection(where, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return json.loads(answer.read()) if answer.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
