"""What a lab in either runtime can do."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab.base import disk, hosts
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.cluster.node.record import Record
from rocmlab.packages import system
from rocmlab.stack import process, server, tokens
from rocmlab.stack.server import Holder
from rocmlab.stack.settings import Settings

BASE_URL = "ROCMLAB_BASE_URL"  # in `.env`: where the lab of the last `make up` is, whatever LAB_BASE_URL is meanwhile
Say = Callable[[str], None]  # prints one line of progress


def not_answering(why: str) -> RocmlabError:
    """Return the error where a lab runs as configured and does not answer: stopping it needs FORCE=1."""
    return RocmlabError(
        "the lab runs and does not answer",
        f"{why}\nit was not stopped: what its kernels have in memory would be lost",
        "make logs shows what it does; make up FORCE=1 stops it and starts it again",
    )


class Lab(ABC):
    """One lab, in one runtime."""

    def __init__(self, settings: Settings, values: dict[str, str]) -> None:
        self.settings = settings
        self.values = values  # every variable that `make up` derived
        self.port = int(values["PORT"])
        self.token = values["JUPYTER_TOKEN"]
        self.base_url = values.get(BASE_URL) or hosts.ROOT  # begins and ends with a slash
        self.notebooks = settings.path(values.get("NOTEBOOKS_DIR") or settings.get("NOTEBOOKS_DIR"))  # shown as work/

    def look_ahead(self) -> None:  # noqa: B027  natively there is no engine to ask
        """Begin to ask all at once what `make up` would ask one after the other."""

    @abstractmethod
    def is_prepared(self) -> bool:
        """Return whether the image or environment is there and current."""

    def is_startable(self) -> bool:
        """Return whether `start` needs nothing more; of a native lab more may be being installed."""
        return self.is_prepared()

    def seen_inside(self, path: Path) -> Path:
        """Return where the lab finds a folder of this host.

        Raises:
            RocmlabError: it does not see it.
        """
        return path

    def missing_system_packages(self) -> tuple[str, ...]:
        """Return what `apt.txt` next to the notebooks names and this host needs and does not have.

        Raises:
            RocmlabError: the file cannot be used.
        """
        system.read(self.notebooks)
        return ()  # an image is built with it

    def unfinished(self) -> str | Problem | None:
        """Return what of the lab is not there yet: a sentence while it is being installed, or why it will not be."""
        return None

    @abstractmethod
    def is_built(self) -> bool:
        """Return whether any version of the image or environment is there, current or not."""

    @abstractmethod
    def check_disk(self) -> None:
        """Raise RocmlabError if the disk has no room for what `prepare` would still make."""

    @abstractmethod
    def prepare(self, say: Say, *, always: bool = False, only_lab: bool = False) -> None:
        """Build or install what is missing, or `always`; `only_lab`: `start` may install the rest in the background."""

    @abstractmethod
    def disk(self) -> Path:
        """Return the folder on whose disk the image or environment is, as far as it is known."""

    @abstractmethod
    def folders(self) -> list[Path]:
        """Return the folders that the lab writes to, as far as this host sees them; that of the share first."""

    def disk_problem(self) -> Problem | None:
        """Return what is wrong where a disk that the lab writes to is nearly full."""
        return disk.problem(self.folders(), disk.minimum_bytes({disk.NAME: self.settings.get(disk.NAME)}))

    @abstractmethod
    def is_running(self) -> bool:
        """Return whether the lab's server process exists."""

    def is_known_to_run(self) -> bool:
        """Return the same for what would end it; an error where the engine does not answer."""
        return self.is_running()

    @abstractmethod
    def is_current(self) -> bool:
        """Return whether a lab runs that `start` would leave as it is."""

    @abstractmethod
    def start(self, say: Say, *, force: bool = False) -> bool:
        """Start the server unless it runs as configured, wait until it answers, and return whether it was started.

        One that runs as configured and does not answer is stopped and started by `force` alone.
        """

    @abstractmethod
    def stop(self, say: Say) -> None:
        """Stop the server and its kernels; the share is kept."""

    @abstractmethod
    def clean(self, say: Say) -> None:
        """Stop, and remove what `prepare` made; the share is kept."""

    @abstractmethod
    def _listening(self) -> Holder:
        """Look who listens on PORT."""

    def holder(self) -> Holder:
        """Look who listens on PORT: no one, this lab's server, or another process, which is remembered."""
        return tokens.note(self.settings, self.port, self._listening())

    def holds_port(self) -> bool:
        """Return whether this lab's server listens on PORT, or what is starting it."""
        return self.holder().kind == server.OURS

    @property
    def url(self) -> str:
        """The address of the lab's server, with a slash at its end."""
        return f"http://127.0.0.1:{self.port}{self.base_url}"

    def speaks(self) -> bool:
        """Return whether a Jupyter server answers where the lab's should, whichever it is; nothing secret is sent."""
        return server.speaks(self.url)

    def ask(
        self, path: str, *, method: str = "GET", body: object = None, timeout_seconds: float = 2.0
    ) -> tuple[int, Any]:
        """Make a request to the lab's own server with its token; status 0 where no server of this lab answered."""
        path = self.base_url.rstrip("/") + path
        return server.ask(
            self.port, self.token, path, self.holder, method=method, body=body, timeout_seconds=timeout_seconds
        )

    def answers(self) -> bool:
        """Return whether the lab's server accepts our token, which is sent to no other process."""
        return self.ask("/api/status")[0] == 200

    @abstractmethod
    def inside(self) -> tuple[list[str], Mapping[str, str]] | None:
        """Return what runs rocmlab inside the lab: a command to add arguments to, and its environment."""

    @abstractmethod
    def capture_inside(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a short program where the lab's processes are, and return its exit code and output."""

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices that the lab itself sees, as its own user."""
        inside = self.inside()
        if inside is None:
            return []
        code, output = process.capture([*inside[0], "devices", "--json"], env=inside[1])
        if code:
            raise RocmlabError("the lab could not list its devices", output.strip()[-400:], "make logs")
        found: list[dict[str, Any]] = json.loads(output)["devices"]
        return found

    @abstractmethod
    def node_record(self) -> Record | None:
        """Return the record of the lab's Ray node; None where there is none."""

    @abstractmethod
    def run(self, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
        """Run `rocmlab <arguments>` inside the lab, with variables of its own, and return its exit code."""

    @abstractmethod
    def logs(self, follow: bool) -> int:
        """Print the server's log."""

    @abstractmethod
    def shell(self) -> int:
        """Open a shell inside the lab, as the lab's user."""

    def share(self) -> str:
        """Return where the share is, as text."""
        return str(self.folders()[0])
