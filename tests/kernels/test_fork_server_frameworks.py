"""Warm kernels of PyTorch and TensorFlow: what the server has imported works in the kernel."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from warm_kernels import ask, started_cold, warm

from rocmlab.kernels.fork_server import ForkServer

THREADS = "2"
MODULES = {"torch": ["torch"], "tensorflow": ["tensorflow", "keras"]}
WORK = {
    "torch": "import torch\nproduct = float((torch.ones(300, 300) @ torch.ones(300, 300)).sum())",
    "tensorflow": "import tensorflow, keras\nones = tensorflow.ones((300, 300))\n"
    "product = float(tensorflow.reduce_sum(ones @ ones))",
}
DRAW = {
    "torch": "torch.rand(4).tolist()",
    "tensorflow": "(tensorflow.random.uniform([4]).numpy().tolist(), keras.random.uniform([4]).numpy().tolist())",
}
TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
data = TensorDataset(torch.rand(64, 3))
model = torch.nn.Linear(3, 1)
optimiser = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for _ in range(3):
    for (batch,) in DataLoader(data, 16, num_workers=2):
        loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
        optimiser.zero_grad(); loss.backward(); optimiser.step()
        losses.append(float(loss))
"""
FIT = """
import numpy, keras
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
x = numpy.random.rand(256, 3)
losses = model.fit(x, x.sum(1), epochs=3, verbose=0).history["loss"]
"""

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(sys.platform != "linux", reason="fork servers need Linux"),
]


@pytest.fixture(scope="module", params=MODULES)
def framework(request: pytest.FixtureRequest) -> str:
    """A framework that this interpreter has."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"this interpreter has no {request.param}: run it with a lab's, which has")
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def environment(kernel: str) -> dict[str, str]:
    """Two threads, no GPU."""
    return {**os.environ, "OMP_NUM_THREADS": THREADS, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def server(
    framework: str, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForkServer]:
    """A server that has imported the framework."""
    found = ForkServer(sys.executable, MODULES[framework], environment, tmp_path_factory.mktemp("warm"))
    assert found.ready(300), found.why
    yield found
    found.close()


def test_matrices_are_multiplied_by_several_threads(
    framework: str, server: ForkServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """The server has one thread; the kernel has as many as it was given, and its product is right."""
    count = "len(__import__('os').listdir('/proc/self/task'))"
    with warm(server.address, tmp_path, environment) as kernel:
        before = ask(kernel.connection, "", count)
        assert ask(kernel.connection, WORK[framework], "product") == 300.0**3
        after = ask(kernel.connection, "", count)
        if framework == "torch":
            assert ask(kernel.connection, "", "torch.get_num_threads()") == int(THREADS)

    assert after > before
    assert server.pid is not None
    assert psutil.Process(server.pid).num_threads() == 1


def test_two_kernels_draw_different_numbers(
    framework: str, server: ForkServer, environment: dict[str, str], tmp_path: Path
) -> None:
    """The framework's own generators."""
    with warm(server.address, tmp_path, environment) as one, warm(server.address, tmp_path, environment) as other:
        drawn = [ask(each.connection, WORK[framework], DRAW[framework]) for each in (one, other)]

    assert drawn[0] != drawn[1]
    if framework == "tensorflow":
        assert all(first != second for first, second in zip(*drawn, strict=True))


@pytest.mark.long
def test_a_seed_gives_the_numbers_of_a_cold_kernel(
    framework: str, server: ForkServer, environment: dict[str, str], kernel: str, tmp_path: Path
) -> None:
    """A training with a seed ends the same, forked or not; its data is loaded by processes of its own."""
    code = {"torch": TRAIN, "tensorflow": FIT}[framework]
    with warm(server.address, tmp_path, environment) as one, started_cold(kernel, tmp_path, environment) as other:
        ours, theirs = (ask(each.connection, code, "losses") for each in (one, other))

    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours[-1] < ours[0]


@pytest.mark.long
def test_most_of_its_memory_is_shared(
    framework: str, server: ForkServer, environment: dict[str, str], kernel: str, tmp_path: Path
) -> None:
    """A forked kernel has less than half of the private memory of a cold one after the same work."""
    with warm(server.address, tmp_path, environment) as one, started_cold(kernel, tmp_path, environment) as other:
        pids = []
        for each, pid in ((one, one.pid), (other, other.process.pid)):
            ask(each.connection, WORK[framework])
            pids.append(pid)
        ours, theirs = (psutil.Process(pid).memory_full_info().uss for pid in pids)

    print(f"{framework}: {ours / 1e6:.0f} MB forked, {theirs / 1e6:.0f} MB cold")  # noqa: T201  shown with -s
    assert ours < theirs / 2
