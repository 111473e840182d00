"""One table names our secrets, and no start of a process has a list of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rocmlab.base import confidential
from rocmlab.kernels import kernelspec
from rocmlab.runs.workers.workers import Workers
from rocmlab.stack import settings

SECRETS = {name: f"secret-{name}" for name in confidential.NAMES}


def test_the_table_has_every_secret_of_the_settings() -> None:
    """A new setting that is called a token or a password must be added to it; HF_TOKEN is the user's own."""
    named = {name for name in settings.NAMES if re.search(r"TOKEN|PASSWORD|SECRET", name)}

    assert named <= set(confidential.NAMES)
    assert "HF_TOKEN" not in confidential.NAMES
    assert (
        "RAY_AUTH_TOKEN_PATH" not in confidential.NAMES
    )  # a path, by which `ray.init()` in a notebook finds its token


def test_the_entry_point_knows_the_same_names(repository: Path) -> None:
    """docker/start.sh removes exactly these from the environment of every process of the container."""
    text = (repository / "docker/start.sh").read_text(encoding="utf-8")
    unset = re.search(r"^ +unset (JUPYTER_TOKEN .*)$", text, re.MULTILINE)

    assert unset
    assert sorted(unset[1].split()) == sorted(confidential.NAMES)


def test_a_process_can_forget_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it starts afterwards inherits none; the rest stays."""
    for name, value in {**SECRETS, "HF_TOKEN": "hf"}.items():
        monkeypatch.setenv(name, value)

    assert confidential.forget() == SECRETS
    assert not set(SECRETS) & set(os.environ)
    assert os.environ["HF_TOKEN"] == "hf"


def test_kernels_and_workers_inherit_none() -> None:
    """Nor can a kernelspec put one into another variable by its name."""
    environment = {**SECRETS, "HF_TOKEN": "hf", "PATH": "/bin"}

    inside = kernelspec.environment({"env": {"COPY": "a-${JUPYTER_TOKEN}-b", "OWN": "${HF_TOKEN}"}}, environment)
    workers = Workers(environment).environment

    assert not [value for value in inside.values() if value.startswith("secret-")]
    assert inside["COPY"] == "a-${JUPYTER_TOKEN}-b"
    assert inside["HF_TOKEN"] == inside["OWN"] == "hf"
    assert workers == {"HF_TOKEN": "hf", "PATH": "/bin"}
