"""The two notebooks on BERT, run from first to last cell with a model of a few thousand weights that the test makes."""

from __future__ import annotations

import os

import notebook_program
import pytest

from rocmlab.training import datasets

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "torch") != "torch", reason="run it with KERAS_BACKEND=torch"),
]
SIGNS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def tiny_bert(tmp_path_factory):
    """Make a BERT of one layer with random weights, and a tokenizer that knows the generated questions' words."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("tiny-bert")
    train, _ = datasets.questions(300, seed=1)
    words = sorted({word for one in train for word in one.text.lower().split()})
    (folder / "vocab.txt").write_text("\n".join([*SIGNS, *words]) + "\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=len(SIGNS) + len(words), **sizes)
    transformers.utils.logging.disable_progress_bar()
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


@pytest.fixture
def run(tmp_path, tiny_bert):
    """Return a function that runs a notebook with parameters and gives its exit code, record and output."""

    def run(name, **parameters):
        given = {"device": "cpu", "data": "generated", "model": str(tiny_bert), **parameters}
        return notebook_program.run(name, given, tmp_path)

    return run


def test_tokenizer_of_the_weights_cuts_the_text(tiny_bert):
    """Tokens come from the folder's own vocabulary, between its own signs, cut at the limit."""
    vocabulary = (tiny_bert / "vocab.txt").read_text().split()

    whole, cut = (datasets.token_ids(["What is the capital of Peru ?"], tiny_bert, size)[0] for size in (64, 5))

    assert " ".join(vocabulary[number] for number in whole) == "[CLS] what is the capital of peru ? [SEP]"
    assert " ".join(vocabulary[number] for number in cut) == "[CLS] what is the [SEP]"


def test_fine_tuning_learns_and_says_what_it_did(run):
    """A network without any knowledge learns the generated questions; the record has every metric; no noise."""
    done, record = run("07_bert_trec", rows=300, batch=10, epochs=6, learning_rate=3e-3)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert record["acceptance"]["ok"]
    assert record["acceptance"]["value"] > 0.5
    assert record["data"] == "generated"
    assert record["device"]["backend"] == "cpu"
    assert len(record["loss_by_step"]) == 6 * 30
    assert record["microseconds_per_sample"] == pytest.approx(1e6 * record["seconds_per_epoch"] / 300)


@pytest.mark.long
def test_frozen_body_stays_and_a_missed_bar_fails(run):
    """With a frozen body that knows nothing the head cannot get far: the notebook records that, and fails."""
    done, record = run("07_bert_trec", rows=40, epochs=1, freeze=True, head_learning_rate=1e-6, precision="bf16")

    assert done.returncode == 1
    assert not record["acceptance"]["ok"]
    assert "AssertionError: test_accuracy" in done.stderr
    assert "frozen" in done.stdout


@pytest.mark.long
def test_inference_over_batches_is_right_and_names_no_crossover_without_a_gpu(run):
    """Padded batches give what single questions give; on a CPU alone nothing claims to be faster."""
    done, record = run("08_bert_inference_batches", batches="4 1 16", reruns=2)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert record["batches"] == [1, 4, 16]
    assert {len(runs) for runs in record["seconds_by_batch"]["cpu"].values()} == {2}
    assert record["acceptance"]["value"] < 1e-4
    assert record["crossover_batch"] is None
    assert "only a CPU" in record["verdict"]


def test_without_trec_the_notebook_stops_with_the_way_out(run, monkeypatch):
    """Real questions that are not available are an error that names the generated ones, used only on request."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")

    done, record = run("07_bert_trec", data="auto", rows=10, epochs=1)

    assert done.returncode == 1
    assert record is None
    assert 'data="generated"' in done.stderr
