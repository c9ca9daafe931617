"""What a change does, in terms of the contract and as a sentence."""

from __future__ import annotations

import numpy as np

from millstream.api import contract as c
from millstream.coordinator.change_preview import Preview
from millstream.coordinator.overview import Overview
from millstream.elastic.load import Load


def preview_of(preview: Preview, about: str, load: Load | None) -> c.ChangePreview:
    """What a change of slots does; ``about`` begins its sentence."""
    sizes = np.zeros(1) if load is None else load.state_bytes
    transfers = [
        c.SlotTransfer(
            source=move.source,
            to=move.target,
            slots=sum(map(len, move.runs)),
            bytes=round(sum(float(sizes[run.start : run.stop].sum()) for run in move.runs)),
        )
        for move in preview.moves
    ]
    slots, size = sum(each.slots for each in transfers), sum(each.bytes for each in transfers)
    return c.ChangePreview(
        text=_text(about, preview, slots, size),
        nodes_before=preview.before,
        nodes_after=preview.after,
        joining=preview.joining,
        leaving=list(preview.leaving),
        transfers=transfers,
        slots=slots,
        bytes=size,
    )


def stop_preview_of(now: Overview) -> c.ChangePreview:
    """What the end of the run does."""
    state = (
        "It has no checkpoint: its state is lost."
        if now.durable is None
        else "It can be started again from its checkpoint."
    )
    return c.ChangePreview(
        text=f"Stop the workflow after the epoch under way; its {now.active} nodes end. {state}",
        nodes_before=now.active,
        nodes_after=0,
        joining=0,
        leaving=list(now.domains),
        transfers=[],
        slots=0,
        bytes=0,
    )


def _text(about: str, preview: Preview, slots: int, size: int) -> str:
    parts = [f"{about} nodes"]
    if preview.joining:
        parts.append(f"start {preview.joining} new")
    if preview.leaving:
        parts.append(f"{', '.join(node[:8] for node in preview.leaving)} will leave")
    parts.append(
        f"{slots} slots (about {size / 2**20:.1f} MiB of state) change owner between two epochs"
        if slots
        else "no slot changes owner"
    )
    return "; ".join(parts) + "."
