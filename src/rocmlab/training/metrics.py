"""What a notebook measured, kept inside the notebook, where the runner finds it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rocmlab.base.errors import RocmlabError

MIME_TYPE = "application/vnd.rocmlab.record+json"


def record(**values: object) -> None:
    """Keep results of this notebook under their names; the runner collects them into `results.json`.

    In a notebook the values become one MIME bundle in the output of the cell; elsewhere they are printed.
    Scalars and arrays of NumPy, TensorFlow, PyTorch and JAX become plain numbers and lists. NaN and infinity
    become null, because JSON cannot express them: a diverged loss is kept as *unknown*, and every reader
    can parse `results.json`.

    Args:
        values: strings, numbers, booleans, None, and lists and dicts of them.

    Raises:
        RocmlabError: no value, or one that JSON cannot hold.
    """
    if not values:
        raise RocmlabError("record() was called without a value", "no result was given", "record(accuracy=0.98)")
    plain = {name: _plain(value, name) for name, value in values.items()}
    line = "recorded: " + ", ".join(f"{name}={_short(value)}" for name, value in plain.items())
    # sys.modules instead of an import: outside Jupyter, IPython may be missing, and importing it takes time.
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        sys.stdout.write(line + "\n")
        return
    ipython.display.display({MIME_TYPE: plain, "text/plain": line}, raw=True)


class Skipped(RocmlabError):
    """A notebook ends here because something that it needs is missing; the runner counts it as skipped."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback: the reason."""
        return [f"Skipped: {self.problem}"]


def skip(what: str, why: str = "", fix: str = "") -> NoReturn:
    """End this notebook without a failure; the rest of it is not run.

    A headless run reports the notebook as `skipped`, with the reason: what is missing, why, and how to get it. For
    papermill alone it is an error, because papermill has no other way to end a notebook.

    Raises:
        Skipped: always.
    """
    record(skipped="; ".join(filter(None, (what, why, fix))))
    raise Skipped(what, why, fix)


def _plain(value: object, name: str) -> Any:  # noqa: ANN401  any JSON value
    """Return `value` as JSON types; `name` is its place, for the error."""
    if value is None or isinstance(value, bool | str):
        return value if not isinstance(value, str) else str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise RocmlabError(
                f"record({name}=…) has the key {wrong[0]!r} of type {type(wrong[0]).__name__}",
                "the keys of a JSON object are strings",
                "use str() on the keys",
            )
        return {str(key): _plain(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item, f"{name}[{number}]") for number, item in enumerate(value)]
    converted = _from_framework(value)
    if converted is None:
        raise RocmlabError(
            f"record({name}=…) cannot keep a {type(value).__module__}.{type(value).__qualname__}",
            "a record holds what JSON holds: strings, numbers, booleans, None, lists and dicts",
            "convert it first, for example with float(), str() or list()",
        )
    return _plain(converted, name)


def _from_framework(value: object) -> object | None:
    """Return a value of NumPy or a framework as numbers or lists; None if it is something else."""
    if callable(getattr(value, "detach", None)):  # a PyTorch tensor, perhaps on a GPU and with a gradient
        value = value.detach().cpu()  # type: ignore[attr-defined]
    elif not callable(getattr(value, "tolist", None)) and callable(getattr(value, "numpy", None)):
        value = value.numpy()  # type: ignore[attr-defined]
    to_list = getattr(value, "tolist", None)
    converted: object = to_list() if callable(to_list) else None
    return None if isinstance(converted, bytes | complex) else converted


def _short(value: object) -> str:
    """Return a value in one readable line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | dict):
        return f"({len(value)} values)" if value else "(empty)"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"
