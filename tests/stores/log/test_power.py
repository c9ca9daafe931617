"""Whatever was acknowledged is there after the power failed, at any moment."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.stores.log.store import LogStore
from millstream.stores.store import CorruptRecordError
from tests.stores.log.disks import MemoryDisk, PowerFailure, abandon, open_log

KEYS = [f"k/{number}" for number in range(8)]
ONCE = ["once/1", "once/2"]
STEPS = ["put", "put", "put", "put_many", "delete", "once", "flush", "compact", "reopen"]


class Machine:
    """Two writers on one disk, and what was acknowledged to them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = MemoryDisk(seed)
        self.numbers = iter(range(1_000_000))
        self.stores: list[LogStore] = []
        # What may be found under a key: one thing, or several while a call has not returned.
        self.may: dict[str, set[bytes | None]] = {key: {None} for key in KEYS + ONCE}
        self.start()

    def start(self) -> None:
        self.stores = [open_log(self.disk, f"w{next(self.numbers)}") for _ in range(2)]

    def step(self, what: str) -> None:
        which = self.chance.randrange(2)
        store = self.stores[which]
        value = b"%d:" % next(self.numbers) + self.chance.randbytes(self.chance.choice([3, 500]))
        if what in ("put", "put_many"):
            keys = self.chance.sample(KEYS, 1 if what == "put" else 5)
            self._try(keys, value)
            store.put(dict.fromkeys(keys, value))
            self._done(keys, value)
        elif what == "delete":
            keys = self.chance.sample(KEYS + ONCE, 2)
            self._try(keys, None)
            store.delete(keys)
            self._done(keys, None)
        elif what == "once":
            key = self.chance.choice(ONCE)
            [known] = self.may[key]
            self._try([key], value if known is None else known)
            assert store.put_if_absent(key, value) == (known is None)
            self._done([key], value if known is None else known)
        elif what == "flush":
            store.flush()
        elif what == "compact":
            store.compact()
        else:
            store.close()
            self.stores[which] = open_log(self.disk, f"w{next(self.numbers)}")

    def _try(self, keys: list[str], value: bytes | None) -> None:
        for key in keys:
            self.may[key] = self.may[key] | {value}

    def _done(self, keys: list[str], value: bytes | None) -> None:
        for key in keys:
            self.may[key] = {value}

    def end(self) -> None:
        for store in self.stores:
            abandon(store)

    def check(self) -> None:
        found = self.stores[0].get(self.may)
        assert set(self.stores[1].scan()) == set(found)
        for key, allowed in self.may.items():
            assert found.get(key) in allowed, key
            # What is on the disk now stays.
            self.may[key] = {found.get(key)}


@given(
    seed=st.integers(0, 2**32),
    lives=st.lists(st.tuples(st.integers(1, 25), st.integers(0, 40)), min_size=1, max_size=5),
)
@settings(max_examples=settings().max_examples * 3 // 2)
def test_what_was_acknowledged_survives_power_failures(
    seed: int, lives: list[tuple[int, int]]
) -> None:
    machine = Machine(seed)
    for steps, calls in lives:
        try:
            for _ in range(steps):
                machine.step(machine.chance.choice(STEPS))
            machine.disk.calls_left = calls
            while True:
                machine.step(machine.chance.choice(STEPS))
        except PowerFailure:
            machine.end()
        machine.disk.fail_power()
        machine.start()
        machine.check()
    machine.end()


def test_a_failed_sync_is_never_tried_again_on_the_same_file() -> None:
    disk = MemoryDisk()
    store = open_log(disk, "w", patience=5)
    store.put({"a": b"1"})
    failed: list[str] = []

    def fail_once(call: str) -> None:
        if call == "sync" and not failed:
            failed.append(call)
            raise OSError(5, "the disk could not write it")

    disk.before = fail_once
    store.put({"b": b"2"})

    assert failed and len(disk.files("segments")) == 2
    disk.fail_power()
    abandon(store)
    again = open_log(disk, "x")
    assert again.get(["a", "b"]) == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_batch_does_not_hide_what_it_would_have_replaced(seed: int) -> None:
    disk = MemoryDisk(seed)
    store = open_log(disk, "w", segment=1 << 20)
    keys = [f"k/{number}" for number in range(20)]
    store.put(dict.fromkeys(keys, b"old" * 30))
    disk.calls_left = 1  # the write is done, its sync is not
    with pytest.raises(PowerFailure):
        store.put(dict.fromkeys(keys, b"new" * 30))
    disk.fail_power()
    abandon(store)

    again = open_log(disk, "x")
    try:
        found = again.get(keys)
    except CorruptRecordError as error:
        pytest.fail(str(error))
    assert set(found) == set(keys)
    assert set(found.values()) <= {b"old" * 30, b"new" * 30}
