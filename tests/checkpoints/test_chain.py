"""The chain of claims and manifests: who wins, who is refused, and what a newcomer reads."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.checkpoints.chain import PREFIX, Chain, CommitUnknownError, SupersededError
from millstream.checkpoints.garbage import garbage, remove
from millstream.checkpoints.lineage import EMPTY, Lineage, lineage_of
from millstream.checkpoints.manifest import Claim, Link, Manifest, decode, encode
from millstream.checkpoints.records import DATA
from millstream.stores.store import CorruptRecordError, Damage, Store, StoreUnavailableError
from tests.checkpoints.links import base, manifest
from tests.checkpoints.memory_store import MemoryStore
from tests.checkpoints.turns import Turns


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def key(position: int) -> str:
    return f"{PREFIX}{position:012d}"


def claimed(store: Store, after: int | None = None, host: str = "host", pid: int = 1) -> Lineage:
    chain = Chain(store)
    seen = chain.read(lambda damage: None)
    found = chain.claim(seen, seen.epoch if after is None else after, 0, host, pid)
    assert found is not None
    return found


def committed(store: Store, lineage: Lineage, epochs: int = 1) -> Lineage:
    for _ in range(epochs):
        lineage = Chain(store).commit(lineage, next_of(lineage))
    return lineage


def next_of(lineage: Lineage) -> Manifest:
    """The next epoch, with a base that makes all older ones superfluous."""
    epoch = lineage.epoch + 1
    bases = (base(epoch - 1, incarnation=lineage.incarnation),) if epoch else ()
    return manifest(epoch, *bases, incarnation=lineage.incarnation)


def collected(store: Store, lineage: Lineage, retain: int = 1) -> Lineage:
    found = garbage(lineage, store.scan(DATA), retain)
    remove(store, found)
    return lineage.since(found.links_before)


def positions(store: Store) -> list[int]:
    return [int(found.removeprefix(PREFIX)) for found in store.scan(PREFIX)]


# -- reading ---------------------------------------------------------------------------------


def test_an_empty_store_has_an_empty_chain(store: MemoryStore) -> None:
    assert Chain(store).read() == EMPTY


def test_what_was_written_is_what_is_read(store: MemoryStore) -> None:
    lineage = committed(store, claimed(store), 3)

    assert Chain(store).read() == lineage
    assert lineage.epoch == 2 and lineage.position == 4 and positions(store) == [0, 1, 2, 3]


def test_a_chain_without_its_beginning_is_read_from_where_it_begins(store: MemoryStore) -> None:
    lineage = collected(store, committed(store, claimed(store), 5))
    assert positions(store) == [5]

    found = Chain(store).read()
    assert found.manifests == lineage.manifests and found.position == lineage.position == 6
    assert found.incarnation == 1


@pytest.mark.parametrize("spoil", [MemoryStore.flip, lambda store, key: store.delete([key])])
def test_a_damaged_or_missing_link_is_reported_and_the_rest_is_read(
    store: MemoryStore, spoil: Callable[[MemoryStore, str], None]
) -> None:
    committed(store, claimed(store), 4)
    spoil(store, key(2))

    reported: list[Damage] = []
    found = Chain(store).read(reported.append)
    assert [damage.key for damage in reported] == [key(2)]
    assert [one.epoch for one in found.manifests] == [0, 2, 3] and found.position == 5
    with pytest.raises(CorruptRecordError, match=key(2)):
        Chain(store).read()


def test_the_position_after_a_damaged_last_link_is_used_once(store: MemoryStore) -> None:
    committed(store, claimed(store), 2)
    store.flip(key(2))

    assert Chain(store).read(lambda damage: None).position == 3


def test_a_link_of_another_format_is_reported_as_damage(store: MemoryStore) -> None:
    claimed(store)
    store.put_if_absent(key(1), b'{"format":99}')

    with pytest.raises(CorruptRecordError, match="format 99"):
        Chain(store).read()


# -- claims and commits ------------------------------------------------------------------------


def test_of_two_claims_on_one_position_one_wins(store: MemoryStore) -> None:
    chain = Chain(store)
    seen = chain.read()

    assert chain.claim(seen, -1, 0, "one", 1) is not None
    assert chain.claim(seen, -1, 0, "two", 2) is None
    assert len(positions(store)) == 1


def test_each_claim_is_an_incarnation(store: MemoryStore) -> None:
    assert [claimed(store).incarnation for _ in range(3)] == [1, 2, 3]


def test_a_claim_knows_when_and_by_whom(store: MemoryStore) -> None:
    chain = Chain(store)
    found = chain.claim(chain.read(), -1, 12, "host", 34)

    assert found is not None and found.claim is not None
    assert (found.claim.time, found.claim.host, found.claim.pid) == (12, "host", 34)
    assert found.claim.token


def test_a_superseded_driver_cannot_commit_and_learns_its_successor(store: MemoryStore) -> None:
    old = committed(store, claimed(store))
    claimed(store, host="elsewhere", pid=77)

    with pytest.raises(
        SupersededError, match=r"incarnation 2 \(process 77 on elsewhere\)"
    ) as caught:
        committed(store, old)
    assert (caught.value.incarnation, caught.value.by) == (1, 2)
    assert Chain(store).read().epoch == 0
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_superseded_driver_cannot_commit_later_either(store: MemoryStore) -> None:
    old = committed(store, claimed(store))
    new = committed(store, claimed(store), 3)

    for _ in range(2):
        with pytest.raises(SupersededError):
            committed(store, old)
    assert Chain(store).read() == new


def test_a_manifest_before_a_claim_is_seen_by_the_claimant(store: MemoryStore) -> None:
    chain = Chain(store)
    old = committed(store, claimed(store))
    seen = chain.read()
    committed(store, old)

    assert chain.claim(seen, seen.epoch, 0, "host", 1) is None
    assert claimed(store).epoch == 1


def test_a_claim_that_goes_back_takes_back(store: MemoryStore) -> None:
    committed(store, claimed(store), 4)
    again = committed(store, claimed(store, after=1))

    assert [one.epoch for one in Chain(store).read().manifests] == [0, 1, 2]
    assert again.newest is not None and again.newest.incarnation == 2


# -- drivers that slept ------------------------------------------------------------------------


def test_a_driver_that_slept_while_its_position_was_deleted_is_rejected(store: MemoryStore) -> None:
    old = committed(store, claimed(store))
    new = collected(store, committed(store, claimed(store), 4))
    before = positions(store)

    with pytest.raises(SupersededError):
        committed(store, old)
    assert positions(store) == before and Chain(store).read().manifests == new.manifests


def test_a_claimant_that_slept_while_its_place_was_deleted_has_claimed_nothing(
    store: MemoryStore,
) -> None:
    chain = Chain(store)
    at_first = chain.read()
    driver = committed(store, claimed(store), 2)
    later = chain.read()
    driver = collected(store, committed(store, driver, 3))
    before = positions(store)

    for seen in (at_first, later):
        assert chain.claim(seen, seen.epoch, 0, "host", 1) is None
        assert positions(store) == before
    committed(store, driver)


def test_a_link_in_a_hole_does_not_bear_another(store: MemoryStore) -> None:
    first = committed(store, claimed(store))
    second = claimed(store)
    new = collected(store, committed(store, claimed(store), 4))
    # The first one dies between putting its link and looking around.
    lost = replace(next_of(first), position=first.position, token="lost")
    assert store.put_if_absent(key(first.position), encode(lost))

    with pytest.raises(SupersededError):
        committed(store, second)
    assert Chain(store).read(lambda damage: None).newest == new.newest


def test_what_collects_beside_a_run_does_not_end_it(store: MemoryStore) -> None:
    lineage = committed(store, claimed(store), 3)

    class Collected(MemoryStore):
        """In which, as soon as a manifest is there, all older links are deleted."""

        def put_if_absent(self, key: str, value: bytes) -> bool:
            won = super().put_if_absent(key, value)
            collected(self, Chain(self).read())
            return won

    beside = Collected(store.held)
    assert committed(beside, lineage).epoch == 3
    assert positions(store) == [4]


def test_a_commit_that_others_may_build_on_is_unknown(store: MemoryStore) -> None:
    lineage = committed(store, claimed(store))

    class Overtaken(MemoryStore):
        """In which, as soon as a manifest is there, somebody claims, and deletes what is older."""

        def put_if_absent(self, key: str, value: bytes) -> bool:
            won = super().put_if_absent(key, value)
            collected(store, claimed(store))
            return won

    with pytest.raises(CommitUnknownError):
        committed(Overtaken(store.held), lineage)
    assert Chain(store).read().epoch == 1


# -- a store that is away ----------------------------------------------------------------------


class Shy(MemoryStore):
    """A store that goes away right before or right after a call."""

    def __init__(self, held: dict[str, bytes], fails: str, before: bool = True) -> None:
        super().__init__(held)
        self.fails, self.before = fails, before

    def put_if_absent(self, key: str, value: bytes) -> bool:
        if self.fails == "put" and self.before:
            raise StoreUnavailableError("gone")
        won = super().put_if_absent(key, value)
        if self.fails == "put":
            raise StoreUnavailableError("gone")
        return won

    def get(self, keys: object) -> dict[str, bytes]:
        if self.fails == "get":
            raise StoreUnavailableError("gone")
        return super().get(keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fails", "before", "durable"),
    [("put", True, False), ("put", False, True), ("get", True, True)],
)
def test_if_the_store_is_unavailable_the_commit_is_unknown(
    store: MemoryStore, fails: str, before: bool, durable: bool
) -> None:
    lineage = claimed(store)

    with pytest.raises(
        CommitUnknownError, match=r"unknown whether epoch 0 is committed: gone"
    ) as caught:
        committed(Shy(store.held, fails, before), lineage)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert Chain(store).read().epoch == (0 if durable else -1)
    # Said again by the same driver, it is refused if it is there already: a restart tells.
    if durable:
        with pytest.raises(SupersededError):
            committed(store, lineage)
    else:
        committed(store, lineage)


class Forgetful(MemoryStore):
    """A store whose first answer is lost; asked again, it says that something is there already."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        super().put_if_absent(key, value)
        return super().put_if_absent(key, value)


def test_a_driver_that_finds_its_own_link_has_won() -> None:
    store = Forgetful()
    lineage = committed(store, claimed(store), 2)

    assert Chain(store).read() == lineage
    assert positions(store) == [0, 1, 2]


def test_a_driver_that_finds_another_link_has_lost_even_if_it_is_unreadable() -> None:
    store = Forgetful()
    old = committed(store, claimed(store))
    claimed(store)
    with pytest.raises(SupersededError, match="incarnation 2"):
        committed(store, old)

    store.flip(key(2))
    assert Chain(store).claim(old, 0, 0, "host", 1) is None


# -- whether somebody came since -----------------------------------------------------------------


def test_a_driver_can_check_whether_it_was_superseded(store: MemoryStore) -> None:
    lineage = committed(store, claimed(store))
    Chain(store).require_newest(lineage)

    claimed(store)
    with pytest.raises(SupersededError, match="incarnation 2"):
        Chain(store).require_newest(lineage)


def test_the_commits_of_an_incarnation_are_distinguished_from_links_of_others(
    store: MemoryStore,
) -> None:
    seen = claimed(store)
    newest = committed(store, seen, 2)
    assert not Chain(store).was_claimed(seen) and not Chain(store).was_claimed(newest)

    claimed(store)
    assert Chain(store).was_claimed(seen) and Chain(store).was_claimed(newest)


def test_a_link_that_cannot_be_read_may_be_a_claim(store: MemoryStore) -> None:
    seen = claimed(store)
    committed(store, seen)
    store.flip(key(1))

    assert Chain(store).was_claimed(seen)


def test_a_claim_is_withdrawn_unless_links_follow_it(store: MemoryStore) -> None:
    driver = committed(store, claimed(store), 3)
    Chain(store).withdraw(claimed(store, after=0))
    driver = committed(store, driver)
    assert Chain(store).read() == driver

    mine = claimed(store, after=0)
    newer = claimed(store)
    with pytest.raises(SupersededError, match="incarnation 3"):
        Chain(store).withdraw(mine)
    assert Chain(store).read() == newer


def test_a_driver_hears_of_its_successor_after_all_that_has_happened_since(
    store: MemoryStore,
) -> None:
    mine = committed(store, claimed(store), 2)
    assert Chain(store).successor(mine.incarnation) is None

    newer = committed(store, claimed(store, host="other", pid=7), 3)
    remove(store, garbage(newer, store.scan(DATA), 1))

    found = Chain(store).successor(mine.incarnation)
    assert found is not None and (found.incarnation, found.by) == (1, 2)
    assert Chain(store).successor(newer.incarnation) is None


def test_a_driver_that_slept_through_deletions_hears_that_it_was_replaced(
    store: MemoryStore,
) -> None:
    lineage = committed(store, claimed(store))
    collected(store, committed(store, claimed(store), 4))

    with pytest.raises(SupersededError, match="a newer one"):
        Chain(store).require_newest(lineage)


# -- any drivers, interleaved at any call to the store -------------------------------------------


class Remembering(MemoryStore):
    """A store that knows which link was the first at each position, deleted or not."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, bytes] = {}

    def put_if_absent(self, key: str, value: bytes) -> bool:
        self.first.setdefault(key, value)
        return super().put_if_absent(key, value)

    @property
    def links(self) -> list[Link]:
        """The chain as if nothing had been deleted."""
        return [decode(value, at) for at, value in sorted(self.first.items())]


@dataclass
class Driver:
    """Claims, commits and collects garbage, and records what was acknowledged."""

    plan: list[str]
    reported: list[Link]
    lineage: Lineage = EMPTY

    def run(self, store: Store) -> None:
        chain = Chain(store)
        try:
            for step in self.plan:
                self._do(step, chain, store)
        except (SupersededError, CommitUnknownError):
            return

    def _do(self, step: str, chain: Chain, store: Store) -> None:
        if step == "collect":
            self.lineage = collected(store, self.lineage)
            return
        if step == "commit":
            self.lineage = chain.commit(self.lineage, next_of(self.lineage))
        else:
            found: Lineage | None = None
            while found is None:
                seen = chain.read(lambda damage: None)
                found = chain.claim(seen, seen.epoch, 0, "host", 1)
            self.lineage = found
        assert self.lineage.last is not None
        self.reported.append(self.lineage.last)


steps = st.lists(st.sampled_from(["commit", "commit", "collect", "claim"]), max_size=6)
schedules = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12)), max_size=25)


@settings(max_examples=settings().max_examples * 3 // 2)
@given(plans=st.lists(steps, min_size=2, max_size=3), schedule=schedules)
def test_with_any_pauses_all_drivers_agree_on_one_history(
    plans: list[list[str]], schedule: list[tuple[int, int]]
) -> None:
    store, reported = Remembering(), list[Link]()
    drivers = [Driver(["claim", *plan], reported) for plan in plans]
    turns = Turns(store, {str(at): driver.run for at, driver in enumerate(drivers)})
    for who, calls in schedule:
        for _ in range(calls):
            if str(who) in turns.waiting:
                turns.take(str(who))
                check(store, reported)
    turns.finish()
    check(store, reported)


def check(store: Remembering, reported: list[Link]) -> None:
    links = store.links
    assert [link.position for link in links] == list(range(len(links)))
    # A driver whose link was acknowledged has it for good.
    assert all(links[link.position] == link for link in reported)
    # Each epoch was committed once, on top of the one before, by whoever had claimed last.
    manifests = [link for link in links if isinstance(link, Manifest)]
    assert [one.epoch for one in manifests] == list(range(len(manifests)))
    assert lineage_of(links).manifests == tuple(manifests)
    claims = [link.incarnation for link in links if isinstance(link, Claim)]
    assert claims == list(range(1, len(claims) + 1))
    assert [link.incarnation for link in links] == sorted(link.incarnation for link in links)
    # A newcomer sees the end of it; before a gap there may be a driver that does not know yet.
    found = Chain(store).read(lambda damage: None)
    if manifests:
        assert found.newest == manifests[-1] and found.position == len(links)
