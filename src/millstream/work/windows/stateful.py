"""Windowed reduce functions with state of their own: entries of a key that outlive its windows.

The windows are those of any other job; beside their state stands keyed state. A function is called
for each window that fires, in the order of their ends, also if nobody reads its results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.flow.reducers import WindowReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, GlobalWindow
from millstream.state.key_view import GONE, Change, Entries, KeyView
from millstream.state.keyed import KeyedState, Lookup
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.pair import PairFragment, PairState
from millstream.state.panes.algebras import Objects
from millstream.state.panes.keys import KeyIds
from millstream.state.values import value_text
from millstream.work.failures import user_error
from millstream.work.unit import Reduced, ReduceOperator, UnitContext, ttl_of
from millstream.work.windows.forms import Closed, FunctionForm

WINDOWS, STATE = "windows", "state"


class StatefulForm(FunctionForm):
    """A function ``reduce(key, values, *, state)``, perhaps with ``window``.

    Each call has a view of its own: the results of one hold nothing that the next one changes.
    """

    def __init__(self, job: JobVertex, reducer: WindowReducer, keyed: KeyedState) -> None:
        super().__init__(job, reducer)
        self._keyed = keyed
        self.begin({})

    def begin(self, idle: Mapping[int, set[Any]]) -> None:
        """Forget what an earlier unit, or a failed attempt, left; idle keys begin anew."""
        self._idle = idle
        self._masters: Mapping[int, Lookup] = {}
        self._changes: dict[tuple[int, Any], Change | None] = {}
        self._open: tuple[int, Any, KeyView] | None = None

    def outputs(
        self, closed: Sequence[Closed[Objects]], keys: KeyIds, output: pa.Schema | None
    ) -> list[pa.RecordBatch]:
        """Call the function for windows in the order of their ends, and encode its results."""
        ids = np.unique(np.concatenate([one.table.ids for one in closed]))
        self._masters = self._keyed.lookups(keys.keys(ids), keys.slots(ids).tolist())
        in_order = sorted(closed, key=lambda one: one.end if isinstance(one.end, int) else 0)
        return super().outputs(in_order, keys, output)

    def _arguments(self, slot: int, key: Any) -> dict[str, Any]:
        self._close()
        view = KeyView(self._entries(slot, key))
        self._open = slot, key, view
        return {STATE: view}

    def _entries(self, slot: int, key: Any) -> Entries | None:
        """The entries of a key: as committed, with the changes of earlier calls."""
        master = None if key in self._idle.get(slot, ()) else self._masters.get(slot)
        entries = None if master is None else master.get(key)
        change = self._changes.get((slot, key))
        if change is None:
            return entries
        merged = change.writes if change.cleared else {**(entries or {}), **change.writes}
        return {name: value for name, value in merged.items() if value is not GONE}

    def _close(self) -> None:
        """Take the changes of the last call."""
        if self._open is None:
            return
        (slot, key, view), self._open = self._open, None
        try:
            change = view.close()
        except Exception as problem:  # a value that cannot be pickled
            raise user_error(self._role, self._function, problem, value_text(key)) from problem
        before = self._changes.get((slot, key))
        if before is not None:
            change = before if change is None else before.then(change)
        self._changes[slot, key] = change

    def changes(self) -> tuple[KeyedFragment, dict[int, list[Any]]]:
        """The changes of all calls, and the keys of these by slot."""
        self._close()
        fragment = KeyedFragment()
        touched: defaultdict[int, list[Any]] = defaultdict(list)
        for (slot, key), change in self._changes.items():
            touched[slot].append(key)
            fragment.add(slot, key, change)
        return fragment, touched


class StatefulWindowOperator:
    """A window operator whose function also has keyed state.

    With a time-to-live, the entries of a key expire when none of its windows has fired for so long.
    """

    def __init__(
        self,
        job: JobVertex,
        form: StatefulForm,
        windows: ReduceOperator[Any],
        keyed: KeyedState,
    ) -> None:
        self._form = form
        self._windows = windows
        self._keyed = keyed
        self._ttl = ttl_of(job)
        self.state = PairState(windows.state, keyed, (WINDOWS, STATE))

    def reduce(
        self, blocks: Sequence[pa.RecordBatch], unit: UnitContext
    ) -> Reduced[PairFragment[Any, KeyedFragment]]:
        """Run the windows of a unit; what the function changed in its state goes with them."""
        idle: dict[int, set[Any]] = {}
        if self._ttl is not None:
            found = self._keyed.idle_since(unit.slots, unit.time - self._ttl)
            idle = {slot: set(keys) for slot, keys in found.items()}
        self._form.begin(idle)
        reduced = self._windows.reduce(blocks, replace(unit, read=True))
        fragment, touched = self._form.changes()
        if self._ttl is not None:
            fragment.expire(idle, touched, unit.time)
        outputs = reduced.outputs if unit.read else []
        pair = PairFragment(reduced.fragment, fragment)
        return Reduced(pair, outputs, reduced.keys, reduced.tallies)


def without_ttl(job: JobVertex) -> JobVertex:
    """The job as its window operator runs it: only windows that never close expire."""
    assert job.windowing is not None
    if isinstance(job.windowing.windows[0], CountWindow | GlobalWindow):
        return job
    return replace(job, ttl=None)
