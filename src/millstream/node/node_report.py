"""What a node reports about itself with its receipts."""

from __future__ import annotations

from copy import copy

from millstream.node.durability.write_queue import WriteQueue
from millstream.node.machine import NodeMachine
from millstream.wire.receipts import NodeReport


def node_report(
    machine: NodeMachine, at: tuple[int, int], memory: int, queue: WriteQueue | None
) -> NodeReport:
    """The size of a node's state, its use of memory and store, and its load in an epoch and try.

    Call it with the metadata lock held.
    """
    store = machine.store
    writes = None if queue is None else copy(queue.counts)
    stored = 0.0 if writes is None else writes.serialise_seconds + writes.store_seconds
    keys = store.key_counts()
    owned = store.holdings.owned
    return NodeReport(
        {job: int(of_job.sum()) for job, of_job in keys.items()},
        memory,
        machine.log_bytes,
        store.cold_keys,
        writes,
        machine.meter.report((machine.incarnation, *at), owned, keys, stored),
    )
