"""Windowed reduce functions with state of their own: entries of a key that outlive its windows.

The windows are those of any other job; beside their state stands keyed state. A function is called
for each window that fires, in the order of their ends, also if nobody reads its results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from millstream.flow.reducers import WindowReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import CountWindow, GlobalWindow
from millstream.state.key_view import KeyView
from millstream.state.keyed import KeyedState
from millstream.state.keyed_fragments import KeyedFragment
from millstream.state.pair import PairFragment, PairState
from millstream.state.panes.algebras import Objects
from millstream.state.panes.keys import KeyIds
from millstream.work.unit import Reduced, ReduceOperator, UnitContext, ttl_of
from millstream.work.windows.forms import Closed, FunctionForm

WINDOWS, STATE = "windows", "state"


class StatefulForm(FunctionForm):
    """A function ``reduce(key, values, *, state)``, perhaps with ``window``."""

    def __init__(self, job: JobVertex, reducer: WindowReducer, keyed: KeyedState) -> None:
        super().__init__(job, reducer)
        self._keyed = keyed
        self._views: dict[tuple[int, Any], KeyView] = {}

    def outputs(
        self, closed: Sequence[Closed[Objects]], keys: KeyIds, output: pa.Schema | None
    ) -> list[pa.RecordBatch]:
        """Call the function for windows in the order of their ends, and encode its results."""
        ids = np.unique(np.concatenate([one.table.ids for one in closed]))
        found, slots = keys.keys(ids), keys.slots(ids).tolist()
        masters = self._keyed.lookups(found, slots)
        for key, slot in zip(found, slots, strict=True):
            master = masters.get(slot)
            self._views[slot, key] = KeyView(None if master is None else master.get(key))
        in_order = sorted(closed, key=lambda one: one.end if isinstance(one.end, int) else 0)
        return super().outputs(in_order, keys, output)

    def _arguments(self, slot: int, key: Any) -> dict[str, Any]:
        return {STATE: self._views[slot, key]}

    def changes(self) -> tuple[KeyedFragment, dict[int, list[Any]]]:
        """The changes of all calls so far, and the keys of these by slot; forgets them."""
        fragment = KeyedFragment()
        touched: defaultdict[int, list[Any]] = defaultdict(list)
        for (slot, key), view in self._views.items():
            touched[slot].append(key)
            fragment.add(slot, key, view.close())
        self._views = {}
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
        self._form.changes()  # of an attempt that failed
        found = self._windows.reduce(blocks, replace(unit, read=True))
        fragment, touched = self._form.changes()
        if self._ttl is not None:
            fragment.expire(self._idle(touched, unit, self._ttl), touched, unit.time)
        outputs = found.outputs if unit.read else []
        pair = PairFragment(found.fragment, fragment)
        return Reduced(pair, outputs, found.keys, found.tallies)

    def _idle(
        self, touched: dict[int, list[Any]], unit: UnitContext, ttl: int
    ) -> dict[int, set[Any]]:
        """The keys that expire: no window of theirs has fired for the time-to-live, nor now."""
        found = self._keyed.idle_since(unit.slots, unit.time - ttl)
        idle = {slot: set(keys).difference(touched.get(slot, ())) for slot, keys in found.items()}
        return {slot: keys for slot, keys in idle.items() if keys}


def without_ttl(job: JobVertex) -> JobVertex:
    """The job as its window operator runs it: only windows that never close expire."""
    assert job.windowing is not None
    if isinstance(job.windowing.windows[0], CountWindow | GlobalWindow):
        return job
    return replace(job, ttl=None)
