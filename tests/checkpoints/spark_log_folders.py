"""Spark's offset and commit logs, written by tests: empty files of the right names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path


def write_logs(
    root: Path, incarnation: int, epochs: Iterable[int], after: int = -1, source: int | None = None
) -> None:
    """Write the logs of an incarnation that has finished some epochs."""
    folder = root / f"{incarnation:06d}"
    for kind in ("offsets", "commits"):
        (folder / kind).mkdir(parents=True)
        for epoch in epochs:
            (folder / kind / str(epoch)).touch()
    (folder / "origin.json").write_text(json.dumps({"after": after, "source": source}))
