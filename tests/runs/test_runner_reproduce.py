"""The versions of a job's kernel are recorded, and a later run has exactly these."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import notebook_files
import pytest
from wheel_files import wheel

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import installing, overlays, recorded
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement
from rocmlab.runs.command import main

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A project with a notebook of the kernel `torch`, whose packages come from a folder of wheels."""
    notebook_files.write(tmp_path / "notebooks/a.ipynb", "import mine; print('mine', mine.version)", kernel="torch")
    notebook_files.write_kernel(tmp_path / "jupyter/kernels/torch", sys.executable)
    path = tmp_path / "jupyter/kernels/torch/kernel.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "metadata": {"rocmlab": {"framework": "torch"}}}))
    for version in ("1.0", "2.0"):
        wheel(tmp_path, "mine", version, {"mine.py": f"version = {version!r}\n"})
    values = {"JUPYTER_PATH": str(tmp_path / "jupyter"), overlays.SHARE: str(tmp_path / "share")}
    values |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    values |= {installing.UV: sys.prefix, f"{overlays.PINNED}torch": "gone"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(f"{overlays.PINNED}torch")  # so that what a run sets is undone
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path / "share", "torch", sys.executable)


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, object], Path]:
    """Run the notebook; return what it printed, its environment and the run's folder."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    folder, (job,) = Path(found["run"]["folder"]), found["jobs"]
    log = (folder / job["files"]["log"]).read_text()
    return log.partition("mine ")[2].split()[0], json.loads((folder / job["environment"]).read_text()), folder


@pytest.mark.long
def test_a_run_has_exactly_the_versions_of_another(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was installed since; the user's packages stay, and a version that is gone is an error that names it."""
    pin = f"{overlays.PINNED}torch"
    installing.add(place, [Requirement("mine==1.0")], print)
    version, then, folder = ran(capsys, "a", "--gpus", "none")
    assert (version, then["own"], then["packages"]["mine"]) == ("1.0", ["mine"], "1.0")
    assert then["python"] == recorded.version_of(sys.executable)

    installing.add(place, [Requirement("mine==2.0")], print)
    version, now, _ = ran(capsys, "--reproduce", folder.name)
    assert (version, now["packages"]) == ("1.0", then["packages"])
    assert [each.name for each in (tmp_path / "share/packages").iterdir()] == ["torch.json"]
    monkeypatch.delenv(pin)
    assert ran(capsys, "a", "--gpus", "none")[0] == "2.0"

    for path in tmp_path.glob("mine-1.0*"):
        path.unlink()
    shutil.rmtree(tmp_path / "share/cache")
    with pytest.raises(RocmlabError, match=r"mine==1\.0"):
        main(["--reproduce", folder.name])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"python": "3.1.4"}, "it ran with Python 3.1.4"),
        ({"python": None}, "it ran with Python (unknown)"),
        ({"python": "\x1b[2J"}, "cannot be read"),
        ({"packages": {"torch": "1.0"}}, "it ran with torch 1.0, and the lab has"),
        ({"packages": {"-x": "1"}}, "cannot be read"),
        ({"editable": {"lib": "00"}}, "'lib' is editable"),
        ({"kernel": "other"}, "its kernel other is not installed"),
    ],
)
def test_what_cannot_be_reproduced_is_named(place: Place, changes: dict[str, object], words: str) -> None:
    """Before anything is installed or run."""
    here = recorded.content("torch", sys.executable, None, None)
    folder = place.share / "runs/20261125T000000Z-a"
    folder.mkdir(parents=True)
    name = recorded.write({**here, **changes}, folder)
    job = {"name": "a", "asked": {"word": "a"}, "parameters": {}}
    result = {"name": "a", "notebook": "a", "parameters": {}, "kernel": "torch", "status": "ok", "exit_code": 0}
    time = "2026-11-25T00:00:00Z"
    events = [
        {"event": "run started", "time": time, "options": {}, "jobs": [job]},
        {"event": "job finished", "time": time, "job": "a", "result": {**result, "environment": name}},
    ]
    (folder / "journal.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))

    with pytest.raises(RocmlabError) as caught:
        main(["--reproduce", folder.name])

    assert words in str(caught.value)
    with pytest.raises(RocmlabError, match="--reproduce with notebooks"):
        main(["--reproduce", folder.name, "a"])


def test_the_code_of_an_editable_package_counts(tmp_path: Path) -> None:
    """What is not imported, such as prose and hidden folders, does not."""
    site, code = tmp_path / "overlay/lib/python3.12/site-packages", tmp_path / "my lib"
    (site / "mine-1.0.dist-info").mkdir(parents=True)
    (code / ".git").mkdir(parents=True)
    origin = {"url": code.as_uri(), "dir_info": {"editable": True}}
    (site / "mine-1.0.dist-info/direct_url.json").write_text(json.dumps(origin))
    (code / "mine.py").write_text("a = 1\n")
    before = list(recorded.editable(tmp_path / "overlay"))
    (code / "README.md").write_text("new")
    (code / ".git/hook.py").write_text("new")
    assert list(recorded.editable(tmp_path / "overlay")) == before
    (code / "mine.py").write_text("a = 2\n")

    assert [path for path, _ in before] == [code]
    assert list(recorded.editable(tmp_path / "overlay")) != before
