"""One user's spawner, as JupyterHub makes it from the hub's own configuration file, without a hub."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from jupyterhub import orm
from jupyterhub.objects import Hub
from jupyterhub.user import User
from traitlets.config import PyFileConfigLoader

from rocmlab.hub import configuration
from rocmlab.hub.configuration import Access, Configuration
from rocmlab.hub.service import CONFIG
from rocmlab.stack import settings

NAME = "rocmlab-abcdef-hub"


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, python: str = "", extra: str = "", **given: str) -> Any:
    """Return what JupyterHub reads from the hub's own file.

    Args:
        folder: of everything.
        monkeypatch: sets the environment.
        python: of native labs; empty: labs are containers.
        extra: the path of an administrator's own file.
        given: settings.
    """
    runtime = "native" if python else "docker"
    limits = configuration.limits(settings.Settings(folder, given), 4096)
    found = Configuration(
        project=str(folder),
        state=str(folder),
        runtime=runtime,
        backend="cpu",
        root="/",
        url="http://127.0.0.1:8000",
        certificate="",
        hub_port=8001,
        proxy_port=8002,
        hub_address="127.0.0.1",
        access=Access("oauth", ("chief",), (), is_open=True),
        limits=limits,
        data="",
        common="",
        extra=extra,
        leases=str(folder / "leases"),
        node=("node", "proxy"),
        lab_python=python,
        image="rocmlab:lab",
        network=NAME,
        name=NAME,
    )
    monkeypatch.setenv("ROCMLAB_HUB_FILE", str(found.write()))
    return PyFileConfigLoader(CONFIG.name, path=str(CONFIG.parent)).load_config()


def spawner(folder: Path, monkeypatch: pytest.MonkeyPatch, user: str, python: str = "", **given: str) -> Any:
    """Return a user's spawner, as JupyterHub makes it from the hub's own file; `python`: of native labs."""
    config = loaded(folder, monkeypatch, python, **given)
    made = type("Own", (config.JupyterHub.spawner_class,), {})  # an engine's client is kept for each class
    database = orm.new_session_factory("sqlite:///:memory:")()
    row = orm.User(name=user)
    database.add(row)
    database.commit()
    options = {"config": config, "spawner_class": made, "hub": Hub(ip="127.0.0.1", port=8001), "base_url": "/"}
    return User(row, options, db=database).spawners[""]


def start(lab: Any, port: int, form: dict[str, list[str]]) -> Any:
    """Start a lab as the start page does."""

    async def run() -> Any:
        lab.user_options = lab.run_options_from_form(form)
        lab.port = port
        lab.api_token = "secret"
        return await lab.start()

    return asyncio.run(run())
