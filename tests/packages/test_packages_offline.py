"""Packages from an index that is there once, and then is not."""

from __future__ import annotations

import functools
import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from own_packages import has, offer

from rocmlab.packages import installing
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("place", ["uv"], indirect=True),
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl, for a certificate"),
]


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files, silently."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def index(folder: Path, certificate: Path) -> Iterator[str]:
    """Serve an index over HTTPS, and yield its address."""
    handler = functools.partial(Files, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1, with its key."""
    path = tmp_path / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*command, "-keyout", tmp_path / "key", "-out", tmp_path / "cert"], check=True, capture_output=True)
    path.write_text((tmp_path / "key").read_text() + (tmp_path / "cert").read_text())
    return path


@pytest.mark.long
def test_the_list_is_installed_again_without_a_network(
    place: Place, tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was installed once is in the cache on the share: for another image, and when another package is removed."""
    for name in ("harmless", "helper"):
        folder = tmp_path / "index/simple" / name
        folder.mkdir(parents=True)
        file = offer(folder, name, "1.0")
        (folder / "index.html").write_text(f'<a href="{file.name}">{file.name}</a>')
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "cert"))
    with index(tmp_path / "index", certificate) as address:
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
        installing.add(place, [Requirement("harmless"), Requirement("helper")], print)
    shutil.rmtree(place.folder)

    installing.sync(place, print)

    assert has(place) == {"harmless": "1.0", "helper": "1.0"}
    installing.remove(place, ["helper"], print)
    assert has(place) == {"harmless": "1.0"}
