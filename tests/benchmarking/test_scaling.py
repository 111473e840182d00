"""The scaling report: what is compared with what, and that a machine without two GPUs reports no speed."""

from __future__ import annotations

import json

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.benchmarking.scaling import measures, report, runs
from rocmlab.benchmarking.scaling.report import Plan
from rocmlab.cli import bench_multi_gpu


def gpus(count, name="NVIDIA H200"):
    """Return what PyTorch reports about that many GPUs."""
    return [
        {"backend": "cuda", "name": name, "index": number, "pci": None, "simulated": False} for number in range(count)
    ]


@pytest.fixture
def machine(monkeypatch):
    """Return a function that gives this machine GPUs on which everything takes as long as on real ones did."""
    asked = []

    def ddp(listed, *, processes=None, gpus=(), **_):
        count = processes or len(gpus)
        asked.append(("ddp", count, [one["name"] for one in listed]))
        return {one["name"]: {"name": one["name"], **results(one, count), "torch": "2.11.0"} for one in listed}

    def results(one, count):
        if one.get("check_steps"):
            return {"losses": [2.0, 1.5], "losses_alone": [2.0, 1.4375], "replicas_equal": True}
        if one.get("compile"):
            return {"error": "no compiler"}
        rate = {1: 712.0, 2: 1349.0, 4: 2689.0}[count] * one["batch"] / 32
        return {"samples_per_second": [rate - 4, rate, rate + 8], "parameters": 124_000_000}

    def keras(one, *, processes=None, gpus=(), **_):
        count = processes or len(gpus)
        asked.append(("keras", count, [one["name"]], list(gpus)))
        if one.get("flash"):
            raise RocmlabError("keras_jax.py failed", "no flash attention")
        rate = 500.0 * count * (0.93 if count == 1 else 0.9) + (
            40 if list(gpus) == [0] else 0
        )  # the first is the fastest
        speeds = {"samples_per_second": [rate] * one["blocks"]} if one["blocks"] else {}
        return {**speeds, "losses": [3.0, 2.5 + count / 64], "replicas_equal": True, "jax": "0.11", "keras": "3.15.1"}

    def give(count):
        monkeypatch.setattr(runs, "team", lambda: gpus(count))
        return asked

    monkeypatch.setattr(runs, "ddp", ddp)
    monkeypatch.setattr(runs, "keras_jax", keras)
    return give


def bench(capsys, *arguments):
    """Run the command line and return its JSON."""
    assert bench_multi_gpu.main("bench", ["--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_report_compares_n_gpus_with_n_times_one(machine, capsys):
    """The efficiency of the known rates is right: 2,689 of 4 x 712 samples per second is 0.944; the median counts."""
    machine(4)

    found = bench(capsys)

    rows = {row["name"]: row for row in found["rows"]}
    weak = rows["ddp_transformer_weak_4"]
    assert (weak["ours"], weak["theirs"], weak["spread"], weak["runs"]) == (2689.0, 2848.0, [2685.0, 2697.0], 3)
    assert weak["efficiency"] == weak["ratio"] == 0.9442
    assert rows["ddp_transformer_weak_1"]["efficiency"] is None
    assert rows["keras_jax_weak_1"]["ours"] == 475.0  # the mean of four GPUs, each alone
    assert (rows["keras_jax_weak_4"]["theirs"], rows["keras_jax_weak_4"]["efficiency"]) == (1900.0, 0.9474)
    assert rows["ddp_transformer_loss_gap_4"]["ours"] == 0.0625
    assert rows["keras_jax_loss_gap_2"]["losses_alone"] == [3.0, 2.515625]
    assert {"ddp_transformer_weak_2", "ddp_transformer_strong_2", "ddp_mnist_128_4", "ddp_mnist_8192_4"} <= set(rows)
    assert (found["simulated"], found["device"], found["skipped"]) == (False, "4x NVIDIA H200", {})
    assert found["versions"] == {"torch": "2.11.0", "jax": "0.11", "keras": "3.15.1"}


def test_gpus_are_compared_with_what_each_did_alone_in_the_same_run(machine, capsys, monkeypatch):
    """What the ranks measured alone, alternating with all together, counts; an earlier run of one GPU does not."""
    machine(4)
    before = runs.ddp

    def ddp(listed, **where):
        found = before(listed, **where)
        for one in listed:
            if one.get("alone") and len(where["gpus"]) > 1:
                found[one["name"]]["alone"] = [699.0, 700.0, 720.0]
        return found

    monkeypatch.setattr(runs, "ddp", ddp)

    rows = {row["name"]: row for row in bench(capsys, "--only", "ddp")["rows"]}

    assert (rows["ddp_transformer_weak_4"]["theirs"], rows["ddp_transformer_weak_4"]["efficiency"]) == (2800.0, 0.9604)
    assert rows["ddp_transformer_strong_4"]["theirs"] == 2800.0
    assert rows["ddp_transformer_weak_1"]["theirs"] is None


def test_strong_scaling_shares_one_batch(machine, capsys):
    """Four GPUs take a quarter of the batch each; they are compared with four times what one does with all of it."""
    machine(4)

    rows = {row["name"]: row for row in bench(capsys, "--only", "ddp")["rows"]}

    assert rows["ddp_transformer_strong_4"]["theirs"] == 2848.0
    assert measures.strong("large", 5, 4)["batch"] == 8
    assert measures.weak("large", 5)["batch"] == 32


@pytest.mark.parametrize(("count", "words"), [(0, "0 GPUs"), (1, "1 GPU;")])
def test_without_two_gpus_no_speed_is_reported(machine, capsys, count, words):
    """Two parts of the CPU show that losses agree; there is no efficiency, and what is missing is named."""
    asked = machine(count)

    found = bench(capsys)

    assert found["simulated"] is True
    assert found["device"].startswith("2 parts of ")
    assert {row["unit"] for row in found["rows"]} == {"nats"}
    assert all(row["efficiency"] is None and row["ratio"] is None for row in found["rows"])
    assert set(found["skipped"]) == {"ddp_transformer_weak_2", "ddp_mnist_128_2", "keras_jax_weak_2"}
    assert all(words in why for why in found["skipped"].values())
    assert ("ddp", 2, ["transformer_equal", "mnist_equal"]) in asked


def test_table_says_that_it_is_simulated(machine, capsys):
    """The first line shows it."""
    machine(0)

    assert bench_multi_gpu.main("bench", []) == 0

    out = capsys.readouterr().out
    assert out.startswith("SIMULATED on 2 parts of")
    assert "replicas equal" in out


def test_tuning_tells_every_setting_and_what_failed(machine, capsys):
    """Each setting of DDP is a row, a failure of one keeps the others."""
    machine(4)

    found = bench(capsys, "--tune", "--counts", "4", "--runs", "2")

    rows = {row["name"] for row in found["rows"]}
    assert {f"ddp_transformer_{name}_4" for name in measures.VARIANTS} <= rows
    assert {"keras_jax_after_backward_4", "keras_jax_one_all_reduce_1"} <= rows
    assert found["skipped"]["ddp_transformer_compiled_4"] == "no compiler"
    assert "no flash attention" in found["skipped"]["keras_jax_flash_4"]


def test_one_device_comes_first_then_the_most(machine, capsys):
    """An interrupted run has measured what says most."""
    asked = machine(4)

    bench(capsys, "--only", "ddp")

    assert [count for _framework, count, *_names in asked] == [1, 4, 2]
    assert runs.counts(6) == [1, 2, 4, 6]


def test_more_gpus_than_there_are_is_an_error(machine):
    """It says how many there are."""
    machine(2)

    with pytest.raises(RocmlabError, match="8 GPUs were requested"):
        report.measure(Plan(counts=(8,)))


def test_networks_have_the_size_that_is_told():
    """12 layers of 768 and 32,000 words are 124 million parameters."""
    size = measures.SIZES["large"]
    layer = 4 * size["width"] ** 2 + 3 * size["width"] * size["hidden"] + 2 * size["width"]
    rest = (size["vocabulary"] + size["length"] + 1) * size["width"]

    assert round((size["layers"] * layer + rest) / 1e6) == 124
