"""Compares the state of two epochs, key by key, a range of slots at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.stored_state import StoredState, job_of, manifest_of
from millstream.state.pickling import dumps
from millstream.stores.store import Store

Kind = Literal["added", "removed", "changed"]
_ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """A key whose state differs; missing state is None."""

    kind: Kind
    key: Any
    before: Any
    after: Any


@dataclass
class JobDifference:
    """How many keys of a job differ between two epochs, and the first of them."""

    job: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    examples: list[Difference] = field(default_factory=list)


def compare(
    store: Store, lineage: Lineage, before: int, after: int, job: str | None, limit: int
) -> list[JobDifference]:
    """Compare two epochs, of one job or of all that either has."""
    workflows = [manifest_of(lineage, epoch).workflow for epoch in (before, after)]
    names = {job.name: None for workflow in workflows for job in workflow.jobs}
    if job is not None:
        names = {job: None}
        if all(workflow.job(job) is None for workflow in workflows):
            job_of(workflows[1], job)
    return [_compare(store, lineage, before, after, name, limit) for name in names]


def _compare(
    store: Store, lineage: Lineage, before: int, after: int, job: str, limit: int
) -> JobDifference:
    states = [_state(store, lineage, epoch, job) for epoch in (before, after)]
    found = JobDifference(job)
    ranges = next((state.ranges() for state in reversed(states) if state is not None), [])
    for slots in ranges:
        left, right = (dict(s.items(slots)) if s is not None else {} for s in states)
        for difference in _differences(left, right):
            if difference is None:
                found.unchanged += 1
                continue
            setattr(found, difference.kind, getattr(found, difference.kind) + 1)
            if len(found.examples) < limit:
                found.examples.append(difference)
    return found


def _state(store: Store, lineage: Lineage, epoch: int, job: str) -> StoredState | None:
    found = manifest_of(lineage, epoch).workflow.job(job)
    if found is None or not found.durable:
        return None
    return StoredState(store, lineage, epoch, job)


def _differences(left: dict[Any, Any], right: dict[Any, Any]) -> Iterator[Difference | None]:
    for key, before in left.items():
        after = right.get(key, _ABSENT)
        if after is _ABSENT:
            yield Difference("removed", key, before, None)
        else:
            yield None if _same(before, after) else Difference("changed", key, before, after)
    for key, after in right.items():
        if key not in left:
            yield Difference("added", key, None, after)


def _same(left: Any, right: Any) -> bool:
    try:
        if bool(left == right):
            return True
    except Exception:  # arrays, for instance, have no single truth value
        pass
    # NaN equals nothing, and many classes define no equality.
    return dumps(left) == dumps(right)
