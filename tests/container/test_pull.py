"""PULL=on with real parts: Debian's registry, cosign with a key, the script that releases, and Docker; a small image.

What is keyless needs GitHub and Sigstore; the options for it are tested in tests/stack/test_released.py.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from clones import REPOSITORY, free_port
from containers import docker

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import settings
from rocmlab.stack.docker import DockerLab
from rocmlab.stack.engine import Engine

pytestmark = pytest.mark.container

COSIGN, REGISTRY = (
    shutil.which(os.environ.get(name, program))
    for name, program in (("COSIGN", "cosign"), ("REGISTRY", "docker-registry"))
)
SBOM = 'mkdir -p "$2"; for kind in cdx spdx; do echo "{}" >"$2/$(basename "${1/:/-}").$kind.json"; done\n'
BUILT = "the image is built here, not pulled: "


@dataclass
class Releases:
    """A registry, and how to release to it."""

    address: str
    folder: Path
    environment: dict[str, str]

    def release(self, image: str, key: str = "cosign") -> None:
        """Run the script of the release workflow for a local image; only its SBOM is made up."""
        script = self.folder / "scripts/release-image"
        command = [str(script), image, f"{self.address}/rocmlab/cpu:{__version__}"]
        environment = {**self.environment, "COSIGN_KEY": str(self.folder / f"{key}.key")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    """A registry of this module, two keys, and the script."""
    if not COSIGN or not REGISTRY:
        pytest.skip("needs cosign and docker-registry: .ci/run provides both and names them in COSIGN and REGISTRY")
    folder = tmp_path_factory.mktemp("registry")
    address = f"127.0.0.1:{free_port()}"
    configuration = {"version": "0.1", "storage": {"filesystem": {"rootdirectory": str(folder / "data")}}}
    (folder / "config.yml").write_text(json.dumps({**configuration, "http": {"addr": address}}))
    (folder / "scripts").mkdir()
    shutil.copy2(REPOSITORY / "scripts/release-image", folder / "scripts")
    (folder / "scripts/sbom").write_text(f"#!/usr/bin/env bash\n{SBOM}")
    (folder / "scripts/sbom").chmod(0o755)
    path = f"{Path(COSIGN).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COSIGN_PASSWORD": "", "HOME": str(folder)}
    for key in ("cosign", "other"):
        subprocess.run([COSIGN, "generate-key-pair", "--output-key-prefix", folder / key], env=environment, check=True)
    with subprocess.Popen(
        [REGISTRY, "serve", folder / "config.yml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            _wait(address)
            yield Releases(address, folder, environment)
        finally:
            server.terminate()
            left = docker("images", "--quiet", f"{address}/rocmlab/cpu").split()  # which another one took the name of
            subprocess.run(["docker", "image", "rm", "--force", *left], capture_output=True, check=False)


def _wait(address: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://{address}/v2/", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)


@pytest.fixture
def lab(releases: Releases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerLab]:
    """A lab that would have to be built, on a base that no one has."""
    monkeypatch.setenv("PATH", releases.environment["PATH"])
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(REPOSITORY / "docker", tmp_path / "docker")
    chosen = {"PULL": "on", "PULL_FROM": f"{releases.address}/rocmlab", "PULL_KEY": str(releases.folder / "cosign.pub")}
    values = {
        "ROCMLAB_BACKEND": "cpu",
        "ROCMLAB_IMAGE": f"rocmlab-pull-test:{secrets.token_hex(4)}",
        "PORT": "1",
        "JUPYTER_TOKEN": "t",
        "BASE_IMAGE": f"{releases.address}/no-such-base:1",
    }
    found = DockerLab(settings.load(tmp_path, chosen), values, Engine(is_usable=True, root=str(tmp_path / "absent")))
    yield found
    names = (
        found.image,
        found.previous_image,
        "rocmlab-released:test",
        f"{releases.address}/rocmlab/cpu:{__version__}",
    )
    done = subprocess.run(["docker", "image", "rm", "--force", *names], capture_output=True, text=True, check=False)
    assert not docker("images", "--quiet", found.image), done.stderr


def small(lab: DockerLab, inputs: str) -> str:
    """Make an image of one file with this label, and return its name."""
    path = lab.settings.project / "layer.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(Path(__file__), "a-file")
    name = "rocmlab-released:test"
    docker("import", f"--change=LABEL rocmlab.inputs={inputs}", "--change=LABEL rocmlab.backend=none", str(path), name)
    return name


def prepared(lab: DockerLab) -> list[str]:
    """Prepare the lab, and return what was printed; a build fails here at its base image."""
    printed: list[str] = []
    try:
        lab.prepare(printed.append)
    except RocmlabError as err:
        printed.append("built" if "could not pull the base image" in err.problem.what else str(err))
    return printed


def test_a_verified_image_of_the_same_files_is_used(lab: DockerLab, releases: Releases) -> None:
    """By its digest; one line names it and who signed it, and nothing is built."""
    releases.release(small(lab, lab.inputs))
    docker("image", "rm", "rocmlab-released:test", f"{releases.address}/rocmlab/cpu:{__version__}")

    printed = prepared(lab)

    assert lab.is_prepared()
    assert "built" not in printed
    assert f"{lab.image} is the released {releases.address}/rocmlab/cpu@sha256:" in printed[-1]
    assert printed[-1].endswith(f"signed by the key {releases.folder}/cosign.pub")
    names = docker("image", "inspect", "--format", "{{.RepoTags}} {{.RepoDigests}}", lab.image)
    assert names.strip() == f"[{lab.image}] []"  # so it is removed as unused when a newer one comes


def test_an_image_of_other_files_is_built_here(lab: DockerLab, releases: Releases) -> None:
    """It is not even downloaded."""
    releases.release(small(lab, "of-other-files"))
    docker("image", "rm", "rocmlab-released:test", f"{releases.address}/rocmlab/cpu:{__version__}")

    printed = prepared(lab)

    assert printed[0].startswith(BUILT)
    assert printed[0].endswith("is made from other files or settings than yours")
    assert printed[-1] == "built"
    assert not lab.is_built()


def test_an_image_that_someone_else_signed_is_never_used(lab: DockerLab, releases: Releases) -> None:
    """Nor one with a label that its signature does not have, moved to the tag of a signed one."""
    name = f"{releases.address}/rocmlab/cpu:{__version__}"
    releases.release(small(lab, lab.inputs), key="other")
    by_another = prepared(lab)

    lab.engine(
        "import", "--change", f"LABEL rocmlab.inputs={lab.inputs}", str(lab.settings.project / "layer.tar"), name
    )
    docker("push", "--quiet", name)
    unsigned = prepared(lab)

    for printed in (by_another, unsigned):
        assert printed[0].startswith(f"{BUILT}{name} is not verified as signed by the key")
        assert printed[-1] == "built"
    assert not lab.is_built()


def test_without_cosign_it_is_built_here(lab: DockerLab, releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line has the command; an image is never used unverified."""
    releases.release(small(lab, lab.inputs))
    monkeypatch.setitem(lab.environment, "PATH", _without(lab, "cosign"))

    printed = prepared(lab)

    assert printed[0].startswith(f"{BUILT}cosign, which verifies it, is missing: install it")
    assert printed[-1] == "built"
    assert not lab.is_built()


def _without(lab: DockerLab, program: str) -> str:
    """Return a PATH with docker alone."""
    folder = lab.settings.project / "bin"
    folder.mkdir()
    (folder / "docker").symlink_to(shutil.which("docker") or "docker")
    assert not shutil.which(program, path=str(folder))
    return str(folder)
