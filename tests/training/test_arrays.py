"""Data sets as arrays."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets import DATASETS, fashion_mnist, formats, mnist
from rocmlab.training.datasets.sources import Mirror


@pytest.mark.parametrize(("load", "name"), [(mnist, "mnist"), (fashion_mnist, "fashion_mnist")])
def test_arrays_have_the_shapes_and_values_of_the_files(tmp_path, monkeypatch, load, name):
    """Images and labels come as uint8 arrays with the values of the idx files."""
    source = Mirror(tiny.write_packed(tmp_path / "packed").as_uri() + "/", "a mirror")
    monkeypatch.setitem(DATASETS, name, tiny.dataset(source))

    (x_train, y_train), (x_test, y_test) = load(share=tmp_path)

    assert x_train.shape == (3, 2, 2)
    assert x_train.dtype == np.uint8
    assert x_train.tobytes() == tiny.VALUES["train-images-idx3-ubyte"]
    assert y_train.tolist() == [5, 0, 4]
    assert x_test.shape == (2, 2, 2)
    assert y_test.tolist() == [7, 2]


@pytest.mark.parametrize("content", [b"", b"\0\0\x08\x01\0\0\0\x05abc", b"\0\0\x0d\x01\0\0\0\x01a"])
def test_what_is_not_a_whole_idx_file_is_rejected(tmp_path, content):
    """Empty, truncated and other types of numbers are recognised."""
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(RocmlabError, match="not a whole idx file"):
        formats.read_idx(path)
