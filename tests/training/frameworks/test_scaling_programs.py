"""The programs of the scaling benchmark on two parts of the CPU: the comparison with one device is real."""

from __future__ import annotations

import os

import pytest

from rocmlab.benchmarking.scaling import measures, runs

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "torch") != "torch", reason="run it with KERAS_BACKEND=torch"),
]


def test_ddp_learns_what_one_device_learns_and_without_sums_it_does_not():
    """Ranks that add up differ from ranks that do not; settings change nothing; a failure keeps what was found."""
    right = measures.equality("tiny", is_gpu=False)
    wrong = [{**one, "name": f"{one['name']}_apart", "talk": False} for one in right]
    hooked = {**right[0], "name": "hooked", **measures.VARIANTS["overlap_100mb"]}
    plain = {**right[0], "name": "plain", **measures.VARIANTS["plain"]}
    speed = [
        {**measures.weak("tiny", 2, is_gpu=False), "steps": 2, "alone": True},
        {**measures.mnist(128, 2), "steps": 2},
    ]

    broken = {**right[1], "name": "broken", "batch": -1}

    found = runs.ddp([*right, *wrong, hooked, plain, broken, *speed, {"name": "dead"}], processes=2)

    def gap(name):
        pairs = zip(found[name]["losses"], found[name]["losses_alone"], strict=True)
        return max(abs(one - other) for one, other in pairs)

    for name in ("transformer_equal", "mnist_equal", "hooked", "plain"):
        assert gap(name) < 1e-5
        assert found[name]["replicas_equal"]
    for name in ("transformer_equal_apart", "mnist_equal_apart"):
        assert gap(name) > 1e-4
        assert not found[name]["replicas_equal"]
    for one in speed:
        assert len(found[one["name"]]["samples_per_second"]) == 2
        assert min(found[one["name"]]["samples_per_second"]) > 0
    assert [len(found[one["name"]]["alone"]) for one in speed] == [2, 0]
    assert min(found["transformer_weak"]["alone"]) > 0
    assert found["broken"]["error"].startswith("RuntimeError: ")
    assert "KeyError" in found["dead"]["error"]


@pytest.mark.long  # tests of fit_resident share each batch in each run
def test_keras_on_jax_shares_a_batch_and_learns_the_same():
    """Two parts of the CPU hold a replica each; the losses are those of one, and a speed is measured."""
    size = {**measures.SIZES["tiny"], "layers": 1}  # compiles faster
    measure = {**measures.keras("tiny", 0, is_gpu=False), "steps": 2, "size": size, "check_size": size}

    alone = runs.keras_jax(measure, processes=1)
    together = runs.keras_jax({**measure, "blocks": 1}, processes=2)

    pairs = zip(alone["losses"], together["losses"], strict=True)
    assert max(abs(one - other) for one, other in pairs) < 1e-4
    assert alone["replicas_equal"]
    assert together["replicas_equal"]
    assert len(together["samples_per_second"]) == 1
