"""Generated questions: repeatable, different from each other, and not recognised by their first words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training.datasets import COARSE, grammar, questions


def by_first_words(train, test, count):
    """Return the accuracy of answering with the commonest class of a question's first words."""
    votes = defaultdict(Counter)
    for one in train:
        votes[tuple(one.text.split()[:count])][one.coarse] += 1
    votes[None] = Counter(one.coarse for one in train)
    guesses = [votes.get(tuple(one.text.split()[:count]), votes[None]).most_common(1)[0][0] for one in test]
    return sum(word == one.coarse for word, one in zip(guesses, test, strict=True)) / len(test)


def test_same_seed_makes_the_same_questions():
    """The seed decides everything; another one makes others."""
    assert questions(50, seed=3) == questions(50, seed=3)
    assert questions(50, seed=3) != questions(50, seed=4)


def test_no_question_is_there_twice():
    """Examination questions were not seen in training, whatever the numbers."""
    train, test = questions(1000, seed=1, test_rows=500)

    assert (len(train), len(test)) == (1000, 500)
    assert len({one.text for one in train + test}) == 1500


def test_every_class_has_its_share():
    """All six classes occur about equally often."""
    train, _ = questions(1200, seed=2)

    counts = Counter(one.coarse for one in train)
    assert tuple(sorted(counts)) == COARSE
    assert min(counts.values()) > 120


@pytest.mark.parametrize(("count", "most"), [(1, 0.45), (2, 0.60), (3, 0.80)])
def test_first_words_do_not_reveal_the_class(count, most):
    """A guess by the first words only is better than chance and far from right."""
    train, test = questions(1000, seed=5, test_rows=500)

    assert 1 / 6 < by_first_words(train, test, count) < most


def test_questions_read_like_trec():
    """Every gap is filled, no filler comes twice in one question, and words and signs are apart as in TREC."""
    train, _ = questions(2000, seed=6)

    for one in train:
        assert re.fullmatch(r"[A-Z][\w ]+ [?.]", one.text), one.text
        assert one.fine
    assert not any(re.search(r"from (\w+) to \1 ", one.text) for one in train)


def test_more_than_the_grammar_can_make_is_an_error(monkeypatch):
    """Asked for too many, it reports it instead of repeating itself or running forever."""
    monkeypatch.setattr(grammar, "TEMPLATES", {coarse: (f"x: Who is {coarse} ?",) for coarse in COARSE})

    with pytest.raises(RocmlabError, match="7 different questions cannot be generated"):
        questions(5, test_rows=2)
