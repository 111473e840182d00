"""Generated images: the right shapes, masks that fit them, and the same again for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets import generated

MAKERS = pytest.mark.parametrize("make", [generated.triangles, generated.cells])


@MAKERS
def test_pictures_and_masks_are_bytes_of_the_requested_size(make):
    """Both are uint8 of (count, size, size); a mask knows only 0 and 1, and has some of each."""
    images, masks = make(5, 48, seed=1)

    assert images.shape == masks.shape == (5, 48, 48)
    assert images.dtype == masks.dtype == np.uint8
    assert all(set(np.unique(mask)) == {0, 1} for mask in masks)


@MAKERS
def test_the_same_seed_gives_the_same_images_and_another_one_others(make):
    """A run can be repeated anywhere."""
    first, again, other = make(3, 32, seed=7), make(3, 32, seed=7), make(3, 32, seed=8)

    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert not np.array_equal(first[0], other[0])


def test_a_triangle_is_visible_and_its_mask_is_its_area():
    """Every one covers a fiftieth of the image or more, is brighter than 10, and there is nothing else."""
    images, masks = generated.triangles(40, 128, seed=3)

    assert masks.mean(axis=(1, 2)).min() > 0.015
    assert images[masks == 1].min() > 10
    assert not images[masks == 0].any()


def test_a_triangle_has_straight_sides():
    """Between two of its pixels is a third one: a triangle is convex."""
    _images, masks = generated.triangles(20, 64, seed=4)

    for mask in masks:
        rows, columns = np.nonzero(mask)
        random = np.random.default_rng(0)
        one, two = random.integers(len(rows), size=(2, 500))
        row, column = rows[one] + rows[two], columns[one] + columns[two]
        is_pixel = (row % 2 == 0) & (column % 2 == 0)  # their middle is the middle of a pixel
        assert is_pixel.any()
        assert mask[row[is_pixel] // 2, column[is_pixel] // 2].all()


def test_cells_are_brighter_than_what_lies_around_them():
    """There is something to learn, although light is uneven and there is noise."""
    images, masks = generated.cells(10, 96, seed=5)

    for image, mask in zip(images, masks, strict=True):
        assert image[mask == 1].mean() > image[mask == 0].mean() + 30
        assert image[mask == 0].std() > 5


@pytest.mark.parametrize(("count", "size"), [(0, 64), (3, 8)])
def test_no_images_or_tiny_ones_are_an_error_that_says_what_to_do(count, size):
    """Nothing is made quietly that could not be learned from."""
    with pytest.raises(RocmlabError, match="cannot be generated") as caught:
        generated.triangles(count, size, seed=0)

    assert "larger" in caught.value.problem.fix
