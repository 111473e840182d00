"""What the hub's commands get: as arguments, or from make in variables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import hub

Sent = list[tuple[str, dict[str, str]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sent:
    """What a hub that runs is sent: command and arguments."""
    found: Sent = []

    def ask(known: object, method: str, command: str, given: dict[str, str]) -> dict[str, Any]:
        found.append((command, given))
        return {"note": None}

    monkeypatch.delenv("ROCMLAB_RUNTIME", raising=False)
    monkeypatch.setattr(hub.projects, "find", lambda: tmp_path)
    monkeypatch.setattr(hub, "Hub", lambda settings: SimpleNamespace(known=object, is_running=lambda: True))
    monkeypatch.setattr(hub.commands, "ask", ask)
    return found


@pytest.mark.parametrize(
    ("words", "variables", "given"),
    [
        (["message", "-- hi"], {}, {"text": "-- hi"}),
        (["message"], {"TEXT": "--help $x"}, {"text": "--help $x"}),
        (["message"], {}, {"text": ""}),
        (["message", "argument"], {"TEXT": "variable"}, {"text": "argument"}),
        (["drain"], {"TEXT": "new disk"}, {"text": "new disk"}),
        (["drain"], {}, {"text": ""}),
        (["undrain"], {}, {}),
        (["stop", "bob"], {}, {"user": "bob"}),
        (["stop"], {"USER": "bob"}, {"user": "bob"}),
    ],
)
def test_a_command_takes_arguments_or_what_make_passes(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, words: list[str], variables: dict[str, str], given: dict[str, str]
) -> None:
    """An argument comes first; a text that begins like an option is a text."""
    for name, value in variables.items():
        monkeypatch.setenv(f"ROCMLAB_HUB_{name}", value)

    assert hub.main("hub", [words[0], *(["--"] if words[1:] else []), *words[1:]]) == 0

    assert sent == [(words[0], given)]


@pytest.mark.parametrize(
    ("command", "variables", "what"),
    [
        ("stop", {}, "the user whose lab to stop is missing"),
        ("stop", {"USER": "bob", "TEXT": "bye"}, "make hub-stop does not take TEXT=bye"),
        ("message", {"USER": "bob", "TEXT": "hi"}, "make hub-message does not take HUB_USER=bob"),
        ("drain", {"USER": "bob"}, "make hub-drain does not take HUB_USER=bob"),
        ("undrain", {"TEXT": "hi"}, "make hub-undrain does not take TEXT=hi"),
    ],
)
def test_what_a_command_does_not_take_is_an_error(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, command: str, variables: dict[str, str], what: str
) -> None:
    """A message for one user would otherwise reach all, and nothing is sent to the hub."""
    for name, value in variables.items():
        monkeypatch.setenv(f"ROCMLAB_HUB_{name}", value)

    with pytest.raises(RocmlabError) as caught:
        hub.main("hub", [command])

    assert caught.value.problem.what == what
    assert sent == []
