"""What an engine prints of a container."""

from __future__ import annotations

import json

import pytest
from engine_words import container, published

from rocmlab.stack import described


def test_what_the_lab_needs_of_it_is_read() -> None:
    """Under the names that Docker and Podman share."""
    text = container("1f", ports=published(8899), env=["A=b"], labels={"x": "y"}, restarts=2, is_restarting=True)

    found = described.container(text)

    assert found == described.Described(
        "1f", "sha256:1", {"x": "y"}, ("A=b",), "inside", "bridge", frozenset({("127.0.0.1", 8899)}), 2, True
    )


@pytest.mark.parametrize("missing", ["Labels", "Env"])
def test_a_container_without_labels_or_variables(missing: str) -> None:
    """Engines write null for what is empty."""
    words = json.loads(container(labels={}, env=[]))
    words[0]["Config"][missing] = None

    found = described.container(json.dumps(words))

    assert found is not None
    assert (found.labels, found.variables) == ({}, ())


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", "[1]", "Error: no such container", '[{"Config": 1}]'])
def test_anything_else_is_none(text: str) -> None:
    """Such as an error message on standard output."""
    assert described.container(text) is None


def test_a_container_without_a_name_of_its_own_is_not_described() -> None:
    """By its host name it is known which runs are its own, and end with it."""
    words = json.loads(container())
    del words[0]["Config"]["Hostname"]

    assert described.container(json.dumps(words)) is None
