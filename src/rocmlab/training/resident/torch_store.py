"""Samples as torch tensors on the device, whole or block by block; and what torch's devices need around an epoch."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rocmlab.training.resident import blocks, pace
from rocmlab.training.resident.engine import Options, Samples, Tree, leaves, tree_map

Untyped = Any  # an object of a framework, whose types are not known here
GATHER_BYTES = 256 * 2**20  # what the samples of one graph's steps may take when they are gathered together
OUTPUT_BYTES = 64 * 2**20  # what the outputs of a group of steps may take to account for them together
LAUNCH_TENSORS = 48  # what one launch of a kernel over three lists takes (the limit of torch's argument buffers)
BLOCK_ELEMENTS = 65_536  # what torch gives to one block of threads
MIN_ELEMENTS = 4_096  # smaller pieces gain nothing
SEED_STRIDE = 1_000_003  # a prime: seed and epoch give each epoch its own stream, also when training is resumed


class Store:
    """One set of samples at addresses that never change, so that graphs may read them: `tensors` is (x, y, weight)."""

    def __init__(self, samples: Samples, slices: tuple[slice, ...], device: torch.device, options: Options) -> None:
        self._samples, self._slices, self._device, self._options = samples, slices, device, options
        self.count = samples.count
        tree = (samples.x, samples.y, samples.sample_weight)
        if len(slices) == 1:
            self.tensors = tree_map(lambda leaf: _tensor(leaf).to(device), tree)
            return
        rows = slices[0].stop
        self.tensors = tree_map(lambda leaf: _tensor(leaf[:rows]).to(device, copy=True), tree)
        self._incoming = tree_map(torch.empty_like, self.tensors)
        self._pinned: Tree = None
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def orders(self, epoch: int, *, shuffle: bool) -> Iterator[torch.Tensor | int]:
        """Yield, block by block, the rows of `tensors` to train on: their order, or how many when they are in order.

        A resident set is permuted on the device; blocks are permuted over the whole set while they are cut.
        """
        if len(self._slices) == 1:
            generator = torch.Generator(device=self._device)
            generator.manual_seed(stream_seed(self._options.seed, epoch))
            yield torch.randperm(self.count, generator=generator, device=self._device) if shuffle else self.count
            return
        order = blocks.order(self.count, self._options, epoch) if shuffle else None
        parts = blocks.cut(self._samples, self._slices, order)
        arriving: int | None = self._send(next(parts))
        while arriving is not None:
            count = arriving
            if self._copies is not None:
                torch.cuda.current_stream(self._device).wait_stream(self._copies)
            for target, source in zip(leaves(self.tensors), leaves(self._incoming), strict=True):
                target[:count].copy_(source[:count])
            following = next(parts, None)  # gathered on the host; what runs on a GPU was queued by our caller
            yield count
            arriving = self._send(following) if following is not None else None

    def _send(self, block: Samples) -> int:
        """Start the copy of a block's samples to the device, while the device computes; return how many they are."""
        tree = (block.x, block.y, block.sample_weight)
        if self._copies is None:
            _each(lambda target, leaf: target[: block.count].copy_(_tensor(leaf)), self._incoming, tree)
            return block.count
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            self._pinned = tree_map(lambda leaf: _tensor(leaf).pin_memory(), tree)  # kept until the copy is done
            _each(
                lambda target, leaf: target[: block.count].copy_(leaf, non_blocking=True), self._incoming, self._pinned
            )
        return block.count


class Batches:
    """The batches of some rows: gathered together when they are small and on a GPU, else one by one.

    They are copies: a module may change its input in place, and on a CPU the tensors are the caller's arrays.
    """

    def __init__(self, tensors: Tree, rows: Untyped, batch: int, row_bytes: int) -> None:
        self._rows, self._batch, self._tensors = rows, batch, tensors
        self._are_views = isinstance(rows, slice)
        if isinstance(rows, slice):
            self._range = range(rows.start, rows.stop, batch)
            self._rows = None
            return
        self._range = range(0, len(rows), batch)
        if rows.device.type != "cpu" and len(rows) * row_bytes <= GATHER_BYTES:
            self._tensors, self._rows = take(tensors, rows), None

    def __iter__(self) -> Iterator[Tree]:
        for start in self._range:
            if start > self._range.start:
                pace.step()
            part = slice(start, start + self._batch)
            taken = take(self._tensors, part if self._rows is None else self._rows[part])
            yield tree_map(torch.clone, taken) if self._are_views else taken


def take(tree: Tree, rows: torch.Tensor | slice) -> Tree:
    """Return the rows of every tensor: a view for a slice, a copy for indices."""
    if isinstance(rows, slice):
        return tree_map(lambda leaf: leaf[rows], tree)
    return tree_map(lambda leaf: leaf.index_select(0, rows), tree)


def join(trees: list[Tree]) -> Tree:
    """Put batches together again along the samples."""
    if len(trees) == 1 or trees[0] is None:
        return trees[0]
    parts = iter([torch.cat(part) for part in zip(*(list(leaves(tree)) for tree in trees), strict=True)])
    joined = dict(zip((id(leaf) for leaf in leaves(trees[0])), parts, strict=True))
    return tree_map(lambda leaf: joined[id(leaf)], trees[0])


def tensor_bytes(tree: Tree) -> int:
    """Return the bytes of all tensors of a tree."""
    return sum(leaf.element_size() * leaf.numel() for leaf in leaves(tree))


def row_bytes(tree: Tree) -> int:
    """Return the bytes of one sample."""
    return sum(leaf.element_size() * leaf[0].numel() for leaf in leaves(tree))


def piece_size(tensors: list[torch.Tensor]) -> int:
    """Return how many elements a piece should have so that one pass occupies a whole GPU; 0: leave the tensors whole.

    torch's multi-tensor kernels give 65,536 elements to one block of threads: 700,000 parameters occupy 11 of an
    H200's 132 multiprocessors. As 45 pieces the same pass takes a third of the time.
    """
    if not tensors or tensors[0].device.type != "cuda" or not all(tensor.is_contiguous() for tensor in tensors):
        return 0
    total = sum(tensor.numel() for tensor in tensors)
    size = max(MIN_ELEMENTS, -(-total // max(1, LAUNCH_TENSORS - len(tensors))))
    return size if size < BLOCK_ELEMENTS else 0


def cut(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    """Return the tensors as flat pieces of at most `size` elements, in order and without a copy; 0: as they are."""
    if not size:
        return tensors
    return [piece for tensor in tensors for piece in tensor.detach().reshape(-1).split(size)]


def stream_seed(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's random numbers."""
    return (seed * SEED_STRIDE + epoch) % 2**63


@contextlib.contextmanager
def random_stream(device: torch.device, seed: int) -> Iterator[None]:
    """Draw dropout and other random numbers of torch from `seed` inside the block; the caller's streams stay."""
    if device.type == "mps":  # `fork_rng` asks for states by device number, which Apple's has not
        state, outer = torch.mps.get_rng_state(), torch.get_rng_state()
        try:
            torch.manual_seed(seed)
            yield
        finally:
            torch.mps.set_rng_state(state)
            torch.set_rng_state(outer)
        return
    with torch.random.fork_rng(devices=[device.index or 0] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def free_bytes(device: torch.device) -> int | None:
    """Return the memory a GPU can still hand out; None for devices whose memory is the host's."""
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + int(cached)


def device_name(device: torch.device) -> str:
    """Return the device's name, for `how`."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return {"cpu": "the CPU", "mps": "Apple's GPU (mps)"}.get(device.type, str(device))


def _each(function: Untyped, targets: Tree, sources: Tree) -> None:
    for target, source in zip(leaves(targets), leaves(sources), strict=True):
        function(target, source)


def _tensor(leaf: np.ndarray) -> torch.Tensor:
    """Return a tensor over the array's memory; torch has no unsigned integers beyond a byte, so those are widened."""
    if leaf.dtype in (np.uint16, np.uint32):
        leaf = leaf.astype(np.int32 if leaf.dtype == np.uint16 else np.int64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(np.ascontiguousarray(leaf))
