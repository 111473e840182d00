"""`make pin`: Docker's client reads a registry, a small one here."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from clones import REPOSITORY

pytestmark = pytest.mark.container

TYPE = "application/vnd.oci.image.manifest.v1+json"
EMPTY = f"sha256:{'44' * 32}"
MANIFEST = f"""{{"schemaVersion": 2, "mediaType": "{TYPE}",
 "config": {{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": "{EMPTY}", "size": 2}}, "layers": []}}
""".encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


class Registry(BaseHTTPRequestHandler):
    """One image, `base/one:1`."""

    def do_GET(self) -> None:
        """Answer with the manifest, by tag and by digest; HEAD has the same headers."""
        is_known = self.path in ("/v2/", "/v2/base/one/manifests/1", f"/v2/base/one/manifests/{DIGEST}")
        self.send_response(200 if is_known else 404)
        body = MANIFEST if is_known and self.path != "/v2/" else b"{}"
        self.send_header("Content-Type", TYPE)
        self.send_header("Docker-Content-Digest", DIGEST)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a registry on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def pin(file: Path) -> subprocess.CompletedProcess[str]:
    """Run scripts/pin on a list of images."""
    return subprocess.run([REPOSITORY / "scripts/pin", file], capture_output=True, text=True, check=False)


def test_tags_get_the_digests_of_now(tmp_path: Path, registry: str) -> None:
    """An older digest is replaced and shown; comments stay; a second time nothing changes."""
    file = tmp_path / "bases.txt"
    file.write_text(f"# a comment\n{registry}/base/one:1 sha256:00\n")

    first, text, second = pin(file), file.read_text(), pin(file)

    assert first.returncode == 0, first.stderr
    assert text == file.read_text() == f"# a comment\n{registry}/base/one:1 {DIGEST}\n"
    assert f"{registry}/base/one:1: {DIGEST}" in first.stderr
    assert second.stderr == ""


def test_a_registry_that_lacks_one_changes_nothing(tmp_path: Path, registry: str) -> None:
    """All digests are of one moment, or the file stays as it is."""
    file = tmp_path / "bases.txt"
    before = f"{registry}/base/one:1\n{registry}/base/none:1\n"
    file.write_text(before)

    done = pin(file)

    assert done.returncode == 2
    assert f"error: the digest of {registry}/base/none:1 is not known" in done.stderr
    assert file.read_text() == before
