from __future__ import annotations

from millstream.coordinator.suspicions import Patience, Suspicions, Verdict
from millstream.ring.ring import NodeId

A, B = NodeId("a"), NodeId("b")
ALIVE, ASK_AGAIN = Verdict.ALIVE, Verdict.ASK_AGAIN
DEAD, UNREACHABLE = Verdict.DEAD, Verdict.UNREACHABLE


def fails(found: Suspicions, node: NodeId, refused: bool, now: float) -> Verdict:
    """A node refuses at once, or does not answer within a second."""
    return found.failed(node, refused, asked=now if refused else now - 1.0, now=now)


def suspicions() -> Suspicions:
    return Suspicions(Patience(silence=10.0, refusals=2, reports=4, memory=10.0))


def test_a_node_that_answers_is_alive() -> None:
    assert suspicions().answered(A, 0.0) is ALIVE


def test_a_node_that_refuses_twice_is_dead() -> None:
    found = suspicions()

    assert fails(found, A, True, 0.0) is ASK_AGAIN
    assert fails(found, B, True, 0.0) is ASK_AGAIN  # not the second of one node
    assert fails(found, A, True, 0.1) is DEAD


def test_a_node_that_has_not_answered_for_as_long_as_patience_lasts_is_dead() -> None:
    found = suspicions()

    verdicts = [fails(found, A, False, now) for now in (5.0, 6.0, 13.9, 14.0)]

    assert verdicts == [ASK_AGAIN, ASK_AGAIN, ASK_AGAIN, DEAD]


def test_a_refusal_between_silences_counts_as_one_refusal() -> None:
    found = suspicions()

    verdicts = [fails(found, A, refused, 0.0) for refused in (True, False, False, True)]

    assert verdicts == [ASK_AGAIN, ASK_AGAIN, ASK_AGAIN, DEAD]


def test_an_answer_clears_refusals_and_silence() -> None:
    found = suspicions()
    fails(found, A, True, 0.0)

    assert found.answered(A, 9.0) is ALIVE

    assert fails(found, A, True, 15.0) is ASK_AGAIN  # the first refusal, and silent since now
    assert fails(found, A, False, 24.9) is ASK_AGAIN
    assert fails(found, A, False, 25.0) is DEAD


def test_a_node_that_answers_but_that_others_report_time_after_time_is_unreachable() -> None:
    found = suspicions()
    for times in range(4):
        found.reported(A, times, 0.0)
        assert found.answered(A, 0.0) is ALIVE

    found.reported(A, 4, 1.0)

    assert found.answered(A, 1.0) is UNREACHABLE
    assert found.answered(B, 1.0) is ALIVE


def test_reports_are_forgotten_after_a_while() -> None:
    found = suspicions()
    found.reported(A, 7, 20.0)

    assert found.answered(A, 29.9) is UNREACHABLE
    assert found.answered(A, 30.0) is ALIVE


def test_a_report_in_the_first_seconds_counts_like_any_other() -> None:
    found = suspicions()

    assert found.answered(A, 0.5) is ALIVE
    found.reported(A, 4, 0.5)
    assert found.answered(A, 0.5) is UNREACHABLE


def test_reports_do_not_make_a_silent_node_dead_any_sooner() -> None:
    found = suspicions()
    found.reported(A, 9, 0.0)

    assert fails(found, A, False, 0.0) is ASK_AGAIN
    assert fails(found, A, False, 8.9) is ASK_AGAIN


def test_a_node_that_is_out_of_the_run_leaves_nothing_behind() -> None:
    found = suspicions()
    fails(found, A, True, 0.0)
    found.reported(A, 9, 0.0)

    found.forget(A)

    assert found.answered(A, 0.0) is ALIVE
    assert fails(found, A, True, 50.0) is ASK_AGAIN
