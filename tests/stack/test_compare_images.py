"""What scripts/compare-images says of two images; a small program answers in Docker's place, and looks at nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from clones import REPOSITORY

IMAGE: dict[str, Any] = {
    "packages": ["debian tini 0.19", "lab jupyterlab 4.6.6"],
    "files": {"/a": "100644 0:0 aa", "/b": "100755 0:0 bb"},
    "layers": ["sha256:1", "sha256:2"],
}
DOCKER = """#!/bin/sh
case $1 in
  run) for word; do case $word in one | two) cat "{folder}/$word.json"; exit; esac; done ;;
  image) for word; do last=$word; done; cat "{folder}/$last.layers" ;;
esac
"""


def compare(folder: Path, second: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Compare IMAGE with another one."""
    for name, image in (("one", IMAGE), ("two", {**IMAGE, **second})):
        (folder / f"{name}.json").write_text(json.dumps({key: image[key] for key in ("packages", "files")}))
        (folder / f"{name}.layers").write_text(json.dumps(image["layers"]))
    (folder / "docker").write_text(DOCKER.format(folder=folder))
    (folder / "docker").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = [str(REPOSITORY / "scripts/compare-images"), "one", "two"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_layers_that_differ_by_times_alone_are_no_difference(tmp_path: Path) -> None:
    """They are shown; what runs is the same."""
    done = compare(tmp_path, {"layers": ["sha256:1", "sha256:3"]})

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "packages: the same 2",
        "files: the same 2, but for their times",
        "layers: 1 of 2 the same, times included",
    ]


@pytest.mark.parametrize(
    ("second", "line"),
    [
        ({"packages": ["debian tini 0.20", "lab jupyterlab 4.6.6"]}, "  +debian tini 0.20"),
        ({"files": {"/a": "100644 0:0 xx", "/b": "100755 0:0 bb"}}, "  /a: content"),
        ({"files": {"/a": "100600 1:0 aa", "/b": "100755 0:0 bb"}}, "  /a: mode, owner"),
        ({"files": {"/a": "100644 0:0 aa"}}, "  /b: only in the first"),
        ({"files": {**IMAGE["files"], "/c": "100644 0:0 cc"}}, "  /c: only in the second"),
    ],
)
def test_each_difference_is_named(tmp_path: Path, second: dict[str, Any], line: str) -> None:
    """And is the exit code."""
    done = compare(tmp_path, second)

    assert done.returncode == 1
    assert line in done.stdout.splitlines()


def test_an_image_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """It is not taken for a difference."""
    (tmp_path / "docker").write_text("#!/bin/sh\necho no such image >&2\nexit 125\n")
    (tmp_path / "docker").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(REPOSITORY / "scripts/compare-images"), "one", "two"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert "error: docker run failed\n  why: no such image" in done.stderr
    assert done.stdout == ""
