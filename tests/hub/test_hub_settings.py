"""What `rocmlab hub up` decides before anything is started."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from clones import free_port
from kernel_hosts import REPOSITORY
from spawning import loaded

from rocmlab.base.errors import RocmlabError
from rocmlab.hub import authenticators, configuration, uids
from rocmlab.hub.configuration import Access
from rocmlab.hub.service import Hub, own_port
from rocmlab.hub.uids import Uids
from rocmlab.simulation import write_host
from rocmlab.stack import project as projects
from rocmlab.stack import settings


@pytest.mark.parametrize(
    ("text", "expected"), [("64gb", 64 << 30), ("512m", 512 << 20), ("1073741824", 1 << 30), ("", None)]
)
def test_a_memory_limit_is_a_number_of_bytes(tmp_path: Path, text: str, expected: int | None) -> None:
    """With Docker's units."""
    found = configuration.limits(settings.Settings(tmp_path, {"HUB_MEMORY_LIMIT": text}), 1)

    assert found.memory_bytes == expected


def test_what_the_page_shows_for_hub_config_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it in one file; the hub's own services and roles stay."""
    shown = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs/hub.md").read_text(), re.DOTALL)
    (tmp_path / "own.py").write_text("\n".join(shown))

    before = loaded(tmp_path, monkeypatch).JupyterHub
    found = loaded(tmp_path, monkeypatch, extra=str(tmp_path / "own.py"))

    assert found.GenericOAuthenticator.username_claim == "preferred_username"
    for name in ("services", "load_roles"):
        assert [each["name"] for each in found.JupyterHub[name]] == [
            *(each["name"] for each in before[name]),
            "prometheus",
        ]


@pytest.mark.parametrize(("kind", "is_jupyterhubs_own"), [("pam", False), ("oauth", False), ("native", True)])
def test_administrators_have_jupyterhubs_own_role_only_where_they_set_passwords(
    kind: str, is_jupyterhubs_own: bool
) -> None:
    """Its members are always named: a role of JupyterHub's own without members would keep those that it had."""
    found = {role["name"]: role for role in authenticators.roles(Access(kind, ("chief",), (), is_open=False))}

    assert found["admin"]["users"] == (["chief"] if is_jupyterhubs_own else [])
    assert (authenticators.ADMINISTRATOR in found) is not is_jupyterhubs_own
    assert not {"access:servers", "admin:users", "tokens", "shares"} & set(authenticators.SCOPES)


def test_a_project_that_was_moved_keeps_the_names_of_its_users_volumes(tmp_path: Path) -> None:
    """They have the folder's hash in them: every user would find an empty lab. A copy next to it has its own."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "compose.yaml").touch()
    root = write_host(tmp_path / "host", gpus=1)
    given = {"RUNTIME": "native", "ROCMLAB_ROOT": str(root), "HUB_ADMINS": "ada"}

    def name_in(folder: Path) -> str:
        found = settings.load(folder, {**given, "HUB_PORT": str(free_port())})
        hub = Hub(found)
        hub.make_folder()
        made = hub.configure(projects.plan(folder, found), "native", ["node"])
        made.write()
        return made.name

    first = name_in(tmp_path / "old")
    shutil.copytree(tmp_path / "old/.rocmlab", tmp_path / "new/.rocmlab", symlinks=True)
    copied = name_in(tmp_path / "new")
    (tmp_path / "old").rename(tmp_path / "moved")
    moved = name_in(tmp_path / "moved")

    assert moved == first
    assert copied != first


def test_no_user_gets_the_uid_of_a_directorys_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is known by its number, and not among those that are listed."""
    real = uids.pwd.getpwuid
    monkeypatch.setattr(uids.pwd, "getpwuid", lambda uid: None if uid == uids.FIRST else real(uid))

    assert Uids.of_hub(tmp_path, Access("oauth", (), (), is_open=True)).of("ada") != uids.FIRST


@pytest.mark.parametrize("names", ["bob/x", "ada, b/c"])
def test_a_name_that_jupyterhub_rejects_is_an_error_before_the_hub_stops(tmp_path: Path, names: str) -> None:
    """It would end at its start."""
    with pytest.raises(RocmlabError, match="which is no name"):
        configuration.access(settings.Settings(tmp_path, {"HUB_AUTH": "pam", "HUB_USERS": names}))


def test_an_engine_of_another_machine_is_refused() -> None:
    """The error reports it, and not that other programs listen on every port."""
    with pytest.raises(RocmlabError, match=r"no address on this host: 192\.0\.2\.1"):
        own_port("192.0.2.1", {8000})


def test_hubs_that_choose_a_port_at_the_same_time_hardly_choose_the_same() -> None:
    """Each binds its port seconds after it chose it, so the first free one would be that of all who choose then."""
    assert len({own_port("127.0.0.1", {8000}) for _ in range(20)}) > 1


def test_a_proxy_port_that_another_program_took_meanwhile_is_exchanged(tmp_path: Path) -> None:
    """The next `make hub-up` would fail by it again. The hub's own port stays: labs that run know it."""
    root = write_host(tmp_path / "host", gpus=1)
    chosen = {"RUNTIME": "native", "ROCMLAB_ROOT": str(root), "HUB_ADMINS": "ada", "HUB_PORT": str(free_port())}
    given = settings.load(tmp_path, chosen)
    hub = Hub(given)
    hub.make_folder()
    before = hub.configure(projects.plan(tmp_path, given), "native", ["node"])
    before.write()

    assert hub.configure(projects.plan(tmp_path, given), "native", ["node"]) == before
    with socket.socket() as other:
        with contextlib.suppress(OSError):  # another program has just taken it
            other.bind(("127.0.0.1", before.proxy_port))
            other.listen()
        found = hub.configure(projects.plan(tmp_path, given), "native", ["node"])

    assert found.proxy_port != before.proxy_port
    assert found.hub_port == before.hub_port


def test_a_configuration_file_that_others_can_change_or_replace_is_refused() -> None:
    """It runs as the hub, so its mode counts, and that of each folder above it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name, "shared")
        folder.mkdir(mode=0o755)
        path = folder / "hub.py"
        path.touch(mode=0o600)
        found = settings.Settings(folder, {"HUB_CONFIG": str(path)})

        assert configuration.own_file(found, "oauth") == str(path.resolve())
        path.chmod(0o644)
        with pytest.raises(RocmlabError, match="is not private"):
            configuration.own_file(found, "oauth")
        path.chmod(0o600)
        folder.chmod(0o777)
        with pytest.raises(RocmlabError, match="can be replaced by another user"):
            configuration.own_file(found, "oauth")
        folder.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(folder, 61300, -1)
            with pytest.raises(RocmlabError, match="can be replaced by another user"):
                configuration.own_file(found, "oauth")
