"""Backups of a container's lab: what its container gets to read, by a program in place of Docker."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from engine_words import image

from rocmlab.backup import places
from rocmlab.backup.model import Task
from rocmlab.stack import project as projects

ENV = """\
ROCMLAB_BACKEND=cpu
ROCMLAB_RUNTIME=docker
ROCMLAB_IMAGE=image:cpu
COMPOSE_FILE=compose.yaml
COMPOSE_PROJECT_NAME=p
JUPYTER_TOKEN=x
PORT=18999
SHARE=./share
NOTEBOOKS_DIR=./notebooks
"""
DOCKER = f"""#!{sys.executable}
import json, os, sys
print({image()!r})
if sys.argv[1] == "run":
    mounts = [dict(part.partition("=")[::2] for part in word.split(",")) for word in sys.argv if "target=" in word]
    missing = [mount["source"] for mount in mounts if not os.path.exists(mount["source"])]
    if missing:
        sys.exit(f"bind source path does not exist: {{missing}}")
    with open(os.environ["SEEN"], "w") as file:
        json.dump([sorted(mount["target"] for mount in mounts), json.loads(sys.argv[-1])["roots"]], file)
"""
SHARE, NOTEBOOKS = places.INSIDE.values()


@pytest.mark.parametrize("kind", ["create", "restore"])
@pytest.mark.parametrize("there", [(), ("share",), ("notebooks",), ("share", "notebooks")])
def test_a_folder_that_is_missing_is_not_mounted_and_a_restore_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, there: tuple[str, ...]
) -> None:
    """A backup lists it as missing, as a native lab's does; a new clone's share is there only from `make up` on."""
    for name in ("project", "bin", "backup", *(f"project/{name}" for name in there)):
        (tmp_path / name).mkdir()
    (tmp_path / "bin/docker").write_text(DOCKER)
    (tmp_path / "bin/docker").chmod(0o755)
    (tmp_path / "project/.env").write_text(ENV)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    project = projects.reopen(tmp_path / "project")

    code = places.run(project, Task(kind, backup=str(tmp_path / "backup"), shown="backup", roots={}), print)

    targets, roots = json.loads((tmp_path / "seen").read_text())
    expected = {
        name: path for name, path in (("share", SHARE), ("notebooks", NOTEBOOKS)) if kind == "restore" or name in there
    }
    assert code == 0
    assert {name: path for name, path in roots.items() if path} == expected
    assert targets == sorted(["/backup", "/project", *expected.values()])
