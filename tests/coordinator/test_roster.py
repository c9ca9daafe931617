from __future__ import annotations

import pickle
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordinator.layout import Layout
from millstream.coordinator.roster import MissingCopy, Roster, StateLostError
from millstream.ring.masks import SlotMask
from millstream.ring.placement import Placement
from millstream.ring.ring import NodeId, Ring, RingError
from millstream.ring.zones import Domain
from millstream.wire.receipt_tables import packed_reach
from tests.coordinator.receipts import cells

A, B, C, D = (NodeId(name) for name in "abcd")
SLOTS = 8


def fresh_roster_of(nodes: Iterable[NodeId], replicas: int = 1) -> Roster:
    """Nodes that share nothing but a zone: backups are the next nodes clockwise."""
    return Roster({node: Domain("zone", node, node) for node in nodes}, SLOTS, replicas)


def roster_of(nodes: Iterable[NodeId], replicas: int = 1) -> Roster:
    """The same after a commit that found every copy complete."""
    roster = fresh_roster_of(nodes, replicas)
    roster.set_in_sync(cells(roster, {node: roster.placement.held(node) for node in roster.nodes}))
    return roster


def mask(*slots: int, of: int = SLOTS) -> SlotMask:
    found = np.zeros(of, dtype=bool)
    found[list(slots)] = True
    return found


def owners(roster: Roster) -> str:
    return "".join(roster.placement.owner(slot) for slot in range(SLOTS))


def copies(roster: Roster) -> list[str]:
    return ["".join(roster.placement.copies(slot)) for slot in range(SLOTS)]


def complete(roster: Roster) -> None:
    """All copies that are to be made have been made."""
    for node in roster.nodes:
        roster.report_reach({node: packed_reach(((0, 0),))}, committed=0)


def only(roster: Roster, **in_sync: SlotMask) -> None:
    """At a commit, owners are complete, and these backups as given."""
    said = {node: roster.placement.owned(node) for node in roster.nodes}
    for name, slots in in_sync.items():
        said[NodeId(name)] |= slots
    roster.set_in_sync(cells(roster, said))


# -- the first placement ---------------------------------------------------------------------


def test_the_first_placement_has_equal_arcs_with_the_next_nodes_as_backups() -> None:
    roster = roster_of([A, B, C, D], replicas=2)

    assert owners(roster) == "aabbccdd"
    assert copies(roster) == ["bc"] * 2 + ["cd"] * 2 + ["da"] * 2 + ["ab"] * 2
    assert roster.placement.version == 0 and roster.nodes == (A, B, C, D)


def test_neighbours_in_the_ring_share_as_little_as_possible() -> None:
    domains = {
        node: Domain(zone, zone, zone) for node, zone in zip((A, B, C, D), "xxyy", strict=True)
    }

    roster = Roster(domains, SLOTS, 1)

    for slot in range(SLOTS):
        [backup] = roster.placement.copies(slot)
        assert domains[roster.placement.owner(slot)] != domains[backup]


def test_before_the_first_commit_every_copy_is_in_sync_and_none_is_missing() -> None:
    roster = fresh_roster_of([A, B, C])

    for node in roster.nodes:
        assert roster.in_sync(node)[roster.placement.held(node)].all()
    assert roster.missing_copies(spare_owners=True) == [] and roster.dead_nodes == ()


def test_before_the_first_commit_nothing_can_be_lost() -> None:
    roster = fresh_roster_of([A, B, C, D], replicas=0)
    assert roster.survives_without([A, B, C])

    roster.remove([A, C])
    roster.remove([B])

    assert owners(roster) == "dddddddd" and roster.missing_copies(spare_owners=False) == []
    only(roster)
    with pytest.raises(StateLostError):
        roster.remove([D])


# -- copies in sync ---------------------------------------------------------------------------


def test_after_a_commit_only_the_copies_that_were_confirmed_are_in_sync() -> None:
    roster = roster_of([A, B])

    roster.set_in_sync(cells(roster, {A: mask(0, 1, 2, 3), B: mask(0, 4, 5, 6, 7)}))

    assert roster.copy_counts().tolist() == [2, 1, 1, 1, 1, 1, 1, 1]
    roster.set_in_sync(cells(roster, {A: mask(0, 1, 2, 3)}))
    assert not roster.in_sync(B).any()


def test_a_node_is_not_in_sync_for_slots_that_it_does_not_hold() -> None:
    roster = roster_of([A, B, C, D])
    everything = np.ones(SLOTS, dtype=bool)

    roster.set_in_sync(cells(roster, dict.fromkeys(roster.nodes, everything)))
    roster.report_reach({A: packed_reach(((0, 99),))}, committed=3)

    assert (roster.in_sync(A) == mask(0, 1, 6, 7)).all()


def test_a_copy_that_reaches_the_commit_is_in_sync_between_commits() -> None:
    roster = roster_of([A, B])
    only(roster)

    roster.report_reach({B: packed_reach(((0, 5), (2, 4), (3, 6), (4, -2)))}, committed=5)

    assert (roster.in_sync(B) == mask(0, 1, 3, 4, 5, 6, 7)).all()
    roster.report_reach({NodeId("unknown"): packed_reach(((0, 9),))}, committed=5)


def test_a_returned_mask_is_a_copy() -> None:
    roster = roster_of([A, B])

    roster.in_sync(A)[:] = False

    assert roster.copy_counts().tolist() == [2] * SLOTS


# -- nodes that go ---------------------------------------------------------------------------


def test_the_first_copy_clockwise_that_is_in_sync_becomes_the_owner() -> None:
    roster = roster_of([A, B, C, D], replicas=2)
    roster.remove([A])
    assert owners(roster) == "bbbbccdd" and roster.placement.version == 1

    roster = roster_of([A, B, C, D], replicas=2)
    only(roster, b=mask(), c=mask(0, 1))
    roster.remove([A])
    assert owners(roster) == "ccbbccdd"


def test_the_slots_of_one_node_may_go_to_several() -> None:
    roster = roster_of([A, B, C, D], replicas=2)
    only(roster, b=mask(1), c=mask(0, 1))

    roster.remove([A])

    assert owners(roster) == "cbbbccdd"


def test_several_nodes_go_at_once() -> None:
    roster = roster_of([A, B, C, D], replicas=2)

    roster.remove([A, B])

    assert owners(roster) == "ccccccdd"
    assert roster.nodes == (C, D) and roster.dead_nodes == (A, B)
    assert roster.placement.version == 1
    assert set(roster.placement.nodes) == {C, D}


def test_slots_are_not_reassigned_to_a_node_that_dies_as_well() -> None:
    roster = roster_of([A, B, C])

    with pytest.raises(StateLostError):
        roster.remove([A, B])


def test_removing_no_node_or_an_unknown_node_changes_nothing() -> None:
    roster = roster_of([A, B])
    before = roster.placement

    roster.remove([])
    roster.remove([C])

    assert roster.placement is before and roster.dead_nodes == ()


def test_new_backups_are_fed_at_once_but_not_in_sync_until_they_report_it() -> None:
    roster = roster_of([A, B, C, D])

    roster.remove([A])

    assert owners(roster) == "bbbbccdd"
    assert copies(roster) == ["c"] * 4 + ["d"] * 2 + ["b"] * 2
    assert roster.copy_counts().tolist() == [1, 1, 2, 2, 2, 2, 1, 1]
    complete(roster)
    assert roster.copy_counts().tolist() == [2] * SLOTS


def test_a_placement_that_differs_in_copies_alone_leaves_the_owners_as_old_as_they_are() -> None:
    roster = roster_of([A, B, C, D])
    roster.move([0, 1], B)
    assert roster.enact(between_epochs=True)
    moved_at = roster.placement.version
    assert roster.owners_since == moved_at

    roster.move([0, 1], C)
    assert roster.enact(between_epochs=False)

    assert roster.placement.version > moved_at and roster.owners_since == moved_at


def test_losing_the_last_complete_copy_raises_with_slots_and_nodes() -> None:
    roster = roster_of([A, B, C, D], replicas=1)
    only(roster, b=mask(1))

    with pytest.raises(StateLostError) as caught:
        roster.remove([A])

    lost = caught.value
    assert (lost.slots, lost.of, lost.nodes, lost.replicas) == (1, SLOTS, (A,), 1)
    assert "the state of 1 of 8 slots is lost with the nodes a:" in str(lost)
    assert "all copies failed before new ones were made (replicas=1)" in str(lost)
    copy = pickle.loads(pickle.dumps(lost))
    assert (type(copy), str(copy)) == (StateLostError, str(lost))


def test_the_error_names_all_nodes_that_went_and_advises_copies_where_there_were_none() -> None:
    roster = roster_of([A, B, C, D], replicas=1)
    roster.remove([C])
    with pytest.raises(StateLostError, match="2 of 8 slots is lost with the nodes c, d"):
        roster.remove([D])

    alone = roster_of([A, B], replicas=0)
    with pytest.raises(StateLostError, match=r"4 of 8 .* nodes b: state had no second copy"):
        alone.remove([B])


def test_survives_without_changes_nothing() -> None:
    roster = roster_of([A, B, C, D])
    only(roster, b=mask(0, 1), c=mask(2, 3), d=mask(4, 5))

    assert roster.survives_without([A]) and roster.survives_without([A, C])
    assert not roster.survives_without([D]) and not roster.survives_without([A, B])
    assert roster.nodes == (A, B, C, D) and roster.placement.version == 0


# -- with a store ----------------------------------------------------------------------------


def test_slots_that_the_store_has_are_spread_over_the_nodes_that_live() -> None:
    roster = roster_of([A, B, C, D], replicas=0)

    roster.remove([B], restorable=True)

    assert owners(roster) == "aacdccdd" and roster.dead_nodes == (B,)  # clockwise from b
    assert roster.placement.version == 1 and set(roster.nodes) == {A, C, D}
    assert all(roster.in_sync(NodeId(owner))[slot] for slot, owner in enumerate(owners(roster)))


def test_a_copy_in_memory_is_taken_before_the_store() -> None:
    roster = roster_of([A, B, C, D])
    only(roster, b=mask(1))  # of a's slots 0 and 1

    roster.remove([A], restorable=True)

    assert owners(roster) == "bbbbccdd"
    assert not roster.in_sync(C)[:2].any()


def test_slots_of_several_dead_nodes_can_be_restored() -> None:
    roster = roster_of([A, B, C, D])

    roster.remove([A, B], restorable=True)

    # What b held of its own is at c; what both a and b had is on no node.
    assert owners(roster) == "cdccccdd"
    complete(roster)
    assert roster.copy_counts().tolist() == [2] * SLOTS


def test_an_owner_of_restored_slots_can_die_as_well() -> None:
    roster = roster_of([A, B, C], replicas=0)

    for dead in (A, B):
        roster.remove([dead], restorable=True)

    assert owners(roster) == "c" * SLOTS and roster.dead_nodes == (A, B)


def test_a_standby_node_inherits_what_the_store_has_if_nobody_else_is_left() -> None:
    roster = roster_of([A, B])
    roster.add(C, Domain("zone", C, C))

    roster.remove([A, B], restorable=True)

    assert owners(roster) == "c" * SLOTS and roster.active == (C,)


def test_without_anybody_left_even_a_store_does_not_help() -> None:
    roster = roster_of([A, B])

    with pytest.raises(StateLostError, match="8 of 8 slots is lost with the nodes a, b"):
        roster.remove([A, B], restorable=True)


def test_after_a_restart_owners_have_their_slots_from_the_store_and_backups_have_none() -> None:
    domains = {node: Domain("zone", node, node) for node in (A, B, C)}
    roster = Roster(domains, SLOTS, 1, empty=False)

    assert roster.copy_counts().tolist() == [1] * SLOTS and roster.is_under_replicated
    assert not roster.survives_without([A])
    assert {(order.donor, order.to) for order in roster.missing_copies(spare_owners=True)} == {
        (A, B),
        (B, C),
        (C, A),
    }
    with pytest.raises(StateLostError):
        roster.remove([A])
    roster.remove([A], restorable=True)
    assert "a" not in owners(roster)


# -- settling --------------------------------------------------------------------------------


def test_an_epoch_without_news_asks_for_no_new_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    roster = roster_of((A, B, C))
    roster.enact(between_epochs=True)
    monkeypatch.delattr(Roster, "_mint")

    roster.set_in_sync(cells(roster, {node: roster.placement.held(node) for node in roster.nodes}))

    assert roster.enact(between_epochs=True) is False


def test_settling_mints_nothing_when_all_is_where_it_should_be() -> None:
    roster = roster_of([A, B, C])
    before = roster.placement

    assert not roster.enact(between_epochs=True)
    assert not roster.enact(between_epochs=False)

    assert roster.placement is before


def test_a_copy_is_retained_until_the_backups_that_replace_it_are_in_sync() -> None:
    roster = roster_of([A, B, C, D], replicas=2)
    only(roster, b=mask(0, 1), c=mask(0, 1, 2, 3), d=np.ones(SLOTS, bool), a=np.ones(SLOTS, bool))
    roster.retire([C])
    assert roster.enact(between_epochs=False)
    assert "c" in copies(roster)[0]  # b and c are complete, and the new backup is not

    complete(roster)
    assert roster.enact(between_epochs=False)

    assert "c" not in copies(roster)[0]


def test_a_move_to_a_backup_swaps_the_roles_and_copies_nothing() -> None:
    roster = roster_of([A, B, C])
    before = owners(roster)
    taken = [slot for slot in range(SLOTS) if before[slot] == "a"][:2]

    roster.move(taken, B)
    assert not roster.enact(between_epochs=False)
    assert owners(roster) == before and roster.pending == 2
    assert roster.enact(between_epochs=True)

    assert [slot for slot in range(SLOTS) if owners(roster)[slot] != before[slot]] == taken
    assert [roster.placement.copies(slot) for slot in taken] == [(A,), (A,)]
    assert roster.missing_copies(spare_owners=True) == [] and roster.pending == 0


def test_a_move_to_a_node_without_a_copy_happens_when_it_has_one() -> None:
    roster = roster_of([A, B, C, D])
    roster.move([0, 1], C)

    assert roster.enact(between_epochs=True)
    assert owners(roster) == "aabbccdd" and copies(roster)[0] == "bc"
    assert roster.missing_copies(spare_owners=True) == [MissingCopy(B, C, (range(0, 2),))]
    assert not roster.enact(between_epochs=True)
    roster.report_reach({C: packed_reach(((0, 0), (1, -2)))}, committed=0)
    assert roster.enact(between_epochs=True)

    assert owners(roster) == "cabbccdd" and roster.pending == 1


def test_the_former_owner_retains_a_slot_until_an_epoch_has_committed_under_the_new_one() -> None:
    roster = roster_of([A, B, C, D], replicas=0)
    roster.move([0, 1], C)
    roster.enact(between_epochs=True)
    complete(roster)
    roster.enact(between_epochs=True)
    assert owners(roster) == "ccbbccdd" and copies(roster)[0] == "a"
    assert roster.copy_counts()[:2].tolist() == [2, 2]

    only(roster)
    roster.enact(between_epochs=False)

    assert copies(roster)[0] == ""


def test_a_move_to_a_node_that_died_meanwhile_is_abandoned_and_to_an_unknown_one_refused() -> None:
    roster = roster_of([A, B, C], replicas=2)
    roster.move([0], B)
    roster.remove([B])
    before = owners(roster)

    roster.enact(between_epochs=True)

    assert owners(roster) == before and roster.pending == 0
    with pytest.raises(RingError):
        roster.move([0], B)


def test_when_the_owner_dies_its_slots_go_to_the_node_they_were_moving_to_if_it_is_ready() -> None:
    roster = roster_of([A, B, C, D])
    roster.move([0, 1], C)
    roster.enact(between_epochs=True)
    roster.report_reach({C: packed_reach(((0, 0), (1, -2)))}, committed=0)

    roster.remove([A])

    assert owners(roster) == "cbbbccdd"
    assert roster.pending == 1  # slot 1, which c does not have yet


# -- members ---------------------------------------------------------------------------------


def test_a_new_member_holds_nothing_until_it_is_activated() -> None:
    roster = roster_of([A, B])
    roster.add(C, Domain("zone", C, C))
    assert not roster.enact(between_epochs=True)
    assert roster.nodes == (A, B, C) and roster.active == (A, B) == roster.holding
    with pytest.raises(RingError, match="not an active member"):
        roster.move([0], C)

    roster.activate([C])
    roster.move([0], C)
    roster.enact(between_epochs=True)

    assert C in roster.placement.copies(0)
    with pytest.raises(RingError, match="is or was a member"):
        roster.add(C, Domain("zone", C, C))


def test_a_member_leaves_when_its_slots_and_copies_are_elsewhere() -> None:
    roster = roster_of([A, B, C])
    roster.retire([B])
    assert roster.needs_goal
    roster.aim(roster.goal.without(B))
    for _ in range(3):
        roster.enact(between_epochs=True)
        complete(roster)
        roster.set_in_sync(cells(roster, {n: roster.in_sync(n) for n in roster.nodes}))
    roster.enact(between_epochs=True)

    assert roster.depart() == [B] and roster.nodes == (A, C) and roster.dead_nodes == ()
    assert set(owners(roster)) == {"a", "c"} and set(roster.placement.nodes) == {A, C}
    assert roster.copy_counts().tolist() == [2] * SLOTS and not roster.needs_goal


def test_a_member_that_was_to_leave_stays_if_nobody_else_is_left() -> None:
    roster = roster_of([A, B])
    roster.retire([A])

    roster.remove([B])

    assert roster.active == (A,) and owners(roster) == "a" * SLOTS and not roster.needs_goal


def test_a_leaving_member_retains_copies_that_nobody_else_can_take_until_it_is_released() -> None:
    roster = roster_of([A, B])
    roster.retire([B])
    roster.aim(roster.goal.without(B))
    roster.enact(between_epochs=True)
    only(roster, b=np.ones(SLOTS, bool))
    roster.enact(between_epochs=True)

    assert roster.copy_counts().tolist() == [2] * SLOTS and roster.depart() == []
    assert roster.releasable() == [B]
    roster.release([B])
    roster.enact(between_epochs=True)
    assert roster.depart() == [B] and roster.copy_counts().tolist() == [1] * SLOTS


def test_the_last_active_member_cannot_leave() -> None:
    roster = roster_of([A, B])
    roster.retire([A])

    with pytest.raises(RingError, match="last active"):
        roster.retire([B])


# -- copies that are missing -----------------------------------------------------------------


def test_missing_copies_are_made_by_owners() -> None:
    roster = roster_of([A, B, C, D])
    roster.remove([A])

    assert roster.missing_copies(spare_owners=False) == [
        MissingCopy(D, B, (range(6, 8),)),
        MissingCopy(B, C, (range(0, 2),)),
    ]


def test_owners_are_spared_where_another_copy_is_in_sync() -> None:
    roster = roster_of([A, B, C, D], replicas=2)
    only(roster, b=mask(0), c=np.ones(SLOTS, bool), d=np.ones(SLOTS, bool), a=np.ones(SLOTS, bool))
    lacking = (roster.placement.fed(B) & ~roster.in_sync(B)).nonzero()[0].tolist()
    assert lacking == [1, 6, 7]

    assert roster.missing_copies(spare_owners=True) == [
        MissingCopy(A, B, (range(6, 8),)),
        MissingCopy(C, B, (range(1, 2),)),
    ]
    assert roster.missing_copies(spare_owners=False) == [
        MissingCopy(A, B, (range(1, 2),)),
        MissingCopy(D, B, (range(6, 8),)),
    ]


# -- any sequence of changes -----------------------------------------------------------------

NODES = [NodeId(f"n{number}") for number in range(5)]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kinds = st.sampled_from(
        ["lose", "confirm", "reach", "settle", "boundary", "move", "join", "retire"]
    )
    number = st.integers(0, 2**16)
    return draw(st.lists(st.tuples(kinds, number, number), max_size=12))


@given(
    nodes=st.integers(2, 5),
    replicas=st.integers(0, 2),
    fresh=st.booleans(),
    stored=st.booleans(),
    changes=steps(),
)
def test_whatever_happens_owners_are_in_sync_and_no_copy_is_dropped_that_is_needed(
    nodes: int, replicas: int, fresh: bool, stored: bool, changes: list[tuple[str, int, int]]
) -> None:
    roster = (fresh_roster_of if fresh else roster_of)(NODES[:nodes], replicas)
    for number, (kind, one, other) in enumerate(changes):
        goal = roster.goal
        before, had = roster.placement, roster.copy_counts()
        chosen = np.array([one >> bit & 1 for bit in range(SLOTS)], dtype=bool)
        dead: set[NodeId] = set()
        if kind == "lose":
            dead = {roster.nodes[other % len(roster.nodes)]}
            if len(roster.nodes) == 1 or not (stored or roster.survives_without(dead)):
                with pytest.raises(StateLostError):
                    roster.remove(dead, restorable=stored)
                return
            roster.remove(dead, restorable=stored)
        elif kind == "confirm":
            only(roster, **{roster.nodes[other % len(roster.nodes)]: chosen})
        elif kind == "reach":
            runs = tuple((slot, int(flag)) for slot, flag in enumerate(chosen))
            roster.report_reach(
                {roster.nodes[other % len(roster.nodes)]: packed_reach(runs)}, committed=1
            )
        elif kind == "move":
            to = roster.active[other % len(roster.active)] if roster.active else roster.nodes[0]
            if to in roster.active:
                roster.move(np.flatnonzero(chosen).tolist(), to)
        elif kind == "join":
            joined = NodeId(f"joined {number}")
            roster.add(joined, Domain("zone", joined, joined))
            roster.activate([joined])
        elif kind == "retire" and len(roster.active) > 1:
            roster.retire([roster.active[other % len(roster.active)]])
        else:
            roster.enact(between_epochs=kind == "boundary")
            needed = min(replicas + 1, len(roster.active))
            assert (roster.copy_counts() >= np.minimum(had, needed)).all()
        check(roster, before, dead, goal if kind == "boundary" else None)


def check(roster: Roster, before: Placement, dead: set[NodeId], goal: Ring | None) -> None:
    """Owners are complete and alive, versions grow, and nothing moved that did not have to."""
    after = roster.placement
    assert after.version == before.version + (after is not before)
    for slot in range(SLOTS):
        owner = after.owner(slot)
        assert roster.in_sync(owner)[slot] and owner not in roster.dead_nodes
        assert not set(after.copies(slot)) & set(roster.dead_nodes)
        if before.owner(slot) != owner:
            assert before.owner(slot) in dead or (goal is not None and goal.owner(slot) == owner)
    eligible = {slot: set(roster.active) - {after.owner(slot)} for slot in range(SLOTS)}
    if after is not before:
        assert all(
            len(after.copies(slot)) >= min(roster.replicas, len(eligible[slot]))
            for slot in range(SLOTS)
        )


def test_held_slots_are_counted_for_every_member() -> None:
    roster = roster_of([A, B, C, D])
    only(roster, b=mask(1))
    roster.add(NodeId("e"), Domain("", "", "e"))

    counts = roster.held_slots()

    for node in roster.nodes:
        fed, in_sync = roster.placement.fed(node), roster.in_sync(node)
        assert counts[node].owned == roster.placement.owned(node).sum()
        assert counts[node].copies == fed.sum()
        assert counts[node].in_sync == (fed & in_sync).sum()
    assert counts[B].copies > counts[B].in_sync == 1


def test_the_layout_follows_the_goal_and_the_target() -> None:
    roster = roster_of([A, B])
    even = roster.layout()
    assert even == Layout.of(roster.goal, 2) and roster.layout() is even

    roster.move([0], B)
    assert roster.layout() == Layout.of(roster.goal, 2) != even

    roster.target = 3
    assert roster.layout() == Layout.of(roster.goal, 3)
