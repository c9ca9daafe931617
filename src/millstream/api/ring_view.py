"""The ring and its nodes, as the contract shows them."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.api.contract import ArcView, NodeView, PendingMove, RingView, TokenView
from millstream.coordinator.overview import Overview
from millstream.coordinator.roster import Roster
from millstream.elastic.load import NodeLoad
from millstream.ring.balance import pending
from millstream.ring.masks import SlotMask
from millstream.ring.ring import NodeId


def ring_of(roster: Roster) -> RingView:
    """The ring in force, and the moves that are pending."""
    placement, goal = roster.placement, roster.goal
    in_sync: dict[NodeId, SlotMask] = {}
    moves: list[PendingMove] = []
    for move in pending(placement.ring, goal):
        mask = in_sync.setdefault(move.target, roster.in_sync(move.target))
        moves += [
            PendingMove(
                start=run.start,
                stop=run.stop,
                source=move.source,
                to=move.target,
                in_sync=int(mask[run.start : run.stop].sum()),
            )
            for run in move.runs
        ]
    copies = roster.copy_counts()
    return RingView(
        version=placement.version,
        slots=placement.ring.slots,
        replicas=roster.replicas,
        tokens=[TokenView(slot=slot, node=node) for slot, node in placement.ring.tokens],
        arcs=[
            ArcView(
                start=share.slots.start,
                stop=share.slots.stop,
                owner=share.owner,
                copies=list(share.copies),
            )
            for share in placement.shares(range(placement.ring.slots))
        ],
        moves=sorted(moves, key=lambda move: move.start),
        under_replicated=int((copies < 1 + roster.replicas).sum()),
    )


def nodes_of(now: Overview, loads: Mapping[NodeId, NodeLoad]) -> list[NodeView]:
    """The living nodes with their load."""
    slow = set(now.slow)
    views = []
    for status in now.nodes():
        load = loads.get(NodeId(status.node))
        views.append(
            NodeView(
                id=status.node,
                host=status.host,
                executor=status.executor,
                zone=status.zone,
                pid=status.pid,
                role=status.role,
                is_slow=status.node in slow,
                slots=status.slots,
                copies=status.copies,
                in_sync=status.in_sync,
                cpu=None if load is None else load.cpu,
                queue=None if load is None else load.queue,
                waiting=None if load is None else load.waiting,
                rows=None if load is None else load.tuples,
                reduce_seconds=None if load is None else load.reduce_seconds,
                memory=None if load is None else load.memory,
                state_bytes=None if load is None else load.state_bytes,
            )
        )
    return views
