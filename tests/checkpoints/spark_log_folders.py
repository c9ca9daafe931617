"""Spark's notes written by hand: names of files, and nothing in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path


def note(
    root: Path, incarnation: int, epochs: Iterable[int], after: int = -1, source: int | None = None
) -> None:
    """Write what Spark has noted of an incarnation that has finished some epochs."""
    folder = root / f"{incarnation:06d}"
    for kind in ("offsets", "commits"):
        (folder / kind).mkdir(parents=True)
        for epoch in epochs:
            (folder / kind / str(epoch)).touch()
    (folder / "origin.json").write_text(json.dumps({"after": after, "source": source}))
