"""`-p NAME=VALUE` as a user means it."""

from __future__ import annotations

import math

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.spec import parameters


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("-7", -7),
        ("0.5", 0.5),
        ("1e-3", 0.001),  # text to YAML 1.1, and the most common parameter of all
        ("1.5E+2", 150.0),
        (".inf", math.inf),
        ("true", True),
        ("False", False),
        ("None", None),
        ("~", None),
        ("", None),
        ("[1, 2.5, a]", [1, 2.5, "a"]),
        ("{units: 512, name: relu}", {"units": 512, "name": "relu"}),
        ("'2'", "2"),
        ("no", "no"),
        ("on", "on"),
        ("012", "012"),
        ("1:30", "1:30"),
        ("2026-11-21", "2026-11-21"),
        ("a=b", "a=b"),
        ("0000:03:00.0", "0000:03:00.0"),
    ],
)
def test_values_keep_the_type_a_person_means(text: str, value: object) -> None:
    """Numbers, truths and lists are recognised, and everything else stays text."""
    (found,) = parameters.parse([f"x={text}"])["x"]

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "word",
    [
        *("epochs", "=2", "2x=1", "a b=1", "x=[1", "x=!!python/object:os.system {}"),
        *("x=1,", "x=,", "x=1,,2", "x=1,1", "x=[1,2", "x='a,b", "x=!!timestamp 2026-11-21", "x=!!binary aGk="),
    ],
)
def test_what_is_not_a_parameter_is_refused(word: str) -> None:
    """A word without a name, or with a value that cannot be read, names itself in the error."""
    with pytest.raises(RocmlabError) as caught:
        parameters.parse([word])

    assert word in caught.value.problem.what
    assert caught.value.exit_code == 2


def test_a_parameter_given_twice_is_refused() -> None:
    """Whichever counted, the other would be lost silently; a grid is written with a comma."""
    assert parameters.parse(["epochs=1,3", "seed=7"]) == {"epochs": [1, 3], "seed": [7]}

    with pytest.raises(RocmlabError) as caught:
        parameters.parse(["epochs=1", "seed=7", "epochs=2"])

    assert caught.value.problem.what == "-p epochs is given twice"
    assert "-p epochs=A,B" in caught.value.problem.fix
