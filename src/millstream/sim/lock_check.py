"""Checks that threads of a node access shared state only under its locks.

Tasks of the simulator switch at messages, locks and sleeps only; real threads, between any two
instructions. Preempting them at random would find some races. Checking the locks at every access of
shared state finds every unlocked access that a run makes, wherever it could be preempted.

Not guarded is what is read in one step: values that are replaced as a whole (placements, commits),
arrays of numbers by slot, and the pending epochs, which hand out copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.node.machine import NodeMachine

Check = Callable[[str], None]

_SHARED = {
    "CurrentEpoch": frozenset({"_units"}),
    "SlotStore": frozenset({"_key_types", "_evicted"}),
    "Views": frozenset({"_views"}),
    "ReplicationLog": frozenset({"_retained", "_acknowledged"}),
}
"""The attributes that are changed in several steps, of each part of a node."""


def guard(machine: NodeMachine, check: Check) -> None:
    """Call ``check`` with a name before each access to what threads of a node share."""
    store = machine.store
    for part in (machine.current, store, store.views, store.replication):
        _guard(part, _SHARED[type(part).__name__], check)


def _guard(part: Any, shared: frozenset[str], check: Check) -> None:
    kind = type(part)
    found = object.__getattribute__

    def get(self: Any, name: str) -> Any:
        if name in shared:
            check(f"{kind.__name__}.{name}")
        return found(self, name)

    part.__class__ = type(kind.__name__, (kind,), {"__getattribute__": get})
