"""`fit_resident` without a framework: it is cheap to import, checks its arguments, and calls plain callbacks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import rocmlab.training
from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident import callbacks, fit


def test_importing_the_room_imports_no_framework():
    """`rocmlab.training` loads nothing heavy, and `fit_resident` no framework."""
    program = (
        "import sys, rocmlab.training\n"
        "assert 'numpy' not in sys.modules\n"
        "from rocmlab.training import fit_resident\n"
        "found = {'jax', 'keras', 'tensorflow', 'torch'} & set(sys.modules)\n"
        "assert not found, found\n"
    )

    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": fit.__file__.split("rocmlab/")[0]})


def test_other_names_of_the_room_do_not_exist():
    """A name the room does not have is an AttributeError, as everywhere."""
    assert rocmlab.training.fit_resident is fit.fit_resident
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = rocmlab.training.fitt


def test_a_model_of_no_framework_is_rejected():
    """Something that is neither a Keras model nor a torch module is named, with what would do."""
    with pytest.raises(RocmlabError, match=r"cannot train a builtins\.dict"):
        fit.fit_resident({}, np.zeros((2, 1)), np.zeros(2))


def test_a_torch_module_needs_optimizer_and_loss():
    """A plain module without optimizer or loss is rejected with a call that has them."""
    with pytest.raises(RocmlabError, match="needs optimizer= and loss=") as caught:
        fit._check_model(object(), False, None, print, None)

    assert "torch.optim" in caught.value.problem.fix


class Written:
    """A callback that writes down what is called, and with what."""

    def __init__(self):
        self.calls = []

    def set_model(self, model):
        """Note the model."""
        self.calls.append(("model", model))

    def on_train_begin(self, logs):
        """Note that Keras passes logs here also."""
        self.calls.append(("begin", logs))

    def on_epoch_end(self, epoch, logs=None):
        """Note the logs."""
        self.calls.append((epoch, logs))


def test_plain_callbacks_are_called_and_the_history_is_kept(capsys):
    """Objects get the calls they have methods for, functions get epoch and logs; a line reports each epoch."""
    written, seen = Written(), []
    found, history = callbacks.of_torch("module", [written, lambda epoch, logs: seen.append(epoch)], 1, 2, 5)

    found.on_train_begin()
    for epoch in range(2):
        found.on_epoch_begin(epoch)
        found.on_test_begin()
        found.on_test_end({"loss": 0.5})
        found.on_epoch_end(epoch, {"loss": 1.0 - epoch, "val_loss": 0.5})
    found.on_train_end({})

    assert written.calls[0] == ("model", "module")
    assert written.calls[1] == ("begin", None)
    assert written.calls[2] == (0, {"loss": 1.0, "val_loss": 0.5})
    assert seen == [0, 1]
    assert history.history == {"loss": [1.0, 0.0], "val_loss": [0.5, 0.5]}
    assert history.epoch == [0, 1]
    assert "Epoch 2/2 - loss: 0 - val_loss: 0.5" in capsys.readouterr().out


def test_a_plain_callback_that_waits_for_batches_is_named():
    """A batch hook that will not be called is reported by the name of its class."""

    class EachBatch:
        def on_train_batch_end(self, batch, logs=None):
            raise AssertionError("called")

    with pytest.warns(UserWarning, match="EachBatch"):
        callbacks.of_torch("module", EachBatch(), 0, 1, 1)
