from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from millstream.checkpoints.manifest import Staged
from millstream.coordinator.epochs import EpochResult, run_epoch
from millstream.coordinator.ledger import (
    Ledger,
    MissingReceiptsError,
    PreparedEpoch,
    TypeConflictError,
)
from millstream.coordinator.service import Coordinator
from millstream.ring.ring import NodeId
from millstream.wire.epoch_record import EpochRecord
from millstream.wire.feed import NotDeterministicError
from millstream.wire.receipts import NodeReport
from tests.coordinator.receipts import A, B, give, ledger_of

MISSING = MissingReceiptsError(0, {"words": 1})
TRIES = 4


class Speaker:
    """A coordinator that only records the calls."""

    def __init__(self) -> None:
        self.ledger = ledger_of()
        self.net = self
        self.time = 0.0
        self.events: list[str] = []
        self.reports: list[tuple[int, int]] = []
        self.excused: list[Exception] = []
        self.problems: dict[str, list[Exception]] = {}

    def does(self, what: str) -> None:
        """Record an event, which takes a second, and raise what the test wants."""
        self.time += 1.0
        self.events.append(what)
        if self.problems.get(what):
            raise self.problems[what].pop(0)

    def now(self) -> float:
        return self.time

    def admit(self, epoch: int, time: int) -> EpochRecord:
        self.does("admit")
        return self.ledger.admit(epoch, time)

    def retry(self) -> EpochRecord:
        self.does("retry")
        return self.ledger.retry()

    def collect_receipts(self, evaluate: Callable[[], None]) -> dict[Any, NodeReport]:
        self.does("receipts")
        give(self.ledger)
        return {A: NodeReport(memory=self.events.count("receipts")), B: NodeReport()}

    def is_retryable(self, problem: Exception) -> bool:
        return problem in self.excused

    def commit(self, staged: Staged) -> tuple[PreparedEpoch, bool]:
        self.does("commit")
        prepared = self.ledger.prepare()
        self.ledger.commit(prepared)
        return prepared, True

    def published(self, epoch: int) -> None:
        self.does("published")

    def seal(self) -> None:
        self.does("seal")

    def observe(self, epoch: int, reports: Mapping[NodeId, NodeReport]) -> None:
        self.reports.append((epoch, len(reports)))


@dataclass
class Body:
    """Records what is done to it; a problem may be retryable."""

    speaker: Speaker
    worth: list[Exception] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)

    @contextmanager
    def attempt(self, record: EpochRecord) -> Iterator[Body]:
        self.speaker.does("begin")
        try:
            yield self
        finally:
            self.speaker.does("end")

    def stage(self) -> None:
        self.speaker.does("stage")

    def evaluate(self) -> None:
        self.speaker.does("evaluate")

    def call_back(self) -> None:
        self.speaker.does("call back")

    def discard(self, record: EpochRecord) -> None:
        self.speaker.does("discard")
        self.discarded.append(record.try_)

    def is_retryable(self, problem: Exception) -> bool:
        return problem in self.worth

    def staged(self, record: EpochRecord) -> Staged:
        return Staged(record.epoch, record.attempt)

    def publish(self, staged: Staged) -> None:
        self.speaker.does("publish")


@pytest.fixture
def speaker() -> Speaker:
    return Speaker()


def run(speaker: Speaker, body: Body | None = None) -> EpochResult:
    return run_epoch(cast(Coordinator, speaker), 0, 123, body or Body(speaker))


GOES_WELL = ["begin", "stage", "receipts", "call back", "commit", "end"]
PUBLISHED = ["publish", "published", "seal"]


def test_an_epoch_is_staged_collected_called_back_committed_published_and_sealed(
    speaker: Speaker,
) -> None:
    result = run(speaker)

    assert speaker.events == ["admit", *GOES_WELL, *PUBLISHED]
    assert (result.record.at, result.record.time) == ((0, 0), 123)
    assert [receipt.slots for receipt in result.receipts] == [range(0, 4), range(4, 8)]
    assert result.reports[A].memory == 1


def test_phases_are_timed_and_failed_tries_are_one_of_them(speaker: Speaker) -> None:
    speaker.problems["stage"] = [MISSING]

    phases = run(speaker).phases

    assert list(phases) == [
        *("admit", "failed tries", "run", "receipts", "callbacks", "commit", "publish", "seal")
    ]
    assert (phases["admit"], phases["receipts"]) == (1.0, 1.0)
    assert sum(phases.values()) == speaker.time


def test_the_load_of_an_epoch_is_observed_once_it_is_committed(speaker: Speaker) -> None:
    speaker.problems["stage"] = [ValueError("broken")]
    with pytest.raises(ValueError, match="broken"):
        run(speaker)
    assert not speaker.reports

    speaker.ledger = ledger_of()
    run(speaker)

    assert speaker.reports == [(0, 2)]


@pytest.mark.parametrize("where", ["stage", "receipts", "call back"])
def test_a_try_that_fails_is_discarded_and_the_error_raised(speaker: Speaker, where: str) -> None:
    speaker.problems[where] = [ValueError("broken")]
    body = Body(speaker)

    with pytest.raises(ValueError, match="broken"):
        run(speaker, body)

    assert speaker.events[-3:] == [where, "end", "discard"]
    assert body.discarded == [0] and speaker.ledger.committed.epoch == -1


def test_type_conflicts_are_raised_before_callbacks_run(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflict(ledger: Ledger) -> None:
        raise TypeConflictError("words", "keys", "int64 and string")

    monkeypatch.setattr(Ledger, "check_types", conflict)

    with pytest.raises(TypeConflictError):
        run(speaker)

    assert "call back" not in speaker.events and "commit" not in speaker.events


def test_missing_receipts_make_another_try(speaker: Speaker) -> None:
    speaker.problems["receipts"] = [MISSING, MISSING]
    body = Body(speaker)

    result = run(speaker, body)

    failed = ["begin", "stage", "receipts", "end", "discard", "retry"]
    assert speaker.events == ["admit", *failed, *failed, *GOES_WELL, *PUBLISHED]
    assert body.discarded == [0, 1] and result.record.try_ == 2


def test_an_epoch_is_tried_four_times_and_no_more(speaker: Speaker) -> None:
    speaker.problems["receipts"] = [MISSING] * TRIES
    body = Body(speaker)

    with pytest.raises(MissingReceiptsError):
        run(speaker, body)

    assert body.discarded == [0, 1, 2, 3] and speaker.events[-1] == "discard"
    assert "commit" not in speaker.events


def test_tries_that_takeovers_have_disturbed_do_not_count(speaker: Speaker) -> None:
    disturbed = 3 * TRIES
    speaker.problems["receipts"] = [MISSING] * disturbed
    body = Body(speaker)
    stage = body.stage

    def takes_over() -> None:
        stage()
        speaker.ledger.taken_over = True

    body.stage = takes_over  # type: ignore[method-assign]

    assert run(speaker, body).record.try_ == disturbed


def test_a_retryable_error_makes_another_try(speaker: Speaker) -> None:
    excused, worth = NotDeterministicError("words", 0, "0 to 3"), RuntimeError("blocks were lost")
    speaker.problems["stage"] = [excused, worth]
    speaker.excused = [excused]

    result = run(speaker, Body(speaker, worth=[worth]))

    assert result.record.try_ == 2


def test_an_error_that_is_not_retryable_is_raised(speaker: Speaker) -> None:
    speaker.problems["stage"] = [NotDeterministicError("words", 0, "0 to 3")]

    with pytest.raises(NotDeterministicError):
        run(speaker)

    assert "retry" not in speaker.events


def test_an_owner_that_dies_before_the_commit_is_replaced_within_the_try(
    speaker: Speaker,
) -> None:
    speaker.problems["commit"] = [MISSING, MISSING]

    result = run(speaker)

    again = ["receipts", "commit"]
    assert speaker.events == ["admit", *GOES_WELL[:-1], *again, *again, "end", *PUBLISHED]
    assert speaker.events.count("call back") == 1
    assert result.record.try_ == 0 and result.reports[A].memory == 3


def test_a_commit_that_never_succeeds_ends_the_epoch(speaker: Speaker) -> None:
    speaker.problems["commit"] = [MISSING] * 100

    with pytest.raises(MissingReceiptsError):
        run(speaker)

    assert speaker.events.count("commit") == TRIES * TRIES


def test_an_owner_that_cannot_be_made_up_for_makes_another_try(speaker: Speaker) -> None:
    speaker.problems["commit"] = [MISSING]
    body = Body(speaker)
    whole = speaker.collect_receipts

    def second_fails(evaluate: Callable[[], None]) -> dict[Any, NodeReport]:
        if speaker.events[-1] == "commit":
            raise MISSING
        return whole(evaluate)

    speaker.collect_receipts = second_fails  # type: ignore[method-assign]

    assert run(speaker, body).record.try_ == 1
    assert body.discarded == [0]


@pytest.mark.parametrize("where", PUBLISHED)
def test_a_failure_after_the_commit_discards_nothing(speaker: Speaker, where: str) -> None:
    speaker.problems[where] = [OSError("disk full")]
    body = Body(speaker)

    with pytest.raises(OSError):
        run(speaker, body)

    assert body.discarded == [] and speaker.ledger.committed.epoch == 0
