"""`rocmlab bench train`: `fit_resident` against `fit`, and the notebooks on the GPU and on the CPU."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocmlab import __version__
from rocmlab.base import files as base_files
from rocmlab.base.errors import Problem
from rocmlab.benchmarking import train
from rocmlab.benchmarking.rows import row as row_of
from rocmlab.benchmarking.rows import span, table
from rocmlab.cli import train_page
from rocmlab.cli.bench import positive
from rocmlab.cli.parsers import parser_of

SHORT_RUNS, RUNS = 2, 5


def main(command: str, arguments: Sequence[str]) -> int:
    """Measure, in the lab, print what was found and keep it in the share."""
    chosen = parser_of(f"{command} train").parse_args(arguments)
    share = Path(chosen.share or os.environ.get("ROCMLAB_SHARE") or "share").expanduser().absolute()
    stem = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-train"
    report = measure(chosen, share, lambda so_far: _say(f"kept: {store(so_far, share / 'bench', stem)['json']}"))
    files = store(report, share / "bench", stem)
    if chosen.json:
        print(json.dumps({**report, "files": files}, indent=1))
    else:
        print("\n".join(lines(report)))
        print(f"\nkept: {files['html']}\n      {files['json']}")
    notebooks = report.get("notebooks") or {"rows": []}
    problems = [side["problem"] for row in notebooks["rows"] for side in row["sides"].values()]
    return 1 if report["failed"] or any(problems) else 0


def measure(
    chosen: argparse.Namespace, share: Path, keep: Callable[[dict[str, Any]], None] = lambda report: None
) -> dict[str, Any]:
    """Return the report: rows as the other benchmarks have them, each with what else is known of it.

    Args:
        chosen: the arguments of the command.
        share: where the notebooks' runs are kept.
        keep: gets the report so far after each row, so that a time limit costs none of those done.
    """
    runs = chosen.runs or (SHORT_RUNS if chosen.quick else RUNS)

    def each(found: train.Report) -> None:
        _say(_short(_row(found.rows[-1])))
        keep(_report(found))

    found = train.measure(
        chosen.row, runs=runs, samples=chosen.samples, quick=chosen.quick, device=chosen.device, say=_say, each=each
    )
    report = _report(found)
    if chosen.notebooks:
        from rocmlab.cli import train_pairs

        report["notebooks"] = train_pairs.compare(full=chosen.full, repeats=chosen.repeats, share=share, say=_say)
    return report


def _report(found: train.Report) -> dict[str, Any]:
    return {
        "bench": "train",
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": ", ".join(dict.fromkeys(row["device"]["name"] for row in found.rows)),
        "simulated": any(row["device"]["simulated"] for row in found.rows),
        "versions": _versions(found.rows),
        "rows": [_row(row) for row in found.rows],
        "skipped": dict(found.skipped),
        "failed": {name: dataclasses.asdict(err.problem) for name, err in found.failed.items()},
    }


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    scale = 1e6 / row["samples"]
    ours, theirs = ([scale * value for value in row[name]] for name in ("seconds", "seconds_theirs"))
    results = row_of(row["name"], "us/sample", ours, theirs).as_dict()
    kept = ("how", "device", "framework", "samples", "batch_size", "parameters", "accuracy", "accuracy_theirs")
    return {
        **results,
        "spread_theirs": [round(min(theirs), 3), round(max(theirs), 3)],
        "seconds_per_epoch": round(row["median_seconds"], 4),
        "seconds_compile": round(row["seconds_compile"], 3),
        "seconds_compile_theirs": round(row["seconds_compile_theirs"], 3),
        **{name: row[name] for name in kept},
    }


def _versions(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    frameworks = {name: version for row in rows for name, version in row["versions"].items()}
    return {"rocmlab": __version__, "python": sys.version.split()[0], **dict(sorted(frameworks.items()))}


def store(report: Mapping[str, Any], folder: Path, stem: str) -> dict[str, str]:
    """Write the report as JSON and as a page, over an earlier one of this name, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"json": json.dumps(report, indent=1) + "\n", "html": train_page.render(report)}
    files = {}
    for kind, text in texts.items():
        path = folder / f"{stem}.{kind}"
        base_files.write_text(path, text)  # an interrupted write leaves the earlier one whole
        files[kind] = str(path)
    return files


def lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report for a terminal."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    found = [f"{report['device']}; {versions}", ""]
    titles = ("µs per sample", "resident", "fit", "ratio", "least … most", "accuracy", "device")
    found += table(titles, [_cells(row) for row in report["rows"]])
    found += [f"  {row['name']}: {row['how']}; first epoch {row['seconds_compile']:.1f} s" for row in report["rows"]]
    found += [f"{name}: not measured, {why}" for name, why in report["skipped"].items()]
    found += [f"{name}: failed, {Problem(**problem)}" for name, problem in report["failed"].items()]
    return found + (_notebook_lines(report["notebooks"]) if "notebooks" in report else [])


def _short(row: Mapping[str, Any]) -> str:
    results = f"resident {row['ours']:.2f}, fit {row['theirs']:.2f} µs per sample, {row['ratio']:.2f}x"
    return f"{row['name']}: {results}, accuracy {row['accuracy']:.4f}, {row['device']['name']}"


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    times = (row["name"], row["ours"], row["theirs"], f"{row['ratio']:.2f}x", span(row["spread"]))
    return *times, f"{row['accuracy']:.4f}", f"{row['device']['backend']}: {row['device']['name']}"


def _notebook_lines(notebooks: Mapping[str, Any]) -> list[str]:
    length = "at full length" if notebooks["full"] else "short"
    titles = ("notebook", "µs per sample", "s per epoch", "ratio", "joules", "quality, device")
    cells = [_results(row, side) for row in notebooks["rows"] for side in row["sides"]]
    head, *lines = table(titles, cells)
    found = ["", f"the notebooks, {length}; below each what its article reported, {notebooks['published']}", head]
    for row in notebooks["rows"]:
        count = len(row["sides"])
        found += [*lines[:count], f"{'':24}{row['published']}"]
        lines = lines[count:]
    return found


def _results(row: Mapping[str, Any], name: str) -> tuple[object, ...]:
    """Return the cells of one side of a notebook."""
    side = row["sides"][name]
    if side["problem"]:
        return row["notebook"], None, None, None, None, f"{name.upper()}: {side['problem']}"
    quality, ratio = side["quality"], f"{row['ratio']:.2f}x" if name == "gpu" and row["ratio"] else None
    value = f"{quality['name']} {quality['value']:.4f}" if isinstance(quality["value"], float) else ""
    times = side["microseconds_per_sample"], side["seconds_per_epoch"]
    return row["notebook"], *times, ratio, side["energy_joules"], f"{value}, {side['backend']}: {side['device']}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `rocmlab bench train`."""
    parser.add_argument(
        "--row",
        action="append",
        choices=train.ROWS,
        metavar="NAME",
        help=f"only this row; may be repeated: {', '.join(train.ROWS)}",
    )
    parser.add_argument(
        "--runs",
        type=positive,
        metavar="N",
        help=f"timed epochs of each side (default: {RUNS}, with --quick {SHORT_RUNS})",
    )
    parser.add_argument(
        "--samples", type=positive, metavar="N", help="samples of an epoch (default: by row and device)"
    )
    parser.add_argument("--device", choices=train.DEVICES, default="auto", help="device of the rows (default: auto)")
    parser.add_argument("--notebooks", action="store_true", help="also run 01, 02, 06 and 07, GPU pinned, then hidden")
    parser.add_argument(
        "--full", action="store_true", help="run the notebooks at full length; on a CPU that takes hours"
    )
    parser.add_argument(
        "--repeats", type=positive, default=1, metavar="N", help="runs of the notebooks on each side (default: 1)"
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"only {SHORT_RUNS} epochs per row, and few samples of the digits"
    )
    parser.add_argument("--share", metavar="DIR", help="the share; the report goes to DIR/bench (default: the lab's)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
