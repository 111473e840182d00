"""Run by a kernel's interpreter: packages that people import are there, and none of them has replaced a framework.

Usage: unit_packages.py NAME...; prints each with its version.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
import tempfile
from pathlib import Path

import ipywidgets
import pandas
from sklearn.linear_model import LogisticRegression

DISTRIBUTIONS = {"sklearn": "scikit-learn"}
OPTIONAL = ("torchvision", "torchaudio")  # only where the place that PyTorch came from has the build that matches

for name in sys.argv[1:]:
    importlib.import_module(name)
    print(name, importlib.metadata.version(DISTRIBUTIONS.get(name, name)))

for name in OPTIONAL:
    if importlib.util.find_spec(name):
        importlib.import_module(name)  # one that is there and broken would stop `transformers`
        print(name, importlib.metadata.version(name))

table = pandas.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "y": [0, 0, 1, 1]})
assert LogisticRegression().fit(table[["x"]], table["y"]).score(table[["x"]], table["y"]) == 1.0
assert ipywidgets.IntSlider(value=3).value == 3

folder = tempfile.mkdtemp()
if importlib.util.find_spec("tensorflow"):
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0, callbacks=[keras.callbacks.TensorBoard(folder)])
else:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(folder) as writer:
        writer.add_scalar("loss", 1.0, 0)
assert list(Path(folder).rglob("events.out.tfevents.*"))
print("TensorBoard wrote its events")
