"""Runs of loose rows are few, and always say what the state says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from millstream.state.panes.algebras import ListAlgebra, objects
from millstream.state.panes.fragments import PaneFragment, Part
from millstream.state.panes.runs import Runs
from millstream.state.panes.state import PaneState
from millstream.state.panes.tables import Table

SLOTS = 4


def fragment(epoch: int, keys: list[int], mark: str = "") -> PaneFragment[Any]:
    slots = np.array([key % SLOTS for key in keys], np.int32)
    rows = objects([([f"{key}/{epoch}{mark}"], [epoch]) for key in keys])
    return PaneFragment(raw={(0, epoch): Part(keys, slots, rows)})


def values(tables: Sequence[Table[Any]]) -> list[str]:
    return sorted(value for table in tables for [value], _ in table.rows.tolist())


def test_many_epochs_become_few_tables() -> None:
    state = PaneState(ListAlgebra(), SLOTS)
    runs = Runs(state, ListAlgebra())
    for epoch in range(200):
        state.apply(fragment(epoch, [epoch % 7, 7]))

        assert values(runs.of(0)) == values(state.all_raw(0))
        assert len(runs.of(0)) <= 9
    assert all((np.diff(table.ids) >= 0).all() for table in runs.of(0))


def test_what_is_replaced_or_dropped_in_the_state_is_so_in_the_runs() -> None:
    state = PaneState(ListAlgebra(), SLOTS)
    runs = Runs(state, ListAlgebra())
    for epoch in range(10):
        state.apply(fragment(epoch, [1, 2, 3]))
    runs.of(0)

    state.apply(fragment(4, [2], "again"))
    assert "2/4again" in values(runs.of(0))
    assert values(runs.of(0)) == values(state.all_raw(0))

    state.drop(np.arange(SLOTS) == 3)
    assert values(runs.of(0)) == values(state.all_raw(0))

    state.drop(np.ones(SLOTS, bool))
    runs.forget_gone()
    assert runs.of(0) == []
