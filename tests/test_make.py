"""What the Makefile does itself: the environments of those who work on rocmlab, and texts that it passes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INSTALLER = "print('installed')\n"  # in place of docker/build/install.py, which needs a package index
OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # with these it would say that it is the make of a make


def outside_make() -> dict[str, str]:
    """Return this process's environment as it is where no make has started it."""
    return {name: value for name, value in os.environ.items() if name not in OF_MAKE}


@pytest.fixture
def clone(tmp_path: Path, repository: Path) -> Path:
    """A folder with the Makefile and nothing to install."""
    folder = tmp_path / "clone"
    texts = {"requirements/uv.txt": "", "requirements/test.txt": "", "docker/build/install.py": INSTALLER}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copy(repository / "Makefile", folder)
    return folder


def make(folder: Path) -> None:
    """Make the environment of the tests."""
    command = ["make", ".venv-test/ready", f"PYTHON={sys.executable}"]
    subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300)


def half_installed(environment: Path) -> Path:
    """Return the package that an interrupted installation left in an environment: without its RECORD."""
    left = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/pluggy-1.6.0.dist-info"
    left.mkdir(parents=True)
    (left / "METADATA").write_text("Metadata-Version: 2.4\nName: pluggy\nVersion: 1.6.0\n")
    return left


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupted_installation_starts_over(clone: Path) -> None:
    """What is half installed would be taken for installed, so the environment is emptied; then it is left alone."""
    left = half_installed(clone / ".venv-test")

    make(clone)

    assert (clone / ".venv-test/bin/python").is_file()
    assert not left.exists()
    later = half_installed(clone / ".venv-test")
    make(clone)
    assert later.exists()


def test_the_environment_of_another_clone_is_not_emptied(clone: Path, tmp_path: Path) -> None:
    """A link leads to it, and what is missing is installed there."""
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    left = half_installed(other)
    (clone / ".venv-test").symlink_to(other)

    make(clone)

    assert left.exists()
    assert (other / "ready").is_file()


def test_its_help_has_targets_under_headings_and_nothing_else(repository: Path) -> None:
    """A comment of the Makefile is no heading: each of these is short, and targets follow it."""
    shown = subprocess.check_output(["make", "help"], cwd=repository, env=outside_make(), text=True)
    title, listed, about_settings = shown.strip().split("\n\n")
    lines = listed.splitlines()[1:]  # `make help` itself comes first

    assert title.startswith("rocmlab: ")
    assert about_settings.startswith("Settings go behind the target")
    headings = [index for index, line in enumerate(lines) if not line.startswith("  make ")]
    assert len(headings) == 5, lines
    for index in headings:
        assert len(lines[index]) < 40
        assert lines[index + 1].startswith("  make ")


TEXTS = (
    "back at noon",
    """it's "noon" at $5, 100 %; `id` \\ and \\n""",
    "$HOME $$ $(HOME) ${HOME}",
    "$(shell touch made)`touch made`; touch made & $(touch made)",
    "--help PORT=9 # comment",
    "Grüße: 15 Uhr",
)


def passed(folder: Path, *arguments: str, **environment: str) -> dict[str, str | None]:
    """Return what a command gets from make, as a program in Python's place reports it."""
    probe = folder / "probe"
    names = ("ROCMLAB_HUB_TEXT", "ROCMLAB_HUB_USER", "TEXT", "HUB_USER", "TO", "SHARE", "NOTEBOOKS", "PARAMS")
    probe.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"print(json.dumps([sys.argv[1:], {{name: os.environ.get(name) for name in {names}}}]))\n"
    )
    probe.chmod(0o755)
    done = subprocess.run(
        ["make", *arguments, f"PYTHON={probe}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=outside_make() | environment,
    )
    words, found = json.loads(done.stdout)
    assert words == ["-m", "rocmlab", *arguments[0].replace("hub-", "hub ").split()]
    return {name: value for name, value in found.items() if value}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("target", ["hub-message", "hub-drain"])
def test_a_text_for_the_hubs_users_arrives_as_it_was_typed(clone: Path, target: str, text: str) -> None:
    """Neither make nor a shell expands or runs anything of it."""
    found = passed(clone, target, f"TEXT={text}")

    assert found == {"ROCMLAB_HUB_TEXT": text}
    assert not (clone / "made").exists()


@pytest.mark.parametrize("text", TEXTS)
def test_settings_and_options_arrive_as_they_were_typed(clone: Path, text: str) -> None:
    """After the target, whether or not the Makefile knows their names, and from the environment."""
    found = passed(clone, "backup", f"TO={text}", f"SHARE={text}", f"NOTEBOOKS={text}", PARAMS=text)

    assert found == dict.fromkeys(("TO", "SHARE", "NOTEBOOKS", "PARAMS"), text)
    assert not (clone / "made").exists()


def test_a_user_of_the_hub_is_the_one_after_the_target(clone: Path) -> None:
    """Variables of the same name in someone's environment mean something else."""
    assert passed(clone, "hub-stop", "HUB_USER=$(shell touch made)bob") == {
        "ROCMLAB_HUB_USER": "$(shell touch made)bob"
    }
    assert passed(clone, "hub-stop", HUB_USER="bob", TEXT="else") == {}
    assert passed(clone, "hub-message", HUB_USER="bob", TEXT="else") == {}
    assert passed(clone, "hub-undrain") == {}
    assert not (clone / "made").exists()


def test_an_option_of_pytest_in_tests_is_refused(repository: Path) -> None:
    """With `TESTS="tests/security -k native"` no test of a lane was found, and `make test` passed."""
    command = [repository / "scripts/test", sys.executable, "tests/security", "-k", "native"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "fix: PYTHONPATH=src" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("part", ["--fast", "--hermetic", ""])
@pytest.mark.parametrize("named", ["tests/test_make.py", "tests/container/test_image.py"])
def test_a_run_without_any_test_fails(repository: Path, tmp_path: Path, part: str, named: str) -> None:
    """As where `make test-fast` names a slow one: it passed silently."""
    pytest_ = tmp_path / "python"
    command = [repository / "scripts/test", *part.split(), pytest_, named]
    found = []
    for code in (5, 0, 1):
        pytest_.write_text(f"#!/bin/sh\nexit {code}\n")
        pytest_.chmod(0o755)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found.append((done.returncode, "error: no test was run" in done.stderr))

    assert found == [(5, True), (0, False), (1, False)]


def test_what_test_long_gives_to_the_script_is_accepted(repository: Path) -> None:
    """Its words are files; with options of pytest it ended before most of its tests, which no other run has in full."""
    printed = subprocess.run(
        ["make", "--dry-run", "test-long"],
        cwd=repository,
        env=outside_make(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.replace("\\\n", " ")

    lines = [line for line in printed.splitlines() if "scripts/test" in line]
    given = [line.split(".venv-test/bin/python", 1)[1].split() for line in lines]

    assert len(given) == 3
    assert [word for words in given for word in words if not (repository / word).exists()] == []
