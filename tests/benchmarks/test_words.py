"""Words that are repeated load one node, and are counted right."""

from __future__ import annotations

import numpy as np

from benchmarks.words import SLOTS, counts_of, repeated, text_of, uniform
from millstream.ring.hashing import hash_column, slot_of

NUMBER, START, SMALL, NODES = 20_000, 8_000, 40, 4


def test_every_second_word_from_the_start_on_is_of_a_small_set_of_one_node() -> None:
    plain = uniform(NUMBER)

    words = repeated(plain, START, SMALL, NODES)

    assert words.slice(0, START) == text_of(plain).slice(0, START)
    later = words.slice(START)
    small = later.take(np.arange(0, len(later), 2))
    others = later.take(np.arange(1, len(later), 2))
    assert others == text_of(plain[START + 1 :: 2])
    assert len(small.unique()) == SMALL
    slots = slot_of(hash_column(small.unique()), SLOTS)
    assert (slots < SLOTS // NODES).all() and len(set(slots.tolist())) == SMALL


def test_words_are_counted() -> None:
    assert counts_of(text_of(np.array([3, 5, 3, 3]))) == {
        text_of(np.array([3]))[0].as_py(): 3,
        text_of(np.array([5]))[0].as_py(): 1,
    }
