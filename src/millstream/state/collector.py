"""Control of Python's garbage collector during bulk work, and in processes with large state.

Mapping and reducing make millions of small objects that live until the unit ends. The collector
would traverse them again and again and find no garbage; without it both are about 40 % faster.
Reference counting still frees what has no cycle.

In a node, a traversal of the state would stop all threads for a tenth of a second and more with a
million keys. State has no cycles (values that could have are stored pickled), so it need not be
traversed: large new state is frozen (``gc.freeze``) before the next collection.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_paused = 0
_was_on = True

_FIRST_TASKS = 3
_SWITCH = 0.0005
_LONG = 0.005
_OFTEN = 0.25
_frozen_times = 0


def freeze_loaded() -> None:
    """Exempt the loaded modules of a process from collections, during its first tasks.

    PySpark's workers collect after every task, which would traverse all modules each time.
    """
    global _frozen_times
    if _frozen_times < _FIRST_TASKS:
        _frozen_times += 1
        gc.collect()
        gc.freeze()


def tune_node_process() -> ManualCollector:
    """Prepare a process for large state and several threads; returns its garbage collector.

    A reduction makes many calls that release the interpreter lock. To get it back, it would wait
    for Python's default of 5 ms each time another thread computes, such as a checkpoint.
    """
    freeze_loaded()
    sys.setswitchinterval(_SWITCH)
    return ManualCollector()


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause the collector until the last of all callers has finished."""
    global _paused, _was_on
    with _lock:
        if _paused == 0:
            _was_on = gc.isenabled()
        _paused += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _paused -= 1
            if _was_on and _paused == 0:
                gc.enable()


class ManualCollector:
    """Collects garbage in a process with large state when it is called, not automatically.

    A collection traverses all objects that are not frozen, and freezing costs nothing. When the
    state has grown by ``many`` keys, or ``many`` objects are new, all objects are frozen instead of
    collected. Those that become part of a garbage cycle later are never freed: these are few,
    because a state of constant size is not frozen again. A collection takes a millisecond or two,
    so calls in quick succession collect only when a quarter of ``many`` objects are new.
    """

    def __init__(self, many: int = 20_000, clock: Callable[[], float] = time.perf_counter) -> None:
        self._many = many
        self._clock = clock
        self._frozen = 0
        self._merged = 0
        self._collected = -_OFTEN
        gc.disable()

    def __call__(self, merged: int, keys: Callable[[], int]) -> None:
        """Collect or freeze after so many keys were merged; ``keys`` counts those of the state."""
        self._merged += merged
        if self._merged > self._many:
            now = keys()
            grown, self._merged = now - self._frozen, 0
            if grown > self._many:
                self._freeze(now)
                return
            self._frozen = min(self._frozen, now)
        new, started = gc.get_count()[0], self._clock()
        if new > self._many:
            self._freeze(self._frozen)
        elif started - self._collected >= _OFTEN or new > self._many // 4:
            gc.collect()
            self._collected = self._clock()
            if self._collected - started > _LONG:
                self._freeze(self._frozen)

    def _freeze(self, keys: int) -> None:
        gc.freeze()
        self._frozen, self._merged = keys, 0


_discarded: list[Any] = []


def discard(table: Any) -> None:
    """Take a large table that is no longer needed; ``free_discarded`` frees it."""
    _discarded.append(table)


def free_discarded() -> None:
    """Free what was discarded; to be called without locks, by any thread."""
    with contextlib.suppress(IndexError):  # another thread may have taken the last one
        free_one_by_one(_discarded)


def free_one_by_one(tables: list[Any]) -> None:
    """Free large tables one by one: freed all at once, they would stop all other threads."""
    while tables:
        tables.pop()
