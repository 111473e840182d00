"""What both runtimes can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node.record import Record
from rocmlab.stack.server import Holder

Say = Callable[[str], None]  # prints one line of progress


def not_answering(why: str) -> RocmlabError:
    """Return the error where a lab runs as configured and does not answer: stopping it needs FORCE=1."""
    return RocmlabError(
        "the lab runs and does not answer",
        f"{why}\nit was not stopped: what its kernels have in memory would be lost",
        "make logs shows what it does; make up FORCE=1 stops it and starts it again",
    )


class Lab(Protocol):
    """One lab, in one runtime."""

    def is_prepared(self) -> bool:
        """Tell whether the image or environment is there and current."""

    def prepare(self, say: Say, *, always: bool = False) -> None:
        """Build or install whatever is missing, or `always`; visible progress, nothing half-made left behind."""

    def check_disk(self) -> None:
        """Raise RocmlabError if the disk has no room for what `prepare` would still make."""

    def is_built(self) -> bool:
        """Tell whether any version of the image or environment is there, current or not."""

    def disk(self) -> Path:
        """Return the folder on whose disk the image or environment is, as far as it is known."""

    def is_running(self) -> bool:
        """Tell whether the lab's server process exists."""

    def is_current(self) -> bool:
        """Return whether a lab runs that `start` would leave as it is."""

    def capture_inside(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a short program where the lab's processes are, and return its exit code and output."""

    def start(self, say: Say, *, force: bool = False) -> bool:
        """Start the server unless it runs as configured, wait until it answers, and return whether it was started.

        One that runs as configured and does not answer is stopped and started by `force` alone.
        """

    def stop(self, say: Say) -> None:
        """Stop the server and its kernels; the share stays."""

    def clean(self, say: Say) -> None:
        """Stop, and remove what `prepare` made; the share stays."""

    def ask(
        self, path: str, *, method: str = "GET", body: object = None, timeout_seconds: float = 2.0
    ) -> tuple[int, Any]:
        """Make a request of the lab's own server with its token; status 0 where no server of this lab answered."""

    def holder(self) -> Holder:
        """Look who listens on PORT: nobody, this lab's server, or another process."""

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices that the lab itself sees."""

    def inside(self) -> tuple[list[str], Mapping[str, str]] | None:
        """Return what runs rocmlab inside the lab: words to put a verb behind, and their environment; None: nothing."""

    def node_record(self) -> Record | None:
        """Return what the lab's Ray node says of itself; None where it says nothing."""

    def run(self, arguments: Sequence[str]) -> int:
        """Run `rocmlab <arguments>` inside the lab and return its exit code."""

    def logs(self, follow: bool) -> int:
        """Print the server's log."""

    def shell(self) -> int:
        """Open a shell inside the lab, as the lab's user."""

    def share(self) -> str:
        """Say where the share is, for a person."""
