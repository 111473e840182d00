"""Runs papermill's and nbclient's own tests with our engine and with theirs, and prints a table.

Run it before a release: `PYTHONPATH=src python tests/peers/compare.py`. It gets both source distributions, of the
versions that are installed, with pip, and needs what their tests import; `--install` installs that into the interpreter
that runs this, so use an environment of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
NEEDS = ("flaky", "ipywidgets", "nbconvert", "pytest-asyncio", "pytest-mock", "testpath", "xmltodict")
# The tests that run notebooks; the others are about parts that our engine does not replace.
SUITES = {
    "papermill": ("papermill/tests/test_execute.py", "papermill/tests/test_autosave.py"),
    "nbclient": ("tests/test_client.py",),
}
CHOICE = {"papermill": "", "nbclient": "run_all_notebooks"}

Results = dict[str, str]  # what became of each test


def main() -> int:
    """Compare, and print the tests that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--install", action="store_true", help=f"install {', '.join(NEEDS)} first")
    if parser.parse_args().install:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *NEEDS], check=True)
    with tempfile.TemporaryDirectory() as folder:
        say("| suite | tests | their engine | ours |\n|---|---|---|---|")
        differing: list[str] = []
        for name in SUITES:
            theirs, ours = (run(name, source(name, Path(folder)), engine) for engine in ("theirs", "ours"))
            counts = [sum(state == "passed" for state in results.values()) for results in (theirs, ours)]
            say(f"| {name} {metadata.version(name)} | {len(theirs)} | {counts[0]} | {counts[1]} |")
            differing += differences(theirs, ours)
        say("\n" + "\n".join(differing or ["no test differs"]))
    return 0


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def source(name: str, folder: Path) -> Path:
    """Return the unpacked source distribution of the installed version."""
    version = metadata.version(name)
    found = folder / f"{name}-{version}"
    if not found.is_dir():
        wanted = ["--no-deps", "--no-binary", ":all:", f"{name}=={version}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *wanted]
        subprocess.run(command, check=True)
        with tarfile.open(folder / f"{name}-{version}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return found


def run(name: str, folder: Path, engine: str) -> Results:
    """Run a suite with an engine; a test that needs more than a minute has failed."""
    report = folder / f"{engine}.xml"
    command = [sys.executable, "-m", "pytest", *SUITES[name], "-q", "-p", "peer_engines", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", f"--junitxml={report}", "-W", "ignore", "-o", "addopts="]
    if CHOICE[name]:
        command += ["-k", CHOICE[name]]
    paths = [str(HERE), str(HERE.parents[1] / "src"), str(folder), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PEER_ENGINE": engine}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not report.exists():
        raise SystemExit(done.stdout + done.stderr)
    return {
        f"{case.get('classname')}::{case.get('name')}": state_of(case)
        for case in ET.parse(report).getroot().iter("testcase")
    }


def state_of(case: ET.Element) -> str:
    """Return `passed`, or how it did not pass and why."""
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            lines = (found.get("message") or "").splitlines()
            return f"{kind}: {lines[0][:150] if lines else ''}"
    return "passed"


def differences(theirs: Mapping[str, str], ours: Mapping[str, str]) -> list[str]:
    """Return a line for each test with another result."""
    passed = "passed"
    return [
        f"- `{test}`: theirs {theirs.get(test, 'missing')}; ours {state}"
        for test, state in ours.items()
        if (state == passed) != (theirs.get(test) == passed)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
