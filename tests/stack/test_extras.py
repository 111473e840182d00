"""JupyterLab's extras: the setting, what is installed for it, and where it counts."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from clones import NEEDS_NATIVE_PYTHON
from packaging.requirements import Requirement

from rocmlab.base import extras
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover
from rocmlab.stack import requirements, resolve, settings
from rocmlab.stack.choice import Choice
from rocmlab.stack.environment import Environment, check_python

PYTHONS = ("3.11", "3.12", "3.13")  # of native labs


def test_a_name_that_is_none_is_an_error_that_lists_all() -> None:
    """The fix keeps the names that are right."""
    with pytest.raises(RocmlabError, match="no extra called gti") as caught:
        extras.parse("gti,lsp")

    assert all(name in caught.value.problem.why for name in extras.NAMES)
    assert caught.value.problem.fix == "make up EXTRAS=lsp"


def test_the_setting_is_remembered_in_one_order(tmp_path: Path) -> None:
    """Each once, so that another order of the same names builds nothing; empty: none again."""

    def resolved(value: str) -> dict[str, str]:
        found = settings.load(tmp_path, {"EXTRAS": value})
        return resolve.resolve(found, Choice("cpu", "native", "test"), discover(tmp_path), tmp_path)

    assert resolved(" lsp,git,,LSP")["EXTRAS"] == "git,lsp"
    assert "EXTRAS" not in resolved("")


def test_each_lock_is_installed_once_and_before_the_server_starts(repository: Path, tmp_path: Path) -> None:
    """`tensorboard` and `proxy` are one package; a first start needs the extras as well."""
    environment = Environment(repository, "cpu", "python3", "", extras="git,proxy,tensorboard", building=tmp_path)

    for steps in (requirements.lab_steps(environment), requirements.steps(environment)):
        locks = [Path(step.arguments[-1]).name for step in steps]
        assert [name for name in locks if name.startswith("extras")] == ["extras-git.txt", "extras-proxy.txt"]
    assert requirements.comes(environment, "jupyterlab-git")
    assert not requirements.comes(replace(environment, extras=""), "jupyterlab-git")


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("native", ["native", "native-cuda"])
def test_an_extra_changes_no_version_of_the_native_environment(repository: Path, native: str, python: str) -> None:
    """They are installed into one environment, the extras last."""

    def pins(name: str) -> dict[str, str]:
        text = (repository / f"requirements/{name}.txt").read_text()
        lines = [Requirement(line) for line in re.findall(r"^([A-Za-z0-9][^\\\n]*)", text, re.MULTILINE)]
        where = {"python_version": python, "python_full_version": f"{python}.9"}
        return {each.name: str(each.specifier) for each in lines if not each.marker or each.marker.evaluate(where)}

    base = pins(native)
    for lock in (repository / "requirements").glob("extras-*.txt"):
        other = {name: version for name, version in pins(lock.stem).items() if base.get(name, version) != version}
        assert other == {}, lock.name


@NEEDS_NATIVE_PYTHON
def test_an_extra_that_is_taken_back_gets_a_new_environment(tmp_path: Path) -> None:
    """Pip would leave it behind, and JupyterLab would still load it; one that is added is added."""
    version = check_python(sys.executable)
    none, git, both = (Environment(tmp_path, "cpu", sys.executable, "", extras=it) for it in ("", "git", "git,lsp"))
    none.interpreter.parent.mkdir(parents=True)
    none.interpreter.symlink_to(sys.executable)

    git.marker.write_text(json.dumps(git.record_of(version)))

    assert git.matches(git.record_of(version), git.folder)
    assert both.matches(both.record_of(version), both.folder)
    assert not none.matches(none.record_of(version), none.folder)
    assert len({each.fingerprint() for each in (none, git, both)}) == 3
