"""The CDI specification that `rocmlab cdi` writes, taken by a real engine that has the feature on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import engines
import pytest
import standins
from hosts import Gpu, make_host

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import cdi
from rocmlab.stack import engine as engine_probe
from rocmlab.stack import gpus, settings
from rocmlab.stack.choice import Choice

pytestmark = [pytest.mark.container, pytest.mark.long("CDI names")]
GPUS = (Gpu(1, 0x8300, 129), Gpu(2, 0x0300, 128, unique_id=0x2222333344445555))
NODES = {
    "/dev/kfd": 61104,
    "/dev/dri/renderD128": 61992,
    "/dev/dri/renderD129": 61993,
    "/dev/dri/card0": 44,
    "/dev/dri/card1": 44,
}
ROCM = Choice("rocm", "docker", "test")
LOOK = """
import glob, json, os, stat
nodes = {}
for path in ["/dev/kfd", *sorted(glob.glob("/dev/dri/*"))]:
    found = os.stat(path)
    nodes[path] = [found.st_uid, found.st_gid, oct(stat.S_IMODE(found.st_mode))]
    if "card" not in path:
        os.close(os.open(path, os.O_RDWR))
print(json.dumps({"nodes": nodes, "uid": os.getuid(), "groups": sorted(os.getgroups())}))
"""
PLAIN = """\
services:
  lab:
    image: {image}
    group_add: !override ["61104", "61992", "61993"]  # the lab's entry point joins the groups of what it finds
    build: !reset null
    entrypoint: ["python3", "/look.py"]
    user: "4321:100"
    restart: "no"
    ports: !reset []
    network_mode: none
    secrets: !reset []
    volumes: !override
      - {look}:/look.py:ro
"""


@dataclass
class CdiEngine:
    """An engine with CDI, and the host whose GPUs its specification names."""

    environment: dict[str, str]
    root: Path
    specification: Path

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `rocmlab` on the host."""
        environment = {**os.environ, "ROCMLAB_ROOT": str(self.root), "PYTHONPATH": str(engines.REPOSITORY / "src")}
        command = [sys.executable, "-m", "rocmlab", "cdi", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def cdi_engine(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CdiEngine]:
    """Stand-in nodes on this host, a specification of them, and an engine of our own that reads it."""
    root = make_host(tmp_path_factory.mktemp("cdi-host"), *GPUS)
    for path in sorted((root / "dev").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "dev").rmdir()
    (root / "dev").symlink_to("/dev")
    # a socket's path has at most 107 bytes, so the engine's folder is a short one
    with standins.host_nodes(NODES), tempfile.TemporaryDirectory(prefix="rlcdi") as short:
        folder = Path(short)
        (folder / "cdi").mkdir()
        found = CdiEngine({}, root, folder / "cdi/amd.json")
        written = found.command("--output", str(found.specification))
        assert written.returncode == 0, written.stderr
        options = {"features": {"cdi": True}, "cdi-spec-dirs": [f"{folder}/cdi"]}
        with engines.second_engine(folder, **options) as environment:
            found.environment = environment
            subprocess.run(
                f"docker save {base_image} | DOCKER_HOST={environment['DOCKER_HOST']} docker load",
                shell=True,
                check=True,
                capture_output=True,
            )
            yield found


def run(engine: CdiEngine, project, look: Path, base_image: str, files: list[str]) -> dict:
    """Start the service with these Compose files on that engine; return what its process saw."""
    look.write_text(LOOK)
    (project.folder / "plain.yaml").write_text(PLAIN.format(image=base_image, look=look))
    project.settings["COMPOSE_FILE"] = ":".join([*files, "plain.yaml"])
    project.environment = {"DOCKER_HOST": engine.environment["DOCKER_HOST"]}
    project.write()
    try:
        done = project.compose("run", "--rm", "--no-deps", "-T", "lab")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])
    finally:
        project.compose("down", "--volumes")


def test_the_engine_says_that_it_takes_cdi_names(cdi_engine: CdiEngine) -> None:
    """`docker info` names the folders; the machine's own engine, which has the feature off, is distinguished."""
    found = engine_probe.probe(cdi_engine.environment)

    assert found.is_usable
    assert found.cdi_problem() is None
    assert found.cdi_folders == (str(cdi_engine.specification.parent),)


def test_compose_passes_all_gpus_with_owner_and_mode(
    cdi_engine: CdiEngine, make_project, base_image: str, tmp_path: Path
) -> None:
    """docker/compose.cdi.yaml: every node, with the host's group and mode, opened by a user in these groups."""
    seen = run(
        cdi_engine, make_project("rocm"), tmp_path / "look.py", base_image, ["compose.yaml", "docker/compose.cdi.yaml"]
    )

    assert seen["uid"] == 4321
    assert {path: gid for path, (_, gid, _) in seen["nodes"].items()} == NODES
    assert {mode for _, _, mode in seen["nodes"].values()} == {"0o660"}


@pytest.mark.parametrize(("choice", "minor"), [("0", 129), ("0000:03:00.0", 128)])
def test_make_ups_overlay_passes_the_chosen_gpu_alone(
    cdi_engine: CdiEngine, make_project, base_image: str, tmp_path: Path, choice: str, minor: int
) -> None:
    """GPUS with GPU_PASSTHROUGH=cdi names the GPU by its PCI address, in which HIP's and AMD's numbers agree."""
    project = make_project("rocm")
    chosen = settings.load(project.folder, {"GPUS": choice, "GPU_PASSTHROUGH": "cdi"})
    (project.folder / ".rocmlab").mkdir()
    (project.folder / gpus.OVERLAY).write_text(gpus.overlay(gpus.passed(chosen, ROCM, [], cdi_engine.root)))

    seen = run(cdi_engine, project, tmp_path / "look.py", base_image, gpus.overlays(chosen, ROCM))

    assert [path for path in seen["nodes"] if "render" in path] == [f"/dev/dri/renderD{minor}"]


def test_a_name_that_the_engine_does_not_know_is_refused_before(cdi_engine: CdiEngine, tmp_path: Path) -> None:
    """Without the file, or without the feature, `make up` says which command fixes it."""
    chosen = settings.load(tmp_path, {"GPU_PASSTHROUGH": "cdi"})
    found = engine_probe.probe(cdi_engine.environment)
    gpus.check(chosen, ROCM, found, [], cdi_engine.root)
    hidden = cdi_engine.specification.rename(tmp_path / "away")
    try:
        with pytest.raises(RocmlabError, match=r"does not know amd\.com/gpu=all") as caught:
            gpus.check(chosen, ROCM, found, [], cdi_engine.root)
    finally:
        hidden.rename(cdi_engine.specification)

    assert f"cdi --output {cdi_engine.specification}" in caught.value.problem.fix


def test_check_tells_a_specification_that_is_no_longer_true(cdi_engine: CdiEngine) -> None:
    """True of this host first; then a node's group changes, as after a new driver, and the file is stale."""
    before = cdi_engine.command("--check", str(cdi_engine.specification))
    os.chown("/dev/kfd", 0, 61105)
    try:
        after = cdi_engine.command("--check", str(cdi_engine.specification))
    finally:
        os.chown("/dev/kfd", 0, 61104)

    assert before.returncode == 0, before.stderr
    assert "valid (CDI 0.7.0)" in before.stdout
    assert after.returncode == 1
    assert "/dev/kfd has gid 61104, and the node here has 61105" in after.stderr
    assert not re.search("Traceback", after.stderr)


def test_the_engines_names_are_ours(cdi_engine: CdiEngine) -> None:
    """By AMD's index (PCI order), by PCI address, and all."""
    assert cdi.names_in(cdi_engine.specification.parent) == [
        "amd.com/gpu=0",
        "amd.com/gpu=0000:03:00.0",
        "amd.com/gpu=1",
        "amd.com/gpu=0000:83:00.0",
        "amd.com/gpu=all",
    ]
