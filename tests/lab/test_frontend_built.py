"""The built panel is committed, for no one to need Node.js: it has to be that of the sources, and small and silent."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FRONTEND = REPOSITORY / "frontend"
LAB = REPOSITORY / "src/rocmlab/lab"
OUTPUTS = [LAB / "labextension", LAB / "server/static"]
NO_SOURCES = ("node_modules", "lib", ".npmrc", ".gitignore")
MAX_BYTES = 400_000
REBUILD = "run scripts/build-frontend, and commit what it wrote"


def digests(folder: Path, *left_out: str) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, by its path."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] not in left_out and path.suffix != ".tsbuildinfo":
            found[name.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture(params=OUTPUTS, ids=["labextension", "static"])
def output(request: pytest.FixtureRequest) -> Path:
    """One of the two built folders."""
    return request.param


def test_it_is_built_from_these_sources(output: Path) -> None:
    """A change in frontend/ without a build is found, and so is a build that was changed manually."""
    built = json.loads((output / "built.json").read_text())

    assert built["sources"] == digests(FRONTEND, *NO_SOURCES), REBUILD
    assert built["files"] == digests(output, "built.json"), REBUILD


def test_it_is_small_and_names_no_machine(output: Path) -> None:
    """It is downloaded at each start of JupyterLab; it has no source maps, no paths of a builder, no registry."""
    files = [path for path in output.rglob("*") if path.is_file()]

    assert 0 < sum(path.stat().st_size for path in files) < MAX_BYTES
    for path in [*files, FRONTEND / "package-lock.json"]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"sourceMappingURL=\S+\.map|registry\.|/root/|/home/|/tmp/|/Users/", text), path
        assert path.suffix != ".map"


def test_it_loads_nothing_from_elsewhere(output: Path) -> None:
    """No script, style, font or picture comes from another server; addresses in it are names, such as SVG's."""
    names = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"}
    for path in output.rglob("*"):
        if path.suffix in (".js", ".css", ".html", ".svg"):
            found = set(re.findall(r"https?://[\w./-]+", path.read_text(encoding="utf-8")))
            assert found <= names, path


def test_the_licences_of_what_is_bundled_are_in_it() -> None:
    """uPlot, which draws the charts, is in both; its licence asks for its text to be there."""
    extension = json.loads((OUTPUTS[0] / "static/third-party-licenses.json").read_text())
    page = (OUTPUTS[1] / "LICENSES.txt").read_text()

    texts = {package["name"]: package["extractedText"] for package in extension["packages"]}
    assert "MIT License" in texts["uplot"]
    assert "uplot" in page
    assert "MIT License" in page


def test_the_versions_are_pinned() -> None:
    """`scripts/build-frontend` installs what the lock file names, each by its hash and none by an address."""
    lock = json.loads((FRONTEND / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}

    assert len(packages) > 100
    assert all(package.get("integrity", "").startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())
