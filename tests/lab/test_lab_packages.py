"""Kernels of JupyterLab with packages of the user's own: real ones, and real installations from a folder of wheels."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_hosts import MASKS, REPOSITORY, Host, started
from wheel_files import wheel

from rocmlab.kernels.fork_servers import ForkServers
from rocmlab.lab import provisioner
from rocmlab.packages import installing, inventory, overlays
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="warm kernels need Linux")]
RUNS = "import sys, os, shutil; print(sys.executable, shutil.which('says-harmless'), 'harmless' in sys.modules)"


@pytest.fixture
def place(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Where the packages of the kernel `torch` go; a folder of wheels is the index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    entry_points = {"harmless-1.0.dist-info/entry_points.txt": "[console_scripts]\nsays-harmless = harmless:say\n"}
    files = {"harmless.py": "answer = 42\ndef say(): print(answer)\n", **entry_points}
    wheel(folder, "harmless", "1.0", files)
    wheel(folder, "second", "1.0", {"second.py": "answer = 43\n"})
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    values = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    for name, value in {**values, installing.UV: sys.prefix}.items():
        monkeypatch.setenv(name, value)
    return Place(host.share, "torch", sys.executable)


@pytest.fixture
def servers(host: Host, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServers]:
    """Fork servers of this test alone, and kernelspecs as they are where rocmlab is installed."""
    hook = tmp_path / overlays.HOOK
    hook.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY}/src exec {sys.executable} -m rocmlab.packages.pip "$@"\n')
    hook.chmod(0o755)
    host.offer()
    for path in host.specs.glob("torch*/kernel.json"):
        spec = json.loads(path.read_text())
        spec["metadata"]["rocmlab"]["preload"] = ["tabnanny"]
        spec["env"] |= {overlays.KERNEL: "torch", overlays.PYTHON: sys.executable, "PIP_PYTHON": str(hook)}
        path.write_text(json.dumps(spec))
    found = ForkServers()
    monkeypatch.setattr(provisioner, "FORK_SERVERS", found)
    yield found
    found.close()


def add(place: Place, *names: str) -> Path:
    """Install packages, and return the overlay."""
    installing.add(place, [Requirement(each) for each in names], print)
    prefix = place.current()
    assert prefix is not None
    return prefix


@pytest.mark.long
@pytest.mark.parametrize("name", ["torch", "torch-gpu1", pytest.param("torch-cpu", marks=pytest.mark.long)])
def test_every_kernel_of_a_framework_has_them(host: Host, servers: ForkServers, place: Place, name: str) -> None:
    """Whatever its GPUs: the overlay's interpreter and programs; and the lease is as without."""
    prefix = add(place, "harmless")

    async def scenario() -> None:
        async with started(name, "/notebooks/a.ipynb") as talk:
            says = (await talk.run(f"import harmless; {RUNS}")).split()
            assert says == [str(prefix / "bin/python"), str(prefix / "bin/says-harmless"), "True"]
            assert (await talk.run("!says-harmless")).strip() == "42"
            assert host.holders().count("/notebooks/a.ipynb") == (name != "torch-cpu")

    asyncio.run(scenario())


@pytest.mark.long
def test_other_kernels_do_not_have_them(servers: ForkServers, place: Place) -> None:
    """TensorFlow's keeps the lab's interpreter."""
    add(place, "harmless")

    async def scenario() -> None:
        async with started("tensorflow-cpu") as talk:
            assert (await talk.run(RUNS)).split()[0] == sys.executable

    asyncio.run(scenario())


@pytest.mark.long
def test_a_fork_server_runs_the_overlays_interpreter_and_follows_it(
    host: Host, servers: ForkServers, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that is forked has the packages and its lease; after another installation there is another server."""
    monkeypatch.setenv("WARM_KERNELS", "on")
    says = f"import harmless; {RUNS}; print('tabnanny' in sys.modules)"

    async def scenario() -> None:
        for names in (["harmless"], ["second"]):
            prefix = add(place, *names)
            async with started("torch-gpu1") as talk:
                assert (await talk.run(says)).split()[-1] == "False"
                for server in servers.all():  # that of the earlier overlay may still be there
                    await asyncio.to_thread(server.ready, 60)
            async with started("torch-gpu1", "/notebooks/a.ipynb") as talk:
                found = (await talk.run(says)).split()
                assert (found[0], found[-1]) == (str(prefix / "bin/python"), "True")
                assert await talk.run(MASKS) == "1 1 None"
                assert host.holders() == [None, "/notebooks/a.ipynb"]

    asyncio.run(scenario())


class TestPipInANotebook:
    """`%pip` and `!pip`."""

    def test_what_it_installs_can_be_imported_at_once_and_stays(self, servers: ForkServers, place: Place) -> None:
        """In the same cell; the kernel that starts next runs from the overlay."""

        async def scenario() -> None:
            async with started("torch-cpu") as talk:
                assert (await talk.run(RUNS)).split()[0] == sys.executable
                says = await talk.run("%pip install harmless\nimport harmless; print('answer', harmless.answer)")
                assert "the kernel torch has now: harmless 1.0" in says
                assert "answer 42" in says
                says = await talk.run("!pip install -q second\nimport second; print('answer', second.answer)")
                assert "answer 43" in says
                assert (await talk.run("!says-harmless")).strip() == "42"
                command = "[sys.executable, '-m', 'pip', 'uninstall', '-y', 'second']"
                await talk.run(f"import subprocess, sys; subprocess.check_call({command})")
            prefix = place.current()
            async with started("torch-cpu") as talk:
                assert (await talk.run(RUNS)).split()[0] == str(prefix and prefix / "bin/python")
                assert "ModuleNotFoundError" in await talk.run("import second")
                assert "harmless" in await talk.run("%pip list")

        asyncio.run(scenario())
        assert inventory.state(place).requirements == ("harmless",)

    @pytest.mark.long
    def test_an_error_changes_nothing(self, servers: ForkServers, place: Place) -> None:
        """It is shown as an error of pip's."""

        async def scenario() -> None:
            async with started("torch-cpu") as talk:
                says = await talk.run("%pip install absent")
                assert "ERROR: the packages cannot be installed" in says
                assert "absent" in says

        asyncio.run(scenario())
        assert place.current() is None

    @pytest.mark.long
    def test_another_environments_pip_installs_there(self, servers: ForkServers, place: Place, tmp_path: Path) -> None:
        """One that the notebook has made is the user's own."""

        async def scenario() -> None:
            async with started("torch-cpu") as talk:
                own = tmp_path / "own"
                says = await talk.run(f"!{sys.executable} -m venv {own} && {own}/bin/pip install harmless")
                assert "Successfully installed harmless" in says

        asyncio.run(scenario())
        assert place.current() is None
        assert list((tmp_path / "own").glob("lib/python3*/site-packages/harmless.py"))

    @pytest.mark.long
    def test_where_the_user_names_a_folder_pip_itself_installs(
        self, servers: ForkServers, place: Place, tmp_path: Path
    ) -> None:
        """`--target` has nothing to do with the kernel."""

        async def scenario() -> None:
            async with started("torch-cpu") as talk:
                await talk.run(f"%pip install --target {tmp_path / 'there'} harmless")

        asyncio.run(scenario())
        assert place.current() is None
        assert (tmp_path / "there/harmless.py").exists()
