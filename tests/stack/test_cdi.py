"""The CDI specification: what it says of a host, and what is told of a wrong one."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hosts import Gpu, give, make_host

from rocmlab.base.errors import Problem
from rocmlab.cli.main import main
from rocmlab.devices import cdi
from rocmlab.devices.rocm import Rocm
from rocmlab.simulation import write_host

GPUS = (Gpu(1, 0x8300, 129), Gpu(2, 0x0300, 128, unique_id=7), Gpu(3, 0x0600, 130, unique_id=8, domain=1))
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another group needs root (.ci/run has it)")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Three GPUs, in two PCI domains, in an order that is HIP's alone."""
    root = make_host(tmp_path / "host", *GPUS)
    for path in (root / "dev").rglob("*"):
        path.chmod(0o660 if path.is_file() else 0o755)
    return root


@pytest.fixture
def specification(host: Path) -> dict[str, Any]:
    """What `rocmlab cdi` writes for that host."""
    return cdi.specification(Rocm().discover(host, as_root=True), host)


class TestSpecification:
    """From devices to names."""

    def test_names_are_amds_and_unambiguous_ones(self, specification: dict[str, Any]) -> None:
        """Counted by PCI address, domain first, as AMD's toolkit counts; and by the address itself."""
        assert [entry["name"] for entry in specification["devices"]] == [
            *("0", "0000:03:00.0"),
            *("1", "0000:83:00.0"),
            *("2", "0001:06:00.0"),
            "all",
        ]
        assert specification["kind"] == "amd.com/gpu"

    def test_each_has_kfd_and_its_own_nodes(self, specification: dict[str, Any]) -> None:
        """An index and an address mean the same; `all` has every node once."""
        edits = {entry["name"]: entry["containerEdits"] for entry in specification["devices"]}
        paths = {name: [node["path"] for node in edit["deviceNodes"]] for name, edit in edits.items()}

        assert edits["1"] == edits["0000:83:00.0"]
        assert paths["1"][0] == "/dev/kfd"
        assert "/dev/dri/renderD129" in paths["1"]
        assert not {"/dev/dri/renderD128", "/dev/dri/renderD130"} & set(paths["1"])
        assert len(paths["all"]) == len(set(paths["all"]))
        assert {"/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/renderD130"} < set(paths["all"])

    @needs_root
    def test_owner_mode_and_groups_are_the_nodes_own(self, host: Path) -> None:
        """Left out, an engine would make each node root's with mode 0666."""
        give(host / "dev/kfd", 61104)
        give(host / "dev/dri/renderD128", 61992)

        found = cdi.specification(Rocm().discover(host, as_root=True), host)

        edits = {entry["name"]: entry["containerEdits"] for entry in found["devices"]}["0000:03:00.0"]
        assert {"path": "/dev/kfd", "permissions": "rw", "uid": 0, "gid": 61104, "fileMode": 0o660} in edits[
            "deviceNodes"
        ]
        assert {61104, 61992} <= set(edits["additionalGids"])
        assert 0 not in edits["additionalGids"]
        assert found["cdiVersion"] == "0.7.0"

    def test_the_version_is_as_old_as_the_contents_allow(self, host: Path) -> None:
        """Group ids came with 0.7.0, annotations with 0.6.0, names that begin with a digit with 0.5.0."""
        devices = Rocm().discover(host, as_root=True)
        without = cdi.specification(devices, host, group_ids=False)

        assert without["cdiVersion"] == "0.6.0"
        assert without["annotations"] == {"rocmlab.simulated": "true"}
        del without["annotations"]
        assert cdi.oldest_version(without) == "0.5.0"
        without["devices"] = [entry for entry in without["devices"] if entry["name"] == "all"]
        assert cdi.oldest_version(without) == "0.3.0"

    def test_a_card_in_partitions_is_named_as_one(self, tmp_path: Path) -> None:
        """Its address means the whole card; each partition has its number behind, the first one too."""
        root = write_host(tmp_path / "host", gpus=2, profile="instinct", partition="cpx")
        devices = Rocm().discover(root, as_root=True)
        address = min(str(device.pci_address) for device in devices)

        found = cdi.specification(devices, root)

        edits = {entry["name"]: entry["containerEdits"] for entry in found["devices"]}
        parts = [f"{address}-{number}" for number in range(8)]
        renders = {
            name: {node["path"] for node in edits[name]["deviceNodes"] if "render" in node["path"]}
            for name in (address, *parts)
        }
        assert [len(renders[part]) for part in parts] == [1] * 8
        assert renders[address] == set().union(*(renders[part] for part in parts))
        assert len(renders[address]) == 8
        assert cdi.problems(found) == []
        first = next(device for device in devices if device.pci_address == address and device.partition == 0)
        assert cdi.name_of(first, devices) == f"{address}-0"

    def test_it_is_valid(self, specification: dict[str, Any]) -> None:
        """By our own rules, which are the public schema's."""
        assert cdi.problems(json.loads(cdi.to_json(specification))) == []


class TestProblems:
    """Whatever a file holds, what is wrong with it is a sentence."""

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda s: s.pop("kind"), "it lacks kind"),
            (lambda s: s.update(kind="gpu"), "is not vendor/class"),
            (lambda s: s.update(cdiVersion="9.9"), "is not one of"),
            (lambda s: s.update(cdiVersion=7), "cdiVersion 7 is not one of"),
            (lambda s: s.update(cdiVersion="0.3.0"), "is too low"),
            (lambda s: s.update(vendor="x"), "vendor is not part"),
            (lambda s: s.update(devices=[]), "at least one device"),
            (lambda s: s.update(devices={}), "devices is not a list with at least"),
            (lambda s: s["devices"].append("gpu"), "device 7 is not an object"),
            (lambda s: s["devices"].append(copy.deepcopy(s["devices"][0])), "is given twice"),
            (lambda s: s["devices"][0].update(name="a b"), "has the name"),
            (lambda s: s["devices"][0].pop("containerEdits"), "lacks containerEdits"),
            (lambda s: s["devices"][0].update(path="/dev/kfd"), "path is unknown"),
            (lambda s: s["devices"][0].update(containerEdits=[]), "is not an object"),
            (lambda s: s["devices"][0]["containerEdits"].update(deviceNodes={}), "is not a list"),
            (lambda s: s["devices"][0]["containerEdits"].update(additionalGids=[-1]), "additionalGids has -1"),
            (lambda s: s["devices"][0]["containerEdits"].update(env=["A"]), "env has 'A'"),
            (lambda s: s["devices"][0]["containerEdits"]["deviceNodes"][0].update(path="kfd"), "no absolute path"),
            (lambda s: s["devices"][0]["containerEdits"]["deviceNodes"][0].update(gid="render"), "gid is 'render'"),
            (
                lambda s: s["devices"][0]["containerEdits"]["deviceNodes"][0].update(permissions="rwx"),
                "made of r, w and m",
            ),
        ],
    )
    def test_a_wrong_one_is_explained(self, specification: dict[str, Any], change: Any, said: str) -> None:
        """The sentence names the place."""
        changed = copy.deepcopy(specification)
        change(changed)

        assert any(said in reason for reason in cdi.problems(changed)), cdi.problems(changed)

    @pytest.mark.parametrize("found", [None, [], "x", 7, {}, {"devices": None, "kind": None, "cdiVersion": None}])
    def test_no_specification_at_all(self, found: object) -> None:
        """Never an exception."""
        assert cdi.problems(found)


class TestCommand:
    """`rocmlab cdi`."""

    def test_it_prints_and_writes_nothing_by_itself(
        self, host: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """JSON on standard output; on a simulated host it reports it, in the file and on the screen."""
        monkeypatch.setenv("ROCMLAB_ROOT", str(host))

        assert main(["cdi"]) == 0
        printed = capsys.readouterr()

        assert cdi.problems(json.loads(printed.out)) == []
        assert "SIMULATED" in printed.err
        assert not (host / "etc/cdi").exists()

    def test_what_it_writes_is_found_true(
        self, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """--output, then --check; then a GPU is gone, and the file is stale."""
        monkeypatch.setenv("ROCMLAB_ROOT", str(host))
        path = tmp_path / "cdi/amd.json"

        assert main(["cdi", "--output", str(path)]) == 0
        assert path.stat().st_mode & 0o777 == 0o644
        assert main(["cdi", "--check", str(path)]) == 0
        (host / "dev/dri/renderD130").unlink()
        assert main(["cdi", "--check", str(path)]) == 1

        assert "0001:06:00.0 is not a GPU of this host" in capsys.readouterr().err

    def test_a_folder_of_roots_needs_sudo(
        self, host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The fix is the very command again, and not about space on the disk."""
        monkeypatch.setenv("ROCMLAB_ROOT", str(host))
        path = tmp_path / "amd.json"

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("rocmlab.base.files.os.replace", refuse)

        assert main(["cdi", "--output", str(path), "--no-group-ids"]) == 2
        assert f"fix: sudo scripts/rocmlab cdi --output {path} --no-group-ids" in capsys.readouterr().err

    def test_a_huge_file_is_not_read_whole(self, tmp_path: Path) -> None:
        """A terabyte, of which no block is on the disk."""
        path = tmp_path / "amd.json"
        with open(path, "wb") as file:
            file.truncate(1 << 40)

        assert isinstance(cdi.read(path), Problem)

    @pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100000, b'{"cdiVersion": "0.6.0"}'])
    def test_a_broken_file_is_a_sentence(
        self,
        host: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        text: bytes,
    ) -> None:
        """Exit code 1 or 2, and what to type."""
        monkeypatch.setenv("ROCMLAB_ROOT", str(host))
        (tmp_path / "amd.json").write_bytes(text)

        assert main(["cdi", "--check", str(tmp_path / "amd.json")]) in (1, 2)
        assert "rocmlab cdi --output" in capsys.readouterr().err

    def test_a_host_without_gpus_has_nothing_to_specify(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Exit code 2."""
        monkeypatch.setenv("ROCMLAB_ROOT", str(make_host(tmp_path)))

        assert main(["cdi"]) == 2
        assert "no AMD GPU found" in capsys.readouterr().err
