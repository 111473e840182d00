"""The table of `%%profile_gpu`, from events as the three frameworks' profilers write them (synthetic traces)."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.telemetry import profiling
from rocmlab.telemetry.profile import Profile, Row, read, summarise

GPU = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:GPU:0"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "Stream #7(compute)"}},
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 8, "args": {"name": "XLA Ops"}},
    {"ph": "X", "pid": 1, "tid": 7, "name": "gemm", "ts": 0, "dur": 3000},
    {"ph": "X", "pid": 1, "tid": 7, "name": "gemm", "ts": 2000, "dur": 3000},
    {"ph": "X", "pid": 1, "tid": 8, "name": "dot.1", "ts": 0, "dur": 5000},
]


def events(*timed: tuple[str, float, float], **others: object) -> list[dict[str, object]]:
    """Return events of one thread: name, start and duration in µs."""
    return [{"ph": "X", "pid": 1, "tid": 1, "name": name, "ts": ts, "dur": dur, **others} for name, ts, dur in timed]


def test_kernels_of_pytorch_are_counted_and_operators_are_not() -> None:
    """Where a GPU ran something, only that is in the table, copies included, the longest first."""
    trace = [
        *events(("aten::mm", 0, 9000), cat="cpu_op"),
        *events(("copy", 0, 500), cat="gpu_memcpy"),
        *events(("gemm", 1000, 2000), ("gemm", 4000, 1000), cat="kernel"),
    ]

    is_gpu, rows = summarise(trace)

    assert is_gpu
    assert rows == [Row("gemm", 2, pytest.approx(3e-3)), Row("copy", 1, pytest.approx(5e-4))]


def test_kernels_of_xla_are_those_of_its_streams() -> None:
    """Its other lines on a GPU show the same time by operator; kernels of one stream that overlap count whole."""
    assert summarise(GPU) == (True, [Row("gemm", 2, pytest.approx(6e-3))])


@pytest.mark.parametrize(
    ("outer", "inner", "others"),
    [
        ("aten::matmul", "aten::mm", {"cat": "cpu_op"}),
        ("fusion", "dot.3", {"args": {"hlo_op": "x"}}),
    ],
)
def test_an_operator_has_only_its_own_time(outer: str, inner: str, others: dict[str, object]) -> None:
    """What it calls is in the rows of that; what is no operator is in none."""
    trace = [*events((outer, 0, 100), (inner, 10, 60), **others), *events(("ThreadpoolListener::Record", 0, 100))]

    assert summarise(trace) == (False, [Row(inner, 1, pytest.approx(60e-6)), Row(outer, 1, pytest.approx(40e-6))])


def test_operators_of_tensorflow_have_their_type_as_name() -> None:
    """Eager ones and those of a function, not the function around them."""
    trace = events(
        ("EagerLocalExecute: MatMul", 0, 10),
        ("dense/MatMul:MatMul", 20, 30),
        ("EagerLocalExecute: __inference_f_15", 0, 100),
    )

    assert summarise(trace) == (False, [Row("MatMul", 2, pytest.approx(40e-6))])


def test_the_table_says_what_computed_and_where_the_trace_is() -> None:
    """As text and as HTML, in which names are escaped; long ones are shortened, and the others are counted."""
    rows = [Row("void gemm<float>" + "x" * 100, 2, 0.003), *[Row(f"k{at}", 1, 0.0001) for at in range(15)]]

    profile = Profile("torch", 1.2, True, rows, Path("/share/profiles/p.json.gz"))
    nothing = Profile("jax", 1.2, False, [], Path("/share/profiles/p.json.gz"))

    assert str(profile) == "torch · 1.2 s · 17 GPU kernels and copies: 4.5 ms"
    assert "66.7 %" in repr(profile)
    assert "1 more name in the trace" in repr(profile)
    assert "/share/profiles/p.json.gz" in repr(profile)
    assert "void gemm&lt;float&gt;" in profile._repr_html_()
    assert str(nothing) == "jax · 1.2 s · 0 operators on the CPU, no GPU kernel seen: 0.0 ms"
    assert repr(nothing).count("\n") == 1


class Waits:
    """A profiler whose cell has queued work, for which it waits until it is interrupted."""

    def __init__(self, trace: str) -> None:
        self.trace, self.is_active = trace, False

    def start(self, folder: Path) -> Waits:
        """Begin, with a folder for the trace."""
        self.folder, self.is_active = folder, True
        return self

    def wait(self) -> None:
        """Be interrupted."""
        raise KeyboardInterrupt

    def stop(self) -> Path:
        """Return the trace."""
        self.is_active = False
        with gzip.open(self.folder / "trace.json.gz", "wt") as file:
            file.write(self.trace)
        return self.folder / "trace.json.gz"


@pytest.mark.parametrize("trace", [json.dumps({"traceEvents": GPU}), '{"traceEvents": [{'])
def test_an_interrupt_while_the_gpu_is_waited_for_ends_the_profiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trace: str
) -> None:
    """It would go on filling memory, and the next `%%profile_gpu` would find it active. The trace is kept."""
    pytest.importorskip("IPython")
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path))
    profiler = Waits(trace)

    with profiling.Profiling("torch", profiler.start):
        assert profiler.is_active

    assert not profiler.is_active
    assert not profiler.folder.exists()
    (path,) = (tmp_path / "profiles").iterdir()
    shown = capsys.readouterr()
    assert "2 GPU kernels" in shown.out or str(path) in shown.err
    assert ("2 GPU kernels" in shown.out) is trace.endswith("]}")


def test_a_trace_is_read_in_pieces() -> None:
    """A trace of minutes has gigabytes; wherever a piece ends, the events are the same, and too many are an error."""
    events = [{"name": 'a "]}', "args": {"n": [1, {}]}}, {}, {"name": "é", "ts": 1.5}]
    text = json.dumps({"deviceProperties": [{"id": 0}], "traceEvents": events, "end": [1]}, indent=1)
    for letters in (1, 7, 1000):
        assert list(read(io.StringIO(text), letters)) == events
        for broken in ("", "{}", text[:60], text[: text.index("1.5")]):
            with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
                list(read(io.StringIO(broken), letters))
    with pytest.raises(ValueError, match="more than 1 kernels"):
        summarise(GPU, most=1)


def test_whose_profiler_is_clear_or_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word counts before what the cell imports; Keras has that of its backend; an unknown word names ours."""
    monkeypatch.setenv("KERAS_BACKEND", "json")

    for word, cell, expected in (
        ("numpy", "import torch", "no profiler is known for numpy"),
        ("", "import torch\nfrom jax import numpy", "several frameworks are in use"),
        ("", "import keras", "no profiler is known for json"),
        ("", "1", "no framework is in use"),
    ):
        with pytest.raises(RocmlabError, match=expected):
            profiling.choose(word, cell)
