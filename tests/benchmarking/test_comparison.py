"""The tables of the original articles: what is compared with what, and what never is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rocmlab.benchmarking import comparison, published, recorded, train
from rocmlab.benchmarking.comparison import Result

GPU = {"backend": "cuda", "name": "NVIDIA H200", "index": 0, "pci": None, "simulated": False}
CPU = {"backend": "cpu", "name": "AMD EPYC", "index": 0, "pci": None, "simulated": False}


def row(device: dict[str, Any] = GPU, workload: str = "mnist_fc", **values: Any) -> dict[str, Any]:
    """What `train_row` answers: an epoch of 1,000 samples, `fit_resident` in 1 ms and `fit` in 10 ms."""
    return {
        "workload": workload,
        "framework": "torch",
        "device": device,
        "samples": 1_000,
        "batch_size": 128,
        "size": 512,
        "seconds": [0.002, 0.001, 0.0005],
        "seconds_theirs": [0.010, 0.011, 0.009],
        "watts": 500.0,
        "watts_theirs": None,
        **values,
    }


def both() -> list[Result]:
    """The dense network on a GPU, and ten times as slow on a CPU."""
    slow = {"seconds": [0.01], "seconds_theirs": [0.1], "watts": None}
    return comparison.of_row(row(), "2026-11-23") + comparison.of_row(row(CPU, **slow), "2026-11-23")


def by_method(rows: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """This machine's rows of one kind of device."""
    return {one["method"]: one for one in rows if one.get("kind") == kind}


def test_a_row_gives_fit_and_fit_resident_apart() -> None:
    """Medians with their spread, ms per step, seconds of an epoch of the article, energy where power is known."""
    of_gpu = by_method(comparison.table("fc", both()), "cuda")

    assert list(of_gpu) == ["fit", "fit_resident"]
    assert of_gpu["fit"]["microseconds_per_sample"] == pytest.approx(10)
    assert of_gpu["fit"]["spread_microseconds"] == pytest.approx([9, 11])
    assert of_gpu["fit_resident"]["milliseconds_per_step"] == pytest.approx(0.128)
    assert of_gpu["fit_resident"]["seconds_per_epoch"] == pytest.approx(0.06)
    assert of_gpu["fit_resident"]["joules_per_epoch"] == pytest.approx(30)
    assert of_gpu["fit"]["joules_per_epoch"] is None


def test_ratios_compare_with_one_thing_that_differs() -> None:
    """The CPU with the same method; `fit` on the same device; nothing with itself."""
    rows = comparison.table("fc", both())
    of_gpu, of_cpu = by_method(rows, "cuda"), by_method(rows, "cpu")

    assert (of_gpu["fit"]["times_its_cpu"], of_gpu["fit_resident"]["times_its_cpu"]) == pytest.approx((10, 10))
    assert (of_gpu["fit_resident"]["times_fit"], of_cpu["fit_resident"]["times_fit"]) == pytest.approx((10, 10))
    assert (of_gpu["fit"]["times_fit"], of_cpu["fit"]["times_its_cpu"]) == (None, None)


def test_published_numbers_are_compared_with_fit_alone() -> None:
    """47 µs of an RX 480 of 2019 against 10 µs, and never against `fit_resident`; year and hardware are named."""
    rows = comparison.table("fc", both())
    of_gpu = by_method(rows, "cuda")

    assert of_gpu["fit"]["times_published"] == pytest.approx({"Radeon RX 480 (2019)": 4.7, "Tesla K80 (2019)": 4.3})
    assert of_gpu["fit_resident"]["times_published"] == {}
    last = [one for one in rows if one["published"]]
    assert [(one["device"], one["measured"], one["method"]) for one in last] == [
        ("Radeon RX 480 (2019)", "2019", "published"),
        ("Tesla K80 (2019)", "2019", "published"),
    ]


def test_other_settings_are_not_compared_with_the_article() -> None:
    """Another batch, other images, or a time per step whose batch the article does not give."""
    other = comparison.of_row(row(batch_size=1024), "") + comparison.of_row(row(workload="unet", size=128), "")
    other += comparison.of_row(row(workload="mnist_cnn_rmsprop"), "")

    assert [comparison.against_published(one) for one in other] == [{}] * 6
    same = comparison.of_row(row(workload="unet", batch_size=16), "")[0]
    assert comparison.against_published(same) == pytest.approx({"M1, 8 GPU cores (2021)": 32_800})


def test_mixed_precision_is_compared_with_float32() -> None:
    """On the same device, with the same method."""
    results = comparison.of_row(row(workload="unet"), "")
    results += comparison.of_row(row(workload="unet_mixed", seconds=[0.0005], seconds_theirs=[0.005]), "")

    mixed = [one for one in comparison.table("unet", results) if one["settings"].startswith("mixed")]

    assert [one["times_float32"] for one in mixed] == pytest.approx([2, 2])
    assert mixed[0]["hours_per_100000_samples"] == pytest.approx(1e5 * 5e-6 / 3600)
    assert mixed[0]["hours_per_100000_steps"] == pytest.approx(128e5 * 5e-6 / 3600)


def test_a_backend_is_compared_with_tensorflow_on_the_cpu() -> None:
    """As the article of 2019 did."""
    results = comparison.of_row(row(workload="mnist_cnn"), "")
    slow = row(CPU, workload="mnist_cnn", framework="tensorflow", seconds=[0.1], seconds_theirs=[0.0278])
    results += comparison.of_row(slow, "")

    of_gpu = by_method(comparison.table("cnn_backends", results), "cuda")

    assert of_gpu["fit"]["times_tensorflow_on_the_cpu"] == pytest.approx(2.78)
    assert of_gpu["fit_resident"]["times_tensorflow_on_the_cpu"] == pytest.approx(100)


def test_a_simulated_device_is_never_compared() -> None:
    """Neither shown, nor the other side of a ratio."""
    fake = comparison.of_row(row({**GPU, "simulated": True}), "2026-11-23")
    fake_cpu = comparison.of_row(row({**CPU, "simulated": True}), "2026-11-23")

    assert [one for one in comparison.table("fc", fake) if not one["published"]] == []
    assert [comparison.against_published(one) for one in fake] == [{}, {}]
    real = comparison.of_row(row(), "2026-11-23")
    assert comparison.ratio(real[0], [*real, *fake_cpu], kind="cpu") is None
    assert dict(comparison.every(fake)) == {}


def test_the_last_result_of_equal_settings_counts() -> None:
    """Of earlier runs the newest; what was measured now is next to it, and is compared with itself."""
    now = comparison.of_row(row(), "2026-11-23")
    old = [
        comparison.replace(one, source=f"run {day}", measured=day)
        for day in ("2026-11-20", "2026-11-21")
        for one in now
    ]

    rows = [one for one in comparison.table("fc", [*old, *now]) if not one["published"]]

    assert [(one["method"], one["measured"]) for one in rows] == [
        ("fit", "2026-11-23"),
        ("fit", "2026-11-21"),
        ("fit_resident", "2026-11-23"),
        ("fit_resident", "2026-11-21"),
    ]


def test_the_table_reads_as_markdown() -> None:
    """Spread in brackets, year and hardware of what it is compared with, empty where it is unknown."""
    columns = {
        "device": "device",
        "microseconds_per_sample": "µs",
        "times_published": "article",
        "joules_per_epoch": "J",
    }

    lines = comparison.markdown(comparison.table("fc", both()), columns).splitlines()

    assert lines[0] == "| device | µs | article | J |"
    assert lines[2] == "| NVIDIA H200 | 10.0 (9.00 … 11.0) | 4.70 x Radeon RX 480 (2019); 4.30 x Tesla K80 (2019) |  |"
    assert lines[3] == "| NVIDIA H200 | 1.00 (0.50 … 2.00) |  | 30.0 |"
    assert lines[-2] == "| Radeon RX 480 (2019) | 47.0 | called a step there: Keras 2 counted samples |  |"


def test_every_published_number_is_of_a_table() -> None:
    """And each table that `bench` measures is one."""
    assert {one.table for one in published.PUBLISHED} == set(comparison.TABLES)
    assert {name for name, _ in comparison.WORKLOADS.values()} <= set(comparison.TABLES)
    assert set(comparison.WORKLOADS) == set(train.WORKLOADS)


def job(recorded_values: dict[str, Any], **values: Any) -> dict[str, Any]:
    """One job of results.json."""
    given = {"name": "one", "status": "ok", "started": "2026-11-20T10:00:00Z", "parameters": {}, "simulated": False}
    common = {"framework": "torch", "device": GPU, "simulated": False}
    return {**given, "recorded": {**common, **recorded_values}, **values}


FC = {"workload": "mnist_fc", "parameters": 669_706, "epochs": 10, "batch_size": 128}
FC |= {"microseconds_per_sample": 1.5, "fit_microseconds_per_sample": 40.0}


@pytest.fixture
def runs(tmp_path: Path):
    """Return a function that keeps jobs as a run of the share and reads what may be compared of it."""

    def keep(*jobs: dict[str, Any], name: str = "20261120T100000Z-notebooks"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps({"jobs": jobs}), encoding="utf-8")
        return recorded.earlier(tmp_path)

    return keep


def of(results: list[Result]) -> list[tuple[str, str, str, float]]:
    """What matters of them, times in µs."""
    return [(one.table, one.method, one.variant, round(1e6 * one.seconds_per_sample, 3)) for one in results]


def test_earlier_runs_are_read_with_their_day(runs) -> None:
    """Both ways that notebook 01 recorded, with the run and its day."""
    results, left_out = runs(job(FC))

    assert of(results) == [("fc", "fit_resident", "batch 128", 1.5), ("fc", "fit", "batch 128", 40.0)]
    assert {(one.source, one.measured) for one in results} == {("20261120T100000Z-notebooks", "2026-11-20")}
    assert left_out == []


def test_short_simulated_and_failed_runs_are_left_out(runs) -> None:
    """With the reason, except for what failed; another network is not a result of the article."""
    results, left_out = runs(
        job(FC, name="short", parameters={"quick": True}),
        job(FC, name="pretended", simulated=True),
        job({**FC, "device": {**GPU, "simulated": True}}, name="fake"),
        job(FC, status="failed"),
        job({**FC, "parameters": 5_000_000}),
    )

    assert results == []
    assert [line.split(", ")[1].split(":")[0] for line in left_out] == ["short", "pretended", "fake"]


def test_a_single_epoch_of_fit_is_left_out(runs) -> None:
    """It compiled, so its time is not that of the others."""
    results, _ = runs(job({**FC, "fit_epochs": 1}))

    assert [one.method for one in results] == ["fit_resident"]


def test_an_older_record_has_one_way(runs) -> None:
    """Before both were recorded, `resident` distinguished them."""
    old = {name: value for name, value in FC.items() if not name.startswith("fit_")}

    results, _ = runs(job({**old, "resident": False}), job({**old, "resident": True, "batch_size": 64}))

    assert of(results) == [("fc", "fit", "batch 128", 1.5), ("fc", "fit_resident", "batch 64", 1.5)]


def test_every_notebook_of_an_article_is_read(runs) -> None:
    """02, 06, 07 and 08, each for its table, with the device of each side."""
    training = {"optimizer": "rmsprop", "epochs": 50, "batch_size": 128}
    results, _ = runs(
        job({"workload": "mnist_cnn", "training": training, "microseconds_per_sample": 5.8}),
        job(
            {
                "workload": "segmentation_unet",
                "size": 512,
                "batch_size": 16,
                "parameters": 20_886_706,
                "milliseconds_per_picture": {"float32": 3.1, "mixed_float16": 2.5},
                "fit_milliseconds_per_picture": 9.3,
            }
        ),
        job(
            {
                "workload": "bert_trec",
                "model": "minilm",
                "settings": {"batch": 32},
                "step_milliseconds": {"full": {"cpu": 640.0, "cuda": 32.0}, "frozen": {"cuda": 16.0}},
            }
        ),
        job(
            {
                "workload": "bert_inference",
                "model": "bert-base-random",
                "data": "trec",
                "seconds_by_batch": {"cpu": {"8": [0.08, 0.09, 0.07]}, "device": {"8": [0.008]}},
            }
        ),
    )

    assert of(results) == [
        ("cnn_devices", "fit_resident", "RMSprop, batch 128", 5.8),
        ("unet", "fit_resident", "float32, 512 px, batch 16", 3_100),
        ("unet", "fit_resident", "mixed_float16, 512 px, batch 16", 2_500),
        ("unet", "fit", "float32, 512 px, batch 16", 9_300),
        ("bert_training", "loop", "all weights, batch 32, padded by batch, minilm", 20_000),
        ("bert_training", "loop", "all weights, batch 32, padded by batch, minilm", 1_000),
        ("bert_training", "loop", "head only, batch 32, padded by batch, minilm", 500),
        ("bert_batches", "loop", "batch 8", 10_000),
        ("bert_batches", "loop", "batch 8", 1_000),
    ]
    assert [one.kind for one in results[-2:]] == ["cpu", "cuda"]
    assert comparison.ratio(results[-1], results, kind="cpu") == pytest.approx(10)
    assert comparison.against_published(results[-1])["M1, GPU (2022)"] == pytest.approx(189 / 8, rel=0.01)


def test_a_damaged_run_does_not_stop_the_others(runs, tmp_path: Path) -> None:
    """What cannot be read is skipped."""
    for name, text in (
        ("20261121T100000Z-a", "{"),
        ("20261121T110000Z-b", '{"jobs": [1]}'),
        ("20261121T120000Z-c", "[]"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(text, encoding="utf-8")

    results, _ = runs(job({"workload": "mnist_fc"}), job(FC))

    assert len(results) == 2


@pytest.mark.parametrize(
    ("notebook", "names"),
    [
        ("01_mnist_fc", "parameters epochs batch_size microseconds_per_sample"),
        ("02_mnist_cnn", "training microseconds_per_sample"),
        ("06_segmentation_unet", "size batch_size parameters milliseconds_per_picture"),
        ("07_bert_trec", "model settings"),
        ("08_bert_inference_batches", "model data seconds_by_batch"),
    ],
)
def test_the_notebooks_record_what_is_read(notebook: str, names: str) -> None:
    """Under these names, each with the workload that its reader is found by."""
    path = Path(__file__).parents[2] / "notebooks" / f"{notebook}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")

    assert any(f'workload="{workload}"' in source for workload in recorded.READERS)
    assert [name for name in names.split() if not re.search(rf"\b{name}\b", source)] == []
