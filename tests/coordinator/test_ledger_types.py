from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millstream.coordinator.ledger import TypeConflictError
from millstream.ring.key_types import describe
from millstream.state.records import encode_records
from millstream.wire.epoch_record import JobTypes
from tests.coordinator.receipts import A, B, give, learnt, ledger_of


def outputs(*records: Any) -> pa.Schema:
    return encode_records(list(records)).schema


def test_types_are_learnt_from_the_first_epoch_that_has_data() -> None:
    ledger = ledger_of()
    assert ledger.admit(0, 0).types == {}
    give(ledger)
    ledger.commit(ledger.prepare())
    assert learnt(ledger, 1) == JobTypes()
    give(ledger, key_type={A: None, B: pa.string()}, output={A: None, B: outputs(("a", 1))})
    ledger.commit(ledger.prepare())

    types = learnt(ledger, 2)

    assert types.key == pa.string()
    assert types.output is not None
    assert (types.output.names, types.output.types) == (
        ["key", "value"],
        [pa.string(), pa.int64()],
    )


def test_null_gives_way_and_integers_go_with_floats() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(
        ledger,
        key_type={A: pa.null(), B: pa.int64()},
        output={A: outputs((1, 1)), B: outputs((None, 1.5))},
    )
    ledger.check_types()
    ledger.commit(ledger.prepare())

    types = learnt(ledger, 1)

    assert types.key == pa.int64()
    assert types.output is not None and types.output.types == [pa.int64(), pa.float64()]


def test_items_of_tuple_keys_that_were_none_are_filled_in_later() -> None:
    def pair(second: pa.DataType) -> pa.DataType:
        return pa.struct([("_1", pa.int64()), ("_2", second)])

    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, key_type={A: pair(pa.null()), B: None})
    ledger.commit(ledger.prepare())
    assert learnt(ledger, 1).key == pair(pa.null())
    give(ledger, key_type={A: pair(pa.null()), B: pair(pa.string())})
    ledger.check_types()
    ledger.commit(ledger.prepare())

    assert learnt(ledger, 2).key == pair(pa.string())


@pytest.mark.parametrize("kinds", [(pa.int64(), pa.float64()), (pa.string(), pa.bool_())], ids=str)
def test_keys_of_several_types_are_a_typed_error(kinds: tuple[pa.DataType, pa.DataType]) -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, key_type={A: kinds[0], B: kinds[1]})

    with pytest.raises(TypeConflictError) as caught:
        ledger.check_types()

    assert (caught.value.job, caught.value.what) == ("words", "keys")
    assert all(describe(kind) in str(caught.value) for kind in kinds)


def test_the_error_for_keys_of_several_types_shows_one_of_them() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, key_type={A: pa.int64(), B: pa.float64()}, key={A: "1", B: "1.0"})

    with pytest.raises(
        TypeConflictError, match=r"'words' has keys of types float and int \(such as 1.0, float"
    ):
        ledger.check_types()


def test_keys_among_outputs_are_not_widened_to_floats() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, output={A: outputs((1.5, 1)), B: outputs((2.5, 1))})
    ledger.commit(ledger.prepare())

    assert learnt(ledger, 1).output is None


def test_keys_of_another_type_than_before_are_a_typed_error() -> None:
    ledger = ledger_of(words=JobTypes(key=pa.string()))
    ledger.admit(0, 0)
    give(ledger, key_type={A: pa.int64(), B: None})

    with pytest.raises(TypeConflictError, match="int and str"):
        ledger.check_types()


def test_outputs_of_several_types_are_a_typed_error() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, output={A: outputs(("a", 1)), B: outputs(("a", "x"))})

    with pytest.raises(TypeConflictError) as caught:
        ledger.check_types()

    assert caught.value.what == "outputs 'value'"
    assert caught.value.found == "int64 and string"


@pytest.mark.parametrize(
    "other",
    [outputs(("a", {1})), outputs({"a": 1}), outputs(("a", None))],
    ids=["pickled", "other columns", "only None"],
)
def test_outputs_without_a_type_are_ignored(other: pa.Schema) -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, output={A: other, B: other if "a" not in other.names else outputs(("a", 1))})
    ledger.check_types()
    ledger.commit(ledger.prepare())

    assert learnt(ledger, 1).output is None


def test_declared_types_do_not_change() -> None:
    declared = JobTypes(pa.int64(), pa.schema([("n", pa.float64())]))
    ledger = ledger_of(words=declared)
    assert learnt(ledger, 0) == declared
    give(ledger, output={A: outputs(("a", 1)), B: None})
    ledger.check_types()
    ledger.commit(ledger.prepare())

    assert learnt(ledger, 1) == declared


def test_a_record_does_not_change_when_types_are_learnt() -> None:
    ledger = ledger_of()
    record = ledger.admit(0, 0)
    give(ledger, key_type={A: pa.string(), B: None})

    ledger.commit(ledger.prepare())

    assert record.types == {}
