"""Backups that end while they write their manifest."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from backup_labs import Lab, tree

from rocmlab.backup.model import MANIFEST

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
