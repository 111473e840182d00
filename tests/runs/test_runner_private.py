"""Runs hold no secret of the lab, and are not for every user of the machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import notebook_files
import pytest

from rocmlab.base import confidential, files
from rocmlab.kernels.fork_server import ForkServer
from rocmlab.runs.command import main
from rocmlab.runs.folder import RunFolder
from rocmlab.simulation import write_host

SECRETS = {name: f"the-secret-{name}" for name in confidential.NAMES}
OTHER_UID = 65534
PRINT = "import os, subprocess\nprint(dict(os.environ))\nprint(subprocess.check_output('env', text=True))"


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of the machine may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on a simulated host, whose environment has every secret, with a notebook that prints all of it."""
    notebook_files.write(tmp_path / "notebooks/env.ipynb", PRINT)
    monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(tmp_path / "host", gpus=1)))
    monkeypatch.setenv("HF_TOKEN", "hf-of-the-user")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NOTIFY", f"sh -c 'cat >{tmp_path}/message' {SECRETS['NOTIFY']}")
    monkeypatch.setenv("NOTIFY_AFTER_SECONDS", "0")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(project: Path, *words: str) -> dict[str, tuple[int, str]]:
    """Run the notebook and return mode and text of everything in the run's folder."""
    assert main(["env", "--share", "results", *words]) == 0
    folder = next((project / "results/runs").iterdir())
    return {
        path.relative_to(folder).as_posix(): (
            stat.S_IMODE(path.stat().st_mode),
            "" if path.is_dir() else path.read_text(encoding="utf-8"),
        )
        for path in [folder, *folder.rglob("*")]
    }


@pytest.mark.slow
def test_a_run_is_private_and_holds_no_secret(project: Path) -> None:
    """Notebook, page, log, samples, journal, results and reports: 0640 in a folder of 0750; HF_TOKEN is the user's."""
    found = run(project)

    message = (project / "message").read_text()
    text = "\n".join([message, *(text for _, text in found.values())])
    assert '"jobs": {"ok": 1}' in message
    assert {"env.ipynb", "env.html", "env.log", "env.samples.jsonl", "journal.jsonl", "results.json"} <= set(found)
    assert found["."][0] == 0o750
    assert {name: oct(mode) for name, (mode, _) in found.items() if name != "." and mode != 0o640} == {}
    assert "hf-of-the-user" in text
    assert not [name for name, value in SECRETS.items() if value in text]


@pytest.mark.parametrize(
    ("umask", "chosen", "folder", "file"),
    [(0o077, "", 0o700, 0o600), (0o002, "", 0o750, 0o640), (0o022, "022", 0o755, 0o644), (0o007, "007", 0o770, 0o660)],
    ids=["stricter", "the usual one of a desktop", "NB_UMASK for all", "NB_UMASK for the group"],
)
def test_the_umask_and_nb_umask_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int, chosen: str, folder: int, file: int
) -> None:
    """A stricter umask stays in force; NB_UMASK, which the entry point has made the umask, decides alone."""
    monkeypatch.setenv("NB_UMASK", chosen)
    os.umask(umask)

    found = RunFolder.create(tmp_path, "x")
    found.log("run started")
    found.save_results({})
    found.close()

    modes = [stat.S_IMODE(path.stat().st_mode) for path in (found.path, found.journal_path, found.results_path)]
    assert modes == [folder, file, file]


def test_elsewhere_files_are_as_the_umask_has_them(tmp_path: Path) -> None:
    """Papermill's users write where they like; the share's other folders are not changed either."""
    files.write_text(tmp_path / "a.txt", "a")
    tmp_path.chmod(0o755)
    files.write_text(tmp_path / "b.txt", "b")

    assert stat.S_IMODE((tmp_path / "b.txt").stat().st_mode) == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="a second user needs root")
def test_another_user_reads_nothing(open_folder: Path) -> None:
    """A real one, by name and by listing."""
    run_folder = RunFolder.create(open_folder, "x")
    run_folder.save_results({"secret": 1})
    names = (run_folder.path, run_folder.results_path)

    done = [subprocess.run(["cat" if path.is_file() else "ls", path], user=OTHER_UID, group=OTHER_UID, extra_groups=[],
                           capture_output=True, check=False) for path in names]  # fmt: skip

    assert [each.returncode == 0 for each in done] == [False, False]
    assert all(b"Permission denied" in each.stderr for each in done)
    above = subprocess.run(["ls", open_folder / "runs"], user=OTHER_UID, capture_output=True, check=False)
    assert above.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="fork servers need Linux")
def test_a_fork_server_is_given_no_secret(tmp_path: Path) -> None:
    """Its kernels are copies of it."""
    server = ForkServer(sys.executable, ("colorsys",), {**os.environ, **SECRETS, "HF_TOKEN": "hf"}, tmp_path)
    try:
        assert server.ready(60), server.why
        environment = Path(f"/proc/{server.pid}/environ").read_text()
    finally:
        server.close()

    assert "HF_TOKEN=hf" in environment
    assert not [name for name in SECRETS if name in environment]
