"""Writing so that a reader never sees half a file."""

from __future__ import annotations

import json
import math
import os
import secrets
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace a file by `text`, at once: whoever reads sees the old content or the new."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        # A lone surrogate, which a notebook may print, becomes \ud800: in JSON that is its proper form.
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


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
