"""Data sets, fetched once into the share, checked by sha256, and never silently synthetic."""

from rocmlab.training.datasets.cache import fetch, is_cached
from rocmlab.training.datasets.catalogue import DATASETS
from rocmlab.training.datasets.grammar import COARSE, Question, questions
from rocmlab.training.datasets.hub import pretrained
from rocmlab.training.datasets.loaders import (
    fashion_mnist,
    load_questions,
    minilm,
    mnist,
    model_folder,
    token_ids,
    trec,
)

__all__ = [
    "COARSE",
    "DATASETS",
    "Question",
    "fashion_mnist",
    "fetch",
    "is_cached",
    "load_questions",
    "minilm",
    "mnist",
    "model_folder",
    "pretrained",
    "questions",
    "token_ids",
    "trec",
]
