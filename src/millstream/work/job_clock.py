"""The event time of a job in an epoch, and the tallies that map tasks report.

All times are microseconds since 1970. A window closes in the epoch whose watermark has passed its
end, after that epoch's values were reduced; so a value is late only if all windows that include it
were closed in *earlier* epochs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from millstream.times import BEGINNING

_TALLIES = b"millstream.tallies"


@dataclass(frozen=True)
class JobClock:
    """The event time of one job in one epoch, the same for every copy and every replay.

    Windows that end by ``closed`` were closed in earlier epochs, those that end by ``watermark``
    close in this one. An event time beyond the limit of its origin is rejected as too
    far ahead. With ``folding``, values are aggregated in panes; else they are stored raw. In some
    epochs ``early`` results are due. A job with timers is ``timed`` once epochs had event times.
    """

    closed: int = BEGINNING
    watermark: int = BEGINNING
    limits: Mapping[int, int] = field(default_factory=dict)
    folding: bool = True
    early: bool = False
    timed: bool = False


@dataclass(frozen=True)
class Tally:
    """Counts of the values of one origin of a job in the map tasks of one epoch.

    ``rows`` were admitted to windows, and ``latest`` is the largest event time among them; those
    that were ``late``, too far ``ahead`` or ``untimed`` were not.
    """

    origin: int
    rows: int = 0
    latest: int = BEGINNING
    late: int = 0
    ahead: int = 0
    untimed: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.origin,
            self.rows + other.rows,
            max(self.latest, other.latest),
            self.late + other.late,
            self.ahead + other.ahead,
            self.untimed + other.untimed,
        )


def summed(tallies: Iterable[Tally]) -> tuple[Tally, ...]:
    """One tally for each origin."""
    found: dict[int, Tally] = {}
    for tally in tallies:
        known = found.get(tally.origin)
        found[tally.origin] = tally if known is None else known + tally
    return tuple(found[origin] for origin in sorted(found))


def tally_block(tallies: Sequence[Tally]) -> pa.RecordBatch:
    """Tallies as a block without rows, which travels beside those of the job."""
    text = json.dumps([asdict(tally) for tally in tallies]).encode()
    return pa.RecordBatch.from_arrays([], schema=pa.schema([], metadata={_TALLIES: text}))


def tallies_of(block: pa.RecordBatch) -> tuple[Tally, ...] | None:
    """The tallies in a block, or None if it holds rows."""
    text = (block.schema.metadata or {}).get(_TALLIES)
    return None if text is None else tuple(Tally(**fields) for fields in json.loads(text))
