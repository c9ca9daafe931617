from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from millstream.checkpoints.epoch_contents import EpochIncompleteError
from millstream.checkpoints.stored_state import (
    NotInCheckpointError,
    StoredState,
    UnreadableStateError,
    manifest_of,
)
from millstream.flow.functions import arrow
from millstream.flow.reducers import combinable
from millstream.ring.keys import KeyTypeError
from millstream.state.aggregates import aggregate, mean, sum, top_k
from millstream.state.aggregates.naming import text_of
from tests.checkpoints.memory_store import MemoryStore
from tests.checkpoints.written import HALVES, Job, Writer, count, counting
from tests.work.running import SLOTS, job_of

LOW, HIGH = HALVES
NAMES = [f"key{number}" for number in range(40)]


def ones(*names: str) -> list[tuple[str, int]]:
    return [(name, 1) for name in names]


@pytest.fixture
def run() -> Writer:
    return Writer(MemoryStore())


def stored(run: Writer, job: str = "count", epoch: int | None = None) -> StoredState:
    return StoredState(run.store, run.lineage, run.epoch if epoch is None else epoch, job)


def test_deltas_alone_give_the_state_of_every_epoch(run: Writer) -> None:
    seen = []
    for epoch in range(3):
        run.commit(ones(*NAMES[epoch:]))
        seen.append({key: dict(entries) for key, entries in run.items().items()})

    assert [dict(stored(run, epoch=epoch).items()) for epoch in range(3)] == seen


def test_what_followed_a_base_is_added_to_it(run: Writer) -> None:
    run.commit(ones(*NAMES))
    run.commit(ones(*NAMES[:9]))
    run.base()
    run.commit(ones(*NAMES[5:15]))

    assert dict(stored(run).items()) == run.items()
    assert stored(run).get("key7") == {"n": 3}


def test_a_newer_base_of_some_slots_hides_an_older_one_of_all(run: Writer) -> None:
    run.commit(ones(*NAMES))
    run.base()
    run.commit([(NAMES[0], None), (NAMES[1], None), *ones(*NAMES[2:])])
    run.base(HIGH)
    run.commit(ones(*NAMES[30:]))

    assert dict(stored(run).items()) == run.items()


def test_of_bases_whose_parts_differ_in_age_the_newest_part_counts(run: Writer) -> None:
    run.commit(ones(*NAMES))
    low = run.parts(LOW)
    run.commit(ones(*NAMES))
    run.base(HIGH)
    run.commit([(name, None) for name in NAMES[::2]])
    run.put_base([*low, *run.parts(HIGH)])
    run.commit(ones(NAMES[1]))

    assert dict(stored(run).items()) == run.items()


def test_an_older_delta_is_not_applied_to_a_slot_of_a_newer_base(run: Writer) -> None:
    """Although fragments of feeds that were cut have more than their delta records."""
    run.commit(ones(*NAMES), wide=True)
    run.commit(ones(*NAMES))
    run.base(HIGH)
    run.commit(ones(NAMES[0]))

    assert dict(stored(run).items()) == run.items()


def test_a_job_that_was_added_after_a_base_is_empty_in_it(run: Writer) -> None:
    run.jobs = {**counting(), "late": Job(job_of(count))}
    run.commit(ones(*NAMES))
    run.base(only=["count"])
    run.commit({"count": ones("a"), "late": ones(*NAMES)})

    assert dict(stored(run, "late").items()) == run.items("late")
    assert dict(stored(run, "count").items()) == run.items("count")


def test_removed_keys_are_absent(run: Writer) -> None:
    run.commit(ones(*NAMES))
    run.commit([(NAMES[3], None)])

    assert stored(run, epoch=0).get(NAMES[3]) == {"n": 1}
    assert stored(run).get(NAMES[3], "gone") == "gone"
    assert len(dict(stored(run).items())) == len(NAMES) - 1


def test_a_range_of_slots_has_its_keys_and_no_others(run: Writer) -> None:
    run.commit(ones(*NAMES))

    parts = [dict(stored(run).items(range(at, at + 4))) for at in range(0, SLOTS, 4)]

    assert all(parts)
    assert {key: value for part in parts for key, value in part.items()} == run.items()
    assert builtins_sum(parts) == len(NAMES)


def builtins_sum(parts: list[dict[Any, Any]]) -> int:
    return len([key for part in parts for key in part])


def test_ranges_cut_between_records_where_they_can(run: Writer) -> None:
    run.commit(ones(*NAMES))
    state = stored(run)

    assert state.ranges() == [range(SLOTS)]
    assert state.ranges(at_once=1500) in ([LOW, HIGH], [range(SLOTS)])
    weight = max(delta.bytes for delta in run.lineage.manifests[0].deltas)
    assert state.ranges(at_once=weight + 1) == [LOW, HIGH]
    small = state.ranges(at_once=weight // 3)
    assert len(small) > 4
    assert [slot for part in small for slot in part] == list(range(SLOTS))
    assert LOW.stop in {part.start for part in small}


def test_the_smallest_range_is_a_slot(run: Writer) -> None:
    run.commit(ones(*NAMES))

    assert stored(run).ranges(at_once=1) == [range(at, at + 1) for at in range(SLOTS)]


@pytest.mark.parametrize(
    "keys",
    [
        [1, -7, 2**40],
        [1.5, float("nan"), -0.0, 1e300],
        [True, False],
        [b"a", b""],
        [dt.date(2024, 2, 29)],
        [dt.datetime(2024, 1, 1), dt.datetime(1969, 1, 1)],
        [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
        [("a", 1), ("a", None), ("b", 2)],
        [("a", float("nan"))],
        [None, "x"],
    ],
    ids=str,
)
def test_keys_of_every_type_are_read(run: Writer, keys: list[Any]) -> None:
    run.commit([(key, at) for at, key in enumerate(keys)])

    state = stored(run)

    assert [state.get(key) for key in keys] == [{"n": at} for at in range(len(keys))]
    assert len(list(state.items())) == len(keys)


def test_a_key_of_another_type_is_rejected(run: Writer) -> None:
    run.commit(ones("a"))

    with pytest.raises(KeyTypeError, match="expected str"):
        stored(run).get(1)


def test_a_job_that_has_seen_no_key_has_none(run: Writer) -> None:
    run.commit({})

    assert stored(run).get("a", 5) == 5
    assert list(stored(run).items()) == []


def test_built_in_aggregates_return_their_results() -> None:
    several, one = aggregate(total=sum(), avg=mean()), top_k(2)
    jobs = {
        "several": Job(job_of(several), "aggregate", text_of(several)),
        "one": Job(job_of(one), "aggregate", "value=top_k(k=2, largest=True)"),
    }
    run = Writer(MemoryStore(), jobs)
    pairs = [(name, number) for number in range(3) for name in NAMES]
    run.commit({"several": pairs, "one": pairs})
    run.base(LOW)
    run.commit({"several": ones(*NAMES[:20]), "one": ones(*NAMES[:20])})

    assert dict(stored(run, "several").items()) == run.items("several")
    assert stored(run, "several").get("key1") == {"total": 4, "avg": 1.0}
    assert dict(stored(run, "one").items()) == run.items("one")
    assert stored(run, "one").get("key1") == [2, 1]


def test_aggregates_that_are_not_built_in_return_their_accumulators() -> None:
    run = Writer(MemoryStore(), {"job": Job(job_of(mean()), "aggregate", "value=own.Mean")})
    run.commit({"job": [("a", 1), ("a", 2)]})

    shown = stored(run, "job").get("a")

    assert shown.keys() == {"value.sum", "value.count"} and shown["value.count"] == 2


def test_a_users_combinable_returns_its_accumulator() -> None:
    given = combinable(zero=list, add=lambda a, v: [*a, v], merge=lambda a, b: a + b, result=len)
    run = Writer(MemoryStore(), {"job": Job(job_of(given), "combining")})
    run.commit({"job": ones("a", "a")})

    assert stored(run, "job").get("a") == {"accumulator": [1, 1]}


def test_state_of_an_arrow_reducer_is_a_row() -> None:
    def reduce(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
        return rows.group_by("key").aggregate([("value", "sum")]), None

    run = Writer(MemoryStore(), {"job": Job(job_of(arrow(reduce)), "arrow")})
    run.commit({"job": [("a", 1), ("a", 2), ("b", 5)]})

    assert dict(stored(run, "job").items()) == run.items("job")
    assert stored(run, "job").get("a") == {"value_sum": 3}


def test_state_of_keys_alone_is_a_row_without_columns() -> None:
    def reduce(rows: pa.Table, state: pa.Table) -> tuple[pa.Table, None]:
        return rows.group_by("key").aggregate([]), None

    run = Writer(MemoryStore(), {"job": Job(job_of(arrow(reduce)), "arrow")})
    run.commit({"job": ones("a", "b")})

    assert dict(stored(run, "job").items()) == {"a": {}, "b": {}}


def test_unknown_epochs_and_jobs_are_errors_that_list_the_known_ones(run: Writer) -> None:
    with pytest.raises(NotInCheckpointError, match="no epoch has been committed yet"):
        manifest_of(run.lineage, None)
    for _ in range(10):
        run.commit(ones("a"))

    with pytest.raises(
        NotInCheckpointError, match=r"no epoch 12; the epochs are 0, 1, 2, …, 7, 8, 9"
    ):
        stored(run, epoch=12)
    with pytest.raises(NotInCheckpointError, match="no job 'cuont'; the jobs are count"):
        stored(run, "cuont")


def test_a_job_that_is_not_durable_has_no_stored_state() -> None:
    run = Writer(MemoryStore(), {"count": Job(job_of(count), durable=False)})
    run.commit(ones("a"))

    with pytest.raises(NotInCheckpointError, match="durable=False"):
        stored(run)


def test_a_missing_record_makes_the_epoch_incomplete(run: Writer) -> None:
    manifest = run.commit(ones(*NAMES))
    run.store.delete([manifest.deltas[0].key])

    with pytest.raises(EpochIncompleteError, match=r"0-8 is missing"):
        list(stored(run).items())


@pytest.fixture
def module(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "users_module.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import users_module  # type: ignore[import-not-found]

    yield users_module
    sys.modules.pop("users_module", None)


def test_objects_of_unknown_classes_are_an_error(
    run: Writer, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(key: str, values: list[int], state: Any) -> None:
        state["thing"] = module.Thing()

    run.jobs = {"count": Job(job_of(keep))}
    run.commit(ones("a"))
    monkeypatch.setitem(sys.modules, "users_module", None)

    with pytest.raises(UnreadableStateError, match="PYTHONPATH"):
        list(stored(run).items())
