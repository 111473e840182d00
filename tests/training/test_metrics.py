"""What a notebook records arrives unchanged, as JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import rocmlab
from rocmlab.base.errors import RocmlabError
from rocmlab.training import metrics


class Tensor:
    """Behaves like a PyTorch tensor on a GPU: it must be detached and moved before it returns its values."""

    def __init__(self, values, is_on_host=False):
        self.values, self.is_on_host = values, is_on_host

    def detach(self):
        """Return a tensor without a gradient."""
        return self

    def cpu(self):
        """Return a tensor on the host."""
        return Tensor(self.values, is_on_host=True)

    def tolist(self):
        """Return the values, as PyTorch allows it on the host only here."""
        assert self.is_on_host
        return self.values


class EagerTensor:
    """Behaves like a TensorFlow tensor: it becomes NumPy first."""

    def numpy(self):
        """Return the value as NumPy."""
        return np.float32(0.5)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.25), 0.25),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("word"), "word"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (Tensor(0.5), 0.5),
        (Tensor([1, 2]), [1, 2]),
        (EagerTensor(), 0.5),
        ((1, "two", None, True), [1, "two", None, True]),
        ({"a": {"b": [np.float64(1.5)]}}, {"a": {"b": [1.5]}}),
        (math.nan, None),
        ([1.0, math.inf, np.float32("nan")], [1.0, None, None]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_become_plain_json(value, plain):
    """Scalars and arrays of the frameworks become JSON types; NaN and infinities become null."""
    converted = metrics._plain(value, "value")

    assert converted == plain
    assert json.loads(json.dumps(converted, allow_nan=False)) == plain
    assert type(converted) is type(plain)


@pytest.mark.parametrize(
    ("value", "named"),
    [(object(), "value="), ({"a": {1, 2}}, r"value\.a="), ([b"x"], r"value\[0\]="), ({1: 2}, "value="), (1j, "value=")],
    ids=["object", "set", "bytes", "key", "complex"],
)
def test_what_json_cannot_hold_is_an_error(value, named):
    """The error names the place of the value and how to convert it."""
    with pytest.raises(RocmlabError, match=named) as caught:
        rocmlab.record(value=value)

    assert caught.value.problem.fix


def test_record_without_a_value_is_an_error():
    """An empty record is a mistake."""
    with pytest.raises(RocmlabError, match="without a value"):
        rocmlab.record()


def test_outside_a_notebook_a_readable_line_is_printed(capsys):
    """In a plain program the values are printed in one line."""
    rocmlab.record(workload="mnist_fc", test_accuracy=0.98154, losses=[1, 2], nothing=None)

    expected = 'recorded: workload="mnist_fc", test_accuracy=0.9815, losses=(2 values), nothing=null\n'
    assert capsys.readouterr().out == expected


def test_skip_records_the_reason_and_ends_the_notebook(capsys):
    """The reason has what is missing, why it is needed and how to get it; no value is needed but the first."""
    with pytest.raises(metrics.Skipped, match="no GPU") as caught:
        rocmlab.skip("no GPU here", fix="run it where there is one")

    assert isinstance(caught.value, RocmlabError)
    assert 'recorded: skipped="no GPU here; run it where there is one"' in capsys.readouterr().out


@pytest.mark.slow
def test_record_round_trip_through_a_notebook(execute):
    """In a kernel, record() leaves one MIME bundle with the values and a short text, and prints nothing."""
    cell = "import numpy as np, rocmlab; rocmlab.record(test_accuracy=np.float32(0.5), device={'backend': 'cpu'})"

    (output,) = execute(cell)

    assert output["output_type"] == "display_data"
    assert output["data"][metrics.MIME_TYPE] == {"test_accuracy": 0.5, "device": {"backend": "cpu"}}
    assert output["data"]["text/plain"] == "recorded: test_accuracy=0.5, device=(1 values)"
