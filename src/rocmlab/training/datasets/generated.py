"""Images with masks, generated and not fetched: the same seed gives the same images, and records call them generated.

`triangles` are what the article's benchmark was trained on: one filled triangle on black. `cells` are harder: many
blurred ellipses under uneven light and noise, as a microscope shows them.
"""

from __future__ import annotations

import numpy as np

from rocmlab.base.errors import RocmlabError

Images = tuple[np.ndarray, np.ndarray]
VISIBLE = 10  # a grey value above it belongs to the triangle, as in the original
MIN_SHARE = 0.02  # of the image's area that a triangle covers


def triangles(count: int, size: int, seed: int) -> Images:
    """Return filled triangles of random place, shape and brightness, and their masks; the same for the same seed.

    Returns:
        `(images, masks)`, both uint8 of shape (count, size, size): grey values 0 to 255, and 1 inside, 0 outside.

    Raises:
        RocmlabError: `count` is 0, or the images are too small to show anything.
    """
    _check(count, size)
    random = np.random.default_rng(seed)
    images = np.zeros((count, size, size), np.uint8)
    for image in images:
        image[_inside(_corners(random), size)] = random.integers(VISIBLE + 1, 256)
    return images, (images > VISIBLE).astype(np.uint8)


def cells(count: int, size: int, seed: int) -> Images:
    """Return bright ellipses, blurred, under uneven light and noise, and their sharp masks.

    Arguments, shapes and errors are those of `triangles`.
    """
    _check(count, size)
    random = np.random.default_rng(seed)
    images = np.empty((count, size, size), np.uint8)
    masks = np.zeros((count, size, size), np.uint8)
    for image, mask in zip(images, masks, strict=True):
        light = np.zeros((size, size))
        for _ in range(random.integers(6, 16)):
            spot = _ellipse(random, size)
            light[spot] = random.uniform(0.35, 0.8)
            mask[spot] = 1
        shown = _blurred(light, size / 100) + _slope(random, size) + random.normal(0, 0.05, (size, size))
        image[:] = np.clip(255 * shown, 0, 255)
    return images, masks


def _check(count: int, size: int) -> None:
    if count < 1 or size < 16:
        raise RocmlabError(
            f"{count} images of {size} x {size} pixels cannot be generated",
            "at least one image of at least 16 x 16 pixels is needed",
            "pass a larger count or size",
        )


def _corners(random: np.random.Generator) -> np.ndarray:
    """Return three corners, (3, 2) in fractions of the image's side, of a triangle large enough to be seen."""
    while True:
        corners = random.random((3, 2))
        (ax, ay), (bx, by) = corners[1] - corners[0], corners[2] - corners[0]
        if abs(ax * by - ay * bx) / 2 >= MIN_SHARE:
            return corners


def _inside(corners: np.ndarray, size: int) -> np.ndarray:
    """Return which pixels, (size, size) bool, have their centre on one side of all three edges."""
    middle = (np.arange(size) + 0.5) / size
    sides = []
    for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        along = end - start
        sides.append(along[0] * (middle[:, None] - start[1]) - along[1] * (middle[None, :] - start[0]) >= 0)
    first, second, third = sides
    return np.asarray((first == second) & (second == third))


def _ellipse(random: np.random.Generator, size: int) -> np.ndarray:
    middle = (np.arange(size) + 0.5) / size
    x, y = middle[None, :] - random.random(), middle[:, None] - random.random()
    turn = random.uniform(0, np.pi)
    long, short = random.uniform(0.04, 0.1), random.uniform(0.03, 0.06)
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    return np.asarray((along / long) ** 2 + (across / short) ** 2 <= 1)


def _blurred(light: np.ndarray, sigma: float) -> np.ndarray:
    """Return the image after a Gaussian blur of `sigma` pixels, by Fourier transform; the image's edges wrap around."""
    waves = np.exp(-2 * (np.pi * sigma * np.fft.fftfreq(len(light))) ** 2)
    return np.asarray(np.fft.ifft2(np.fft.fft2(light) * waves[:, None] * waves[None, :]).real)


def _slope(random: np.random.Generator, size: int) -> np.ndarray:
    """Return the uneven light: brighter towards a random side."""
    turn, middle = random.uniform(0, 2 * np.pi), np.linspace(-0.5, 0.5, size)
    return np.asarray(0.15 + 0.15 * (np.cos(turn) * middle[None, :] + np.sin(turn) * middle[:, None]))
