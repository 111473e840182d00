"""Data too large for the device are cut into blocks of whole batches; data that fit stay whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmlab.base.errors import RocmlabError
from rocmlab.training.resident import blocks
from rocmlab.training.resident.engine import Data, Options, Samples


def samples(count, width=4):
    """Return samples of `width` float32 each, every row filled with its number."""
    x = np.repeat(np.arange(count, dtype="float32")[:, None], width, axis=1)
    return Samples(x, None, None, count)


def test_data_that_fit_are_resident():
    """Enough memory, or unknown memory, keeps every set whole and reports nothing."""
    data = Data(samples(100), samples(20))

    for free_bytes in (None, 2**31):
        found = blocks.plan(data, Options(batch_size=8), free_bytes)

        assert found.is_resident
        assert found.validation == (slice(0, 20),)
        assert found.sentence == ""


@pytest.mark.long
@pytest.mark.slow
def test_a_reserve_is_left_for_weights_and_activations():
    """Data as large as what is free do not stay whole: the network needs memory also."""
    data = Data(samples(2**20, 256))  # 1 GiB

    found = blocks.plan(data, Options(batch_size=256), data.train.size_bytes)

    assert not found.is_resident
    assert "1.0 GiB" in found.sentence
    assert f"{len(found.train)} resident blocks" in found.sentence


@given(count=st.integers(2, 400), batch_size=st.integers(1, 50), memory_bytes=st.integers(64, 4000))
def test_blocks_are_whole_batches_of_half_the_memory(count, batch_size, memory_bytes):
    """Whatever the sizes: blocks cover the samples once, in order, cut at batches, and two of them fit."""
    data = Data(samples(count))
    options = Options(batch_size=batch_size, memory_bytes=memory_bytes)
    if data.train.size_bytes > memory_bytes and memory_bytes < 2 * 16 * batch_size:
        with pytest.raises(RocmlabError, match="memory_bytes"):
            blocks.plan(data, options, None)
        return

    found = blocks.plan(data, options, None)

    joined = np.concatenate([block.x[:, 0] for block in blocks.cut(data.train, found.train)])
    np.testing.assert_array_equal(joined, np.arange(count))
    if not found.is_resident:
        assert all((part.stop - part.start) % batch_size == 0 for part in found.train[:-1])
        assert all(2 * block.size_bytes <= memory_bytes for block in blocks.cut(data.train, found.train))


def test_a_large_validation_set_is_cut_and_a_small_one_stays():
    """A validation set of up to a quarter of the memory stays; a larger one streams as well."""
    small = blocks.plan(Data(samples(200), samples(20)), Options(batch_size=8, memory_bytes=1600), None)
    large = blocks.plan(Data(samples(200), samples(100)), Options(batch_size=8, memory_bytes=1600), None)

    assert small.validation == (slice(0, 20),)
    assert len(large.validation) > 1


def test_places_for_both_sets_together_take_what_is_allowed():
    """An engine that keeps blocks of training and validation together gets smaller ones: two of each fit together."""
    data, options = Data(samples(200), samples(100)), Options(batch_size=8, memory_bytes=1600)

    apart, together = (blocks.plan(data, options, None, keeps_both=both) for both in (False, True))

    def held(found):
        sets = ((data.train, found.train), (data.validation, found.validation))
        return sum(2 * next(blocks.cut(one, slices)).size_bytes for one, slices in sets)

    assert held(together) <= 1600 < held(apart)


def test_the_order_of_an_epoch_comes_from_seed_and_epoch():
    """Seed and epoch fix the order over the whole set; without shuffling there is none."""
    options = Options(seed=5)
    first, again = blocks.order(100, options, 3), blocks.order(100, options, 3)

    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(np.sort(first), np.arange(100))
    assert not np.array_equal(first, blocks.order(100, options, 4))
    assert not np.array_equal(first, blocks.order(100, Options(seed=6), 3))
    assert blocks.order(100, Options(shuffle=False), 3) is None


def test_blocks_of_a_shuffled_epoch_mix_the_whole_set():
    """A shuffled epoch hands out every sample once, and its first block holds samples from everywhere."""
    data = samples(100)
    parts = (slice(0, 50), slice(50, 100))

    found = list(blocks.cut(data, parts, blocks.order(100, Options(seed=1), 0)))

    assert found[0].x[:, 0].max() > 50
    np.testing.assert_array_equal(np.sort(np.concatenate([block.x[:, 0] for block in found])), np.arange(100))
    assert [block.count for block in found] == [50, 50]


def test_the_memory_of_this_machine_is_known():
    """On Linux the free memory is a number of bytes; elsewhere it is unknown and not zero."""
    found = blocks.host_free_bytes()

    assert found is None or found > 2**20
