"""`rocmlab bench train`: what is printed and kept, and that a CPU's figure is never a GPU's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking import train as rows
from rocmlab.cli import bench, bench_train, train_page, train_pairs

FC, CNN = train_pairs.WORKLOADS[:2]
CPU = {"backend": "cpu", "name": "A CPU", "index": 0, "pci": None, "simulated": False}
GPU = {"backend": "rocm", "name": "Radeon <Pro>", "index": 0, "pci": None, "simulated": False}


def measured(name: str = "mnist_fc_jax", *, scale: float = 1.0) -> dict[str, Any]:
    """What a process of a row answers: 10,000 samples an epoch, at 50 and 100 µs each."""
    return {
        "name": name,
        "seconds": [0.4 * scale, 0.5 * scale, 0.6 * scale],
        "seconds_theirs": [1.0 * scale, 0.9 * scale, 1.2 * scale],
        "seconds_compile": 3.21,
        "seconds_compile_theirs": 1.5,
        "how": "one program an epoch <scan>",
        "device": CPU,
        "framework": "jax",
        "samples": 10_000,
        "batch_size": 128,
        "parameters": 669_706,
        "accuracy": 0.97,
        "accuracy_theirs": 0.96,
        "versions": {"keras": "3.15", "jax": "0.10"},
        "median_seconds": 0.5 * scale,
    }


def job(stem: str, device: dict[str, Any] | None, microseconds: float, **more: Any) -> dict[str, Any]:
    """One job of a results.json."""
    recorded = {
        "workload": stem,
        "framework": "tensorflow",
        "device": device,
        "microseconds_per_sample": microseconds,
        "seconds_per_epoch": microseconds * 0.06,
        "acceptance": {"name": "test_accuracy", "value": 0.97, "threshold": 0.94, "ok": True},
    }
    devices = [{"backend": "rocm", "index": 0, "name": "Radeon <Pro>", "energy_joules": 500.0}]
    found = {"notebook": f"/somewhere/{stem}.ipynb", "status": "ok", "error": None, "simulated": False, "seconds": 9.0}
    return {**found, "recorded": recorded, "devices": devices, **more}


def report(**more: Any) -> dict[str, Any]:
    """A whole report with notebooks on both sides, one of them refused."""
    jobs = {
        "gpu": [job(FC.prefix, GPU, 2.0), job(CNN.prefix, CPU, 77.7)],
        "cpu": [job(FC.prefix, CPU, 80.0), job(CNN.prefix, CPU, 95.0)],
    }
    return {
        "bench": "train",
        "measured": "2026-11-21T10:00:00Z",
        "device": "A CPU",
        "simulated": False,
        "versions": {"rocmlab": "0.1.0", "jax": "0.10"},
        "rows": [bench_train._row(measured())],
        "skipped": {"mnist_fc_torch": "python has no torch"},
        "failed": {"unet_jax": {"what": "it <ended> with 3", "why": "no memory", "fix": "less of it"}},
        "notebooks": {
            "full": False,
            "repeats": 1,
            "gpu": "Radeon <Pro>",
            "published": train_pairs.WHEN,
            "runs": [],
            "rows": [train_pairs.row(one, jobs) for one in (FC, CNN)],
        },
        **more,
    }


def test_a_row_is_what_every_bench_promises() -> None:
    """Microseconds a sample, medians, how many times better, least and most; compiling apart."""
    row = bench_train._row(measured())

    assert (row["name"], row["unit"], row["runs"]) == ("mnist_fc_jax", "us/sample", 3)
    assert (row["ours"], row["theirs"], row["ratio"]) == (50.0, 100.0, 2.0)
    assert row["spread"] == (40.0, 60.0)
    assert row["seconds_compile"] == 3.21
    assert row["how"] == "one program an epoch <scan>"
    assert row["device"]["name"] == "A CPU"


def test_a_gpus_figure_stands_beside_the_cpus() -> None:
    """Ratio, energy and the framework's own word for the device."""
    row = report()["notebooks"]["rows"][0]

    assert row["ratio"] == 40.0
    assert row["sides"]["gpu"]["device"] == "Radeon <Pro>"
    assert row["sides"]["gpu"]["energy_joules"] == 500.0
    assert row["sides"]["cpu"]["microseconds_per_sample"] == 80.0


def test_what_a_cpu_computed_is_no_gpus_figure() -> None:
    """The job was pinned to a GPU and its framework fell back to the CPU: no figure, no ratio, the reason."""
    row = report()["notebooks"]["rows"][1]
    shown = "\n".join(bench_train.lines(report()))
    page = train_page.render(report())

    assert row["ratio"] is None
    assert row["sides"]["gpu"]["microseconds_per_sample"] is None
    assert "it computed on A CPU, which is not a result of a GPU" in row["sides"]["gpu"]["problem"]
    for text in (shown, page):
        assert "which is not a result of a GPU" in text
        assert "77.7" not in text


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"simulated": True}, "simulated"),
        ({"status": "failed", "error": {"name": "AssertionError", "value": "misses 0.945"}}, "misses 0.945"),
    ],
)
def test_a_job_that_is_no_measurement_is_told(more: dict[str, Any], word: str) -> None:
    """A simulated GPU and a missed acceptance have no figure."""
    row = train_pairs.row(FC, {"gpu": [job(FC.prefix, GPU, 2.0, **more)], "cpu": [job(FC.prefix, CPU, 80.0)]})

    assert row["ratio"] is None
    assert word in row["sides"]["gpu"]["problem"]
    assert row["sides"]["gpu"]["microseconds_per_sample"] is None


def test_several_runs_have_a_median_and_a_spread() -> None:
    """Three runs of a side; one alone has no spread."""
    jobs = {"cpu": [job(FC.prefix, CPU, value) for value in (90.0, 70.0, 80.0)]}

    side = train_pairs.row(FC, jobs)["sides"]["cpu"]

    assert side["microseconds_per_sample"] == 80.0
    assert side["spread"] == [70.0, 90.0]
    assert train_pairs.row(FC, {"cpu": jobs["cpu"][:1]})["sides"]["cpu"]["spread"] is None


def test_the_articles_figures_stand_beside_ours() -> None:
    """Each of those that were published, marked as old and from other hardware."""
    text = " ".join(one.published for one in train_pairs.WORKLOADS)

    assert all(figure in text for figure in ("47", "43", "2.78", "2.1 times", "328 ms", "1.59", "2.37", "0.42", "2.14"))
    assert "sample" in FC.published
    assert "425" not in text, "that is a CPU's"
    assert train_pairs.WHEN == "published 2019-2022, other hardware"
    assert train_pairs.WHEN in train_page.render(report())
    assert train_pairs.WHEN in "\n".join(bench_train.lines(report()))


def test_notebooks_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    """One is enough; none is an error."""
    with pytest.raises(RocmlabError, match="has none of the notebooks"):
        train_pairs.present(tmp_path)
    (tmp_path / "01_mnist_fc.ipynb").write_text("{}")

    assert [one.prefix for one, _ in train_pairs.present(tmp_path)] == ["01_mnist_fc"]


class _Loads(HTMLParser):
    """Finds whatever a page would fetch or run, and elements that are not closed."""

    VOID = ("meta", "br", "line", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.found += [tag] if tag in ("script", "link", "img", "iframe") else []
        self.found += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close it."""
        assert tag in self.VOID or self.open.pop() == tag


def test_the_page_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    """It is kept next to the JSON; names from outside are text and no markup."""
    files = bench_train.store(report(), tmp_path / "bench", "20261121T100000Z-train")
    page = Path(files["html"]).read_text(encoding="utf-8")
    reader = _Loads()
    reader.feed(page)

    assert reader.found == []
    assert reader.open == []
    assert sorted(path.name for path in (tmp_path / "bench").iterdir()) == [
        "20261121T100000Z-train.html",
        "20261121T100000Z-train.json",
    ]
    assert json.loads(Path(files["json"]).read_text(encoding="utf-8"))["rows"][0]["ours"] == 50.0
    assert "Radeon &lt;Pro&gt;" in page
    assert "<Pro>" not in page
    assert page.count("<svg") == 2


def fake_kernel(folder: Path, program: str) -> None:
    """Make the kernel `torch` one whose interpreter runs this program in place of measuring; it has every backend."""
    python = folder / "python"
    python.write_text(f"#!{sys.executable}\nimport os, shutil, sys, time\nif sys.argv[1] != '-c':\n    {program}\n")
    python.chmod(0o755)
    spec = folder / "kernels/torch/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": [str(python)], "env": {}}))


def test_a_row_that_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first process fails: the second row is measured and kept, the failure is told, and the exit code is 1."""
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(measured()))
    fake_kernel(tmp_path, f"sys.exit(3) if 'cnn' in sys.argv[3] else shutil.copy({str(answer)!r}, sys.argv[4])")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    words = ["--row", "mnist_cnn_jax", "--row", "mnist_fc_jax", "--share", str(tmp_path)]

    code = bench_train.main("bench", words)

    (kept,) = (tmp_path / "bench").glob("*-train.json")
    found = json.loads(kept.read_text(encoding="utf-8"))
    printed = capsys.readouterr()
    assert code == 1
    assert [row["ours"] for row in found["rows"]] == [50.0]
    assert "the process exited with 3" in found["failed"]["mnist_cnn_jax"]["what"]
    assert "mnist_cnn_jax: failed, mnist_cnn_jax was not measured" in printed.out
    assert "mnist_cnn_jax was not measured" in kept.with_suffix(".html").read_text(encoding="utf-8")
    assert "mnist_cnn_jax: failed" in printed.err
    assert "mnist_fc_jax: resident 50.00, fit 100.00 µs per sample, 2.00x" in printed.err
    assert str(kept) in printed.err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_the_process_of_a_row_ends_with_the_command(tmp_path: Path, repository: Path) -> None:
    """SIGTERM to the command alone, as a scheduler sends it: nothing continues computing behind it."""
    begun = tmp_path / "begun"
    draft = tmp_path / "draft"
    write = f"open({str(draft)!r}, 'w').write(str(os.getpid())), os.rename({str(draft)!r}, {str(begun)!r})"
    fake_kernel(tmp_path, f"{write}, time.sleep(600)")
    command = [sys.executable, "-m", "rocmlab", "bench", "train", "--row", "mnist_fc_jax", "--share", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(repository / "src"), "JUPYTER_PATH": str(tmp_path)}
    environment["ROCMLAB_RUNTIME"] = "native"  # as inside the lab
    run = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not begun.exists():
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    row = int(begun.read_text())

    run.terminate()
    run.wait(60)

    while is_running(row):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return whether a process is there and not just waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_report_without_notebooks_or_gpu_is_whole() -> None:
    """No GPU: one side, and it reports it."""
    jobs = {"cpu": [job(FC.prefix, CPU, 80.0)]}
    alone = {**report()["notebooks"], "gpu": None, "rows": [train_pairs.row(FC, jobs)]}
    page = train_page.render(report(notebooks=alone))
    plain = report()
    del plain["notebooks"]

    assert "No GPU was found" in page
    assert "The notebooks" not in train_page.render(plain)
    shown = "\n".join(bench_train.lines(plain))
    assert "mnist_fc_torch: not measured, python has no torch" in shown
    assert "unet_jax: failed, it <ended> with 3\n  why: no memory" in shown
    assert "unet_jax: failed, it &lt;ended&gt; with 3" in train_page.render(plain)


def test_bars_are_as_long_as_their_logarithm() -> None:
    """Ten times the value is one step further, whatever the value; nothing known is not a plot."""
    svg = train_page.bars([("a", ((1.0, None, 0), (10.0, None, 1), (100.0, (50.0, 200.0), 0)))], "µs")
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg)]

    assert widths[2] - widths[1] == pytest.approx(widths[1] - widths[0], abs=0.2)
    assert train_page.bars([("a", ((None, None, 0),))], "µs") == ""


@pytest.mark.parametrize("words", [["train", "--row", "mnist_fc_jaxx"], ["train", "--runs", "0"]])
def test_a_wrong_word_is_told_before_anything_is_prepared(words: list[str]) -> None:
    """On the host, where the next step would build a lab."""
    with pytest.raises(RocmlabError, match=words[1]) as caught:
        bench.main("bench", words)

    assert caught.value.exit_code == 2


def test_make_hands_its_words_over(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    """`make bench BENCH="train --runs 0"` gets as far as the words, through make and no shell."""
    if shutil.which("make") is None:
        pytest.skip("needs make: sudo apt install make")
    done = subprocess.run(
        ["make", "bench", "BENCH=train --runs 0", f"PYTHON={sys.executable}"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "0 is not a number of at least 1" in done.stderr
    monkeypatch.setenv("BENCH", "train '--quick")
    with pytest.raises(RocmlabError, match="BENCH cannot be read"):
        bench.main("bench", [])


def test_every_row_has_a_notebooks_network() -> None:
    """Names are workload and backend; the usual ones are among them."""
    assert set(rows.USUAL) <= set(rows.ROWS)
    assert len(rows.ROWS) == len(rows.WORKLOADS) * len(rows.BACKENDS)
