"""The formats of MNIST's files: idx, and arrays as NumPy stores them, read without NumPy and without running anything.

`rocmlab datasets fetch` runs in the lab's own environment, which has no NumPy; and a pickle from a package index must
not create objects of real classes.

An idx file is two zero bytes, the kind of number, the rank, the sizes (big-endian), then the numbers; only unsigned
bytes (kind 8) occur here. Source: the description on the page that published MNIST.
"""

from __future__ import annotations

import array
import ast
import math
import pickle
import struct
import sys
from io import BufferedIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmlab.base.errors import RocmlabError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNSIGNED_BYTE = 8


def header(*shape: int) -> bytes:
    """Return the header of an idx file of unsigned bytes with this shape."""
    return struct.pack(f">HBB{len(shape)}I", 0, UNSIGNED_BYTE, len(shape), *shape)


def shape_of(content: bytes, name: str) -> tuple[int, ...]:
    """Return the shape that an idx file of unsigned bytes states; an error if it is another file, or truncated."""
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


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a raw idx file of unsigned bytes as an array of its shape."""
    import numpy as np

    content = path.read_bytes()
    shape = shape_of(content, str(path))
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def bytes_of(npy: bytes) -> bytes:
    """Return the content of an .npy file that holds unsigned bytes in C order.

    Source: NumPy's format description: magic, version, length of the header, the header as a Python literal.

    Raises:
        ValueError: it is something else.
    """
    if npy[:6] != b"\x93NUMPY":
        raise ValueError("not an .npy file")
    width, form = (2, "<H") if npy[6] == 1 else (4, "<I")
    start = 8 + width + struct.unpack(form, npy[8 : 8 + width])[0]
    described = ast.literal_eval(npy[8 + width : start].decode("latin-1"))
    if described["descr"] != "|u1" or described["fortran_order"]:
        raise ValueError(f"array of {described['descr']}")
    return npy[start:]


class StoredArray:
    """What a pickled array carries: type and raw content, with no NumPy behind it."""

    kind: str
    content: bytes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, _shape, dtype, is_fortran, content = state
        if is_fortran or dtype.order not in (b"<", b"|"):
            raise pickle.UnpicklingError("array in an unexpected order")
        self.kind, self.content = dtype.kind, content

    def as_bytes(self) -> bytes:
        """Return labels as bytes, or grey values from float32 of byte / 256; raise ValueError for other numbers."""
        if self.kind == "i8":
            return self.content[0::8]  # labels 0 to 9: the lowest byte is enough
        if self.kind != "f4":
            raise ValueError(f"array of {self.kind}")
        # byte / 256 needs 8 bits of significand, so the upper half of the float32 identifies the byte.
        halves = array.array("H", self.content)
        if sys.byteorder == "big":
            halves.byteswap()
        upper = {struct.unpack("<2H", struct.pack("<f", value / 256))[1]: value for value in range(256)}
        try:
            return bytes(map(upper.__getitem__, halves[1::2]))
        except KeyError as err:
            raise ValueError("grey value that is not a byte / 256") from err


class _StoredType:
    def __init__(self, kind: bytes, *_: object) -> None:
        self.kind = kind.decode("ascii")
        self.order = b"<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


class _ArraysOnly(pickle.Unpickler):
    """Gives every name a pickled array needs an inert substitute, and rejects all others."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401  the signature is pickle's
        if module.split(".")[0] == "numpy":
            substitutes: dict[str, Any] = {
                "_reconstruct": lambda *_: StoredArray(),
                "ndarray": StoredArray,
                "dtype": _StoredType,
            }
            if name in substitutes:
                return substitutes[name]
        raise pickle.UnpicklingError(f"{module}.{name} rejected")


def load_pickle(stream: BufferedIOBase) -> Any:  # noqa: ANN401  whatever tuples the file holds
    """Load a pickle of tuples of arrays, as `StoredArray`; raise UnpicklingError if it names anything else."""
    return _ArraysOnly(stream, encoding="bytes").load()
