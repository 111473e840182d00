"""The run folder as a node sees it: the real one where it is shared, else a stand-in whose files are brought home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocmlab.runs.folder import RunFolder

NONCE = ".nonce"  # a file of the run folder; whoever reads the right word there has the same folder


class NodeFolder(RunFolder):
    """Where a job's files go on its node. The journal is the runner's, who is told what to write there."""

    def __init__(self, path: Path, share: Path, tell: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(path)
        self._share = share
        self._tell = tell

    @property
    def share(self) -> Path:
        """The node's share, where its leases are, whichever folder the files go to."""
        return self._share

    def log(self, event: str, **facts: object) -> None:
        """Have the runner write a line into its journal."""
        self._tell({"event": "journal", "line": event, "facts": facts})


def is_shared(folder: str, nonce: str) -> bool:
    """Tell whether this machine has the run's folder itself, and not just one of the same name."""
    try:
        return Path(folder, NONCE).read_text(encoding="ascii") == nonce
    except (OSError, ValueError):
        return False
