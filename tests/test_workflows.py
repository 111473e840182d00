"""What GitHub, editors and contributors read calls only what exists here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rocmlab.cli.main import COMMANDS

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
FORMS = sorted((REPOSITORY / ".github/ISSUE_TEMPLATE").glob("[0-9]-*.yml"))
TEXTS = [
    *(*WORKFLOWS, *FORMS, *REPOSITORY.glob(".github/*.md"), *REPOSITORY.glob(".devcontainer/*")),
    REPOSITORY / "CONTRIBUTING.md",
]
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
RELEASE_RIGHTS = {"package": {"id-token": "write"}, "images": {"id-token": "write", "packages": "write"}}
JOBS = {
    f"{path.stem}-{name}": job
    for path in WORKFLOWS
    for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
}


def name_of(path: Path) -> str:
    """Return what a test's parameter is called."""
    return path.name


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_actions_are_pinned(path: Path) -> None:
    """A tag can be moved to other code; a commit cannot, and its version is next to it."""
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))

    assert used
    assert [each for each in used if not PINNED.fullmatch(each)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_has_no_rights_of_its_own(path: Path) -> None:
    """Jobs may read the code; only those of a release get more, which no change from a fork starts."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))

    assert workflow["permissions"] == {}
    assert "pull_request_target" not in workflow[True]  # YAML reads `on` as a truth value
    is_release = workflow[True] == {"push": {"tags": ["v[0-9]+.[0-9]+.[0-9]+"]}}
    rights = {name: {**job["permissions"]} for name, job in workflow["jobs"].items()}
    assert {name: each for name, each in rights.items() if each.pop("contents") != "read" or each} == (
        RELEASE_RIGHTS if is_release else {}
    )
    assert is_release == any("environment" in job for job in workflow["jobs"].values())


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_limited(name: str) -> None:
    """It ends, leaves no credentials on the disk, and no text of a pull request becomes part of a script."""
    job = JOBS[name]
    checkouts = [step["with"] for step in job["steps"] if "/checkout@" in step.get("uses", "")]

    assert job["timeout-minutes"] <= 90
    assert [each["persist-credentials"] for each in checkouts] == [False]
    assert [step["run"] for step in job["steps"] if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_what_they_call_exists(path: Path) -> None:
    """Each target of make, each script and each command of rocmlab that a text names."""
    text = path.read_text(encoding="utf-8")
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"\bmake ([a-z.][\w./-]*)", text)
    commands = re.findall(r"scripts/rocmlab ([a-z][\w-]*)", text)
    scripts = re.findall(r"(?<!/)\b(scripts/[\w-]+)", text)

    assert [each for each in targets if not re.search(rf"^{re.escape(each)}:", makefile, re.MULTILINE)] == []
    assert set(commands) <= set(COMMANDS)
    assert [each for each in scripts if not os.access(REPOSITORY / each, os.X_OK)] == []


def test_every_python_that_is_promised_is_tested() -> None:
    """The classifiers of the package, from `requires-python` on without a gap, are the matrix of the hermetic tests."""
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    oldest = re.search(r'^requires-python = ">=3\.(\d+)"', project, re.MULTILINE)
    matrices = [job["strategy"]["matrix"]["python"] for job in JOBS.values() if "python" in str(job.get("strategy"))]

    assert oldest
    assert matrices == [promised]
    assert promised == [f"3.{int(oldest[1]) + index}" for index in range(len(promised))]


@pytest.mark.parametrize("path", FORMS, ids=name_of)
def test_an_issue_form_asks_for_what_helps(path: Path) -> None:
    """Fields have ids of their own, and some must be filled in; a report has what the doctor and the devices show."""
    fields = [each for each in yaml.safe_load(path.read_text(encoding="utf-8"))["body"] if each["type"] != "markdown"]
    ids = [each["id"] for each in fields]
    required = [each["id"] for each in fields if each.get("validations", {}).get("required")]

    assert len(ids) == len(set(ids))
    assert required
    assert path.name == "3-feature.yml" or {"doctor", "devices"} <= set(required)


def test_the_development_container_opens_this_repository() -> None:
    """Its environments are volumes in the folder that is mounted, where the image has made places for them."""
    folder = REPOSITORY / ".devcontainer"
    container = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
    dockerfile = (folder / container["build"]["dockerfile"]).read_text(encoding="utf-8")
    environments = [f"{container['workspaceFolder']}/.venv-{name}" for name in ("test", "docs")]

    assert f"target={container['workspaceFolder']},type=bind" in container["workspaceMount"]
    for environment, mount in zip(environments, container["mounts"], strict=True):
        assert f"target={environment},type=volume" in mount
        assert environment in dockerfile
        assert Path(environment).name in container["initializeCommand"].split()
    interpreter = container["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert interpreter.startswith(environments[0])
    assert f"useradd --create-home --shell /bin/bash {container['remoteUser']} " in dockerfile


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run scripts/check-workflows on a folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [REPOSITORY / "scripts/check-workflows", folder]
    return subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_checks_find_nothing_here() -> None:
    """`make lint` passes them, without a network."""
    done = check(REPOSITORY)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "changes", "shown"),
    [
        (
            "workflows/ci.yml",
            {
                "@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1": "@v7",
                "run: make lint": "run: ${{ github.head_ref }}",
            },
            ["unpinned-uses", "template-injection"],
        ),
        ("workflows/ci.yml", {"runs-on: ubuntu-24.04": "runs_on: ubuntu-24.04"}, ["'runs-on' is a required property"]),
        ("ISSUE_TEMPLATE/1-bug.yml", {"type: dropdown": "type: choice"}, ["'choice'"]),
    ],
)
def test_the_checks_find_what_is_wrong(tmp_path: Path, file: str, changes: dict[str, str], shown: list[str]) -> None:
    """An action that is not pinned, an injection, a key or a field that GitHub does not know."""
    shutil.copytree(REPOSITORY / ".github", tmp_path / ".github")
    path = tmp_path / ".github" / file
    text = path.read_text(encoding="utf-8")
    for good, bad in changes.items():
        assert good in text
        text = text.replace(good, bad, 1)
    path.write_text(text, encoding="utf-8")

    done = check(tmp_path)

    assert done.returncode != 0
    assert [each for each in shown if each not in done.stdout + done.stderr] == []
