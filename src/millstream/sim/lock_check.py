"""The proof that threads of a node share nothing outside its locks.

Tasks of the simulator take turns at messages, locks and sleeps only; real threads, between any two
instructions. To preempt them there as well would search for an unlucky moment, and find some. To
check who holds the locks whenever shared state is touched needs no luck: every access that any run
makes is proven, wherever it might have been interrupted. So that is what is done.

Not guarded is what is read in one step: values that are replaced as a whole (placements, commits),
arrays of numbers by slot, and the shelf, which hands out copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.node.machine import NodeMachine

Check = Callable[[str], None]

_SHARED = {
    "NodeMachine": frozenset({"_units"}),
    "SlotStore": frozenset({"_key_types", "_evicted"}),
    "Views": frozenset({"_views"}),
    "Checkpoints": frozenset({"_retained", "_acknowledged"}),
}
"""What is changed in several steps, of each part of a node."""


def guard(machine: NodeMachine, check: Check) -> None:
    """Call ``check`` with a name before anybody touches what threads of a node share."""
    store = machine.store
    for part in (machine, store, store.views, store.checkpoints):
        _guard(part, _SHARED[type(part).__name__], check)


def _guard(part: Any, shared: frozenset[str], check: Check) -> None:
    kind = type(part)
    found = object.__getattribute__

    def get(self: Any, name: str) -> Any:
        if name in shared:
            check(f"{kind.__name__}.{name}")
        return found(self, name)

    part.__class__ = type(kind.__name__, (kind,), {"__getattribute__": get})
