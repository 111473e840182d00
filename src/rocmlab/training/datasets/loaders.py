"""What notebooks load: images as arrays, questions, and the weights of a small BERT."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets import formats
from rocmlab.training.datasets.cache import Progress, fetch
from rocmlab.training.datasets.grammar import Question, questions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pair = tuple[NDArray[np.uint8], NDArray[np.uint8]]

Parts = tuple[list[Question], list[Question]]

ENCODING = "latin-1"  # of the TREC files; they are not UTF-8
VOCABULARY = 30_522  # token ids of BERT, uncased
START, END, FIRST_WORD = 101, 102, 1000  # [CLS], [SEP], and the first id that is a word's
DATA = ("auto", "trec", "generated")


def mnist(share: Path | None = None, progress: Progress | None = None) -> tuple[Pair, Pair]:
    """Return the handwritten digits as `(x_train, y_train), (x_test, y_test)`.

    Images are uint8 (60000, 28, 28) and (10000, 28, 28), labels uint8 (60000,) and (10000,).
    """
    return _load("mnist", share, progress)


def fashion_mnist(share: Path | None = None, progress: Progress | None = None) -> tuple[Pair, Pair]:
    """Return the images of clothes; same shapes as `mnist`."""
    return _load("fashion_mnist", share, progress)


def _load(name: str, share: Path | None, progress: Progress | None) -> tuple[Pair, Pair]:
    folder = fetch(name, share=share, progress=progress)
    train, test = (
        (formats.read_idx(folder / f"{part}-images-idx3-ubyte"), formats.read_idx(folder / f"{part}-labels-idx1-ubyte"))
        for part in ("train", "t10k")
    )
    return train, test


def trec(share: Path | None = None, data_dir: Path | None = None, progress: Progress | None = None) -> Parts:
    """Return the TREC questions as `train, test`: 5,452 and 500 rows, in the order of the files; see `fetch`."""
    folder = fetch("trec", share=share, data_dir=data_dir, progress=progress)
    return _read(folder / "train.txt"), _read(folder / "test.txt")


def _read(path: Path) -> list[Question]:
    """Read lines of the form `COARSE:fine question`."""
    rows = []
    for number, line in enumerate(path.read_text(encoding=ENCODING).removesuffix("\n").split("\n"), start=1):
        label, _, text = line.partition(" ")
        coarse, colon, fine = label.partition(":")
        if not (coarse and colon and fine and text):
            raise RocmlabError(
                f"line {number} of {path} is not a question with its class",
                f"it reads {line[:60]!r}",
                "delete the file and fetch the data set again",
            )
        rows.append(Question(coarse, fine, text))
    return rows


def minilm(share: Path | None = None, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder with the weights of all-MiniLM-L6-v2, for `AutoModel.from_pretrained`; see `fetch`."""
    return fetch("minilm", share=share, data_dir=data_dir, progress=progress)


def load_questions(
    data: str = "auto",
    *,
    train_rows: int,
    test_rows: int = 500,
    seed: int = 42,
    share: Path | None = None,
    progress: Progress | None = None,
) -> tuple[str, list[Question], list[Question]]:
    """Return what the questions are (`trec` or `generated`), and the first rows of both parts.

    Generated questions are used only on request: `auto` is TREC or an error.

    Raises:
        RocmlabError: `data` is unknown, or TREC is not available.
    """
    if data not in DATA:
        raise RocmlabError(f"data={data!r} is unknown", "", f"use one of: {', '.join(DATA)}")
    if data == "generated":
        return data, *questions(train_rows, seed, test_rows)
    try:
        train, test = trec(share, progress=progress)
    except RocmlabError as err:
        fix = f'{err.problem.fix}\nor set data="generated": questions from a grammar, easier than these'
        raise RocmlabError(err.problem.what, err.problem.why, fix) from err
    return "trec", train[:train_rows], test[:test_rows]


def model_folder(model: str, share: Path | None = None, progress: Progress | None = None) -> Path | None:
    """Return the folder with the weights that `model` names; None for `bert-base-random`, which has none.

    `model` is `minilm`, `bert-base-random`, or a folder with `config.json`, weights and tokenizer.

    Raises:
        RocmlabError: the weights are not available, or the folder contains no model.
    """
    if model == "bert-base-random":
        return None
    if model == "minilm":
        try:
            return minilm(share, progress=progress)
        except RocmlabError as err:
            fix = f'{err.problem.fix}\nor set model="bert-base-random": for speed only, it has learned nothing'
            raise RocmlabError(err.problem.what, err.problem.why, fix) from err
    folder = Path(model).expanduser()
    if (folder / "config.json").is_file():
        return folder
    raise RocmlabError(
        f"model={model!r} is not a model",
        f"the file {folder / 'config.json'} does not exist",
        'use "minilm", "bert-base-random", or a folder with config.json, weights and tokenizer',
    )


def token_ids(texts: Sequence[str], folder: Path | None, max_len: int) -> list[list[int]]:
    """Return each text as token ids between [CLS] and [SEP], at most `max_len`, not padded.

    With weights their own tokenizer cuts the text. Without (`folder` None) each word becomes a fixed number of
    BERT's vocabulary: the right length within a few tokens, and no meaning, which random weights do not have either.
    """
    if folder is not None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=max_len)["input_ids"]
        return ids
    words = [re.findall(r"\w+|[^\w\s]", text.lower())[: max_len - 2] for text in texts]
    count = VOCABULARY - FIRST_WORD
    return [[START, *(FIRST_WORD + zlib.crc32(word.encode()) % count for word in row), END] for row in words]
