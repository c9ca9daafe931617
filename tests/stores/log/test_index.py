"""The index answers as a dictionary would, however it is merged, and whatever collides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.stores.log import index as index_module
from millstream.stores.log.format import Found, Header, Kind, digest_of
from millstream.stores.log.index import Batch, Index
from millstream.stores.log.segments import Catalogue, Segment
from millstream.stores.log.table import Row, Table

KEYS = [f"k/{number}" for number in range(30)]


def poor_digest(key: bytes) -> int:
    """Three hashes for all keys."""
    return (digest_of(key) % 3) << 62


@pytest.fixture(params=["rich", "poor"])
def digest(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "poor":
            patch.setattr(index_module, "digest_of", poor_digest)
        yield request.param


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.sampled_from(KEYS), unique=True, max_size=20)),
        st.tuples(st.just("delete"), st.lists(st.sampled_from(KEYS), unique=True, max_size=3)),
        st.tuples(st.just("found"), st.lists(st.sampled_from(KEYS), unique=True, max_size=3)),
        st.tuples(st.just("stale"), st.lists(st.sampled_from(KEYS), unique=True, max_size=3)),
        st.tuples(st.just("late"), st.lists(st.sampled_from(KEYS), unique=True, max_size=3)),
        st.tuples(st.just("merge"), st.just([])),
    ),
    max_size=25,
)


def test_an_index_answers_as_a_dictionary_would(digest: str) -> None:
    hash_of = poor_digest if digest == "poor" else digest_of

    @given(steps=STEPS)
    @settings(max_examples=settings().max_examples * 3 // 2)
    def run(steps: list[tuple[str, list[str]]]) -> None:
        segments = Catalogue()
        segment = segments.add("s", Header(1, 1))
        index = Index(segments)
        model: dict[str, tuple[int, Kind]] = {}
        stamp = 1000
        for what, keys in steps:
            if what == "merge":
                index.merge()
                continue
            kind = Kind.TOMBSTONE if what == "delete" else Kind.VALUE
            stamp += 10
            first = {"stale": 1, "late": stamp - 500}.get(what, stamp)
            stamps = list(range(first, first + len(keys)))
            stamp += len(keys)
            hashes = [hash_of(key.encode()) for key in keys]
            if what in ("put", "delete", "late"):
                index.add(segment, Batch(keys, hashes, stamps, stamps, stamps, kind))
            else:
                index.add_found(
                    segment,
                    [
                        Found(kind, key.encode(), hash, at, at, at)
                        for key, hash, at in zip(keys, hashes, stamps, strict=True)
                    ],
                )
            for key, at in zip(keys, stamps, strict=True):
                if key not in model or model[key][0] < at:
                    model[key] = (at, kind)
        for _ in range(2):
            for key in KEYS:
                row = index.find(key)
                assert (row and (row.stamp, row.kind)) == model.get(key)
                assert row is None or row.offset == row.length == row.stamp
            assert index.find_all(KEYS) == [index.find(key) for key in KEYS]
            values = {key for key, (_, kind) in model.items() if kind == Kind.VALUE}
            assert index.scan("") == values
            assert index.scan("k/1") == {key for key in values if key.startswith("k/1")}
            index.merge()
        assert len(index.table) == len(model)

    run()


def add(index: Index, segment: Segment, keys: list[str], first: int) -> None:
    stamps = range(first, first + len(keys))
    hashes = [digest_of(key.encode()) for key in keys]
    ones = [1] * len(keys)
    index.add(segment, Batch(keys, hashes, ones, ones, stamps, Kind.VALUE))


def test_superseded_records_leave_shadows_until_their_segment_is_removed() -> None:
    segments = Catalogue()
    old, new = segments.add("old", Header(1, 1)), segments.add("new", Header(2, 2))
    index = Index(segments)
    add(index, old, ["a", "b"], 1)
    index.merge()
    add(index, new, ["a"], 10)
    add(index, new, ["a"], 20)
    index.merge()
    assert sorted(index.shadows["segment"].tolist()) == [old.number, new.number]
    assert set(index.shadows["hash"].tolist()) == {digest_of(b"a")}
    index.drop([old])
    assert index.shadows["segment"].tolist() == [new.number]
    assert index.find("b") is None
    row = index.find("a")
    assert row is not None and row.stamp == 20


@pytest.mark.parametrize("stamps", [(5, 6, 7, 8), (5, 8, 7, 6), (1, 6, 7, 8)])
def test_records_that_are_read_at_once_count_by_their_stamps(
    stamps: tuple[int, int, int, int],
) -> None:
    segments = Catalogue()
    old, new = segments.add("old", Header(1, 1)), segments.add("new", Header(2, 2))
    index = Index(segments)
    add(index, old, ["a", "b", "c"], 2)  # at 2, 3 and 4
    kinds = (Kind.VALUE, Kind.VALUE, Kind.TOMBSTONE, Kind.VALUE)
    model = {"a": (2, Kind.VALUE), "b": (3, Kind.VALUE), "c": (4, Kind.VALUE)}
    records = []
    for key, stamp, kind in zip(("a", "b", "b", "b"), stamps, kinds, strict=True):
        records.append(Found(kind, key.encode(), digest_of(key.encode()), stamp, 10 * stamp, stamp))
        model[key] = max(model[key], (stamp, kind))

    index.add_found(new, records)

    for key, (stamp, kind) in model.items():
        row = index.find(key)
        assert row is not None and (row.stamp, row.kind) == (stamp, kind)
        if stamp > 4:
            assert row == Row(stamp, 10 * stamp, stamp, new.number, kind)
    assert index.newest == 8
    index.merge()
    assert len(index.shadows) == 4  # of seven records, three count


def test_of_two_copies_the_one_in_the_younger_segment_counts() -> None:
    for order in ((0, 1), (1, 0)):
        segments = Catalogue()
        both = [segments.add("b", Header(1, 1)), segments.add("a", Header(2, 2))]
        index = Index(segments)
        for which in order:
            index.add_found(both[which], [Found(Kind.VALUE, b"k", digest_of(b"k"), 5, 64, 1)])
            index.merge()
        row = index.find("k")
        assert row is not None and row.segment == both[1].number


def test_unsynced_records_are_visible_and_not_merged() -> None:
    segments = Catalogue()
    ours, theirs = segments.add("a", Header(1, 1)), segments.add("b", Header(2, 2))
    index = Index(segments)
    add(index, ours, ["k"], 1)
    index.set_unsynced(theirs, [Found(Kind.VALUE, b"k", digest_of(b"k"), 5, 64, 1)])
    index.merge()
    row = index.find("k")
    assert row is not None and row.segment == theirs.number
    assert index.table.rows["segment"].tolist() == [ours.number]
    index.set_unsynced(theirs, [])
    row = index.find("k")
    assert row is not None and row.segment == ours.number


def test_an_empty_table_knows_nothing() -> None:
    table = Table.empty()
    assert table.find(b"a", digest_of(b"a")) is None
    assert list(table.matching(b"")) == []
