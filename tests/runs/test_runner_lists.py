"""Job lists: what they say, and that every mistake in one is told with its place before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import notebook_files
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.command import main
from rocmlab.runs.jobs import Request
from rocmlab.runs.spec import lists
from rocmlab.runs.spec.grid import Entry

LIST = """
defaults:
  timeout: 60
  parameters: {epochs: 1}
jobs:
  - notebook: a.ipynb
    name: first <b>"job"</b>
    gpus: 2
    vram: 24GB
    kernel: torch
    mixed: true
    parameters: {epochs: 3, title: "a, b", rate: 1e-3}
  - notebook: sub/*.ipynb
    timeout: 5.5
    grid: {lr: [0.1, 0.01], layers: [[64, 32], [8]]}
"""


def write(folder: Path, content: str | bytes, name: str = "tonight.yaml") -> Path:
    """Write a list."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_yaml_list_says_everything(tmp_path: Path) -> None:
    """Defaults hold where an entry says nothing, and values are read as those of `-p` are."""
    first, second = lists.read(write(tmp_path, LIST))

    request = Request(
        word="a.ipynb",
        name='first <b>"job"</b>',
        kernel="torch",
        gpus=2,
        vram_bytes=24 * 10**9,
        is_mixed=True,
        timeout_seconds=60,
        source="yaml",
    )
    assert first == Entry(request, {"epochs": [3], "title": ["a, b"], "rate": [0.001]}, tmp_path)
    assert second.axes == {"epochs": [1], "lr": [0.1, 0.01], "layers": [[64, 32], [8]]}
    assert second.request == Request("sub/*.ipynb", timeout_seconds=5.5, source="yaml")


def test_a_plain_list_and_an_anchor_work(tmp_path: Path) -> None:
    """A list needs no defaults, and YAML's own way of sharing is understood."""
    text = "- &base\n  notebook: a.ipynb\n  gpus: all\n- <<: *base\n  gpus: 0\n"

    assert [(entry.request.word, entry.request.gpus) for entry in lists.read(write(tmp_path, text))] == [
        ("a.ipynb", "all"),
        ("a.ipynb", 0),
    ]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_csv_list_says_everything(mark: bytes, end: str, tmp_path: Path) -> None:
    """Columns that are not ours are parameters; an empty cell says nothing; what a spreadsheet writes is read."""
    rows = ["notebook,gpus,vram,name,timeout,lr,title", 'a.ipynb,2,16 GiB,one,9,1e-3,"x, ""y"""', "b.ipynb,,,,,,", ""]

    first, second = lists.read(write(tmp_path, mark + end.join(rows).encode(), "tonight.csv"))

    request = Request("a.ipynb", name="one", gpus=2, vram_bytes=16 * 2**30, timeout_seconds=9, source="csv")
    assert first == Entry(request, {"lr": [0.001], "title": ['x, "y"']}, tmp_path)
    assert second == Entry(Request("b.ipynb", source="csv"), {}, tmp_path)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "where", "what"),
    [
        ("a.yaml", "", "a.yaml", "lists no job"),
        ("a.yaml", "# nothing\n", "a.yaml", "lists no job"),
        ("a.yaml", "[]", "a.yaml", "lists no job"),
        ("a.yaml", "jobs: []\n", "a.yaml", "lists no job"),
        ("a.yaml", "defaults: {gpus: 1}\n", "line 1", "no `jobs`"),
        ("a.yaml", "text\n", "line 1", "not a list of jobs"),
        ("a.yaml", "- a.ipynb\n", "line 1 (entry 1)", "a mapping is expected"),
        ("a.yaml", "- notebook: a\n- {notebok: b}\n", "line 2 (entry 2)", "unknown key 'notebok'"),
        ("a.yaml", "jobs:\n- notebook: a\ndefault: {}\n", "line 1", "unknown key 'default'"),
        ("a.yaml", "defaults: {name: x}\njobs:\n- notebook: a\n", "line 1", "unknown key 'name'"),
        ("a.yaml", "- kernel: torch\n", "line 1 (entry 1)", "not name a notebook"),
        ("a.yaml", "- notebook: a\n  gpus: many\n", "line 2 (entry 1)", "gpus = 'many'"),
        ("a.yaml", "- notebook: a\n  gpus: true\n", "line 2 (entry 1)", "gpus = True"),
        ("a.yaml", "- notebook: a\n  vram: 24\n", "line 2 (entry 1)", "vram = 24"),
        ("a.yaml", "- notebook: a\n  vram: 24 parsecs\n", "line 2 (entry 1)", "vram = '24 parsecs'"),
        ("a.yaml", "- notebook: a\n  mixed: perhaps\n", "line 2 (entry 1)", "mixed = 'perhaps'"),
        ("a.yaml", "- notebook: a\n  timeout: -1\n", "line 2 (entry 1)", "timeout = -1"),
        ("a.yaml", "- notebook: [a]\n", "line 1 (entry 1)", "notebook = ['a']"),
        ("a.yaml", "- notebook: ''\n", "line 1 (entry 1)", "notebook = ''"),
        ("a.yaml", "- notebook: a\n  kernel: 3\n", "line 2 (entry 1)", "kernel = 3"),
        ("a.yaml", "- notebook: a\n  parameters: [1]\n", "line 2 (entry 1)", "a mapping is expected"),
        ("a.yaml", "- notebook: a\n  parameters: {1: 2}\n", "line 2 (entry 1)", "the key 1 is no name"),
        ("a.yaml", "- notebook: a\n  grid: {lr: 0.1}\n", "line 2 (entry 1)", "grid: lr is not a list"),
        ("a.yaml", "- notebook: a\n  grid: {lr: []}\n", "line 2 (entry 1)", "grid: lr is not a list"),
        ("a.yaml", "- notebook: a\n  grid: {lr: [1, 1]}\n", "line 2 (entry 1)", "a value twice"),
        ("a.yaml", "- notebook: a\n  grid: {x: [1]}\n  parameters: {x: 1}\n", "line 2", "a parameter and of the grid"),
        ("a.yaml", "- notebook: a\n  notebook: b\n", "line 1 (entry 1)", "'notebook' appears twice"),
        ("a.yaml", "- notebook: a\n  parameters: {d: !!timestamp 2026-11-21}\n", "line 2", "cannot be a parameter"),
        ("a.yaml", "- notebook: a\n  parameters: {d: !!python/object:os.system {}}\n", "line 2", "not YAML"),
        ("a.yaml", "- notebook: a\n  name: x\n- notebook: b\n  name: x\n", "entry 2", "has the name 'x', as entry 1"),
        ("a.yaml", "- notebook: a\n- {notebook: b\n", "line 3", "not YAML"),
        ("a.yaml", "- notebook: 'a\n", "line 2", "not YAML"),
        ("a.yaml", "- notebook: a\n---\n- notebook: b\n", "line 2", "not YAML"),
        ("a.yaml", "- notebook: a\n- notebook: \x00\n", "line 2", "not YAML"),
        ("a.yaml", "- &x [*x]\n", "line 1", "an alias contains itself"),
        ("a.yaml", b"\xff\xfe-\x00", "line 1", "UTF-16"),
        ("a.yaml", b"- notebook: a\n- notebook: \xe9\n", "line 2", "not UTF-8"),
        ("a.yaml", b"- notebook: a\n- notebook: " + b"x" * 2_000_000, "line 2", "longer than 1 MB"),
        ("a.yaml", b"- notebook: a\n" * 800_000, "a.yaml", "larger than 8 MB"),
        ("a.yaml", "[" * 3000, "a.yaml", "cannot be read"),
        ("a.csv", "", "a.csv", "lists no job"),
        ("a.csv", "notebook,lr\n", "a.csv", "lists no job"),
        ("a.csv", "lr,seed\n1,2\n", "line 1", "the column `notebook` is missing"),
        ("a.csv", "notebook,lr,lr\na,1,2\n", "line 1", "'lr' appears twice"),
        ("a.csv", "notebook,learning rate\na,1\n", "line 1", "'learning rate' is no parameter"),
        ("a.csv", "notebook,lr\na,1\n\nb,1,2\n", "line 4", "it has 3 cells"),
        ("a.csv", "notebook,lr\na\n", "line 2", "it has 1 cell"),
        ("a.csv", "notebook,lr\n,1\n", "line 2", "not name a notebook"),
        ("a.csv", "notebook,lr\na,[1\n", "line 2", "lr cannot be read"),
        ("a.csv", "notebook,gpus\na,x\n", "line 2", "gpus = 'x'"),
        ("a.csv", 'notebook,lr\na,"1\n', "line 2", "not CSV"),
        ("a.csv", "notebook,name\na,x\nb,x\n", "entry 2", "has the name 'x'"),
        ("a.csv", b"notebook,name\na," + b"x" * 10_000_000 + b"\n", "line 2", "longer than 1 MB"),
    ],
)
def test_a_mistake_is_told_with_its_place(
    name: str, content: str | bytes, where: str, what: str, tmp_path: Path
) -> None:
    """File, line or entry, what is wrong, and what to do."""
    path = write(tmp_path, content, name)

    with pytest.raises(RocmlabError) as caught:
        lists.read(path)

    problem = caught.value.problem
    assert name in problem.what
    assert where in problem.what
    assert what in problem.what
    assert problem.why
    assert problem.fix
    assert len(str(problem)) < 1000


def test_aliases_cannot_make_a_giant_of_a_small_file(tmp_path: Path) -> None:
    """Ten aliases of ten aliases of ten … are counted, not followed."""
    levels = ["- &l0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"- &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]

    with pytest.raises(RocmlabError, match="aliases expand to too many"):
        lists.read(write(tmp_path, "\n".join(levels)))


@given(st.text(max_size=80), st.sampled_from([".yaml", ".csv"]))
def test_no_text_ever_costs_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str, ending: str) -> None:
    """Whatever the file holds, it is a list or an error with a reason."""
    path = write(tmp_path_factory.mktemp("lists"), text.encode(errors="surrogatepass"), f"a{ending}")

    problem = None
    try:
        found = lists.read(path)
    except RocmlabError as err:
        found, problem = [], err.problem

    assert found or (problem and problem.what and problem.fix)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose list lies next to its notebooks and not where the command is typed."""
    declared = notebook_files.PARAMETERS + "lr: float = 1.0"
    notebook_files.write(tmp_path / "notebooks/lists/a.ipynb", declared, "import rocmlab\nrocmlab.record(got=lr)")
    notebook_files.write(tmp_path / "notebooks/b.ipynb", "print('b')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.slow
def test_a_list_is_run_with_paths_relative_to_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of any kind become safe file names, and nothing is written outside of the run folder."""
    text = """
- {notebook: a.ipynb, name: "../../escape me", grid: {lr: [0.5, 0.25]}}
- {notebook: ../b.ipynb, name: "<script>alert('é')</script> \\"x\\" y"}
- {notebook: b, name: "b"}
"""
    write(project / "notebooks/lists", text)
    before = {path for path in project.rglob("*") if "share" not in path.parts}

    code = main(["notebooks/lists/tonight.yaml", "--gpus", "none", "--json"])

    printed = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [job["name"] for job in printed["jobs"]] == [
        "escape_me-lr=0.5",
        "escape_me-lr=0.25",
        "script_alert_é_script_x_y",
        "b",
    ]
    assert [job["recorded"].get("got") for job in printed["jobs"]] == [0.5, 0.25, None, None]
    assert {path for path in project.rglob("*") if "share" not in path.parts} == before
    folder = Path(printed["run"]["folder"])
    assert all((folder / name).is_file() for job in printed["jobs"] for name in job["files"].values())


@pytest.mark.parametrize("word", ["missing.yaml", "notebooks/lists/torn.yaml"])
def test_a_bad_list_runs_nothing(word: str, project: Path) -> None:
    """Not even the notebooks next to it."""
    write(project / "notebooks/lists", "- notebook: a.ipynb\n- notebook: [", "torn.yaml")

    with pytest.raises(RocmlabError) as caught:
        main([word, "b", "--gpus", "none"])

    assert caught.value.exit_code == 2
    assert not (project / "share").exists()


def test_the_command_line_wins_over_a_list(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`-p` makes a grid of the list's jobs, and `--job-gpus` replaces their wish."""
    write(project / "notebooks/lists", "- {notebook: a.ipynb, gpus: 2, parameters: {lr: 0.1}}\n")

    code = main(["notebooks/lists/tonight.yaml", "-p", "lr=1,2", "--job-gpus", "0", "--dry-run", "--json"])

    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert code == 0
    assert [(job["name"], job["parameters"], job["gpus"]) for job in jobs] == [
        ("a-lr=1", {"lr": 1}, 0),
        ("a-lr=2", {"lr": 2}, 0),
    ]
