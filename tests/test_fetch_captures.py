"""`scripts/fetch-captures`: from local repositories, as from public ones."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts/fetch-captures"
LIST = SCRIPT.with_name("captures.txt")


def git(folder: Path, *arguments: str) -> str:
    """Run git on a repository, without anyone's configuration."""
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


@pytest.fixture
def commit(tmp_path: Path) -> str:
    """The commit of a repository someone/captures with a licence and one card, whose next commit removes the card."""
    repository = tmp_path / "from/someone/captures"
    (repository / "data/card0/device").mkdir(parents=True)
    git(repository, "init", "-q")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    (repository / "LICENSE").write_text("MIT\n")
    (repository / "data/card0/device/vendor").write_bytes(b"0x1002\n" + b"\0" * 4089)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "a card")
    found = git(repository, "rev-parse", "HEAD")
    git(repository, "rm", "-q", "-r", "data")
    git(repository, "commit", "-q", "-m", "no card")
    return found


def fetch(tmp_path: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a list of its own."""
    listed = tmp_path / "list.txt"
    listed.write_text("# repository commit path target\n" + "".join(f"{line}\n" for line in lines))
    environment = {**os.environ, "CAPTURES_FROM": str(tmp_path / "from"), "GIT_CONFIG_GLOBAL": "/dev/null"}
    command = [str(SCRIPT), str(tmp_path / "captures"), str(listed)]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=60)


def test_captures_are_those_of_the_commit_with_their_licence(tmp_path: Path, commit: str) -> None:
    """Bytes are kept, a later commit does not matter, and what is there already is left alone."""
    lines = (f"someone/captures {commit} data cards/mine", f"someone/captures {commit} LICENSE cards/LICENSE")

    first = fetch(tmp_path, *lines)

    assert first.returncode == 0, first.stderr
    cards = tmp_path / "captures/cards"
    assert (cards / "mine/card0/device/vendor").stat().st_size == 4096
    assert (cards / "LICENSE").read_text() == "MIT\n"
    (cards / "mine/card0/device/vendor").write_text("changed")
    assert fetch(tmp_path, *lines).stdout == "cards/mine: already here\ncards/LICENSE: already here\n"
    assert (cards / "mine/card0/device/vendor").read_text() == "changed"
    assert [path.name for path in (tmp_path / "captures").iterdir()] == ["cards"]


def test_a_repository_that_cannot_be_fetched_leaves_nothing(tmp_path: Path, commit: str) -> None:
    """Neither a commit that it does not have nor a path that the commit lacks makes a folder."""
    absent = fetch(tmp_path, f"someone/captures {'0' * 40} data cards/mine")
    assert absent.returncode == 2
    assert "error: someone/captures could not be fetched at 000" in absent.stderr

    lacking = fetch(tmp_path, f"someone/captures {commit} nothing cards/mine")
    assert lacking.returncode == 2
    assert f"error: someone/captures has no nothing at {commit}" in lacking.stderr
    assert not (tmp_path / "captures").exists()


def test_the_list_names_public_repositories_by_whole_commits() -> None:
    """OWNER/NAME, 40 hexadecimal digits, and a licence for every folder."""
    rows = [line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#")]

    assert all(len(row) == 4 and row[0].count("/") == 1 and len(row[1]) == 40 and int(row[1], 16) for row in rows)
    folders = {row[3].partition("/")[0] for row in rows}
    assert {f"{folder}/LICENSE" for folder in folders} <= {row[3] for row in rows}
