"""`%%profile_gpu rocprofv3`, with a program in its place that writes output in the layout that AMD documents."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.telemetry import rocprof

KERNEL = ("Kind", "Agent_Id", "Queue_Id", "Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name", "Correlation_Id")
TIMES = ("Start_Timestamp", "End_Timestamp")
COPY = ("Kind", "Direction", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id")
SEVEN = {"Agent_Id": ("Agent_Id",), "Queue_Id": ("Queue_Id", "Stream_Id"), "Direction": ("Direction", "Stream_Id")}
STAND_IN = """#!{python}
import pathlib, subprocess, sys
words = sys.argv[1:]
at = words.index("--")
folder = pathlib.Path(words[words.index("-d") + 1], "host")
assert words[words.index("--output-format") + 1:][:2] == ["csv", "pftrace"] and "--kernel-trace" in words
code = subprocess.call(words[at + 1:])
folder.mkdir(parents=True)
for name, text in {files!r}.items():
    (folder / name).write_text(text)
sys.exit(code)
"""


def table(heads: tuple[str, ...], *rows: dict[str, object], is_new: bool) -> str:
    """Return a file as ROCm 6.2, or as ROCm 7 with its further columns, writes it."""
    names = [name for head in heads for name in (SEVEN.get(head, (head,)) if is_new else (head,))] + list(TIMES)
    lines = [names, *([row.get(name, 1) for name in names] for row in rows)]
    quoted = [[f'"{value}"' if isinstance(value, str) else str(value) for value in each] for each in lines]
    return "".join(",".join(each) + "\n" for each in quoted)


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A share, and a folder for programs in front of all others."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path))
    return tmp_path


def put(folder: Path, files: dict[str, str]) -> None:
    """Put a program in rocprofv3's place that runs the script and leaves these files."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "rocprofv3"
    program.write_text(STAND_IN.format(python=sys.executable, files=files))
    program.chmod(0o755)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_script_has_a_table_of_its_kernels_and_a_trace(
    share: Path, is_new: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all its processes, copies included, the longest first; what it prints is shown; both layouts are read."""
    gemm = {"Kernel_Name": "void gemm<float, 2>(float*, int)", "Start_Timestamp": 1_000, "End_Timestamp": 4_001_000}
    relu = {"Kernel_Name": "relu(float*)", "Start_Timestamp": 5_000_000, "End_Timestamp": 5_500_000}
    copy = {
        "Direction": "MEMORY_COPY_HOST_TO_DEVICE" if is_new else "HOST_TO_DEVICE",
        "Start_Timestamp": 0,
        "End_Timestamp": 1_500_000,
    }
    put(
        share / "bin",
        {
            "7_kernel_trace.csv": table(KERNEL, gemm, relu, is_new=is_new),
            "8_kernel_trace.csv": table(KERNEL, gemm, is_new=is_new),
            "7_memory_copy_trace.csv": table(COPY, copy, is_new=is_new),
            "7_results.pftrace": "a trace" * 9,
            "8_results.pftrace": "a trace",
        },
    )

    found = rocprof.run("x = 6\nprint('product', x * 7)")

    shown = [(row.name, row.calls, round(row.seconds * 1e3, 3)) for row in found.rows]
    assert shown == [(str(gemm["Kernel_Name"]), 2, 8.0), ("copy host to device", 1, 1.5), ("relu(float*)", 1, 0.5)]
    assert found.path.parent == share / "profiles"
    assert found.path.read_text() == "a trace" * 9
    assert len(list((share / "profiles").iterdir())) == 2
    assert "product 42" in capsys.readouterr().out
    assert str(found).startswith("rocprofv3 · ")
    assert "4 GPU kernels and copies: 10.0 ms" in str(found)


@pytest.mark.parametrize(
    ("cell", "files", "what"),
    [
        ("%time 1", {}, "the cell is not a script"),
        ("raise SystemExit(3)", {}, "the script ended with exit code 3"),
        ("1", {"7_results.db": "x"}, "has seen no GPU kernel"),
    ],
)
def test_what_cannot_be_profiled_is_an_error(share: Path, cell: str, files: dict[str, str], what: str) -> None:
    """It names what is wrong; without a kernel also the files that were left, and nothing is kept."""
    put(share / "rocm/bin", files)

    with pytest.raises(RocmlabError, match=what) as refused:
        rocprof.run(cell)

    assert all(name in refused.value.problem.why for name in files)
    assert not (share / "profiles").exists()


@pytest.mark.usefixtures("share")
def test_without_rocprofv3_the_error_says_what_there_is_instead() -> None:
    """It is a part of ROCm, which a slim image or an NVIDIA host does not have."""
    with pytest.raises(RocmlabError, match="rocprofv3 was not found") as refused:
        rocprof.run("1")

    assert "%%profile_gpu" in refused.value.problem.fix
