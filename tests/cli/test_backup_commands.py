"""`rocmlab backup` and `restore` of a native lab, as commands of a clone: arguments, settings, exit codes."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from clones import Clone, clone, free_port

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import stopping

pytestmark = pytest.mark.slow

SETTINGS = "ROCMLAB_BACKEND=cpu\nROCMLAB_RUNTIME=native\nJUPYTER_TOKEN=own\nSHARE=./share\n"


class Lab(Clone):
    """A clone whose `.env` describes a native lab that was never started."""

    def call(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of rocmlab's."""
        return subprocess.run(
            [sys.executable, "-m", "rocmlab", *words],
            cwd=self.folder,
            env={
                **self.environment,
                "PYTHONPATH": str(self.folder / "src"),
                "PYTHONDONTWRITEBYTECODE": "1",  # Python's own cache, which it writes for any program
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A lab with a notebook and a result."""
    made = clone(tmp_path / "clone")
    (made.folder / ".env").write_text(f"{SETTINGS}PORT={free_port()}\n")
    (made.folder / ".rocmlab").mkdir()
    written = dict(line.split("=") for line in SETTINGS.splitlines())
    (made.folder / ".rocmlab/written.json").write_text(json.dumps(written))
    (made.folder / "share/runs").mkdir(parents=True)
    (made.folder / "share/runs/result.txt").write_text("result")
    (made.folder / "notebooks/mine.ipynb").write_text("mine")
    return Lab(made.folder, made.settings, made.environment)


def test_a_backup_and_its_restore(lab: Lab, tmp_path: Path) -> None:
    """TO and FROM by environment, which is how make passes them; what was deleted is back."""
    done = lab.call("backup", TO=str(tmp_path / "backups"))
    assert done.returncode == 0, done.stderr
    (lab.folder / "notebooks/mine.ipynb").unlink()
    (lab.folder / "share/runs/result.txt").write_text("newer")

    restored = lab.call("restore", "--from", str(tmp_path / "backups"))

    assert restored.returncode == 0, restored.stderr
    assert (lab.folder / "notebooks/mine.ipynb").read_text() == "mine"
    assert (lab.folder / "share/runs/result.txt").read_text() == "result"
    (kept,) = (lab.folder / "share/runs").glob("result.txt.before-restore-*")
    assert kept.read_text() == "newer"
    assert str(kept.name) in restored.stdout


def test_settings_that_were_chosen_come_back_and_this_clones_own_stay(lab: Lab, tmp_path: Path) -> None:
    """A choice and a line of the user's return; the port, the token and what rocmlab derived are this clone's."""
    env = lab.folder / ".env"
    env.write_text(env.read_text() + "WARM_KERNELS=off\nHF_TOKEN=hf_mine\nBASE_IMAGE=my:image\n")
    assert lab.call("backup", "--to", str(tmp_path / "backups")).returncode == 0
    now = f"{SETTINGS}PORT={free_port()}\n# my comment\nGPUS=none\n".replace("TOKEN=own", "TOKEN=another")
    env.write_text(now)

    done = lab.call("restore", "--from", str(tmp_path / "backups"))

    assert done.returncode == 0, done.stderr
    values = lab.env
    assert (values["WARM_KERNELS"], values["HF_TOKEN"], values["BASE_IMAGE"]) == ("off", "hf_mine", "my:image")
    assert (values["JUPYTER_TOKEN"], values["GPUS"]) == ("another", "none")
    assert f"PORT={values['PORT']}" in now
    assert "# my comment" in env.read_text()
    (kept,) = lab.folder.glob(".env.before-restore-*")
    assert kept.read_text() == now
    assert kept.stat().st_mode & 0o777 == 0o600


def test_what_is_missing_is_asked_for_and_nothing_is_written(lab: Lab, tmp_path: Path) -> None:
    """TO, FROM, a backup that is none, and a lab that is none: exit code 2, and the command to use."""
    before = sorted(lab.folder.rglob("*"))

    for words, text in (
        (["backup"], "make backup TO="),
        (["restore"], "make restore FROM="),
        (["restore", "--from", str(tmp_path / "nothing")], "is not a backup"),
    ):
        done = lab.call(*words)
        assert done.returncode == 2, done.stdout
        assert text in done.stderr
    (lab.folder / ".env").unlink()
    assert "no lab found here" in lab.call("backup", "--to", str(tmp_path / "new")).stderr

    assert not (tmp_path / "new").exists()
    assert set(sorted(lab.folder.rglob("*"))) == set(before) - {lab.folder / ".env"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", False), ("0", False), ("no", False), ("off", False), ("False", False), ("1", True), ("YES", True),
     ("on", True), ("true", True), ("maybe", None), ("2", None)],
)  # fmt: skip
def test_a_variable_says_yes_or_no(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool | None) -> None:
    """FORCE=no does not force, and a word that is neither is an error."""
    monkeypatch.setenv("FORCE", value)
    given = argparse.Namespace(force=False, when=None)

    if expected is None:
        with pytest.raises(RocmlabError, match=f"invalid FORCE={value}") as caught:
            stopping.consent(given)
        assert caught.value.exit_code == 2
    else:
        assert stopping.consent(given).force == expected


def test_all_says_yes_or_no(lab: Lab, tmp_path: Path) -> None:
    """ALL=off omits the caches, ALL=perhaps is an error, and so is FORCE=perhaps of a restore."""
    (lab.folder / "share/cache/rocm").mkdir(parents=True)

    assert "omitted share/cache/rocm" in lab.call("backup", TO=str(tmp_path / "b"), ALL="off").stdout
    wrong = lab.call("backup", TO=str(tmp_path / "new"), ALL="perhaps")
    restored = lab.call("restore", FROM=str(tmp_path / "b"), FORCE="perhaps")

    assert (wrong.returncode, restored.returncode) == (2, 2)
    assert "invalid ALL=perhaps" in wrong.stderr
    assert "invalid FORCE=perhaps" in restored.stderr
    assert not (tmp_path / "new").exists()


def test_a_backup_into_the_share_itself_has_the_share(lab: Lab) -> None:
    """TO=./share, which the user may well type."""
    done = lab.call("backup", TO="./share")
    (lab.folder / "share/runs/result.txt").unlink()

    assert lab.call("restore", FROM="./share").returncode == 0
    assert (lab.folder / "share/runs/result.txt").read_text() == "result"
    assert "a backup in TO" in done.stdout


def test_make_takes_the_variables(lab: Lab, tmp_path: Path) -> None:
    """`make backup TO=…` and `make restore FROM=…`."""
    done = lab.make("backup", PYTHON=sys.executable, TO=str(tmp_path / "b"))

    assert "is complete" in done.stdout
    assert "make restore FROM=" in done.stdout
    assert "restored 0 files" in lab.make("restore", PYTHON=sys.executable, FROM=str(tmp_path / "b")).stdout


def test_commands_that_are_printed_can_be_pasted(lab: Lab, tmp_path: Path) -> None:
    """A disk's name has spaces, and may have what a shell or make would read in another way."""
    folder = tmp_path / "Bob's disk $(touch hit) #1; x"
    environment = {**lab.environment, "PYTHON": sys.executable}

    def paste(output: str) -> str:
        (line,) = re.findall(r"make (?:restore|backup) [A-Z]+=.*", output)
        done = subprocess.run(line, shell=True, cwd=lab.folder, env=environment, capture_output=True, text=True)
        return done.stdout + done.stderr

    made = lab.call("backup", TO=str(folder))
    restored = paste(made.stdout)
    (newest,) = folder.iterdir()
    (newest / "SHA256SUMS").unlink()
    partial = newest.rename(f"{newest}.partial")
    incomplete = lab.call("restore", FROM=str(folder))
    continued = paste(incomplete.stderr)

    assert "restored 0 files" in restored
    assert not partial.exists()
    assert "is complete" in continued
    assert not list(lab.folder.rglob("hit"))
