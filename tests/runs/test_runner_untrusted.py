"""A run folder may be damaged, or made by someone else: what is read from it decides nothing unchecked."""

from __future__ import annotations

import contextlib
import copy
import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import notebook_files
import pytest
import run_results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from rocmlab.base import safe
from rocmlab.base.errors import RocmlabError
from rocmlab.batch import array_task, collect, layout
from rocmlab.batch.command import main as export
from rocmlab.batch.part import Part
from rocmlab.cluster.executor import delivery
from rocmlab.reports import compare
from rocmlab.runs.command import main
from rocmlab.runs.folder import KINDS, RunFolder
from rocmlab.runs.jobs import Job, Request, name_uniquely
from rocmlab.runs.outcome import history, listing, report, resume
from rocmlab.runs.outcome.results import Run
from rocmlab.runs.screen import preview, summary
from rocmlab.runs.spec import grid
from rocmlab.runs.spec.preflight import jobs_of
from rocmlab.stack.runs_under_way import under_way

FOLDERS = int(os.environ.get("RUN_FOLDERS", "8"))  # that are damaged by chance; `make test-long` takes 50
NAMES = [
    "../../../../t/escaped",
    "/tmp/escaped",
    "a/b",
    "..",
    ".",
    "",
    ".hidden",
    "a\0b",
    "a\nb",
    "a\x1b[31m",
    "report",
    "Report",
    "a.attempt1",
    "x" * 300,
    "a b",
    "javascript:alert(1)",
    "<script>alert(1)</script>",
    "~root",
    "$(id)",
    7,
    None,
    ["a"],
    float("nan"),
]
DEEP = json.loads("[" * 300 + "]" * 300)
HOSTILE = [*NAMES, {}, [], True, -1, 2**70, 1e308, float("inf"), "\ud800", DEEP, {"a": DEEP}, "9999-99-99"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real run: one job that ended ok, one that failed."""
    top = tmp_path_factory.mktemp("original")
    notebook_files.write(top / "notebooks/a.ipynb", notebook_files.PARAMETERS + "scale: float = 1.0", "print(scale)")
    notebook_files.write(top / "notebooks/b.ipynb", "1 / 0")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(top)
        main(["a", "b", "--gpus", "none", "--retries", "0"])
    (folder,) = (top / "share/runs").iterdir()
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it in a share of its own; what lies next to the share must not change."""
    shutil.copytree(original.parents[2], tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project/share/runs" / original.name


def everything(top: Path) -> dict[str, bytes | str]:
    """Return every file and link below a folder."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in top.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def events(folder: Path) -> list[dict[str, Any]]:
    """Return the journal."""
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def write(folder: Path, lines: list[Any]) -> None:
    """Replace the journal, and take away what an end leaves."""
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    (folder / "journal.jsonl").write_text(text, encoding="utf-8", errors="surrogatepass")
    (folder / "results.json").unlink(missing_ok=True)


def refused(folder: Path) -> str:
    """Continue the run, which must be rejected and leave everything as it is; return what was said."""
    top = folder.parents[3]
    before = everything(top)

    with pytest.raises(RocmlabError) as caught:
        main(["--resume", str(folder)])

    assert everything(top) == before
    return str(caught.value)


# -- names


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_name_from_a_journal_never_leads_out_of_the_folder(name: object, folder: Path) -> None:
    """It is rejected with file and line before anything is written, wherever in the journal it stands."""
    lines = events(folder)
    lines[0]["jobs"][0]["name"] = name
    write(folder, lines)

    said = refused(folder)

    assert "journal.jsonl" in said
    assert "line 1:" in said
    assert "\x1b" not in said
    assert "\0" not in said


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_every_writer_names_files_by_one_function(name: object, tmp_path: Path) -> None:
    """Anyone who asks for the file of such a job, or makes a part of it, gets an error."""
    for use in (
        lambda: RunFolder(tmp_path).file(name, "log"),  # type: ignore[arg-type]
        lambda: RunFolder(tmp_path).files(name),  # type: ignore[arg-type]
        lambda: Part(tmp_path, name),  # type: ignore[arg-type]
    ):
        with pytest.raises(RocmlabError, match="cannot be the name of a job"):
            use()


@given(st.lists(st.text(max_size=200), min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_every_name_that_we_give_passes(texts: list[str]) -> None:
    """What `name_uniquely` makes of any text is a job's name, so that no run of ours is rejected."""
    names = [job.name for job in name_uniquely([Job(text, "n.ipynb") for text in texts])]

    assert all(map(safe.is_job_name, names)), names
    assert len({name.casefold() for name in names}) == len(names)


def test_names_that_differ_only_in_case_are_refused(folder: Path) -> None:
    """On some file systems they are the same file."""
    lines = events(folder)
    lines[0]["jobs"][1]["name"] = "A"
    write(folder, lines)

    assert "jobs[1] has the name 'A', as jobs[0] has" in refused(folder)


# -- fields


def changed(lines: list[Any], *path: str | int, to: object) -> list[Any]:
    """Return a journal in which one value is another."""
    made = copy.deepcopy(lines)
    at = made
    for step in path[:-1]:
        at = at[step]  # type: ignore[index]
    at[path[-1]] = to  # type: ignore[index]
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("jobs", 0, "asked", "notebook"), "a\0b"),
        (("jobs", 0, "asked", "notebook"), 5),
        (("jobs", 0, "asked", "gpus"), "many"),
        (("jobs", 0, "asked", "timeout_seconds"), float("nan")),
        (("jobs", 0, "asked", "command"), "rm -rf /"),
        (("jobs", 0, "parameters"), [1]),
        (("jobs", 0, "parameters"), {"scale": DEEP}),
        (("jobs", 0, "parameters_exact"), 5),
        (("jobs", 0, "parameters_exact"), "[1"),
        (("options", "retries"), 10**9),
        (("options", "timeout"), "soon"),
        (("options", "engine"), "../engine"),
        (("options", "compare"), 5),
        (("options",), None),
        (("jobs",), {}),
        (("time",), "yesterday"),
    ],
    ids=repr,
)
def test_numbers_where_text_belongs_and_the_like_are_refused(path: Any, value: object, folder: Path) -> None:
    """With the line, and the field where it is one."""
    write(folder, changed(events(folder), 0, *path, to=value))

    assert "line 1: " in refused(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "b"),
        ("files", {"log": "/etc/passwd"}),
        ("files", {"html": "../../other/report.html"}),
        ("files", {"html": "javascript:alert(1)"}),
        ("files", ["a.log"]),
        ("status", "fine"),
        ("seconds", "12"),
        ("devices", ["GPU"]),
        ("recorded", {"deep": DEEP}),
        ("error", "no"),
        ("attempts", [{"files": {"log": "/etc/passwd"}}]),
    ],
    ids=repr,
)
def test_a_result_that_no_job_leaves_is_refused(field: str, value: object, folder: Path) -> None:
    """Its files are names in the folder, its status is one of ours: a report shows and links nothing else."""
    lines = events(folder)
    at = next(number for number, event in enumerate(lines) if event["event"] == "job finished" and event["job"] == "a")
    write(folder, changed(lines, at, "result", field, to=value))

    assert f"line {at + 1}: " in refused(folder)


# -- lines


@pytest.mark.parametrize(
    "line", ["nothing\n", "5\n", "[]\n", '{"event": 5}\n', "[" * 9000 + "\n", "<html>\n"], ids=repr
)
def test_a_bad_line_is_an_error_that_names_it(line: str, folder: Path) -> None:
    """It is not skipped: it may have said that a job ended. Nothing is lost, and the journal stays as it is."""
    lines = events(folder)
    write(folder, [*lines[:2], line, *lines[2:]])

    assert "line 3: it is not an event" in refused(folder)


@pytest.mark.parametrize(
    "torn",
    [
        '{"event": "job st',
        '{"ev',
        "{",
        '{"event": "job started", "n": tru',
        '{"event": "x", "a": "\\u00',
        "\0" * 40,
        '{"event": "x", "n": {"b": 1}',
    ],
    ids=repr,
)
@pytest.mark.parametrize("is_last", [True, False])
def test_a_torn_line_is_no_error(torn: str, folder: Path, *, is_last: bool) -> None:
    """It is where a crash or a full disk left it: at the end, or before the lines of the process that continued."""
    lines = events(folder)
    kept = [line for line in lines if line["event"] != "job finished"]
    write(folder, [*kept, torn] if is_last else [kept[0], torn + "\n", *kept[1:]])

    session = resume.read(RunFolder(folder))

    assert list(session.entries) == ["a", "b"]


# -- links


def test_a_run_folder_that_is_a_link_is_not_continued(folder: Path, tmp_path: Path) -> None:
    """What it leads to stays as it is, whether it is named or the last one."""
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    before = everything(elsewhere)

    assert "is a link to" in refused(folder)
    with pytest.raises(RocmlabError, match="no run found"):
        main(["--resume", "last"])
    with pytest.raises(RocmlabError, match="is a link to"):
        layout.read(folder)
    assert everything(elsewhere) == before


def test_a_journal_that_is_a_link_is_not_written(folder: Path, tmp_path: Path) -> None:
    """Neither by a continued run nor by anything else that has the folder."""
    (folder / "journal.jsonl").rename(tmp_path / "precious")
    (folder / "journal.jsonl").symlink_to(tmp_path / "precious")

    assert "is a link to" in refused(folder)
    with pytest.raises(OSError, match="symbolic links"):
        RunFolder(folder).log("run started")


@pytest.mark.slow
def test_files_of_jobs_that_are_links_are_not_written_through(folder: Path, tmp_path: Path) -> None:
    """The continued job sets the links aside and writes files of its own; a link that leads nowhere makes nothing."""
    for name in ("b.log", "b.ipynb", "b.html"):
        (tmp_path / name).write_text("precious")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path / name)
    (folder / "b.samples.jsonl").symlink_to(tmp_path / "made")

    main(["--resume", str(folder)])

    assert {(tmp_path / name).read_text() for name in ("b.log", "b.ipynb", "b.html")} == {"precious"}
    assert not (tmp_path / "made").exists()
    assert not (folder / "b.log").is_symlink()
    assert "ZeroDivisionError" in (folder / "b.ipynb").read_text()


def test_a_report_shows_nothing_from_behind_a_link(tmp_path: Path) -> None:
    """A log that is a link to a secret does not end in the page."""
    (tmp_path / "secret").write_text("the secret")
    run = tmp_path / "run"
    run.mkdir()
    failed = run_results.job("a", "failed", error={"name": "Killed", "value": "it was killed"})
    (run / "a.log").symlink_to(tmp_path / "secret")

    report.write(run_results.results(failed), run)

    assert "the secret" not in (run / "report.html").read_text()


def test_pipes_among_the_runs_hold_nobody_up(folder: Path) -> None:
    """A list, times of earlier runs, and what would be stopped are found although a pipe has the name of a file."""
    for name, file in (("20990101T000000Z-x", "journal.jsonl"), ("20990101T000001Z-y", "results.json")):
        (folder.parent / name).mkdir()
        os.mkfifo(folder.parent / name / file)
    shutil.copy(folder / "journal.jsonl", folder.parent / "20990101T000001Z-y")
    program = (
        "import sys; from pathlib import Path; from rocmlab.runs.outcome import history, listing\n"
        "from rocmlab.stack.runs_under_way import under_way\n"
        "runs = Path(sys.argv[1]); listed = len(listing.runs_of(runs))\n"
        "print(listed, history.expected_seconds([], runs), under_way(runs))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(folder.parent)], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout == "2 {} []\n", done.stderr


def test_a_journal_of_odd_types_does_not_keep_a_lab_from_being_stopped(folder: Path) -> None:
    """What is under way is found for `make down`, whatever the journal says."""
    lines = [{"event": "run started", "jobs": 5, "skipped": 7}, {"event": "job started", "job": [1], "devices": 9}]
    write(folder, lines)
    with (folder / "journal.jsonl").open("rb") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        (found,) = under_way(folder.parent)

    assert (found["name"], found["jobs"]) == (folder.name, None)


# -- exports


@pytest.fixture
def exported(folder: Path) -> Path:
    """An exported run of the same notebooks."""
    assert export(["slurm", "a", "b", "--backend", "cpu", "--share", "share"]) == 0
    return max((folder.parent).iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_an_exported_run_is_checked_by_every_one_who_reads_it(name: object, exported: Path) -> None:
    """`export job` and `export collect` write nothing for a job with such a name."""
    found = json.loads((exported / "jobs.json").read_text())
    found["jobs"][0]["name"] = name
    (exported / "jobs.json").write_text(json.dumps(found))
    before = everything(exported.parents[3])

    for use in (lambda: array_task.run(exported, 0), lambda: collect.collect(exported)):
        with pytest.raises(RocmlabError, match=r"jobs\.json cannot be read"):
            use()

    assert everything(exported.parents[3]) == before


def test_a_job_that_the_journal_does_not_know_is_an_error(exported: Path) -> None:
    """And no traceback."""
    found = json.loads((exported / "jobs.json").read_text())
    found["jobs"][0]["name"] = "other"
    (exported / "jobs.json").write_text(json.dumps(found))

    with pytest.raises(RocmlabError, match="it does not know the job 'other'"):
        collect.collect(exported)


# -- what a node of the cluster reports


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "file://{top}/precious",
        "file://{top}/exchange/run/../../precious-a.log",
        "file://{top}/exchange/other/0123-a.log",
        "file://{top}/exchange/run/0123-b.log",
        "{top}/exchange/run/0123-a.log",
        "",
        None,
    ],
)
def test_only_the_runs_own_exchange_is_read_and_emptied(address: str | None, tmp_path: Path) -> None:
    """A node that names another file gets neither its content into the run folder nor the file removed."""
    pytest.importorskip("fsspec")
    for name in (
        "precious",
        "precious-a.log",
        "exchange/other/0123-a.log",
        "exchange/run/0123-b.log",
        "exchange/run/0123-a.log",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("precious")
    (tmp_path / "run").mkdir()
    before = everything(tmp_path)
    named = address.format(top=tmp_path) if address else address

    with pytest.raises(OSError, match="outside of the run's exchange"):
        delivery.fetch(named, tmp_path / "run/a.log", f"file://{tmp_path}/exchange")  # type: ignore[arg-type]

    assert everything(tmp_path) == before


@pytest.mark.parametrize("kind", ["../x", "journal", "", None, 5, ["log"]], ids=repr)
def test_a_node_can_only_send_the_files_of_a_job(kind: object, tmp_path: Path) -> None:
    """Another kind is an error, and nothing is made."""
    receiver = delivery.Receiver(RunFolder(tmp_path), "a")

    with pytest.raises(OSError, match="a file that no job has"):
        receiver.take({"kind": kind, "data": b"x", "is_last": True})

    assert list(tmp_path.iterdir()) == []


# -- fuzzing


def _places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _places(inner, (*path, key))


def _use_everything(folder: Path) -> None:
    """Read a folder in every way there is; each may refuse it in words, and none may do anything else."""
    runs = folder.parent
    preview.runs_table(listing.runs_of(runs))
    requests = grid.expand([grid.Entry(Request("a"))], folder.parents[2] / "notebooks")
    history.expected_seconds(jobs_of(requests), runs)
    with contextlib.suppress(RocmlabError):
        earlier = compare.load(str(folder), runs)
        results = run_results.results(run_results.job("a"))
        results["comparison"] = compare.compare(results["jobs"], earlier)
        report.write(results, folder)
    with contextlib.suppress(RocmlabError):
        session = resume.read(RunFolder(folder))
        resume.requests(session, folder.parents[2] / "notebooks")
        before = resume.before(session, [Job(name, "n.ipynb") for name in session.entries])
        resume.set_aside(RunFolder(folder), session, before)
        ended = [entry.result for entry in session.entries.values() if entry.result]
        run = Run(RunFolder(folder), ended, session.started, 1.0, is_interrupted=False, slots=1)
        run.save()
        summary.show(run, Console(file=io.StringIO()))


def _fuzzed(original: Path, tmp: Path, file: str, change: Callable[[Path], None]) -> None:
    top = tmp / "fuzz"
    shutil.rmtree(top, ignore_errors=True)
    shutil.copytree(original.parents[2], top)
    folder = top / "share/runs" / original.name
    change(folder / file)
    outside = {path: content for path, content in everything(tmp).items() if not path.startswith(str(folder))}

    _use_everything(folder)

    assert {path: content for path, content in everything(tmp).items() if not path.startswith(str(folder))} == outside
    known = {path.name.split(".")[0] for path in original.iterdir()} | {"results", "report", "junit"}
    assert {path.name.split(".")[0] for path in folder.iterdir()} <= known


@pytest.mark.slow
@pytest.mark.parametrize("file", ["journal.jsonl", "results.json"])
@given(data=st.data())
@settings(max_examples=FOLDERS, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_value_of_a_run_folder_may_be_anything(
    file: str, original: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Every reader refuses it in words or continues; nothing outside of the folder changes, and no new name appears."""
    anything = st.one_of(
        st.sampled_from(HOSTILE),
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=5,
        ),
    )

    def change(path: Path) -> None:
        lines = path.read_text().splitlines() if file.endswith("jsonl") else [path.read_text()]
        found = [json.loads(line) for line in lines]
        where = data.draw(st.sampled_from(list(_places(found))))
        value = data.draw(anything)
        made = changed(found, *where, to=value)
        text = "".join(json.dumps(each) + "\n" for each in made)
        path.write_text(text)
        if file.endswith("jsonl") and data.draw(st.booleans()):
            (path.parent / "results.json").unlink()

    _fuzzed(original, tmp_path_factory.getbasetemp() / "fuzzed", file, change)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["journal.jsonl", "results.json"])
@given(at=st.floats(0, 1), junk=st.binary(max_size=12), drop=st.integers(0, 40))
@settings(max_examples=FOLDERS, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_byte_of_a_run_folder_may_be_anything(
    file: str, original: Path, tmp_path_factory: pytest.TempPathFactory, at: float, junk: bytes, drop: int
) -> None:
    """The same for bytes: not UTF-8, NUL, a file that ends in its middle."""

    def change(path: Path) -> None:
        content = path.read_bytes()
        place = int(at * len(content))
        path.write_bytes(content[:place] + junk + content[place + drop :])

    _fuzzed(original, tmp_path_factory.getbasetemp() / "fuzzed", file, change)


def test_the_kinds_of_files_are_those_that_are_checked() -> None:
    """Each file of a job that we name ourselves passes the check of names that are read."""
    assert all(safe.is_file_name(f"a{ending}") for ending in KINDS.values())
