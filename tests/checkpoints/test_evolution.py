"""How a workflow may differ from the one that wrote a checkpoint, and how it may not."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest

from millstream.checkpoints.evolution import (
    Changes,
    WorkflowChangedError,
    begin,
    changes,
    evolve,
    new_id,
)
from millstream.checkpoints.manifest import Form, JobMetadata, WorkflowMetadata
from millstream.errors import ConfigError


def job(
    name: str, reducer: str = "a function", form: Form = "stateful", *, durable: bool = True
) -> JobMetadata:
    return JobMetadata(name, form, reducer, durable=durable)


def workflow(
    *jobs: JobMetadata | str, sources: tuple[str, ...] = ("in (text)",)
) -> WorkflowMetadata:
    made = tuple(job(one) if isinstance(one, str) else one for one in jobs)
    return WorkflowMetadata("flow", 16, made, sources)


def stored(*jobs: JobMetadata | str) -> WorkflowMetadata:
    """The metadata of a workflow after its first incarnation."""
    return begin(workflow(*jobs), 1)


def ids(found: WorkflowMetadata) -> dict[str, str]:
    return {one.name: one.id for one in found.jobs}


def differences(
    old: WorkflowMetadata, new: WorkflowMetadata, meant: Changes | None = None
) -> tuple[str, ...]:
    with pytest.raises(WorkflowChangedError) as caught:
        evolve(old, new, meant or Changes(), 2)
    return caught.value.differences


# -- what may be -----------------------------------------------------------------------------


def test_a_new_workflow_has_ids_that_are_unique_to_its_start() -> None:
    assert ids(begin(workflow("a", "b"), 3)) == {"a": new_id("a", 3), "b": new_id("b", 3)}
    assert new_id("a", 3) != new_id("a", 4)


def test_the_same_workflow_finds_its_state() -> None:
    old = stored("a", "b")

    assert ids(evolve(old, workflow("b", "a"), Changes(), 2)) == ids(old)


def test_a_new_job_gets_an_id_of_its_own() -> None:
    found = evolve(stored("a"), workflow("a", "b"), changes(added=["b"]), 2)

    assert ids(found) == {"a": "a@1", "b": "b@2"}


def test_a_removed_job_leaves_no_id() -> None:
    assert ids(evolve(stored("a", "b"), workflow("a"), changes(removed=["b"]), 2)) == {"a": "a@1"}


def test_a_renamed_job_has_its_old_id() -> None:
    found = evolve(stored("a"), workflow("b"), changes(renamed={"a": "b"}), 2)

    assert ids(found) == {"b": "a@1"}
    # And for good.
    assert ids(evolve(found, workflow("b"), Changes(), 3)) == {"b": "a@1"}


def test_names_can_be_exchanged() -> None:
    found = evolve(stored("a", "b"), workflow("a", "b"), changes(renamed={"a": "b", "b": "a"}), 2)

    assert ids(found) == {"a": "b@1", "b": "a@1"}


def test_a_new_job_does_not_get_the_state_of_an_old_one_of_its_name() -> None:
    again = changes(removed=["a"], added=["a"])
    assert ids(evolve(stored("a"), workflow("a"), again, 2)) == {"a": "a@2"}

    renamed = changes(renamed={"a": "b"}, added=["a"])
    assert ids(evolve(stored("a"), workflow("a", "b"), renamed, 2)) == {"a": "a@2", "b": "a@1"}


def test_a_name_that_was_removed_and_is_added_later_begins_empty() -> None:
    without = evolve(stored("a", "b"), workflow("b"), changes(removed=["a"]), 2)
    again = evolve(without, workflow("a", "b"), changes(added=["a"]), 3)

    assert ids(again) == {"a": "a@3", "b": "b@1"}


def test_a_job_can_take_the_name_of_a_removed_one_with_its_own_state() -> None:
    meant = changes(renamed={"a": "b"}, removed=["b"])

    assert ids(evolve(stored("a", "b"), workflow("b"), meant, 2)) == {"b": "a@1"}
    assert ids(evolve(stored("b", "a"), workflow("b"), meant, 2)) == {"b": "a@1"}


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [
        (stored("a"), workflow("a", "b"), changes(added=["b"])),
        (stored("a", "b"), workflow("a"), changes(removed=["b"])),
        (stored("a"), workflow("b"), changes(renamed={"a": "b"})),
        (stored("a"), workflow("a"), changes(removed=["a"], added=["a"])),
    ],
)
def test_changes_are_idempotent(
    old: WorkflowMetadata, new: WorkflowMetadata, meant: Changes
) -> None:
    first = evolve(old, new, meant, 2)

    assert ids(evolve(first, new, meant, 3)) == ids(first)
    assert ids(evolve(evolve(first, new, meant, 3), new, meant, 4)) == ids(first)


def test_the_same_words_count_again_when_the_workflow_ran_without_them() -> None:
    meant = changes(removed=["a"], added=["a"])
    first = evolve(stored("a"), workflow("a"), meant, 2)
    between = evolve(first, workflow("a"), Changes(), 3)

    assert ids(evolve(between, workflow("a"), meant, 4)) == {"a": "a@4"}


def test_a_job_that_is_or_was_not_durable_finds_nothing() -> None:
    fleeting = job("a", durable=False)

    assert ids(evolve(stored("a"), workflow(fleeting), Changes(), 2)) == {"a": "a@2"}
    assert ids(evolve(stored(fleeting), workflow(fleeting), Changes(), 2)) == {"a": "a@2"}
    assert ids(evolve(stored(fleeting), workflow("a"), Changes(), 2)) == {"a": "a@2"}
    # Nor can what it was like be in the way.
    summing = job("a", "sum(n)", "aggregate")
    assert ids(evolve(stored(fleeting), workflow(summing), Changes(), 2)) == {"a": "a@2"}


def test_a_type_of_keys_that_only_one_of_them_knows_is_no_difference() -> None:
    known = replace(job("a"), key_type=pa.string())

    evolve(stored(known), workflow("a"), Changes(), 2)
    evolve(stored("a"), workflow(known), Changes(), 2)
    evolve(stored(known), workflow(known), Changes(), 2)


def test_a_workflow_may_be_called_otherwise() -> None:
    assert evolve(stored("a"), replace(workflow("a"), name="other"), Changes(), 2).name == "other"


# -- what may not be -------------------------------------------------------------------------


def test_slots_are_for_good() -> None:
    [reported] = differences(stored("a"), replace(workflow("a"), slots=8))
    assert reported == "slots=8, but the state has 16 slots, which cannot change"


def test_sources_must_be_the_same_in_the_same_order() -> None:
    old = begin(workflow("a", sources=("x (text)", "y (rate)")), 1)

    [reported] = differences(old, workflow("a", sources=("y (rate)", "x (text)")))
    assert "its sources are y (rate), x (text), but were x (text), y (rate)" in reported
    [reported] = differences(old, workflow("a", sources=()))
    assert "its sources are none" in reported


def test_removed_and_new_jobs_must_be_declared() -> None:
    gone, new = differences(stored("a"), workflow("b"))

    assert gone == "job 'a' is missing: removed=['a'], or renamed={'a': ...}"
    assert new == "job 'b' is new: added=['b'], or renamed={...: 'b'}"


def test_another_reducer_is_rejected_also_for_a_renamed_job() -> None:
    summing, most = job("a", "sum(n)", "aggregate"), job("a", "max(n)", "aggregate")

    [reported] = differences(stored(summing), workflow(most))
    assert reported == "the state of job 'a' is of sum(n), and the reducer is max(n) now"
    [reported] = differences(stored("a"), workflow(summing))
    assert "of a function, and the reducer is sum(n) now" in reported
    renamed = changes(renamed={"a": "b"})
    [reported] = differences(stored(summing), workflow(replace(most, name="b")), renamed)
    assert reported.startswith("the state of job 'b' (formerly 'a') is of sum(n)")


def test_another_type_of_keys_is_rejected() -> None:
    old, new = (replace(job("a"), key_type=kind) for kind in (pa.string(), pa.int64()))

    [reported] = differences(stored(old), workflow(new))
    assert reported == "the keys of job 'a' are string, and declared as int64 now"


def test_changes_must_name_known_jobs() -> None:
    meant = changes(removed=["x"], renamed={"y": "z"}, added=["w"])
    reported = differences(stored("a"), workflow("a"), meant)

    assert [one for one in reported if "checkpoint does not have" in one] == [
        "changes= names job 'x', which the checkpoint does not have",
        "changes= names job 'y', which the checkpoint does not have",
    ]
    assert [one for one in reported if "workflow does not have" in one] == [
        "changes= names job 'w', which the workflow does not have",
        "changes= names job 'z', which the workflow does not have",
    ]


def test_adding_a_job_that_the_checkpoint_has_is_rejected_with_advice() -> None:
    [reported] = differences(stored("a"), workflow("a"), changes(added=["a"]))
    assert "job 'a' is not new" in reported and "removed=['a']" in reported


def test_a_name_in_use_cannot_be_given_to_another_job() -> None:
    [reported] = differences(stored("a", "b"), workflow("b"), changes(renamed={"a": "b"}))
    assert "'b'" in reported and "removed=['b']" in reported


@pytest.mark.parametrize(
    ("meant", "words"),
    [
        (changes(renamed={"a": "c", "b": "c"}), "renames several jobs to 'c'"),
        (changes(renamed={"a": "c"}, removed=["a", "b"]), "'a' both as removed and as renamed"),
        (
            changes(renamed={"a": "c"}, removed=["b"], added=["c"]),
            "'c' both as added and as a new name",
        ),
    ],
)
def test_contradictory_changes_are_rejected(meant: Changes, words: str) -> None:
    [reported] = differences(stored("a", "b"), workflow("c"), meant)
    assert words in reported


def test_all_differences_are_reported_at_once_with_advice() -> None:
    with pytest.raises(WorkflowChangedError) as caught:
        evolve(stored("a"), replace(workflow("b"), slots=1), Changes(), 2)

    text = str(caught.value)
    assert len(caught.value.differences) == 3
    assert all(f"\n  - {reported}\n" in text for reported in caught.value.differences)
    assert "workflow 'flow' cannot resume" in text and "changes=ms.changes(...)" in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


@pytest.mark.parametrize("option", ["added", "removed"])
def test_a_name_in_place_of_a_list_is_rejected(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be a list of job names, got 'words'"):
        changes(**{option: "words"})  # type: ignore[arg-type]


def test_the_windows_of_a_state_cannot_change() -> None:
    one, other = (replace(job("a", form="windowed"), windows=w) for w in ("tumbling 1m", "2m"))

    assert ids(evolve(stored(one), workflow(one), Changes(), 2)) == {"a": "a@1"}
    assert differences(stored(one), workflow(other)) == (
        "the state of job 'a' is for windows tumbling 1m, which are 2m now",
    )


FUNCTION = "a function (key, values, state)"
WITH_TIMERS = "a function (key, values, state) with timers"


def test_a_function_may_get_timers() -> None:
    evolved = evolve(stored(job("n", FUNCTION)), workflow(job("n", WITH_TIMERS)), Changes(), 2)

    assert [one.id for one in evolved.jobs] == [new_id("n", 1)]


def test_a_function_may_not_lose_its_timers() -> None:
    with pytest.raises(WorkflowChangedError, match="may have timers, which would never fire"):
        evolve(stored(job("n", WITH_TIMERS)), workflow(job("n", FUNCTION)), Changes(), 2)
