"""What the launcher offers: kernelspecs for the GPUs that a lab has, and for no one else's kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_hosts import REPOSITORY, Host

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import main as run_command
from rocmlab.kernels import gpus
from rocmlab.kernels.leases import Holder
from rocmlab.lab import icons, kernels, offers
from rocmlab.simulation import write_host

SLOW_TO_IMPORT = (
    "asyncio",
    "jinja2",
    "jupyter_client",
    "jupyter_server",
    "numpy",
    "papermill",
    "psutil",
    "rich",
    "zmq",
)
XTX = "AMD Radeon RX 7900 XTX"


def titles(folder: Path) -> dict[str, str]:
    """Return the display name of every kernelspec in a folder."""
    return {
        path.parent.name: json.loads(path.read_text())["display_name"] for path in sorted(folder.glob("*/kernel.json"))
    }


def asked(folder: Path, name: str) -> object:
    """Return a kernelspec's request to the provisioner."""
    spec = json.loads((folder / name / "kernel.json").read_text())
    stanza = spec["metadata"]["kernel_provisioner"]
    assert stanza["provisioner_name"] == "rocmlab-provisioner"
    return stanza["config"]["gpus"]


def simulate(host: Host, monkeypatch: pytest.MonkeyPatch, count: int, **options: object) -> None:
    """Put another number of GPUs into the host."""
    folder = host.prefix.parent / f"host-{count}"
    monkeypatch.setenv("ROCMLAB_ROOT", str(write_host(folder, gpus=count, **options)))


class TestOffers:
    """Which kernels a lab gets."""

    def test_two_gpus(self, host: Host) -> None:
        """One free GPU, all, each by name, and the CPU, for both frameworks; the plain names never change."""
        host.offer()

        assert titles(host.specs) == {
            f"{name}{suffix}": f"{title} ({words})"
            for name, title in (("tensorflow", "TensorFlow"), ("torch", "PyTorch"))
            for suffix, words in (
                ("", "one free GPU, SIMULATED"),
                ("-all", "all 2 GPUs, SIMULATED"),
                ("-gpu0", f"GPU 0: {XTX}, SIMULATED"),
                ("-gpu1", f"GPU 1: {XTX}, SIMULATED"),
                ("-cpu", "CPU"),
            )
        }
        assert [asked(host.specs, f"torch{suffix}") for suffix in ("", "-all", "-cpu", "-gpu0", "-gpu1")] == [
            1,
            "all",
            0,
            "0000:03:00.0",
            "0000:06:00.0",
        ]

    def test_one_gpu_has_neither_all_nor_a_name(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """There is nothing to choose but the CPU."""
        simulate(host, monkeypatch, 1)

        host.offer()

        assert titles(host.specs)["torch"] == "PyTorch (GPU, SIMULATED)"
        assert set(titles(host.specs)) == {"tensorflow", "tensorflow-cpu", "torch", "torch-cpu"}

    def test_many_gpus_have_no_names(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """Eight GPUs would fill the launcher."""
        simulate(host, monkeypatch, 8)

        host.offer()

        assert {name for name in titles(host.specs) if name.startswith("torch")} == {"torch", "torch-all", "torch-cpu"}

    def test_a_lab_without_gpus_offers_the_two_plain_kernels(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the titles that they always had."""
        monkeypatch.setenv("ROCMLAB_ROOT", "/")
        monkeypatch.setenv("ROCMLAB_BACKEND", "cpu")

        host.offer()

        assert titles(host.specs) == {"tensorflow": "TensorFlow", "torch": "PyTorch"}

    def test_a_mask_of_the_lab_counts(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """`make up GPUS=1` leaves one, and its address is requested."""
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")

        assert [device.index for device in gpus.look(os.environ).devices] == [1]

    def test_each_has_a_picture_of_its_own_kind(self, host: Host) -> None:
        """The launcher shows what a kernel computes on; no picture is another user's artwork."""
        host.offer()

        pictures = {name: (host.specs / name / icons.FILE).read_text() for name in titles(host.specs)}

        assert len(set(pictures.values())) == len(pictures)
        assert ">CPU<" in pictures["torch-cpu"]
        assert ">GPU 1<" in pictures["torch-gpu1"]


class TestFolder:
    """What happens to a folder of kernelspecs."""

    def test_a_gpu_that_is_gone_takes_its_kernel_with_it(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next start of the lab removes what was offered before and no longer is."""
        host.offer()
        simulate(host, monkeypatch, 1)

        host.offer()

        assert set(titles(host.specs)) == {"tensorflow", "tensorflow-cpu", "torch", "torch-cpu"}

    def test_other_peoples_kernels_are_never_touched(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not one with another name, not one that has a name of ours, not a link, not a damaged one."""
        mine = {"argv": ["mine"], "display_name": "Mine", "language": "python"}
        for name in ("julia", "torch", "torch-gpu7"):
            (host.specs / name).mkdir(parents=True)
            (host.specs / name / "kernel.json").write_text(json.dumps(mine))
        (host.specs / "torch-all").mkdir()
        (host.specs / "torch-all/kernel.json").write_text("{torn")
        elsewhere = host.prefix.parent / "elsewhere"
        elsewhere.mkdir()
        (host.specs / "torch-cpu").symlink_to(elsewhere)

        written = host.offer()
        monkeypatch.setenv("ROCMLAB_BACKEND", "cpu")
        offers.remove(host.specs, {})

        assert [name for name in written if name.startswith("torch")] == ["torch-gpu0", "torch-gpu1"]
        for name in ("julia", "torch", "torch-gpu7"):
            assert json.loads((host.specs / name / "kernel.json").read_text()) == mine
        assert (host.specs / "torch-all/kernel.json").read_text() == "{torn"
        assert list(elsewhere.iterdir()) == []
        assert {path.name for path in host.specs.iterdir()} == {
            "julia",
            "torch",
            "torch-gpu7",
            "torch-all",
            "torch-cpu",
        }

    def test_twice_is_once(self, host: Host) -> None:
        """A second start writes the same."""
        host.offer()
        before = {path: path.read_bytes() for path in host.specs.rglob("*") if path.is_file()}

        host.offer()

        assert {path: path.read_bytes() for path in host.specs.rglob("*") if path.is_file()} == before

    def test_without_the_provisioner_nothing_is_written(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """Jupyter would not offer a kernel whose provisioner it cannot find."""
        monkeypatch.setattr(sys, "path", [path for path in sys.path if not path.endswith("installed")])
        assert not kernels.is_registered()

        with pytest.raises(RocmlabError, match="no provisioner"):
            offers.install(host.specs, {}, gpus.Gpus())

        assert "kernel_provisioner" not in kernels.specification("torch", "python")["metadata"]


@pytest.fixture
def inside(host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """The command line inside a lab whose environment is `prefix`."""
    monkeypatch.setenv("ROCMLAB_RUNTIME", "native")
    monkeypatch.setattr(offers, "base_folder", lambda: host.prefix / "share/jupyter/kernels")
    kernels.install(host.prefix, {"torch": sys.executable})
    return host


class TestCommandLine:
    """`rocmlab kernels`."""

    def test_install_list_remove(self, inside: Host, capsys: pytest.CaptureFixture[str]) -> None:
        """The list names interpreter, GPU and holder; after `remove` the plain kernel is as it was made."""
        assert run_command(["kernels", "install", "--user"]) == 0
        lease = inside.leases.take(inside.devices[:1], Holder.here("/notebooks/a.ipynb"))
        assert lease
        capsys.readouterr()

        assert run_command(["kernels", "--json", "--user"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["kernels"]}
        assert run_command(["kernels", "--user"]) == 0
        text = capsys.readouterr().out

        lease.release()
        assert list(rows) == ["torch", "torch-all", "torch-cpu", "torch-gpu0", "torch-gpu1"]
        assert {name: row["is_free"] for name, row in rows.items()} == {
            "torch": True,
            "torch-all": False,
            "torch-cpu": None,
            "torch-gpu0": False,
            "torch-gpu1": True,
        }
        assert "/notebooks/a.ipynb" in rows["torch-gpu0"]["devices"][0]["leased_to"]
        assert rows["torch"]["python"] == sys.executable
        assert text.startswith("SIMULATED")
        assert "leased to /notebooks/a.ipynb" in text

        assert run_command(["kernels", "remove", "--user"]) == 0

        assert titles(inside.specs) == {}
        assert titles(inside.prefix / "share/jupyter/kernels") == {"torch": "PyTorch"}

    def test_a_folder_that_cannot_be_written_is_an_error(
        self, inside: Host, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With the folder, and what to do."""
        inside.specs.parent.mkdir()
        inside.specs.write_text("a file")

        assert run_command(["kernels", "install", "--user"]) == 2

        assert str(inside.specs) in capsys.readouterr().err

    def test_install_is_quick(self, host: Host) -> None:
        """A lab's start does it each time: nothing is imported that takes longer than all the rest."""
        kernels.install(host.prefix, {"tensorflow": sys.executable, "torch": sys.executable})
        code = (
            "import sys; sys.prefix = sys.argv[1]; from rocmlab.cli import main; "
            "sys.exit(main(['kernels', 'install', '--user']) or print(*sys.modules, file=sys.stderr))"
        )
        command = [sys.executable, "-c", code, str(host.prefix)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)

        assert len(titles(host.specs)) == 10
        assert not set(SLOW_TO_IMPORT) & set(done.stderr.split())


def test_pyproject_names_the_provisioner() -> None:
    """The class that Jupyter will load is there."""
    text = (REPOSITORY / "pyproject.toml").read_text()

    assert f'{kernels.PROVISIONER} = "rocmlab.lab.provisioner:RocmlabProvisioner"' in text
