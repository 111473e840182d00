"""The layout of a share has a version, so that an older rocmlab rejects what a newer one has changed.

Run as `python -m rocmlab.stack.layout SHARE` by a container's entry point; a native lab calls `prepare` itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError

VERSION = 1
FILE = ".rocmlab/layout.json"


def check(share: Path) -> None:
    """Raise RocmlabError if this version of rocmlab is too old for a share, or its version cannot be read."""
    path = share / FILE
    try:
        version = json.loads(path.read_text(encoding="utf-8"))["version"]
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as err:
        why = f"{type(err).__name__}: {err}"
        raise RocmlabError(f"the layout of the share cannot be read: {path}", why, f"check {path}") from err
    if not isinstance(version, int) or version < 1:
        raise RocmlabError(f"{path} does not have a version", f"it has {version!r}", f"check {path}")
    if version > VERSION:
        raise RocmlabError(
            f"the share {share} has layout {version}, and this version of rocmlab knows layouts up to {VERSION}",
            "a newer version of rocmlab has used it and may have moved files",
            "make upgrade, or choose another share: make up SHARE=./other-share",
        )


def prepare(share: Path) -> None:
    """Write the version into a share that has none; raise RocmlabError for one that is too new."""
    check(share)
    path = share / FILE
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        files.write_text(path, json.dumps({"version": VERSION}) + "\n", mode=0o644)


def main(arguments: list[str]) -> int:
    """Prepare the share of a container; an error is reported as everywhere, with exit code 2."""
    try:
        prepare(Path(arguments[0]))
    except RocmlabError as err:
        sys.stderr.write(f"error: {err}\n")
        return err.exit_code
    except OSError as err:  # a share that cannot be written has its own error, see start.sh
        sys.stderr.write(f"rocmlab: the layout of the share is not written: {err}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
