"""The idx format of MNIST: two zero bytes, the kind of number, the rank, the sizes, then the numbers.

Sizes are big-endian. Only unsigned bytes (kind 8) occur here.
Source: the description on the page that published MNIST.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from rocmlab.base.errors import RocmlabError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNSIGNED_BYTE = 8


def header(*shape: int) -> bytes:
    """Return the header of an idx file of unsigned bytes with this shape."""
    return struct.pack(f">HBB{len(shape)}I", 0, UNSIGNED_BYTE, len(shape), *shape)


def shape_of(content: bytes, name: str) -> tuple[int, ...]:
    """Return the shape an idx file of unsigned bytes claims, after checking that its length agrees.

    Raises:
        RocmlabError: the content is not an idx file of bytes, or is cut short.
    """
    zero, kind, rank = struct.unpack(">HBB", content[:4]) if len(content) >= 4 else (1, 0, 0)
    start = 4 + 4 * rank
    if zero == 0 and kind == UNSIGNED_BYTE and len(content) >= start:
        shape = struct.unpack(f">{rank}I", content[4:start])
        if len(content) == start + math.prod(shape):
            return shape
    raise RocmlabError(
        f"{name} is not a whole idx file of bytes",
        f"it has {len(content)} bytes and begins with {content[:4].hex() or 'nothing'}",
        "delete it and fetch the data set again",
    )


def read(path: Path) -> NDArray[np.uint8]:
    """Read a raw idx file of unsigned bytes as an array of its shape."""
    import numpy as np

    content = path.read_bytes()
    shape = shape_of(content, str(path))
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
