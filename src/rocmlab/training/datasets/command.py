"""`rocmlab datasets`: fetch data sets into the share, or list them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets.cache import fetch, is_cached, share_folder
from rocmlab.training.datasets.catalogue import DATASETS


def main(argv: Sequence[str]) -> int:
    """Run `rocmlab datasets ARGV` and return the exit code.

    Results go to stdout, progress to stderr. If one of several data sets fails, the others are fetched nevertheless.

    Raises:
        RocmlabError: a data set is not available.
    """
    options = parser().parse_args(argv)
    if options.verb == "list":
        return _print(_rows(options.share, is_known=True), options.json)
    fetched, errors = [], []
    for name in dict.fromkeys(options.names):
        try:
            fetched.append(_fetch(name, options.share, options.data_dir))
        except RocmlabError as err:
            errors.append(err)
    if options.json and fetched:
        _write_json(fetched[0] if len(options.names) == 1 else fetched)
    elif fetched:
        sys.stdout.write("".join(f"{one['folder']}\n" for one in fetched))
    for error in errors[1:]:
        sys.stderr.write(f"error: {error}\n")
    if errors:
        raise errors[0]
    return 0


def _fetch(name: str, share: Path | None, data_dir: Path | None) -> dict[str, object]:
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    folder = fetch(name, share=share, data_dir=data_dir, progress=progress)
    files = [
        {"path": str(folder / file.name), "bytes": file.size_bytes, "sha256": file.sha256}
        for file in DATASETS[name].files
    ]
    return {"dataset": name, "folder": str(folder), "files": files, "log": lines}


def parser() -> argparse.ArgumentParser:
    """Return the parser of `rocmlab datasets`; the standard library is enough for it."""
    made = argparse.ArgumentParser(prog="rocmlab datasets", description="Data sets in the share, checked by sha256.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--share", type=Path, help="the share (default: $ROCMLAB_SHARE, else the lab's)")
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    verbs = made.add_subparsers(dest="verb", required=True, metavar="VERB")
    fetching = verbs.add_parser("fetch", parents=[common], help="fetch data sets into the share")
    fetching.add_argument("names", nargs="+", choices=sorted(DATASETS), metavar="NAME", help=", ".join(DATASETS))
    fetching.add_argument(
        "--data-dir", type=Path, help="a folder with the files, raw or .gz (default: $ROCMLAB_DATA_DIR)"
    )
    verbs.add_parser("list", parents=[common], help="show the data sets and whether the share has them")
    return made


def show_catalogue(as_json: bool) -> int:
    """Print the data sets where there is no lab, whose share would be looked at: which of them it has is unknown."""
    return _print(_rows(None, is_known=False), as_json)


def _rows(share: Path | None, *, is_known: bool) -> list[dict[str, object]]:
    return [
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


def _print(rows: list[dict[str, object]], as_json: bool) -> int:
    if as_json:
        _write_json(rows)
        return 0
    for row in rows:
        where = {True: "in the share", False: "not fetched", None: "unknown"}[row["is_in_share"]]  # type: ignore[index]
        megabytes = int(str(row["bytes"])) / 1e6
        size = f"{megabytes:.{0 if megabytes >= 1 else 1}f} MB"
        sys.stdout.write(f"{row['name']:14} {where:13} {size:>6}  {row['title']}; {row['licence']}\n")
    return 0


def _write_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
