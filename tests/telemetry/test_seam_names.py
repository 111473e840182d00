"""What stands in front of a process's command line, and in its place."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from rocmlab.simulation import GpuUse, Live
from rocmlab.telemetry.model import GpuProcess, Owner
from rocmlab.telemetry.seam.gpus import PID_LIMIT, Gpus
from rocmlab.telemetry.seam.names import MAX_WORD, described, label, show_notebooks


def process(owner: Owner | None = None, **more: object) -> GpuProcess:
    """Return a process on a GPU."""
    return GpuProcess("0000:03:00.0", 4711, owner=owner, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (None, []),
        (Owner("process"), []),
        (Owner("kernel", notebook="a/b.ipynb", kernel_name="torch-gpu0"), ["a/b.ipynb", "kernel:torch-gpu0"]),
        (Owner("job", notebook="b.ipynb", run="1-night", job="b"), ["b.ipynb", "run:1-night"]),
        (Owner("container", container="0123456789ab"), ["container:0123456789ab"]),
        (Owner("kernel", notebook="b.ipynb", is_estimated=True), ["probably", "b.ipynb"]),
        (Owner("process", is_estimated=True), []),
        (Owner("kernel", notebook="a\n\x1b[31m\u202eb"), ["a??[31m?b"]),
    ],
)
def test_owners_have_words(owner: Owner | None, words: list[str]) -> None:
    """The notebook first; nothing in it can steer a terminal."""
    assert label(process(owner)) == words


def test_long_names_are_cut() -> None:
    """A notebook of 10 kB leaves room for the command."""
    (word,) = label(process(Owner("kernel", notebook="x" * 10_000)))

    assert len(word) == MAX_WORD
    assert word.endswith("…")


def test_a_process_that_cannot_be_seen_is_described() -> None:
    """By its command, its program, or its number."""
    assert described(process(command="python3 -m x", name="python3")) == ["python3", "-m", "x"]
    assert described(process(name="python3")) == ["python3"]
    assert described(process()) == ["process 4711 of the host"]


def test_only_processes_on_gpus_are_renamed(tmp_path: Path) -> None:
    """Others, and processes that do not exist, are psutil's own affair."""
    uses = [GpuUse(os.getpid()), GpuUse(41001, gpu=1, command=("python3", "train.py"))]
    Live(tmp_path / "host", processes=uses)

    class Stand(psutil.Process):  # so that psutil itself stays as it is
        pass

    gpus = Gpus(tmp_path / "host", with_owners=True)
    gpus.open()
    show_notebooks(gpus, Stand)
    made_up = object.__new__(Stand)
    made_up._pid = 41001 + PID_LIMIT

    assert Stand(os.getpid()).cmdline() == psutil.Process().cmdline()
    assert Stand(os.getppid()).cmdline() == psutil.Process(os.getppid()).cmdline()
    assert made_up.cmdline() == ["python3", "train.py"]
    gpus.close()
