"""`rocmlab datasets`: fetch a data set into the share, or list what there is."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rocmlab.training.datasets.cache import fetch, is_cached, share_folder
from rocmlab.training.datasets.catalogue import DATASETS


def main(argv: Sequence[str]) -> int:
    """Run `rocmlab datasets ARGV` and return the exit code.

    Results go to stdout, progress to stderr.

    Raises:
        RocmlabError: the data set could not be had.
    """
    options = _parser().parse_args(argv)
    if options.verb == "list":
        return _list(options.share, options.json)
    lines: list[str] = []

    def progress(line: str) -> None:
        lines.append(line)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    folder = fetch(options.name, share=options.share, data_dir=options.data_dir, progress=progress)
    if options.json:
        files = [
            {"path": str(folder / file.name), "bytes": file.size_bytes, "sha256": file.sha256}
            for file in DATASETS[options.name].files
        ]
        _write_json({"dataset": options.name, "folder": str(folder), "files": files, "log": lines})
    else:
        sys.stdout.write(f"{folder}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rocmlab datasets", description="Data sets in the share, checked by sha256.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--share", type=Path, help="the share (default: $ROCMLAB_SHARE, else ./share)")
    common.add_argument("--json", action="store_true", help="print the result as JSON")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    fetching = verbs.add_parser("fetch", parents=[common], help="bring a data set into the share")
    fetching.add_argument("name", choices=sorted(DATASETS), metavar="NAME", help=", ".join(DATASETS))
    fetching.add_argument(
        "--data-dir", type=Path, help="a folder with the files, raw or .gz (default: $ROCMLAB_DATA_DIR)"
    )
    verbs.add_parser("list", parents=[common], help="show the data sets and whether the share has them")
    return parser


def _list(share: Path | None, as_json: bool) -> int:
    rows = [
        {
            "name": dataset.name,
            "title": dataset.title,
            "licence": dataset.licence,
            "bytes": dataset.size_bytes,
            "folder": str(dataset.folder(share_folder(share))),
            "is_in_share": is_cached(dataset, share),
        }
        for dataset in DATASETS.values()
    ]
    if as_json:
        _write_json(rows)
        return 0
    for row in rows:
        where = "in the share" if row["is_in_share"] else "not fetched"
        megabytes = int(str(row["bytes"])) / 1e6
        size = f"{megabytes:.{0 if megabytes >= 1 else 1}f} MB"
        sys.stdout.write(f"{row['name']:14} {where:13} {size:>6}  {row['title']}; {row['licence']}\n")
    return 0


def _write_json(value: object) -> None:
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
