"""`rocmlab datasets` on the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import tiny

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import datasets
from rocmlab.training.datasets import DATASETS
from rocmlab.training.datasets.sources import Mirror


def main(arguments):
    """Run `rocmlab datasets` with these arguments."""
    return datasets.main("datasets", arguments)


@pytest.fixture(autouse=True)
def _source(tmp_path, register):
    """Give the tiny data set a source."""
    register(Mirror(tiny.write_packed(tmp_path / "packed").as_uri() + "/", "a mirror"))


def test_fetch_prints_the_folder_and_tells_progress_on_stderr(tmp_path, capsys):
    """The result is alone on stdout, so that a shell can use it."""
    code = main(["fetch", "tiny", "--share", str(tmp_path)])

    out, err = capsys.readouterr()
    assert code == 0
    assert out == f"{tmp_path / 'data/tiny'}\n"
    assert err.startswith("tiny: trying a mirror\n")


def test_fetch_as_json_lists_files_with_checksums(tmp_path, capsys):
    """`--json` gives folder, files and the lines of progress."""
    main(["fetch", "tiny", "--share", str(tmp_path), "--json"])

    answer = json.loads(capsys.readouterr().out)
    assert answer["folder"] == str(tmp_path / "data/tiny")
    assert [file["sha256"] for file in answer["files"]] == [file.sha256 for file in tiny.FILES]
    assert "from a mirror" in answer["log"][-1]


def test_several_names_are_fetched_in_one_call(tmp_path, capsys, monkeypatch):
    """Each folder is a line on stdout, in the order of the names; as JSON they are a list."""
    source = Mirror((tmp_path / "packed").as_uri() + "/", "a mirror")
    monkeypatch.setitem(DATASETS, "twin", replace(tiny.dataset(source), name="twin"))

    main(["fetch", "twin", "tiny", "twin", "--share", str(tmp_path)])
    folders = capsys.readouterr().out.splitlines()
    main(["fetch", "twin", "tiny", "--share", str(tmp_path), "--json"])

    assert folders == [f"{tmp_path}/data/twin", f"{tmp_path}/data/tiny"]
    assert [one["dataset"] for one in json.loads(capsys.readouterr().out)] == ["twin", "tiny"]


def test_a_data_set_that_fails_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    """The error is raised when the others are in the share."""
    monkeypatch.setitem(DATASETS, "lost", replace(tiny.dataset(), name="lost"))

    with pytest.raises(RocmlabError, match="no source delivered lost"):
        main(["fetch", "lost", "tiny", "--share", str(tmp_path)])

    assert capsys.readouterr().out == f"{tmp_path / 'data/tiny'}\n"


def test_list_tells_what_is_in_the_share(tmp_path, capsys):
    """A data set is listed as not fetched, and after fetching as in the share."""
    main(["list", "--share", str(tmp_path), "--json"])
    before = {row["name"]: row["is_in_share"] for row in json.loads(capsys.readouterr().out)}
    main(["fetch", "tiny", "--share", str(tmp_path)])
    capsys.readouterr()
    main(["list", "--share", str(tmp_path)])
    after = capsys.readouterr().out

    assert before == dict.fromkeys(("mnist", "fashion_mnist", "trec", "minilm", "tiny"), False)
    assert [line.split()[0] for line in after.splitlines() if "in the share" in line] == ["tiny"]


def test_list_shows_small_sizes_and_the_folder_of_models(tmp_path, capsys):
    """Questions of less than a megabyte are not 0 MB, and weights belong into the share's folder for models."""
    main(["list", "--share", str(tmp_path)])
    shown = capsys.readouterr().out
    main(["list", "--share", str(tmp_path), "--json"])

    folders = {row["name"]: row["folder"] for row in json.loads(capsys.readouterr().out)}
    assert "trec           not fetched   0.4 MB" in shown
    assert folders["minilm"] == str(tmp_path / "models/minilm")
    assert folders["trec"] == str(tmp_path / "data/trec")


def test_unknown_name_is_a_usage_error():
    """A wrong name is answered with exit code 2 and the right names."""
    with pytest.raises(RocmlabError, match="did you mean mnist") as caught:
        main(["fetch", "mnits"])

    assert caught.value.exit_code == 2
