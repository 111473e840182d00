"""Settings that change without a restart."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import yaml

from rocmlab.base import live as reading
from rocmlab.base import notify
from rocmlab.stack import live, settings
from rocmlab.stack.image import PASSED_INTO_THE_LAB

UID = 4321


def test_what_make_up_writes_is_what_the_lab_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults and choices, at each use, whatever the environment of the server's start said."""
    changed = live.write(settings.load(tmp_path, {"RECORD_GPUS": "on"}))
    monkeypatch.setenv(live.VARIABLE, str(tmp_path / ".rocmlab/live/settings.json"))
    monkeypatch.setenv("IDLE_GPU_WARNING_SECONDS", "7")
    first = reading.values()

    again = live.write(settings.load(tmp_path, {"RECORD_GPUS": "off", "WARM_KERNELS": "off"}))

    assert changed == ["RECORD_GPUS=on"]
    assert first["RECORD_GPUS"] == "on"
    assert first["IDLE_GPU_WARNING_SECONDS"] == "600"
    assert sorted(again) == ["RECORD_GPUS=off", "WARM_KERNELS=off"]
    assert reading.get("RECORD_GPUS") == "off"
    assert reading.get("WARM_KERNELS") == "off"


def test_the_file_is_not_touched_when_nothing_changes(tmp_path: Path) -> None:
    """An unchanged `make up` leaves it as it is; the folder can be read by the lab's user, whatever the umask."""
    live.write(settings.load(tmp_path, {}))
    path = live.path_of(settings.load(tmp_path, {}))
    before = path.stat().st_mtime_ns
    time.sleep(0.01)

    assert live.write(settings.load(tmp_path, {})) == []
    assert path.stat().st_mtime_ns == before
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.getuid() != 0, reason="a second user id needs root: run .ci/run")
def test_after_a_make_up_under_sudo_the_caller_can_change_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folder and file are the caller's, in a clone of theirs: from the second day on they may use Docker themselves."""
    project = tmp_path / "project"
    project.mkdir()
    os.chown(project, UID, UID)
    monkeypatch.setenv("SUDO_UID", str(UID))

    live.write(settings.load(project, {}))

    path = live.path_of(settings.load(project, {}))
    assert [each.stat().st_uid for each in (path.parent.parent, path.parent, path)] == [UID] * 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"RECORD_GPUS": 1, "PORT": "1"}'])
def test_without_a_file_the_environment_counts(tmp_path: Path, text: str) -> None:
    """A plain `docker run -e` has no such file, and one that cannot be read is none."""
    (tmp_path / "settings.json").write_text(text)
    environment = {live.VARIABLE: str(tmp_path / "settings.json"), "RECORD_GPUS": "on"}

    assert reading.values(environment) == {"RECORD_GPUS": "on"}
    assert reading.values({"ROCMLAB_RUNTIME": "docker", "WARM_KERNELS": "off"}) == {"WARM_KERNELS": "off"}


def test_they_are_no_part_of_what_makes_a_container_another_one(repository: Path) -> None:
    """Compose recreates a container whose environment changes."""
    service = yaml.safe_load((repository / "compose.yaml").read_text())["services"]["lab"]

    assert not set(reading.NAMES) & {*service["environment"], *PASSED_INTO_THE_LAB}
    assert any(volume.endswith(f":{live.INSIDE}:ro") for volume in service["volumes"])


def test_the_file_is_json_that_holds_no_secret(tmp_path: Path) -> None:
    """It is readable by all, and is shown to the container."""
    live.write(settings.load(tmp_path, {"JUPYTER_TOKEN": "secret"}))

    assert set(json.loads((tmp_path / ".rocmlab/live/settings.json").read_text())) == set(reading.NAMES)


def test_who_is_notified_is_in_a_file_of_the_labs_user_alone(tmp_path: Path) -> None:
    """Which the lab reads from the same folder; it is gone when the setting is."""
    chosen = {"NOTIFY": "https://host.example/secret", "NOTIFY_AFTER_SECONDS": "5"}
    path = live.path_of(settings.load(tmp_path, {})).with_name(notify.FILE)
    owner = (os.geteuid() or 1234, os.getegid() or 567)

    live.write_notify(settings.load(tmp_path, chosen), ("nobody's", "100"))
    live.write_notify(settings.load(tmp_path, chosen), (str(owner[0]), str(owner[1])))

    state = path.stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (*owner, 0o600)
    environment = {reading.VARIABLE: str(live.path_of(settings.load(tmp_path, {})))}
    assert notify.read(environment) == notify.Target(5.0, url=chosen["NOTIFY"])
    live.write_notify(settings.load(tmp_path, {}))
    assert not path.exists()
