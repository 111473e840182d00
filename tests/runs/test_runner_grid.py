"""Parameter grids: which values a word gives, and which jobs come of them."""

from __future__ import annotations

import json
from pathlib import Path

import notebook_files
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.command import main
from rocmlab.runs.jobs import MAX_NAME_BYTES, Job, Request, name_uniquely, safe_name
from rocmlab.runs.spec import grid, parameters
from rocmlab.runs.spec.grid import Entry


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.01", [0.1, 0.01]),
        ("0.1, 0.01 ,1e-3", [0.1, 0.01, 0.001]),
        ("a,b", ["a", "b"]),
        ("1,2.5,true,None,text", [1, 2.5, True, None, "text"]),
        ("[1, 2]", [[1, 2]]),
        ("[1, 2],[3, 4]", [[1, 2], [3, 4]]),
        ("[[1, 2], [3]], 4", [[[1, 2], [3]], 4]),
        ("{a: 1, b: [2, 3]},{a: 2}", [{"a": 1, "b": [2, 3]}, {"a": 2}]),
        ("'a,b'", ["a,b"]),
        ('"a,b"', ["a,b"]),
        ("'a,b',c", ["a,b", "c"]),
        ("'it''s, so',b", ["it's, so", "b"]),
        (r'"a\",b",c', ['a",b', "c"]),
        ("it's,b", ["it's", "b"]),  # a quote within a word is not a quote, in YAML too
        ("['a]', b],c", [["a]", "b"], "c"]),
        ('{a: "},{"},c', [{"a": "},{"}, "c"]),
        ("a[1,2]", ["a[1", "2]"]),  # the value begins with a letter
        ("'',x", ["", "x"]),
        ("0,2", [0, 2]),
    ],
)
def test_commas_between_values_make_a_grid(text: str, values: list) -> None:
    """What begins with a quote or a bracket keeps its commas; every piece is YAML as before."""
    found = parameters.parse([f"x={text}"])["x"]

    assert found == values
    assert [type(each) for each in found] == [type(each) for each in values]


TEXT = st.text(st.characters(max_codepoint=0xD7FF), max_size=8)  # JSON has no other way to escape the rest
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, min_size=1, max_size=4, unique_by=lambda value: json.dumps(value, sort_keys=True)))
def test_any_values_written_as_json_come_back(values: list) -> None:
    """JSON is YAML, so a program can always write its values without a doubt."""
    text = ",".join(json.dumps(value) for value in values)

    assert parameters.parse([f"x={text}"])["x"] == values


def test_every_combination_is_a_job_with_a_name_that_tells_it() -> None:
    """Only what differs is in the name; the last parameter varies fastest."""
    axes = {"lr": [0.1, 0.01], "epochs": [3], "seed": [1, 2]}

    points = list(grid.points(axes))

    assert [grid.suffix(axes, point) for point in points] == [
        "-lr=0.1-seed=1",
        "-lr=0.1-seed=2",
        "-lr=0.01-seed=1",
        "-lr=0.01-seed=2",
    ]
    assert all(point["epochs"] == 3 for point in points)
    assert len(points) == 4
    assert list(grid.points({})) == [{}]


def test_an_absurd_grid_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """Ten to the twelfth is counted and not laid out."""
    notebook = notebook_files.write(tmp_path / "a.ipynb", "1")
    axes = {name: list(range(1000)) for name in ("a", "b", "c", "d")}

    with pytest.raises(RocmlabError) as caught:
        grid.expand([Entry(Request(str(notebook)), axes)], tmp_path)

    assert "1,000,000,000,000 jobs" in caught.value.problem.what
    assert "10,000" in caught.value.problem.why
    assert caught.value.problem.fix


@given(st.lists(st.text(max_size=150), max_size=20))
def test_names_are_safe_and_unique_whatever_is_asked(names: list[str]) -> None:
    """No name leads out of the folder, is hidden, too long for a file, or equal to another where case is ignored."""
    found = [job.name for job in name_uniquely([Job(name, name) for name in names])]

    assert len({name.casefold() for name in found}) == len(names)
    for name in found:
        assert Path(name).name == name
        assert not name.startswith((".", "-"))
        assert len(name.encode()) <= MAX_NAME_BYTES + 5
        assert name.casefold() != "report"


def test_the_name_of_a_point_survives_as_a_file_name() -> None:
    """`=` and `-` stay; quotes, slashes, HTML and line ends do not."""
    axes = {"path": ["../../etc", "<b>\"'&\n"], "lr": [-1e-3, 0.5]}

    names = [safe_name("01_a" + grid.suffix(axes, point)) for point in grid.points(axes)]

    assert names == [
        *("01_a-path=.._.._etc-lr=-0.001", "01_a-path=.._.._etc-lr=0.5"),
        *("01_a-path=_b_-lr=-0.001", "01_a-path=_b_-lr=0.5"),
    ]


def test_ten_thousand_equal_names_are_named_at_once() -> None:
    """Each name is found without trying all before it."""
    found = name_uniquely([Job("a", "a")] * 10_000)

    assert found[-1].name == "a-10000"


def test_a_name_of_the_runs_own_files_is_not_given() -> None:
    """`report.html` belongs to the run, and `a.attempt1` to an earlier attempt of `a`."""
    found = [job.name for job in name_uniquely([Job(name, name) for name in ("report", "a", "a.attempt1")])]

    assert found == ["report-2", "a", "a-attempt1"]


@pytest.mark.long
@pytest.mark.slow
def test_a_grid_over_notebooks_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two values and two notebooks are four jobs, each with its own parameters and result."""
    declared = notebook_files.PARAMETERS + "lr: float = 1.0\nname: str = 'a'"
    for name in ("a", "b"):
        notebook_files.write(tmp_path / f"notebooks/{name}.ipynb", declared, "import rocmlab\nrocmlab.record(got=lr)")
    monkeypatch.chdir(tmp_path)

    code = main(["-p", "lr=0.5,0.25", "-p", 'name="x, y"', "--gpus", "none", "--json"])

    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert code == 0
    assert [job["name"] for job in jobs] == ["a-lr=0.5", "a-lr=0.25", "b-lr=0.5", "b-lr=0.25"]
    assert [job["recorded"]["got"] for job in jobs] == [0.5, 0.25, 0.5, 0.25]
    assert all(job["parameters"]["name"] == "x, y" for job in jobs)
