"""The state of windowed jobs and joins, read from a store without the user's code."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

import millstream as ms
from millstream.checkpoints.stored_state import StoredState, UnreadableStateError
from millstream.checkpoints.tables import StateTable, complete
from millstream.flow.identity import form_of, reducer_text, windows_text
from millstream.flow.reducers import JoinReducer
from millstream.flow.vertices import JobVertex
from millstream.flow.windows import Windowing, WithinWindow
from tests.checkpoints.memory_store import MemoryStore
from tests.checkpoints.written import HALVES, Job, Writer
from tests.work.running import HERE, SLOTS, job_of

SECOND = timedelta(seconds=1)
START = datetime(1970, 1, 1, tzinfo=UTC)
TUMBLING = Windowing((ms.tumbling(SECOND),))
NAMES = [f"key{number}" for number in range(20)]


class Longest:
    """A combinable whose code readers do not have."""

    def zero(self) -> str:
        return ""

    def add(self, accumulator: str, value: Any) -> str:
        return max(accumulator, str(value), key=len)

    def merge(self, left: str, right: str) -> str:
        return max(left, right, key=len)

    def result(self, accumulator: str) -> int:
        return len(accumulator)


def values_of(key: str, values: list[Any], window: Any) -> None: ...


def tallied(key: str, values: list[Any], state: Any) -> None:
    state["n"] = state.get("n", 0) + len(values)
    state["last"] = values


def run_of(vertex: JobVertex) -> Writer:
    job = Job(vertex, form_of(vertex), reducer_text(vertex), windows=windows_text(vertex))
    return Writer(MemoryStore(), {"job": job})


def filled(vertex: JobVertex, side: bool = False) -> Writer:
    """Three epochs, with a base of half of the slots between them."""
    run = run_of(vertex)
    for epoch in range(3):
        rows = []
        for at, name in enumerate(NAMES[epoch * 3 :]):
            value: Any = ("left" if at % 2 else "right", at) if side else at
            rows.append((name, value, 700_000 * epoch + at * 10))
        run.commit({"job": rows})
        if epoch == 1:
            run.base(HALVES[0])
    return run


def stored(run: Writer) -> StoredState:
    return StoredState(run.store, run.lineage, run.epoch, "job")


def rows_of(run: Writer) -> list[dict[str, Any]]:
    table, every = StateTable(stored(run)), range(SLOTS)
    schema = complete(table.schema_of(every))
    return [row for batch in table.rows(every, schema) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "reduce",
    [ms.sum(), ms.aggregate(n=ms.count(), most=ms.max()), values_of],
    ids=["sum", "several", "function"],
)
def test_panes_are_read_as_nodes_return_them(reduce: Any) -> None:
    run = filled(job_of(reduce, windowing=TUMBLING))

    assert dict(stored(run).items()) == run.items("job")
    assert stored(run).get("key7") == run.items("job")["key7"]
    assert stored(run).job.form == "windowed"


def test_a_table_has_a_row_for_each_key_and_pane() -> None:
    run = filled(job_of(ms.aggregate(n=ms.count(), most=ms.max()), windowing=TUMBLING))

    mine = [row for row in rows_of(run) if row["key"] == "key7"]

    assert mine == [
        {"key": "key7", "pane": START, "n": 2, "most": 7},
        {"key": "key7", "pane": START + SECOND, "n": 1, "most": 1},
    ]


def test_of_a_users_combinable_the_accumulators_are_seen() -> None:
    run = filled(job_of(Longest(), windowing=TUMBLING))

    assert stored(run).get("key19") == {START: "19", START + SECOND: "13"}


def test_a_join_returns_the_buffered_values() -> None:
    vertex = JobVertex(
        HERE,
        name="job",
        reducer=JoinReducer(10_000_000),
        windowing=Windowing((WithinWindow(10_000_000),)),
    )
    run = filled(vertex, side=True)

    assert stored(run).job.form == "join"
    assert dict(stored(run).items()) == run.items("job")
    assert [row for row in rows_of(run) if row["key"] == "key7"] == [
        {"key": "key7", "side": "left", "time": _at(70), "value": 7},
        {"key": "key7", "side": "right", "time": _at(700_040), "value": 4},
        {"key": "key7", "side": "left", "time": _at(1_400_010), "value": 1},
    ]


def _at(micros: int) -> datetime:
    return START + timedelta(microseconds=micros)


@pytest.mark.parametrize(
    "window", [ms.session(SECOND / 2), ms.count_window(3), ms.global_window(ms.every(9))], ids=str
)
@pytest.mark.parametrize("reduce", [ms.sum(), values_of], ids=["sum", "function"])
def test_rows_of_other_windows_can_be_read(window: Any, reduce: Any) -> None:
    run = filled(job_of(reduce, windowing=Windowing((window,))))

    kept = run.jobs["job"].operator.state.count(np.ones(SLOTS, bool))
    assert kept and len(dict(stored(run).items())) == kept
    assert {row["key"] for row in rows_of(run)} == set(dict(stored(run).items()))


def test_state_of_a_windowed_function_can_be_read() -> None:
    run = filled(job_of(tallied, windowing=Windowing((ms.count_window(2),))))

    found = {key: value.get("state") for key, value in stored(run).items()}

    assert found == {key: value.get("state") for key, value in run.items("job").items()}
    assert found["key7"] == {"n": 2, "last": [7, 4]}
    assert {row["key"] for row in rows_of(run) if row["state"]} == {
        key for key, state in found.items() if state
    }


class Local:
    """A class whose module a reader cannot import."""

    def __reduce__(self) -> Any:
        return _unknown, ()


def _unknown() -> None:
    raise ModuleNotFoundError("no module named 'yours'")


def with_local(key: str, values: list[Any], state: Any) -> None:
    state["value"] = Local()


def test_state_of_unknown_classes_is_reported_as_unreadable() -> None:
    run = filled(job_of(with_local, windowing=Windowing((ms.count_window(1),))))

    with pytest.raises(UnreadableStateError, match="no module named 'yours'"):
        dict(stored(run).items())


def test_sessions_have_their_start_and_end() -> None:
    run = filled(job_of(ms.sum(), windowing=Windowing((ms.session(SECOND / 2),))))

    found = [(row["start"], row["last"], row["value"]) for row in stored(run).get("key7")]

    assert found == [
        (_at(70), _at(70), 7),
        (_at(700_040), _at(700_040), 4),
        (_at(1_400_010), _at(1_400_010), 1),
    ]


def test_a_windowed_aggregate_that_is_not_built_in_is_rejected_by_name() -> None:
    run = filled(job_of(ms.sum(), windowing=TUMBLING))
    run.jobs["job"].reducer = "value=users.Own"
    run.commit({"job": [("key1", 1, 5)]})

    with pytest.raises(UnreadableStateError, match=r"users\.Own is not built in"):
        dict(stored(run).items())
