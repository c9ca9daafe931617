"""A simulated store: durable values on the virtual clock, used by processes that crash and restart.

Each call takes its time. What a process has asked for when it crashes or stops takes place or
not, item by item; what a store that is away was asked for takes place when it is back, even if
the asker no longer waits for it. A store without space refuses what writes, item by item, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from millstream.checkpoints.chain import PREFIX
from millstream.checkpoints.manifest import Claim, Link, decode
from millstream.sim.network import SimNet, World
from millstream.sim.promises import Promise
from millstream.sim.tasks import Process
from millstream.stores.store import Damage, StoreFullError, StoreUnavailableError

T = TypeVar("T")

_PATIENCE = 30.0
_LOOK_AGAIN = 0.2
_LARGE = 0.8  # how likely an item is too large for what is left of the space
_YET_THERE = 0.1  # how likely it is there nevertheless: only its last write was refused


class SimStore:
    """What is durable. Direct calls return at once; processes call through a ``view``.

    ``lose`` is how likely the answer to a call is lost for good, with its effect there or not.
    """

    def __init__(self, world: World, lose: float = 0.0) -> None:
        self.world = world
        self.lose = lose
        self.truth = Truth()
        self._values: dict[str, bytes] = {}
        self._unreachable: Counter[str | None] = Counter()
        self._full: Counter[str | None] = Counter()
        self._under_way = 0

    def view(self, net: SimNet) -> StoreView:
        """The store as one process sees it."""
        return StoreView(self, net.process)

    def go_away(self, seconds: float, process: str | None = None) -> None:
        """Be unreachable for all processes, or for one, for a while."""
        self._for_a_while(self._unreachable, seconds, process, "is out of reach of")

    def _for_a_while(
        self, trouble: Counter[str | None], seconds: float, process: str | None, what: str
    ) -> None:
        whom = process or "all processes"
        self.world.note(f"the store {what} {whom} for {seconds:g} s")
        trouble[process] += 1

        def over() -> None:
            trouble[process] -= 1
            self.world.note(f"the store no longer {what} {whom}")

        self.world.at(seconds, over)

    @property
    def is_busy(self) -> bool:
        """Whether an effect of an earlier request may still take place."""
        return self._under_way > 0

    def count(self, effects: int) -> None:
        """Register effects that take place even if their process crashes."""
        self._under_way += effects

    def fill_up(self, seconds: float, process: str | None = None) -> None:
        """Have no space for a while, for all processes or for one: its disk is full."""
        self._for_a_while(self._full, seconds, process, "has no space for")

    def is_full(self, process: str) -> bool:
        return self._full[None] > 0 or self._full[process] > 0

    def is_away(self, process: str) -> bool:
        return self._unreachable[None] > 0 or self._unreachable[process] > 0

    def put(self, items: Mapping[str, bytes]) -> None:
        for key, value in items.items():
            if key.startswith(PREFIX):
                self.truth.add(decode(value, key))
            self._values[key] = value

    def put_if_absent(self, key: str, value: bytes) -> bool:
        if key in self._values:
            return False
        self.put({key: value})
        return True

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: self._values[key] for key in keys if key in self._values}

    def scan(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._values if key.startswith(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._values.pop(key, None)

    def verify(self) -> Iterator[Damage]:
        return iter(())

    def close(self) -> None:
        return


class Truth:
    """The true chain: the first link at each position, deleted or not.

    ``problem`` is the first thing that must never happen to it.
    """

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.problem: str | None = None
        self._incarnation = 0

    def add(self, link: Link) -> None:
        if link.position < len(self.links):
            return  # where links were deleted or overwritten: no driver may rely on it
        if link.position > len(self.links):
            self._report(f"the link at {link.position} follows nothing")
        elif isinstance(link, Claim) and link.incarnation <= self._incarnation:
            self._report(f"incarnation {link.incarnation} was claimed twice")
        elif not isinstance(link, Claim) and link.incarnation != self._incarnation:
            self._report(f"incarnation {link.incarnation} committed epoch {link.epoch}, fenced")
        self._incarnation = link.incarnation
        self.links.append(link)

    def believes(self, link: Link) -> None:
        """A driver takes a link for its own."""
        known = self.links[link.position] if link.position < len(self.links) else None
        if known is None or known.token != link.token:
            self._report(f"incarnation {link.incarnation} relies on a link that is not there")

    def _report(self, problem: str) -> None:
        self.problem = self.problem or f"I3: {problem}"


class _Request:
    """Effects on their way to the store: each takes place at an instant of its own, or never."""

    def __init__(
        self,
        store: SimStore,
        process: Process,
        effects: Sequence[Callable[[], Any]],
        needs_space: bool,
    ) -> None:
        world = store.world
        self._store, self._process = store, process
        self._needs_space, self._refused = needs_space, False
        self._left = len(effects)
        self._lost = world.maybe(store.lose)
        self.answer: Promise[list[Any]] = Promise(world)
        self._results: list[Any] = [None] * len(effects)
        for number, effect in enumerate(effects):
            if self._lost and world.maybe(0.5):
                continue
            # On its way already, or still in the process, with which it stops and dies.
            owner = process if world.maybe(0.5) else None
            store.count(owner is None)
            arrive = partial(self._arrive, number, effect, owner is None)
            world.schedule(world.delay(), arrive, owner)

    def _arrive(self, number: int, effect: Callable[[], Any], counted: bool) -> None:
        store, world = self._store, self._store.world
        if store.is_away(self._process.name):
            store.count(not counted)
            world.at(_LOOK_AGAIN, partial(self._arrive, number, effect, True))
            return
        store.count(-counted)
        refused = self._needs_space and store.is_full(self._process.name) and world.maybe(_LARGE)
        self._refused |= refused
        if not refused or world.maybe(_YET_THERE):
            self._results[number] = effect()
        self._left -= 1
        if not self._left and not self._lost:
            world.at(world.delay(), self._answer)

    def _answer(self) -> None:
        if self._refused:
            self.answer.fail(StoreFullError("no space left on device"))
        else:
            self.answer.resolve(self._results)


class StoreView:
    """The store as one process uses it; implements ``millstream.stores.store.Store``."""

    def __init__(self, store: SimStore, process: Process) -> None:
        self._store = store
        self._process = process

    def _ask(
        self, what: str, effects: Sequence[Callable[[], T]], needs_space: bool = False
    ) -> list[T]:
        world = self._store.world
        world.step(f"store {what}", self._process)
        if not effects:
            return []
        request = _Request(self._store, self._process, effects, needs_space)
        if not request.answer.wait(f"for the store to {what}", _PATIENCE):
            world.note(f"{self._process.name} gave up waiting for the store to {what}")
            raise StoreUnavailableError(f"the store did not answer for {_PATIENCE:g} s")
        results: list[T] = request.answer.get()
        return results

    def _traced(self, what: str, effect: Callable[[], T]) -> Callable[[], T]:
        def traced() -> T:
            result = effect()
            text = "" if result is None else f" = {result}"
            self._store.world.note(f"store <- {self._process.name} {what}{text}")
            return result

        return traced

    def put(self, items: Mapping[str, bytes]) -> None:
        puts = [
            self._traced(f"put {key}", partial(self._store.put, {key: value}))
            for key, value in items.items()
        ]
        self._ask("put", puts, needs_space=True)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        what = f"put-if-absent {key}"
        put = partial(self._store.put_if_absent, key, value)
        return self._ask(what, [self._traced(what, put)], needs_space=True)[0]

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        return self._ask("get", [partial(self._store.get, list(keys))])[0]

    def scan(self, prefix: str = "") -> list[str]:
        return self._ask("scan", [partial(self._store.scan, prefix)])[0]

    def delete(self, keys: Iterable[str]) -> None:
        deletions = [
            self._traced(f"delete {key}", partial(self._store.delete, [key])) for key in keys
        ]
        self._ask("delete", deletions, needs_space=True)  # a log appends deletions

    def verify(self) -> Iterator[Damage]:
        return iter(())

    def close(self) -> None:
        return
