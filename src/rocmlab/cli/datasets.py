"""`rocmlab datasets`: into a folder that is named, else into the lab's share; it never builds a lab."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base.arguments import add_command
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import command_parser
from rocmlab.training.datasets.cache import fetch, is_cached, share_folder
from rocmlab.training.datasets.catalogue import DATASETS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rocmlab.stack.lab import Lab


def main(name: str, arguments: Sequence[str]) -> int:
    """Fetch or list data sets: here where a share is named or this is the lab, else in the lab that was built."""
    chosen = build_parser(name).parse_args(arguments)
    # A share that is named on the host is a folder of the host, which a lab in a container does not see.
    is_here = chosen.share is not None or any(map(os.environ.get, ("ROCMLAB_SHARE", "ROCMLAB_RUNTIME")))
    lab = None if is_here else _lab()
    if lab is not None:
        return lab.run([name, *arguments])
    if chosen.command == "list":
        if not is_here:
            print("no lab was built here, so what its share has is unknown: make up", file=sys.stderr)
        return _list(chosen.share, chosen.json, is_known=is_here)
    if is_here:
        return _fetch_all(chosen)
    names = " ".join(chosen.names)
    raise RocmlabError(
        f"could not fetch {names}: no lab found here",
        "data sets go into the lab's share, and this command does not build a lab",
        f"make up, then the same command; or into a folder: rocmlab datasets fetch {names} --share DIR",
    )


def _fetch_all(chosen: argparse.Namespace) -> int:
    """Fetch data sets; if one of several fails, the others are fetched nevertheless. Progress goes to stderr.

    Raises:
        RocmlabError: a data set is not available.
    """
    fetched, errors = [], []
    for name in dict.fromkeys(chosen.names):
        try:
            fetched.append(_fetch(name, chosen.share, chosen.data_dir))
        except RocmlabError as err:
            errors.append(err)
    if chosen.json and fetched:
        print(json.dumps(fetched[0] if len(chosen.names) == 1 else fetched, indent=2))
    else:
        print("".join(f"{one['folder']}\n" for one in fetched), end="")
    for error in errors[1:]:
        print(f"error: {error}", file=sys.stderr)
    if errors:
        raise errors[0]
    return 0


def _fetch(name: str, share: Path | None, data_dir: Path | None) -> dict[str, object]:
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        print(line, file=sys.stderr, flush=True)

    folder = fetch(name, share=share, data_dir=data_dir, progress=progress)
    files = [
        {"path": str(folder / file.name), "bytes": file.size_bytes, "sha256": file.sha256}
        for file in DATASETS[name].files
    ]
    return {"dataset": name, "folder": str(folder), "files": files, "log": lines}


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab datasets`."""
    made = command_parser(command)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    fetching = add_command(commands, "fetch", "fetch data sets into the share", f"rocmlab {command} fetch mnist trec")
    fetching.add_argument("names", nargs="+", choices=sorted(DATASETS), metavar="NAME", help=", ".join(DATASETS))
    fetching.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder with the files, raw or .gz (default: $ROCMLAB_DATA_DIR)"
    )
    listing = add_command(commands, "list", "show the data sets and whether the share has them")
    for each in (fetching, listing):
        text = "the share (default: $ROCMLAB_SHARE, else the lab's)"
        each.add_argument("--share", type=Path, metavar="DIR", help=text)
        each.add_argument("--json", action="store_true", help="print the result as JSON")
    return made


def _list(share: Path | None, as_json: bool, *, is_known: bool) -> int:
    """Print the data sets, and whether the share has them where that is known."""
    rows = [
        {
            "name": dataset.name,
            "title": dataset.title,
            "licence": dataset.licence,
            "bytes": dataset.size_bytes,
            "folder": str(dataset.folder(share_folder(share))) if is_known else None,
            "is_in_share": is_cached(dataset, share) if is_known else None,
        }
        for dataset in DATASETS.values()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    for dataset, row in zip(DATASETS.values(), rows, strict=True):
        where = "unknown" if not is_known else "in the share" if row["is_in_share"] else "not fetched"
        megabytes = dataset.size_bytes / 1e6
        size = f"{megabytes:.{0 if megabytes >= 1 else 1}f} MB"
        print(f"{dataset.name:14} {where:13} {size:>6}  {dataset.title}; {dataset.licence}")
    return 0


def _lab() -> Lab | None:
    """Return the lab that was built here; None if none was, or only its settings are left."""
    from rocmlab.stack import project as projects

    project = projects.existing(projects.find())
    return project.lab if project is not None and project.lab.is_built() else None
