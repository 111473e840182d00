"""A notebook that lacks something ends as skipped, with the reason, and fails no run."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import notebook_files
import pytest

from rocmlab.reports import compare
from rocmlab.runs.command import main

pytestmark = pytest.mark.slow

SKIPS = (
    "print('first')",
    "import rocmlab\nrocmlab.skip('triton is not installed', 'this kernel needs it', 'pip install triton')",
    "raise RuntimeError('never')",
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a notebook that skips, as the current folder."""
    notebook_files.write(tmp_path / "notebooks/needy.ipynb", *SKIPS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_folder(project: Path) -> Path:
    """Return the folder of the latest run."""
    return sorted((project / "share/runs").iterdir())[-1]


def test_a_skipped_notebook_has_its_reason_and_the_run_exits_with_0(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table, results.json, junit.xml and report show status and reason; nothing after the call runs."""
    code = main(["--gpus", "none", "--fail-fast"])

    output, _progress = capsys.readouterr()
    folder = run_folder(project)
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    job = results["jobs"][0]
    suite = ElementTree.parse(folder / "junit.xml").getroot()[0]
    page = (folder / "report.html").read_text(encoding="utf-8")
    reason = "triton is not installed; this kernel needs it; pip install triton"
    assert code == 0, output
    assert (job["status"], job["exit_code"], job["error"]) == ("skipped", 0, None)
    assert (job["recorded"]["skipped"], job["cells_done"]) == (reason, 1)
    assert results["run"]["status"] == "ok"
    assert "1 skipped" in output
    assert reason[:40] in " ".join(output.split())
    assert (suite.get("skipped"), suite.get("failures"), suite.get("errors")) == ("1", "0", "0")
    assert suite.find("testcase/skipped").get("message") == reason
    assert "1 of 1 notebook skipped, no failure" in page
    assert "What went wrong" not in page
    executed = (folder / "needy.ipynb").read_text(encoding="utf-8")
    assert "Skipped: triton is not installed" in executed
    assert "skip(" not in json.dumps(json.loads(executed)["cells"][1]["outputs"])  # the reason and no traceback


@pytest.mark.long
def test_an_error_that_only_has_the_name_is_a_failure(project: Path) -> None:
    """A notebook counts as skipped only if it called `rocmlab.skip`."""
    notebook_files.write(
        project / "notebooks/needy.ipynb", "class Skipped(Exception): pass\nraise Skipped('no reason')"
    )

    assert main(["--gpus", "none"]) == 1


@pytest.mark.long
def test_resume_runs_a_skipped_notebook_again(project: Path) -> None:
    """What was missing may be there now."""
    main(["--gpus", "none"])
    folder = run_folder(project)
    (project / "notebooks/needy.ipynb").unlink()
    notebook_files.write(project / "notebooks/needy.ipynb", "print('it is here now')")

    assert main(["--resume", folder.name]) == 0

    assert json.loads((folder / "results.json").read_text(encoding="utf-8"))["jobs"][0]["status"] == "ok"


@pytest.mark.parametrize(("then", "now"), [("ok", "skipped"), ("skipped", "ok")])
def test_a_comparison_calls_a_skipped_notebook_neither_broken_nor_repaired(then: str, now: str) -> None:
    """Another machine may simply have what is needed."""
    assert compare._outcome({"status": then}, {"status": now}) == "other"
