"""Fetching into the share: order of sources, corruption, several processes, a kill in the middle."""

from __future__ import annotations

import gzip
import http.server
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tiny

from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets import DATASETS, fetch, is_cached
from rocmlab.training.datasets.sources import Mirror


def contents(folder):
    """Return the visible files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.fixture
def packed(tmp_path):
    """Return the address of a folder with the .gz files."""
    return tiny.write_packed(tmp_path / "packed").as_uri() + "/"


@pytest.fixture
def server(tmp_path):
    """Serve the .gz files over loopback; `server.asked` lists requests, `server.gate` holds back the images."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.strip("/").removesuffix(".gz")
            here.asked.append(name)
            body = gzip.compress(tiny.CONTENT[name])
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:5])
            self.wfile.flush()
            here.gate.wait(30)
            self.wfile.write(body[5:])

        def log_message(self, *_):
            """Say nothing."""

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            """Say nothing of clients that a test killed."""

    with Server(("127.0.0.1", 0), Handler) as here:
        here.asked, here.gate = [], threading.Event()
        here.address = f"http://127.0.0.1:{here.server_address[1]}/"
        threading.Thread(target=here.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield here
        here.gate.set()
        here.shutdown()


def start_fetch(share, address):
    """Start a process of its own that fetches the tiny data set."""
    paths = os.pathsep.join([*map(str, {Path(tiny.__file__).parent}), *sys.path])
    command = [sys.executable, tiny.__file__, str(share), address]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_until(condition):
    """Wait up to 20 seconds for a condition."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_fetch_writes_canonical_files_and_then_finds_them(tmp_path, packed, register, lines):
    """A first fetch goes to the source, a second one only reads the share."""
    register(Mirror(packed, "a mirror"))

    folder = fetch("tiny", share=tmp_path, progress=lines.append)
    fetch("tiny", share=tmp_path, progress=lines.append)

    assert folder == tmp_path / "data" / "tiny"
    assert contents(folder) == tiny.CONTENT
    assert is_cached(DATASETS["tiny"], tmp_path)
    assert lines[0] == "tiny: trying a mirror"
    assert lines[1].startswith(f"tiny: from a mirror, now in the share, {folder} (")
    assert lines[2].startswith(f"tiny: checked, in the share, {folder} (")


def test_share_comes_from_the_environment_or_the_current_folder(tmp_path, packed, register, monkeypatch):
    """Without an argument the share is $ROCMLAB_SHARE, and without that ./share."""
    register(Mirror(packed, "a mirror"))
    monkeypatch.chdir(tmp_path)

    assert fetch("tiny") == tmp_path / "share/data/tiny"
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path / "elsewhere"))
    assert fetch("tiny") == tmp_path / "elsewhere/data/tiny"


def test_unknown_name_is_rejected(tmp_path):
    """A wrong name is answered with the right ones."""
    with pytest.raises(RocmlabError, match="'mnits' is not a data set") as caught:
        fetch("mnits", share=tmp_path)

    assert "mnist" in caught.value.problem.fix


def test_next_source_is_tried_when_one_fails_or_lies(tmp_path, packed, register, lines):
    """A source without the files, and one with wrong content, lead to the next one; each gives its reason."""
    wrong = tiny.write_packed(tmp_path / "wrong")
    (wrong / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    empty = (tmp_path / "nothing").as_uri() + "/"
    register(Mirror(empty, "empty"), Mirror(wrong.as_uri() + "/", "wrong"), Mirror(packed, "right"))

    folder = fetch("tiny", share=tmp_path, progress=lines.append)

    assert contents(folder) == tiny.CONTENT
    assert lines[1].startswith("tiny: no: ")
    assert lines[1].endswith("trying wrong")
    assert lines[2].startswith("tiny: no: its t10k-labels-idx1-ubyte is wrong: 14 bytes instead of 10; trying right")
    assert lines[3].startswith("tiny: from right")


def test_nothing_found_names_the_file_and_what_to_do(tmp_path, register):
    """When no source delivers, the error names the file, every source with its reason, and the way out."""
    register(Mirror((tmp_path / "nothing").as_uri() + "/", "empty"))

    with pytest.raises(RocmlabError) as caught:
        fetch("tiny", share=tmp_path)

    problem = caught.value.problem
    assert problem.what.startswith(str(tmp_path / "data/tiny/train-images-idx3-ubyte") + " is missing")
    assert problem.why.startswith("empty: ")
    assert "--data-dir" in problem.fix
    assert "t10k-labels-idx1-ubyte" in problem.fix


@pytest.mark.parametrize("damage", [b"", b"short", None], ids=["empty", "cut short", "one bit flipped"])
def test_corrupted_file_is_named_and_replaced(tmp_path, packed, register, lines, damage):
    """A damaged file in the share is reported and fetched again, and only that file."""
    register(Mirror(packed, "a mirror"))
    path = fetch("tiny", share=tmp_path) / "train-images-idx3-ubyte"
    flipped = bytearray(tiny.CONTENT[path.name])
    flipped[-1] ^= 1
    path.write_bytes(bytes(flipped) if damage is None else damage)
    untouched = (path.parent / "t10k-images-idx3-ubyte").stat().st_ino

    fetch("tiny", share=tmp_path, progress=lines.append)

    assert contents(path.parent) == tiny.CONTENT
    assert lines[0].startswith(f"tiny: {path} is corrupted (")
    assert (path.parent / "t10k-images-idx3-ubyte").stat().st_ino == untouched


def test_corrupted_file_stays_when_it_cannot_be_replaced(tmp_path, packed, register):
    """Without a source the damaged file is named and left as it is."""
    register(Mirror(packed, "a mirror"))
    path = fetch("tiny", share=tmp_path) / "t10k-images-idx3-ubyte"
    path.write_bytes(b"damaged")
    register()

    with pytest.raises(RocmlabError, match="t10k-images-idx3-ubyte is corrupted"):
        fetch("tiny", share=tmp_path)

    assert path.read_bytes() == b"damaged"


def test_files_a_person_put_into_the_share_are_taken(tmp_path, register, lines):
    """Downloads laid into the data set's folder as .gz need no network."""
    folder = tiny.write_packed(tmp_path / "data/tiny")
    register()

    fetch("tiny", share=tmp_path, progress=lines.append)

    assert all((folder / name).read_bytes() == content for name, content in tiny.CONTENT.items())
    assert lines[0] == f"tiny: trying files put into {folder}"


@pytest.mark.parametrize("form", ["argument", "environment", "nested"])
def test_data_folder_serves_sites_without_a_network(tmp_path, register, monkeypatch, form):
    """The data folder may be named by argument or environment, and may hold one folder per data set."""
    given = tmp_path / "usb"
    inner = given / "tiny" if form == "nested" else given
    inner.mkdir(parents=True)
    for name, content in tiny.CONTENT.items():  # raw, named as some downloads name them
        (inner / name.replace("-idx", ".idx")).write_bytes(content)
    register()
    if form == "environment":
        monkeypatch.setenv("ROCMLAB_DATA_DIR", str(given))

    folder = fetch("tiny", share=tmp_path / "share", data_dir=None if form == "environment" else given)

    assert contents(folder) == tiny.CONTENT


def test_data_folder_that_is_not_there_is_an_error(tmp_path, packed, register):
    """A mistyped data folder is an error and not a silent download."""
    register(Mirror(packed, "a mirror"))

    with pytest.raises(RocmlabError, match="usbb does not exist"):
        fetch("tiny", share=tmp_path, data_dir=tmp_path / "usbb")


def test_share_that_cannot_be_written_is_an_error(tmp_path, packed, register):
    """A share below a file is reported as what cannot be written."""
    register(Mirror(packed, "a mirror"))
    (tmp_path / "share").write_text("a file")

    with pytest.raises(RocmlabError, match="cannot be written"):
        fetch("tiny", share=tmp_path / "share")


def test_two_processes_fetch_once(tmp_path, server):
    """Of two processes one downloads; the other waits for it and finds the files."""
    first = start_fetch(tmp_path, server.address)
    wait_until(lambda: server.asked)
    second = start_fetch(tmp_path, server.address)
    waiting = second.stdout.readline()
    server.gate.set()
    said = first.communicate(timeout=30)[0], second.communicate(timeout=30)[0]

    assert (first.returncode, second.returncode) == (0, 0), said
    assert waiting == "tiny: another process is fetching it; waiting\n"
    assert "from the test's mirror" in said[0]
    assert "fetched by another process" in said[1]
    assert sorted(server.asked) == sorted(tiny.CONTENT)
    assert contents(tmp_path / "data/tiny") == tiny.CONTENT


def test_kill_in_the_middle_leaves_no_half_file(tmp_path, server, register):
    """After a kill during a download no file is there, and the next fetch succeeds and clears the remains."""
    process = start_fetch(tmp_path, server.address)
    wait_until(lambda: server.asked)
    process.kill()
    process.communicate(timeout=30)
    folder = tmp_path / "data/tiny"
    assert contents(folder) == {}
    assert list(folder.glob(".fetch-*"))

    server.gate.set()
    register(Mirror(server.address, "a mirror"))
    fetch("tiny", share=tmp_path)

    assert contents(folder) == tiny.CONTENT
    assert not list(folder.glob(".fetch-*"))
