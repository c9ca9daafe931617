"""Types of arguments that commands share: numbers, durations, and slots as text."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable

_RUN = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def number(text: str) -> int:
    """A whole number from 1 on; ``_`` and ``,`` may separate thousands."""
    value = int(text.replace("_", "").replace(",", ""))
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def seconds(text: str) -> float:
    """A duration in seconds."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0 on, got {text}")
    return value


def slots(text: str) -> tuple[range, ...]:
    """Slots, and runs of slots with their last one: ``0-511,700``."""
    runs = []
    for part in text.split(","):
        found = _RUN.fullmatch(part.strip())
        if found is None:
            raise argparse.ArgumentTypeError(f"must be like 0-511,700, got {text!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"{part.strip()} ends before it begins")
        runs.append(range(first, last + 1))
    return tuple(runs)


def slots_text(runs: Iterable[range]) -> str:
    """Runs of slots as ``slots`` parses them."""
    ends = ((run.start, run.stop - 1) for run in runs if run)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)
