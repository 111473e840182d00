"""Cut small sets of parameters into pieces, so that one pass over all of them occupies a whole GPU.

torch's multi-tensor kernels give 65,536 elements to one block of threads: 700,000 parameters occupy 11 of an H200's
132 multiprocessors. As 45 pieces the same pass takes a third of the time. Pieces are views; nothing is copied.
"""

from __future__ import annotations

import torch

LAUNCH_TENSORS = 48  # what one launch of a kernel over three lists takes (the limit of torch's argument buffers)
BLOCK_ELEMENTS = 65_536  # what torch gives to one block of threads
LEAST_ELEMENTS = 4_096  # smaller pieces gain nothing


def piece_size(tensors: list[torch.Tensor]) -> int:
    """Return how many elements a piece should have; 0: leave these tensors whole."""
    if not tensors or tensors[0].device.type != "cuda" or not all(tensor.is_contiguous() for tensor in tensors):
        return 0
    total = sum(tensor.numel() for tensor in tensors)
    size = max(LEAST_ELEMENTS, -(-total // max(1, LAUNCH_TENSORS - len(tensors))))
    return size if size < BLOCK_ELEMENTS else 0


def cut(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    """Return the tensors as flat pieces of at most `size` elements, in order; 0: as they are."""
    if not size:
        return tensors
    return [piece for tensor in tensors for piece in tensor.detach().reshape(-1).split(size)]
