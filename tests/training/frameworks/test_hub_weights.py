"""Weights by their name on the Hugging Face Hub: from a small server that speaks its protocol, or without any."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import rocmlab
from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets import hub

huggingface_hub = pytest.importorskip(
    "huggingface_hub", reason="huggingface_hub comes with transformers, in the kernel torch"
)
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "torch") != "torch", reason="run it with KERAS_BACKEND=torch"),
]
SRC = Path(rocmlab.__file__).parents[1]
REVISION = "0" * 40
CONTENT = {"config.json": b'{"model_type": "bert"}', "model.safetensors": b"weights", "pytorch_model.bin": b"twice"}
PROGRAM = """
import sys
from pathlib import Path
from rocmlab.training.datasets import hub
hub.minilm = lambda share, progress: Path("the small one")
name, folder = hub.pretrained(sys.argv[1], progress=print)
print(name, sorted(path.name for path in folder.iterdir()) if folder.is_dir() else folder)
"""


class Hub(BaseHTTPRequestHandler):
    """Has one model, tiny/bert."""

    def do_GET(self):
        """Answer with the list of files, or with a file."""
        self._answer(with_body=True)

    def do_HEAD(self):
        """Answer with the headers only."""
        self._answer(with_body=False)

    def log_message(self, *_):
        """Print nothing."""

    def _answer(self, with_body):
        file = self.path.rsplit("/", 1)[-1]
        if "tiny/busy" in self.path:
            self.send_error(503)
            return
        if self.path.startswith("/api/models/tiny/bert/revision/"):
            siblings = [{"rfilename": name} for name in CONTENT]
            body = json.dumps({"id": "tiny/bert", "sha": REVISION, "siblings": siblings}).encode()
        elif self.path.startswith("/api/models/tiny/bert/tree/"):
            files = [{"type": "file", "path": name, "size": len(data), "oid": "1"} for name, data in CONTENT.items()]
            body = json.dumps(files).encode()
        elif self.path.startswith("/tiny/bert/resolve/") and file in CONTENT:
            body = CONTENT[file]
        else:
            body = None
        self.send_response(200 if body is not None else 404)
        self.send_header("X-Repo-Commit", REVISION)
        if body is None:
            self.send_header("X-Error-Code", "RepoNotFound")
        else:
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if with_body:
            self.wfile.write(body or b"")


@pytest.fixture
def endpoint():
    """Return the address of the server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def ask(name, endpoint, folder, **more):
    """Return what a new process prints that wants this model."""
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **more}
    env = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"} | own | {"PYTHONPATH": str(SRC)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, name], env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_model_is_downloaded_by_its_name_and_kept(endpoint, tmp_path):
    """Weights as safetensors and the small files are downloaded, and used again without the Hub."""
    first = ask("tiny/bert", endpoint, tmp_path)
    second = ask("tiny/bert", "http://127.0.0.1:9", tmp_path)

    assert first.stdout == "tiny/bert ['config.json', 'model.safetensors']\n", first.stderr
    assert second.stdout == first.stdout, second.stderr


def test_without_the_hub_the_small_model_is_named_and_used(tmp_path):
    """The message names both models; the returned name is the one that is used."""
    done = ask("bert-base-uncased", "http://127.0.0.1:9", tmp_path)

    message, answer = done.stdout.splitlines()
    assert "bert-base-uncased" in message
    assert "minilm" in message
    assert answer == "minilm the small one"


@pytest.mark.parametrize("proxy", ["refuses", "none://nowhere:1", "http://[broken"])
def test_a_proxy_that_does_not_work_is_named(endpoint, tmp_path, proxy):
    """Not as a traceback; the small model is used, unless the model is there from before."""
    given = endpoint if proxy == "refuses" else proxy
    own = {name: given for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")} | {"NO_PROXY": "", "no_proxy": ""}

    done = ask("tiny/bert", "https://hub.invalid", tmp_path / "empty", **own)
    kept = (
        ask("tiny/bert", endpoint, tmp_path / "kept"),
        ask("tiny/bert", "https://hub.invalid", tmp_path / "kept", **own),
    )

    assert [each.stdout for each in kept] == ["tiny/bert ['config.json', 'model.safetensors']\n"] * 2, kept[1].stderr
    message, answer = done.stdout.splitlines() if not done.returncode else ("", "")
    assert message.startswith("tiny/bert: the Hugging Face Hub cannot be reached from here"), done.stderr
    assert answer == "minilm the small one"


def test_a_model_that_the_hub_does_not_have_is_an_error(endpoint, tmp_path):
    """A misspelled name is not replaced by another model."""
    done = ask("tiny/brt", endpoint, tmp_path)

    assert done.returncode == 1
    assert "model='tiny/brt' was not found on the Hugging Face Hub" in done.stderr


def test_what_cannot_be_a_name_is_an_error(endpoint, tmp_path):
    """It is not replaced by another model either."""
    done = ask("tiny/b--rt", endpoint, tmp_path)

    assert "model='tiny/b--rt' is not a name of a model" in done.stderr


def test_an_answer_of_the_hub_is_named(endpoint, tmp_path):
    """One that answers can be reached: the message has the status."""
    done = ask("tiny/busy", endpoint, tmp_path)

    assert done.stdout.startswith("tiny/busy: the Hugging Face Hub answered with status 503; minilm"), done.stderr


def test_a_folder_that_cannot_keep_the_model_is_an_error(monkeypatch):
    """A full disk is named, and the model is not replaced."""

    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)

    with pytest.raises(RocmlabError, match="tiny/bert cannot be kept in ") as caught:
        hub.pretrained("tiny/bert")

    assert "No space left on device" in caught.value.problem.why
