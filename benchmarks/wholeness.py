"""Whether a run has all the nodes and copies that it shall have."""

from __future__ import annotations

import time
from datetime import timedelta

import millstream as ms
from millstream.spark.status import Status

_POLL = 0.02


def is_whole(status: Status, nodes: int) -> bool:
    """Whether so many nodes own slots, nothing is pending, and every copy is in sync."""
    active = [node for node in status.nodes if node.role == "active"]
    return (
        len(active) == nodes
        and not status.pending
        and all(node.slots for node in active)
        and not any(node.role == "leaving" for node in status.nodes)
        and all(node.in_sync == node.copies for node in status.nodes)
    )


def await_whole(run: ms.Run, nodes: int, timeout: timedelta) -> float:
    """Wait until a run is whole; return when it was."""
    deadline = time.monotonic() + timeout.total_seconds()
    while not is_whole(run.status(), nodes):
        if time.monotonic() > deadline:
            raise SystemExit(f"nodes or copies are missing after {timeout.total_seconds():.0f} s")
        time.sleep(_POLL)
    return time.monotonic()
