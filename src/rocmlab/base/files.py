"""Writing so that a reader never sees half a file."""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rocmlab.base import private

DRAFT_BYTES = 4  # of chance, in the name of a draft


def write_text(path: Path, text: str) -> None:
    """Replace a file by `text`, at once: whoever reads sees the old content or the new."""
    write_pieces(path, [text])


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """Replace a file by these pieces of text, at once, without putting them together before."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(DRAFT_BYTES)}")
    try:
        # A lone surrogate, which a notebook may print, becomes \ud800: in JSON that is its proper form.
        with open(draft, "xb", opener=private.create) as file:
            file.writelines(piece.encode("utf-8", "backslashreplace") for piece in pieces)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def draft_of(suffix: str) -> re.Pattern[str]:
    """Return what the name of a draft looks like, which a process that is killed while it writes leaves.

    Args:
        suffix: of the file that was to be written, as a regular expression.
    """
    return re.compile(rf"\..+\.{suffix}\.[0-9a-f]{{{2 * DRAFT_BYTES}}}", re.DOTALL)


def to_json(value: object, indent: int | None = 1) -> str:
    """Return strict JSON; NaN and infinity, which it has no word for, become null: unknown."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False, default=str)


def _finite(value: Any) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
