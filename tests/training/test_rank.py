"""One rank of a launch."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rocmlab.training import rank

DESTRUCTOR = """
import os, sys
class Kept:
    def __del__(self, end=os._exit): end(9)
sys.kept = Kept()
"""
UNFINISHED = """
import atexit, gzip, logging, pickle, threading, time
class Weights: pass
def log(text): out.write(text)
def save():
    time.sleep(0.3)
    with open("checkpoint.pt", "wb") as file: pickle.dump(Weights(), file)
out, logging.kept = open("losses.csv", "w"), open("held.bin", "wb")
packed = gzip.open("losses.gz", "wt")
log("0.5")
logging.kept.write(b"1.5")
packed.write("2.5")
atexit.register(lambda: print("end", flush=True))
threading.Thread(target=save).start()
print("printed", end=" ")
"""


@pytest.mark.parametrize(
    ("script", "code", "says"),
    [
        ("import sys; print(sys.argv[1:], __name__)", 0, "['a', 'b'] __main__"),
        (DESTRUCTOR + "print('done')", 0, "done"),
        ("raise ValueError('seen')", 1, "ValueError: seen"),
        ("import sys; sys.exit(5)", 5, ""),
        ("import sys; sys.exit('why')", 1, "why"),
        ("from beside import word; print(word)", 0, "found"),
    ],
    ids=["arguments", "ending", "exception", "code", "message", "imports"],
)
def test_a_script_runs_as_by_itself_and_ends_at_once(tmp_path: Path, script: str, code: int, says: str) -> None:
    """Arguments, imports from its folder, exit codes and tracebacks are the script's; what trips at the end is not."""
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "beside.py").write_text("word = 'found'")

    command = [sys.executable, rank.__file__, str(tmp_path / "script.py"), "a", "b"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == code
    assert says in done.stdout + done.stderr


@pytest.mark.parametrize(("last", "code"), [("", 0), ("raise ValueError", 1)], ids=["success", "failure"])
def test_what_a_script_has_not_written_yet_is_written(tmp_path: Path, last: str, code: int) -> None:
    """Threads end, functions of atexit run, and open files are complete, as in a process of its own."""
    (tmp_path / "script.py").write_text(UNFINISHED + last)

    done = subprocess.run(
        [sys.executable, rank.__file__, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == code
    assert done.stdout == "printed end\n"
    assert b"Weights" in (tmp_path / "checkpoint.pt").read_bytes()
    assert (tmp_path / "losses.csv").read_text() == "0.5"
    assert (tmp_path / "held.bin").read_bytes() == b"1.5"
    assert gzip.decompress((tmp_path / "losses.gz").read_bytes()) == b"2.5"


@pytest.mark.parametrize(
    "waits", ["threading.Thread(target=wait).start()", "atexit.register(wait)"], ids=["thread", "atexit"]
)
def test_what_does_not_end_keeps_no_failed_rank(tmp_path: Path, waits: str) -> None:
    """The launcher learns of the failure after a while, and ends the other ranks."""
    wait = "import atexit, threading, time\ndef wait(): time.sleep(600)\n"
    (tmp_path / "script.py").write_text(f"{wait}{waits}\nraise ValueError")
    program = "from rocmlab.training import rank; rank.END_SECONDS = 0.2; rank.run()"

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
        check=False,
    )

    assert done.returncode == 1


def test_a_file_that_a_thread_reads_does_not_hold_a_rank(tmp_path: Path) -> None:
    """As of a program whose output is still awaited."""
    script = "import os, threading\nfile = os.fdopen(os.pipe()[0])\n"
    (tmp_path / "script.py").write_text(script + "threading.Thread(target=file.read, daemon=True).start()\n")

    done = subprocess.run([sys.executable, rank.__file__, str(tmp_path / "script.py")], timeout=60, check=False)

    assert done.returncode == 0


FAKE = """
def _theirs(url, **options): raise AssertionError("a port was opened")
HANDLERS
def rendezvous(url): return _rendezvous_handlers["env"](url, timeout=1)
"""
MEET = """
import os, sys
os.environ["SET_BEFORE"] = "1"
assert "torch" not in sys.modules
from torch.distributed import rendezvous
for url in ("env://", "env://?rank=1&world_size=3"):
    store, rank, ranks = next(rendezvous.rendezvous(url))
    print(os.path.basename(store), rank, ranks)
"""


def run_with_fake_torch(tmp_path: Path, handlers: str) -> subprocess.CompletedProcess[str]:
    """Run MEET as a rank, with a PyTorch that has only a store in a file and these handlers."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("def FileStore(path, ranks): return path\n")
    (package / "rendezvous.py").write_text(FAKE.replace("HANDLERS", handlers))
    (tmp_path / "script.py").write_text(MEET)
    return subprocess.run(
        [sys.executable, rank.__file__, str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "ROCMLAB_RANK_STORE": "/s", "RANK": "0", "WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_ranks_meet_through_a_file_each_time_a_new_one(tmp_path: Path) -> None:
    """A script that lets PyTorch find the others as its documentation says opens no port; PyTorch is imported by it."""
    done = run_with_fake_torch(tmp_path, '_rendezvous_handlers = {"env": _theirs}')

    assert (done.returncode, done.stdout.splitlines()) == (0, ["store1 0 2", "store2 1 3"]), done.stderr


@pytest.mark.parametrize("handlers", ["_registered = {}", "_rendezvous_handlers = {}"], ids=["renamed", "empty"])
def test_a_pytorch_whose_store_cannot_be_chosen_is_an_error(tmp_path: Path, handlers: str) -> None:
    """Instead of opening a port without a warning."""
    done = run_with_fake_torch(tmp_path, handlers)

    assert done.returncode == 1
    assert "use another version of PyTorch" in done.stderr
