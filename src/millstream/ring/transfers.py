"""Transfers of slots from donors to receivers, in few and long runs.

Who gives and who takes, and how much, is decided in :mod:`millstream.ring.balance`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import numpy as np

from millstream.ring.arcs import END, Arcs
from millstream.ring.masks import SlotMask

InSync: TypeAlias = Callable[[int], SlotMask]
"""The slots of which a node has a complete copy."""

_EMPTY = range(0)

# At how many places a receiver may find the next slot too heavy before it gets no more.
_TRIES = 4


class Transfers:
    """Takes slots where that adds the fewest arcs.

    A donor gives down to its floor, and a receiver takes up to its ceiling. To take a run as a
    whole instead of cutting it, both may go beyond by their ``slack``, but the donor not below its
    ``least`` load.
    """

    def __init__(
        self,
        arcs: Arcs,
        slack: Sequence[float],
        least: Sequence[float],
        in_sync: InSync,
    ) -> None:
        self._arcs, self._slack, self._least = arcs, slack, least
        self._in_sync = in_sync
        self._floors: Mapping[int, float] = {}
        self._ceilings: Mapping[int, float] = {}
        self._largest = 0.0

    def fill(self, floors: Mapping[int, float], ceilings: Mapping[int, float]) -> bool:
        """Give slots of the donors to the receivers; return whether there were any.

        First to receivers that hold a copy of them, then to their neighbours, then to others.
        """
        if not floors or not ceilings:
            return False
        self._floors, self._ceilings = floors, ceilings
        before = list(self._arcs.load)
        self._take_held()
        for run in self._arcs:
            if self._arcs.is_run(run) and self._arcs.owner[run] in ceilings:
                self._grow(run)
        self._open_arcs()
        return self._arcs.load != before

    def _takeable(self, run: int, node: int, *, head: bool) -> range:
        """The slots at one end of a run that its owner can give and the node can take."""
        donor = self._arcs.owner[run] if run != END else END
        if donor not in self._floors or node not in self._ceilings:
            return _EMPTY
        load, slack = self._arcs.load, self._slack
        spare, room = load[donor] - self._floors[donor], self._ceilings[node] - load[node]
        if spare <= 0 or room <= 0:
            return _EMPTY
        start, stop = self._arcs.start[run], self._arcs.stop[run]
        weight = self._arcs.weight(run)
        if (
            weight <= room + slack[node]
            and weight <= spare + slack[donor]
            and weight <= load[donor] - self._least[donor]
        ):
            return range(start, stop)
        amount = min(spare, room)
        if head:
            return range(start, start + self._arcs.head(run, amount))
        return range(stop - self._arcs.tail(run, amount), stop)

    # -- free moves ----------------------------------------------------------------------

    def _take_held(self) -> None:
        """Give the ends of runs to receivers with copies: neighbours first, then by their room."""
        arcs = self._arcs
        for run, nodes in self._holding().items():
            donor, rest = arcs.owner[run], run
            beside = {arcs.owner[at] for at in (arcs.before[run], arcs.after[run]) if at != END}
            nodes.sort(key=lambda node: (node not in beside, -self._room(node), node))
            for node in nodes:
                rest = self._take_held_part(rest, node)
                if rest == END or arcs.owner[rest] != donor:
                    break

    def _holding(self) -> dict[int, list[int]]:
        """The receivers that have copies of the first or last slot of a donor's run."""
        arcs = self._arcs
        runs = [run for run in arcs if arcs.owner[run] in self._floors]
        ends = np.array([(arcs.start[run], arcs.stop[run] - 1) for run in runs], np.int64)
        holding: dict[int, list[int]] = {}
        for node in self._ceilings:
            for at in np.flatnonzero(self._in_sync(node)[ends].any(axis=1)).tolist():
                holding.setdefault(runs[at], []).append(node)
        return holding

    def _take_held_part(self, run: int, node: int) -> int:
        """Take slots of which the node holds copies from an end; return the rest of the run."""
        arcs, mask = self._arcs, self._in_sync(node)
        first, last = arcs.start[run], arcs.stop[run] - 1
        after = arcs.after[run]
        is_behind = after != END and arcs.owner[after] == node
        head = bool(mask[first]) and not (is_behind and mask[last])
        slots = self._takeable(run, node, head=head)
        held = mask[slots.start : slots.stop] if head else mask[slots.start : slots.stop][::-1]
        count = len(held) if held.all() else int(held.argmin())
        if not count:
            return run
        if head:
            taken = arcs.give_slots(run, range(first, first + count), node)
            return arcs.after[taken]
        taken = arcs.give_slots(run, range(last + 1 - count, last + 1), node)
        return arcs.before[taken]

    # -- longer and new arcs -------------------------------------------------------------

    def _grow(self, run: int) -> int:
        """Let a receiver's run grow into those of donors on both sides; return the run."""
        arcs, node = self._arcs, self._arcs.owner[run]
        for head, sides in ((False, arcs.before), (True, arcs.after)):
            is_whole = True
            while is_whole:
                source = sides[run]
                slots = self._takeable(source, node, head=head)
                if not slots:
                    break
                is_whole = len(slots) == arcs.stop[source] - arcs.start[source]
                run = arcs.give_slots(source, slots, node)
        return run

    def _open_arcs(self) -> None:
        """Give receivers new arcs, at the ends of runs where they can grow longest."""
        arcs, room = self._arcs, self._room
        self._largest = max(room(node) + self._slack[node] for node in self._ceilings)
        ends = [(-score, run) for run in arcs if (score := self._score(run)) > 0]
        heapify(ends)
        for node in sorted(self._ceilings, key=lambda node: (-room(node), node)):
            unfit: list[tuple[float, int]] = []
            while ends and len(unfit) < _TRIES and room(node) > 0.99 * self._slack[node]:
                _, run = heappop(ends)
                score = self._score(run)
                if score <= 0:
                    continue
                if ends and -score > ends[0][0]:  # it has become worse, and another is better
                    heappush(ends, (-score, run))
                    continue
                opened = self._open(run, node)
                if opened == END:
                    unfit.append((-score, run))
                    continue
                for end in (opened, arcs.before[opened]):
                    if end != END:
                        heappush(ends, (-self._score(end), end))
            for entry in unfit:
                heappush(ends, entry)

    def _room(self, node: int) -> float:
        return self._ceilings[node] - self._arcs.load[node]

    def _open(self, run: int, node: int) -> int:
        """Begin an arc at the end of a run and let it grow; return it, or END if nothing fits."""
        for source, head in ((self._arcs.after[run], True), (run, False)):
            slots = self._takeable(source, node, head=head)
            if slots:
                return self._grow(self._arcs.give_slots(source, slots, node))
        return END

    def _score(self, run: int) -> float:
        """How much an arc that begins at the end of a run could take."""
        arcs, floors = self._arcs, self._floors
        owner, load = arcs.owner, arcs.load
        if not arcs.is_run(run):
            return 0.0
        gain = 0.0
        spent: dict[int, float] = {}
        for side, sides in ((run, arcs.before), (arcs.after[run], arcs.after)):
            while side != END and (donor := owner[side]) in floors:
                weight = arcs.weight(side)
                spare = load[donor] - floors[donor] - spent.get(donor, 0.0)
                if weight > spare + self._slack[donor] or weight > self._largest - gain:
                    gain = min(gain + max(0.0, min(spare, weight)), self._largest)
                    break
                gain += weight
                spent[donor] = spent.get(donor, 0.0) + weight
                side = sides[side]
        return gain
