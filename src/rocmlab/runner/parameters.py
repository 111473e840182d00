"""Parameters from the command line: `NAME=VALUE`, the value read as YAML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

from rocmlab.errors import RocmlabError


def parse(words: Iterable[str]) -> dict[str, Any]:
    """Return the parameters that `-p NAME=VALUE` words give.

    Raises:
        RocmlabError: a word has no `=`, no Python name before it, or a value that is not YAML.
    """
    return dict(_parse(word) for word in words)


def _parse(word: str) -> tuple[str, Any]:
    import yaml  # type: ignore[import-untyped]  # papermill needs it, so it is there wherever notebooks run

    name, equals, text = word.partition("=")
    if not equals or not name.isidentifier():
        raise RocmlabError(f"-p {word} is not NAME=VALUE", "a parameter needs a name and a value", "-p epochs=2")
    try:
        return name, yaml.load(text, Loader=_loader())
    except yaml.YAMLError as err:
        raise RocmlabError(
            f"-p {word} cannot be read", f"the value is not YAML: {err}", "quote it: -p 'name=\"text: with a colon\"'"
        ) from err


def _loader() -> Any:  # noqa: ANN401  a class of PyYAML, which has no types
    """Return a YAML loader that reads a word as a person means it on a command line.

    Like papermill it makes no dates. Beyond YAML 1.1 it knows `1e-3` (a learning rate, not text) and `None`, and it
    keeps `no`, `on`, `012` and `1:30` as they are: a country code or a time is not a number.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def resolve(tag: str, pattern: str, first: str) -> None:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), list(first))

    resolve("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
    resolve("null", r"^(?:~|null|Null|NULL|None)$", "~nN")
    resolve("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789")
    resolve("float", r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", "-+0123456789.")
    resolve("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+.")
    resolve("merge", r"^<<$", "<")
    return Loader
