from __future__ import annotations

from typing import Any

import pytest

from millstream.checkpoints.epoch_contents import EMPTY
from millstream.node.holdings import UNKNOWN, Holdings
from millstream.ring.ring import Ring
from millstream.wire.commit import Commit
from millstream.wire.feed import Feed, FeedRefusedError
from tests.node.machines import ALL, HIGH, LOW, ME, OTHER, mask_of, placed
from tests.work.running import SLOTS

HALVES = Ring.even([ME, OTHER], SLOTS)


def holdings_of(*placements: Any) -> Holdings:
    """What a node holds after these placements, the first of which found all slots empty."""
    holdings = Holdings(ME, SLOTS)
    for number, placement in enumerate(placements):
        holdings.place(placement, empty=number == 0)
    return holdings


def feed(slots: range, ring: int = 0, committed: int = -1) -> Feed:
    return Feed(1, 0, committed + 1, 0, 0, ring, slots, Commit(committed, 0), 0)


def test_before_the_first_placement_nothing_is_held() -> None:
    holdings = Holdings(ME, SLOTS)

    assert holdings.version == -1
    assert not holdings.held.any() and (holdings.through == UNKNOWN).all()


def test_before_the_first_epoch_every_held_slot_is_complete() -> None:
    holdings = holdings_of(placed(HALVES, me=range(8, 12)))

    assert (holdings.owned == mask_of(LOW)).all()
    assert (holdings.fed == mask_of(range(8, 12))).all()
    assert holdings.through.tolist() == [EMPTY] * 12 + [UNKNOWN] * 4


def test_a_slot_that_is_gained_later_has_no_copy_here() -> None:
    holdings = holdings_of(placed(HALVES), placed(HALVES, 1, me=HIGH))

    assert holdings.through.tolist() == [EMPTY] * 8 + [UNKNOWN] * 8


def test_place_returns_and_clears_released_slots() -> None:
    holdings = holdings_of(placed(HALVES, me=HIGH))
    holdings.through[:] = 5

    released = holdings.place(placed(HALVES.moved(range(0, 4), OTHER), 1, me=range(2, 10)), False)

    assert (released == (mask_of(range(0, 2)) | mask_of(range(10, 16)))).all()
    assert holdings.through.tolist() == [UNKNOWN] * 2 + [5] * 8 + [UNKNOWN] * 6


def test_a_change_of_role_does_not_change_the_epoch_of_a_slot() -> None:
    holdings = holdings_of(placed([ME], other=ALL))
    holdings.through[:] = 3

    for placement in (placed([OTHER], 1, me=ALL), placed([ME], 2, other=ALL)):
        assert not holdings.place(placement, False).any()

    assert (holdings.through == 3).all()


def test_a_new_incarnation_begins_with_nothing() -> None:
    holdings = holdings_of(placed([ME], 4))

    holdings.clear()

    assert holdings.version == -1 and not holdings.held.any()
    assert (holdings.through == UNKNOWN).all()
    holdings.place(placed([ME]), True)
    holdings.fence(feed(ALL, ring=0))  # owned since ring 0, not since ring 4


# -- feeds -----------------------------------------------------------------------------------


def test_a_feed_of_owned_slots_at_their_epoch_is_let_in() -> None:
    holdings = holdings_of(placed(HALVES, me=HIGH))
    holdings.fence(feed(LOW))
    holdings.through[:] = 7

    holdings.fence(feed(LOW, committed=7))


@pytest.mark.parametrize(
    ("slots", "message"),
    [(HIGH, "slot 8 "), (range(7, 9), "slot 8 "), (range(0, 17), "there is no slot 16")],
    ids=["a backup's", "some", "no such"],
)
def test_a_feed_of_other_slots_is_refused_and_the_first_of_them_named(
    slots: range, message: str
) -> None:
    holdings = holdings_of(placed(HALVES, me=HIGH))

    with pytest.raises(FeedRefusedError, match=message) as caught:
        holdings.fence(feed(slots))

    assert not caught.value.stale


@pytest.mark.parametrize("committed", [4, 6])
def test_a_feed_over_another_epoch_than_the_state_is_at_is_refused(committed: int) -> None:
    holdings = holdings_of(placed([ME]))
    holdings.through[:] = 5
    holdings.fence(feed(ALL, committed=5))

    with pytest.raises(
        FeedRefusedError, match=f"slot 0 of node me is at epoch 5, not at {committed}"
    ):
        holdings.fence(feed(ALL, committed=committed))


def test_ownership_counts_from_the_placement_that_gave_it() -> None:
    holdings = holdings_of(
        placed(HALVES, me=HIGH),
        placed(HALVES.moved(range(8, 10), ME), 3, me=range(10, 16)),
        placed(HALVES.moved(range(8, 10), ME), 5),
    )

    holdings.fence(feed(LOW, ring=0))
    for ring in (3, 4, 9):
        holdings.fence(feed(range(8, 10), ring))
    with pytest.raises(FeedRefusedError, match="under ring 2"):
        holdings.fence(feed(range(8, 10), ring=2))


def test_copies_are_accepted_for_slots_that_are_not_owned() -> None:
    holdings = holdings_of(placed(HALVES, 2, me=HIGH))

    holdings.fence_copy(HIGH, ring=2)
    for slots in (LOW, range(7, 9)):
        with pytest.raises(FeedRefusedError, match="since ring 2, after ring 1") as caught:
            holdings.fence_copy(slots, ring=1)
        assert caught.value.stale


def test_a_node_that_missed_a_placement_accepts_feeds_under_it_if_owners_are_the_same() -> None:
    holdings = holdings_of(placed(HALVES))
    gained = HALVES.moved(range(8, 10), ME)

    holdings.place(placed(gained, 3), False, owners_since=2)  # placement 2 never came
    holdings.through[:] = 0

    holdings.fence(feed(range(0, 10), ring=2, committed=0))
    with pytest.raises(FeedRefusedError, match="slot 8 is not owned by node me under ring 1"):
        holdings.fence(feed(range(0, 10), ring=1, committed=0))
