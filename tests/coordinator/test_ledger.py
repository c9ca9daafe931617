from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from millstream.coordinator.ledger import EpochOrderError, Ledger, MissingReceipts, TypeConflict
from millstream.coordinator.record import JobTypes
from millstream.node.messages import Receipt
from millstream.ring.ring import NodeId, Ring
from millstream.state.records import encode_records

A, B, GONE = NodeId("a"), NodeId("b"), NodeId("gone")
SLOTS = 8
LOW, HIGH = range(0, 4), range(4, 8)
WORDS, PAIRS = 1, 2
JOBS = {WORDS: "words", PAIRS: "pairs"}


def ledger_of(jobs: dict[int, str] | None = None, **types: JobTypes) -> Ledger:
    ring = Ring.even([A, B], SLOTS)
    known = {WORDS: types["words"]} if types else {}
    return Ledger(5, jobs or {WORDS: "words"}, ring, {A: "address a", B: "address b"}, known)


def receipt(
    slots: range, job: int = WORDS, epoch: int = 0, try_: int = 0, **options: Any
) -> Receipt:
    return Receipt(
        job=job,
        epoch=epoch,
        try_=try_,
        slots=slots,
        rows=options.get("rows", 0),
        keys=0,
        outputs=0,
        seconds=0.0,
        key_type=options.get("key_type"),
        output=options.get("output"),
    )


def give(ledger: Ledger, **options: Any) -> None:
    """Receipts of both owners for the epoch under way."""
    record = ledger.record
    assert record is not None
    for node, slots in ((A, LOW), (B, HIGH)):
        kept = {name: value[node] for name, value in options.items()}
        ledger.receive(node, (receipt(slots, epoch=record.epoch, try_=record.try_, **kept),))


def learnt(ledger: Ledger, epoch: int) -> JobTypes:
    return ledger.admit(epoch, 0).types[WORDS]


# -- admission -------------------------------------------------------------------------------


def test_the_record_fixes_what_every_copy_must_agree_on() -> None:
    ledger = ledger_of()

    record = ledger.admit(0, 123)

    assert record is ledger.record
    assert (record.incarnation, record.epoch, record.try_) == (5, 0, 0)
    assert (record.committed, record.time) == (-1, 123)
    assert record.ring is ledger.ring and record.addresses[A] == "address a"


@pytest.mark.parametrize("epoch", [-1, 0, 2, 7])
def test_epochs_are_admitted_in_order(epoch: int) -> None:
    ledger = Ledger(1, {}, Ring.even([A], SLOTS), {}, {}, committed=0)

    with pytest.raises(EpochOrderError) as caught:
        ledger.admit(epoch, 0)

    assert (caught.value.epoch, caught.value.committed) == (epoch, 0)
    assert ledger.admit(1, 0).epoch == 1


def test_a_retry_keeps_everything_but_the_try() -> None:
    ledger = ledger_of()
    first = ledger.admit(0, 123)

    second = ledger.retry()

    assert second == replace(first, try_=1)
    assert ledger.record is second


# -- commit ----------------------------------------------------------------------------------


def test_an_epoch_commits_when_every_slot_of_every_job_has_a_receipt_of_its_owner() -> None:
    ledger = ledger_of(JOBS)
    ledger.admit(0, 0)
    for job in JOBS:
        ledger.receive(A, (receipt(LOW, job),))
        ledger.receive(B, (receipt(HIGH, job),))

    assert ledger.missing() == {}
    assert ledger.commit().epoch == 0
    assert (ledger.committed, ledger.record, ledger.receipts) == (0, None, [])
    assert ledger.admit(1, 0).committed == 0


def missing_after(*given: tuple[NodeId, Receipt], jobs: dict[int, str] | None = None) -> Any:
    ledger = ledger_of(jobs)
    ledger.admit(0, 0)
    for node, found in given:
        ledger.receive(node, (found,))
    missing = ledger.missing()
    with pytest.raises(MissingReceipts) as caught:
        ledger.commit()
    assert ledger.committed == -1 and ledger.record is not None
    assert caught.value.missing == {JOBS[job]: count for job, count in missing.items()}
    return missing


def test_no_receipts_no_commit() -> None:
    assert missing_after() == {WORDS: 8}


def test_a_receipt_for_some_slots_is_not_enough() -> None:
    assert missing_after((A, receipt(LOW))) == {WORDS: 4}
    assert missing_after((A, receipt(LOW)), (B, receipt(range(4, 7)))) == {WORDS: 1}


def test_a_receipt_for_one_job_says_nothing_of_another() -> None:
    given = [(A, receipt(LOW)), (B, receipt(HIGH)), (A, receipt(LOW, PAIRS))]

    assert missing_after(*given, jobs=JOBS) == {PAIRS: 4}


def test_only_the_word_of_the_present_owner_counts() -> None:
    assert missing_after((A, receipt(range(SLOTS)))) == {WORDS: 4}
    assert missing_after((A, receipt(HIGH)), (B, receipt(LOW))) == {WORDS: 8}
    assert missing_after((GONE, receipt(range(SLOTS)))) == {WORDS: 8}


def test_the_word_of_a_former_owner_does_not_replace_that_of_the_present() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)

    for node in (A, B):
        ledger.receive(node, (receipt(LOW), receipt(HIGH)))

    assert ledger.missing() == {}


def test_a_slot_that_changed_owner_needs_a_new_receipt() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger)
    assert ledger.missing() == {}

    ledger.ring = ledger.ring.moved([0, 1], B)

    assert ledger.missing() == {WORDS: 2}
    ledger.receive(B, (receipt(range(0, 2)),))
    assert ledger.missing() == {}


@pytest.mark.parametrize(("epoch", "try_"), [(0, 0), (0, 2), (1, 1), (-1, 1)])
def test_receipts_of_another_epoch_or_try_do_not_count(epoch: int, try_: int) -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    ledger.retry()

    ledger.receive(A, (receipt(LOW, epoch=epoch, try_=try_),))

    assert ledger.missing() == {WORDS: 8} and ledger.receipts == []


def test_a_retry_voids_the_receipts_so_far() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger)

    ledger.retry()

    assert ledger.missing() == {WORDS: 8}


def test_receipts_before_any_epoch_are_not_kept() -> None:
    ledger = ledger_of()
    ledger.receive(A, (receipt(LOW),))

    ledger.admit(0, 0)

    assert ledger.missing() == {WORDS: 8}


def test_receipts_that_are_asked_for_again_are_counted_once() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    for _ in range(2):
        ledger.receive(A, (receipt(LOW, rows=3),))
        ledger.receive(B, (receipt(LOW, rows=100), receipt(HIGH, rows=4)))

    assert sum(found.rows for found in ledger.receipts) == 7


def test_with_more_partitions_than_nodes_receipts_add_up() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)

    for slot in range(SLOTS):
        assert ledger.missing() == {WORDS: SLOTS - slot}
        ledger.receive(ledger.ring.owner(slot), (receipt(range(slot, slot + 1)),))

    assert ledger.missing() == {}


# -- types -----------------------------------------------------------------------------------


def outputs(*records: Any) -> pa.Schema:
    return encode_records(list(records)).schema


def test_types_are_learnt_from_the_first_epoch_that_has_data() -> None:
    ledger = ledger_of()
    assert ledger.admit(0, 0).types == {}
    give(ledger)
    ledger.commit()
    assert learnt(ledger, 1) == JobTypes()
    give(ledger, key_type={A: None, B: pa.string()}, output={A: None, B: outputs(("a", 1))})
    ledger.commit()

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
    ledger.commit()

    types = learnt(ledger, 1)

    assert types.key == pa.int64()
    assert types.output is not None and types.output.types == [pa.int64(), pa.float64()]


def test_items_of_tuple_keys_that_were_none_are_filled_in_later() -> None:
    def pair(second: pa.DataType) -> pa.DataType:
        return pa.struct([("f0", pa.int64()), ("f1", second)])

    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, key_type={A: pair(pa.null()), B: None})
    ledger.commit()
    assert learnt(ledger, 1).key == pair(pa.null())
    give(ledger, key_type={A: pair(pa.null()), B: pair(pa.string())})
    ledger.check_types()
    ledger.commit()

    assert learnt(ledger, 2).key == pair(pa.string())


@pytest.mark.parametrize("kinds", [(pa.int64(), pa.float64()), (pa.string(), pa.bool_())], ids=str)
def test_keys_of_several_types_are_a_typed_error(kinds: tuple[pa.DataType, pa.DataType]) -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, key_type={A: kinds[0], B: kinds[1]})

    with pytest.raises(TypeConflict) as caught:
        ledger.check_types()

    assert (caught.value.job, caught.value.what) == ("words", "keys")
    assert str(kinds[0]) in str(caught.value) and str(kinds[1]) in str(caught.value)


def test_keys_of_another_type_than_before_are_a_typed_error() -> None:
    ledger = ledger_of(words=JobTypes(key=pa.string()))
    ledger.admit(0, 0)
    give(ledger, key_type={A: pa.int64(), B: None})

    with pytest.raises(TypeConflict, match="int64 and string"):
        ledger.check_types()


def test_outputs_of_several_types_are_a_typed_error() -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, output={A: outputs(("a", 1)), B: outputs(("a", "x"))})

    with pytest.raises(TypeConflict) as caught:
        ledger.check_types()

    assert caught.value.what == "outputs 'value'"
    assert caught.value.found == "int64 and string"


@pytest.mark.parametrize(
    "other",
    [outputs(("a", {1})), outputs({"a": 1}), outputs(("a", None))],
    ids=["pickled", "other columns", "only None"],
)
def test_outputs_that_tell_no_type_teach_nothing(other: pa.Schema) -> None:
    ledger = ledger_of()
    ledger.admit(0, 0)
    give(ledger, output={A: other, B: other if "a" not in other.names else outputs(("a", 1))})
    ledger.check_types()
    ledger.commit()

    assert learnt(ledger, 1).output is None


def test_declared_types_are_kept() -> None:
    declared = JobTypes(pa.int64(), pa.schema([("n", pa.float64())]))
    ledger = ledger_of(words=declared)
    assert learnt(ledger, 0) == declared
    give(ledger, output={A: outputs(("a", 1)), B: None})
    ledger.check_types()
    ledger.commit()

    assert learnt(ledger, 1) == declared


def test_a_record_does_not_change_when_types_are_learnt() -> None:
    ledger = ledger_of()
    record = ledger.admit(0, 0)
    give(ledger, key_type={A: pa.string(), B: None})

    ledger.commit()

    assert record.types == {}


@pytest.mark.parametrize(
    "error",
    [EpochOrderError(3, 1), TypeConflict("words", "keys", "x"), MissingReceipts(1, {"words": 3})],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (type(error), str(error))
