"""Input that comes at a rate, and the latency of each record: from when it is due to its output."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KEYS = 1_000


@dataclass(frozen=True, kw_only=True)
class Pace:
    """So many records a second, so many in a file."""

    rate: int = 1_000
    per_file: int = 50
    seconds: float

    @property
    def records(self) -> int:
        return int(self.rate * self.seconds) // self.per_file * self.per_file

    @property
    def files(self) -> int:
        return self.records // self.per_file

    def due(self, record: int) -> float:
        """When a record is due, in seconds from the start."""
        return record / self.rate


class Writer:
    """Writes every file when its last record is due, while it is entered."""

    def __init__(self, pace: Pace, folder: Path) -> None:
        self._pace = pace
        self._folder = folder
        self.start = time.time()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._folder.mkdir()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped.set()
        self._thread.join()

    def join(self) -> None:
        """Wait until all files are written."""
        self._thread.join()

    def _write(self) -> None:
        for number in range(self._pace.files):
            first = number * self._pace.per_file
            last = first + self._pace.per_file - 1
            if self._stopped.wait(max(0.0, self.start + self._pace.due(last) - time.time())):
                return
            # Under its final name only when complete: the stream watches the folder.
            hidden = self._folder / f".{number:06}.txt"
            hidden.write_text("".join(f"k{n % KEYS} {n}\n" for n in range(first, last + 1)))
            hidden.rename(self._folder / f"{number:06}.txt")


def latencies(
    pace: Pace, start: float, ends: Sequence[float], reached: Sequence[int], *, settling: float
) -> list[float]:
    """How long each record took that was due after the first ``settling`` seconds."""
    first = int(settling * pace.rate)
    return [
        ends[bisect_left(reached, record)] - start - pace.due(record)
        for record in range(first, reached[-1] + 1)
    ]
