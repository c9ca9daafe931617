"""Rows by key behave as a plain mapping does, however many are written, forgotten and moved."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from millstream.state.panes import keys as key_ids
from millstream.state.panes import rows as pane_rows
from millstream.state.panes.algebras import ListAlgebra, Objects, objects
from millstream.state.panes.row_fragments import (
    KeyRows,
    RowFragment,
    decode_rows,
    encode_rows,
    merge_rows,
)
from millstream.state.panes.rows import RowState
from millstream.state.panes.scans import prefixes, suffixes

SLOTS = 6
ALGEBRA = ListAlgebra()
Mapped = dict[int, list[tuple[int, int]]]


def state() -> RowState[Objects]:
    return RowState(ALGEBRA, ("number",))


def slot_of(key: int) -> int:
    return key % SLOTS


def fragment(of: RowState[Objects], changes: Mapped) -> RowFragment[Objects]:
    """The fragment that gives keys these rows: numbers with values."""
    keys = list(changes)
    ids = of.keys.find(keys, np.array([slot_of(key) for key in keys], np.int32))
    order = np.argsort(ids)
    rows = [(ids[at], *row) for at in order.tolist() for row in changes[keys[at]]]
    table = KeyRows(
        np.array([id_ for id_, _, _ in rows], np.int64),
        {"number": np.array([number for _, number, _ in rows], np.int64)},
        objects([([value], [0]) for _, _, value in rows]) if rows else None,
    )
    return of.fragment(ids[order], table)


def held(of: RowState[Objects]) -> Mapped:
    ids = of.committed.within(np.ones(SLOTS, bool))
    found = of.of(ids)
    held: Mapped = {key: [] for key in of.keys.keys(ids)}
    for id_, number, [[value], _] in zip(
        found.ids,
        found.columns["number"].tolist(),
        [] if found.rows is None else found.rows.tolist(),
        strict=True,
    ):
        [key] = of.keys.keys(np.array([id_]))
        held[key].append((number, value))
    return held


def changes_of(rng: random.Random, model: Mapped) -> Mapped:
    if model and rng.random() < 0.1:  # nearly all are forgotten
        gone: Mapped = {key: [] for key in rng.sample(sorted(model), len(model) * 9 // 10)}
        for key in gone:
            del model[key]
        return gone
    keys = rng.sample(range(200), rng.choice([1, 3, 40, 120]))
    changed: Mapped = {
        key: [(rng.randint(0, 9), rng.randint(0, 99)) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
        for key in keys
    }
    for key, rows in changed.items():
        model.pop(key, None)
        if rows:
            model[key] = rows
    return changed


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_replaced_forgotten_copied_and_dropped(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ids, "_SPARE", 5)
    monkeypatch.setattr(pane_rows, "_SPARE", 5)
    rng = random.Random(seed)
    model: Mapped = {}
    owner, copy = state(), state()
    waiting: list[Any] = []
    generations = {owner.keys.generation}
    for _ in range(60):
        if rng.random() < 0.5:
            owner.compact_keys()
            generations.add(owner.keys.generation)
        made = fragment(owner, changes_of(rng, model))
        if rng.random() < 0.3:
            owner.compact_keys()  # between the making of a fragment and its use
        waiting += [
            decode_rows(encode_rows(made.part(ALGEBRA, part), ALGEBRA), ALGEBRA)
            for part in (range(2), range(2, SLOTS))
        ]
        if rng.random() < 0.5:
            mask = np.arange(SLOTS) < rng.randint(0, SLOTS)
            owner.apply(made, mask)
            owner.apply(made, ~mask)
        else:
            owner.apply(made)
        assert held(owner) == model
        ids, [numbers] = owner.where(range(SLOTS), "number")
        assert len(ids) == sum(map(len, model.values()))
        assert sorted(numbers.tolist()) == sorted(n for rows in model.values() for n, _ in rows)
        if rng.random() < 0.3:
            merged = merge_rows(waiting, ALGEBRA, ("number",))
            copy.apply(merged)
            copy.apply(merged)
            waiting = []
            assert held(copy) == model
        if rng.random() < 0.1:
            mask = np.arange(SLOTS) == rng.randrange(SLOTS)
            snapshot = owner.snapshot(range(int(mask.argmax()), int(mask.argmax()) + 1))
            owner.drop(mask)
            assert held(owner) == {k: v for k, v in model.items() if not mask[slot_of(k)]}
            owner.apply(decode_rows(encode_rows(snapshot, ALGEBRA), ALGEBRA))
            assert held(owner) == model
    assert len(generations) > 1
    assert len(owner._runs) < 12


def test_a_fragment_of_no_keys_is_empty_and_one_that_forgets_is_not() -> None:
    owner = state()
    assert not merge_rows([], ALGEBRA, ("number",))
    assert not fragment(owner, {})
    assert fragment(owner, {3: []})
    assert merge_rows([fragment(owner, {3: [(1, 1)]}), fragment(owner, {3: []})], ALGEBRA, ())


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [2, 1], [7], [8, 1, 3, 16, 2, 5]], ids=str)
def test_running_results_keep_the_order_of_rows(lengths: list[int]) -> None:
    segments = np.repeat(np.arange(len(lengths)), lengths)
    rows = objects([([at], [0]) for at in range(len(segments))])

    found = [values for values, _ in prefixes(ALGEBRA, rows, segments).tolist()]
    rest = [values for values, _ in suffixes(ALGEBRA, rows, segments).tolist()]

    for at, segment in enumerate(segments.tolist()):
        members = np.flatnonzero(segments == segment).tolist()
        assert found[at] == [member for member in members if member <= at]
        assert rest[at] == [member for member in members if member >= at]
