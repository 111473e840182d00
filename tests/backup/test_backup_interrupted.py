"""Backups that end while they write their manifest."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from backup_labs import Lab, tree

from rocmlab.backup import create
from rocmlab.backup.model import MANIFEST, SUMS
from rocmlab.base.errors import RocmlabError

ENDED = """
import json, os, sys
from rocmlab.backup import create, model
number = int(sys.argv[2])

def synced(descriptor):
    path = f"/proc/self/fd/{descriptor}"
    if os.readlink(path).endswith(model.MANIFEST):
        if number == 9:
            os.truncate(path, os.stat(path).st_size // 2)  # a large write that a kill has cut
        os.kill(os.getpid(), number)
    real(descriptor)

real, os.fsync = os.fsync, synced
create.create(model.Task.from_json(sys.argv[1]), print)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the descriptor of the manifest is found in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_backup_that_ended_while_it_wrote_its_manifest_is_completed(lab: Lab, number: int) -> None:
    """The next one has every file: entries whose part has no line in the manifest count as missing."""
    for name in range(50):
        (lab.share / f"{name:02}").write_text(f"{name}")
    before = tree(lab.share)
    task = lab.task("create", lab.backups).to_json()
    ended = subprocess.run([sys.executable, "-c", ENDED, task, str(int(number))], capture_output=True, check=False)
    (partial,) = lab.backups.iterdir()
    lines = (partial / MANIFEST).read_text().splitlines()

    backup = lab.back_up()
    lab.lose()
    lab.restore(backup)

    assert ended.returncode
    assert partial.name.endswith(".partial")
    assert (len(lines) > 20) == (number == signal.SIGKILL)  # whole lines, which looked as if their files were saved
    assert not any("part" in json.loads(line) for line in lines[:-1])
    assert before == tree(lab.share)


@pytest.mark.parametrize(("damage", "why"), [("missing", "is missing"), ("changed", "has changed since")])
def test_a_backup_that_cannot_be_completed_is_to_be_removed(lab: Lab, damage: str, why: str) -> None:
    """A part that was complete is damaged: to run the same command again would end in the same way each time."""
    (lab.share / "x").write_text("x")
    backup = lab.back_up()
    (backup / SUMS).unlink()
    partial = backup.rename(f"{backup}.partial")
    (partial / "files-0001.tar").unlink() if damage == "missing" else (partial / "files-0001.tar").write_text("")

    with pytest.raises(RocmlabError) as caught:
        create.create(lab.task("create", lab.backups), lab.said.append)

    assert why in caught.value.problem.why
    assert caught.value.problem.fix == f"rm -r {partial} && make backup TO={lab.backups}"
    assert caught.value.exit_code == 1
