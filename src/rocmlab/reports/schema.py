"""The published JSON Schema of `results.json`, for programs that read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NO_FAILURE = ("ok", "skipped")  # statuses of a job
VERSION = 1  # `schema` in the file; the schema documents when it changes
PATH = Path(__file__).with_name("results.schema.json")


def load() -> dict[str, Any]:
    """Return the schema (JSON Schema, draft 2020-12)."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found
