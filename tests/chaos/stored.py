"""What a run has left in its store: the newest state, which must be complete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.location import open_checkpoint
from millstream.checkpoints.stored_state import StoredState
from millstream.checkpoints.verification import check

State = dict[str, list[tuple[Any, Any]]]


def stored_state(folder: Path, jobs: Iterable[str], committed: int) -> tuple[State, list[str]]:
    """The newest state in the store of a checkpoint, by job, and what is wrong with the store."""
    with contextlib.closing(open_checkpoint(folder)) as store:
        problems = [
            f"epoch {epoch.epoch} in the store is damaged: {epoch.problems}"
            for epoch in check(store).epochs
            if epoch.status == "damaged"
        ]
        lineage = Chain(store).read()
        if lineage.epoch != committed:
            problems.append(f"the newest manifest is of epoch {lineage.epoch}")
        state = {job: list(StoredState(store, lineage, lineage.epoch, job).items()) for job in jobs}
        return state, problems
