from __future__ import annotations

from millstream.coordinator.failure_evidence import FailureEvidence, Patience, Verdict
from millstream.ring.ring import NodeId

A, B, C, D = (NodeId(name) for name in "abcd")
ALIVE, UNDECIDED = Verdict.ALIVE, Verdict.UNDECIDED
DEAD, SILENT = Verdict.DEAD, Verdict.SILENT


def evidence_of() -> FailureEvidence:
    return FailureEvidence(Patience(silence=10.0, refusals=2, rounds=4, memory=30.0, last_copy=3))


def silent_for(found: FailureEvidence, node: NodeId, seconds: float) -> Verdict:
    """Ping a node that does not answer, as the coordinator would."""
    verdict, waited = UNDECIDED, 0.0
    while waited < seconds:
        timeout = min(found.ping_timeout(node), seconds - waited)
        waited += timeout
        verdict = found.failed(node, False, timeout)
    return verdict


# -- refusals and silence ----------------------------------------------------------------------


def test_a_node_that_answers_is_alive() -> None:
    assert evidence_of().answered(A) is ALIVE


def test_a_node_that_refuses_twice_is_dead() -> None:
    found = evidence_of()

    assert found.failed(A, True, 0.0) is UNDECIDED
    assert found.failed(B, True, 0.0) is UNDECIDED  # not the second of one node
    assert found.failed(A, True, 0.0) is DEAD


def test_a_node_is_silent_after_unanswered_pings_of_node_timeout() -> None:
    found, timeouts = evidence_of(), []
    verdict = UNDECIDED
    while verdict is UNDECIDED:
        timeouts.append(found.ping_timeout(A))
        verdict = found.failed(A, False, timeouts[-1])

    assert verdict is SILENT
    # The last one waits for half of it: a node that takes so long to answer is alive.
    assert timeouts == [1.0, 1.5, 2.5, 5.0]


def test_a_node_that_stays_silent_for_several_times_the_patience_is_dead() -> None:
    found = evidence_of()

    assert silent_for(found, A, 29.0) is SILENT
    assert silent_for(found, A, 1.0) is DEAD


def test_a_refusal_between_silences_counts_as_one_refusal() -> None:
    found = evidence_of()

    verdicts = [found.failed(A, refused, 0.1) for refused in (True, False, False, True)]

    assert verdicts == [UNDECIDED, UNDECIDED, UNDECIDED, DEAD]


def test_an_answer_clears_refusals_and_silence() -> None:
    found = evidence_of()
    found.failed(A, True, 9.0)

    assert found.answered(A) is ALIVE

    assert found.failed(A, True, 0.0) is UNDECIDED  # the first refusal, and silent since now
    assert found.failed(A, False, 9.9) is UNDECIDED
    assert found.failed(A, False, 0.1) is SILENT


def test_nodes_that_were_silent_for_half_of_the_patience_are_known() -> None:
    found = evidence_of()
    silent_for(found, A, 4.9)
    silent_for(found, B, 5.0)

    assert found.silent() == [B]


# -- links -------------------------------------------------------------------------------------


def test_a_link_is_broken_after_rounds_over_node_timeout() -> None:
    found = evidence_of()

    broken = [found.add_report(A, B, at + 1, 3.5 * at) for at in range(5)]

    assert broken == [False, False, False, True, True]


def test_reports_in_quick_succession_are_one_round() -> None:
    found = evidence_of()

    assert not any(found.add_report(A, B, at + 1, 0.001 * at) for at in range(900))
    assert not found.add_report(A, B, 901, 10.5)  # the second round


def test_a_reporter_that_reached_the_node_in_between_counts_from_one() -> None:
    found = evidence_of()
    for at in range(3):
        found.add_report(A, B, at + 1, 4.0 * at)

    assert not found.add_report(A, B, 1, 12.0)
    assert not found.add_report(A, B, 2, 16.0)


def test_reports_of_different_reporters_are_about_different_links() -> None:
    found = evidence_of()

    assert not any(
        found.add_report(A, by, at + 1, 3.5 * at + 0.1) for at in range(3) for by in (B, C, D)
    )


def test_reports_that_are_far_apart_have_nothing_to_do_with_each_other() -> None:
    found = evidence_of()

    assert not any(found.add_report(A, B, at + 1, 31.0 * at) for at in range(10))


def test_the_end_with_more_broken_links_is_the_worse_one() -> None:
    found = evidence_of()
    for node in (A, C, D):
        found.add_report(node, B, 1, 0.0)

    assert found.has_more_broken_links(A, B, 1.0)
    assert not found.has_more_broken_links(B, A, 1.0)
    assert not found.has_more_broken_links(A, B, 40.0)  # that was long ago


def test_a_node_that_is_out_of_the_run_leaves_nothing_behind() -> None:
    found = evidence_of()
    found.failed(A, True, 9.0)
    for at in range(3):
        found.add_report(C, B, at + 1, 4.0 * at)

    found.forget(A)

    assert found.failed(A, True, 0.0) is UNDECIDED
    # Links are counted from zero in the next ring: a chain of reports takes as long again.
    assert not found.add_report(C, B, 4, 12.0)
