"""The stores side by side, under the load of the S4 thesis: 1 KB values, nine writes to a read.

Every store is durable: what a call has written is synced when it returns. Writers are processes,
each with keys of its own, all of which have values before. Stores take turns in every round.
Operations are the mix; *reads* come after it, as in the thesis, where a restart is between them;
*mixed reads* are those of the mix. All is read from the page cache, or the memory of a server.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run by its path

from benchmarks.goals import Goal, note_goals, note_table
from benchmarks.harness import (
    Result,
    asked_of,
    environment,
    note,
    parser_for,
    print_table,
    write_results,
)
from benchmarks.log_index import rebuild_after_crash, rebuilds
from benchmarks.peers.stores import SCHEMES, Missing, Urls, served, store_versions
from benchmarks.rounds import rounds
from benchmarks.store_work import VALUE_BYTES, Timed, percentiles
from benchmarks.store_writers import Writers, writers_for

WRITES, READS, SAME, REBUILD_MS = 10.0, 3.0, 0.8, 250.0
BATCH = 100
RATES = ("operations", "writes", "reads", "mixed_reads")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of everything; there are fewer rounds if they take more than ``round_seconds``.

    ``fewer`` names stores that get at most so many keys. A measurement takes ``seconds``, and at
    least so many ``calls``. ``sustained`` seconds are enough for a log to tidy up.
    """

    keys: tuple[int, int]
    fewer: Mapping[str, int]
    shapes: tuple[tuple[int, int], ...]  # writers, and the size of a batch
    rounds: int
    round_seconds: float
    seconds: float
    calls: int
    sustained: float
    sustained_rounds: int
    opens: int
    tail: int


FULL = Size(
    keys=(1_000, 1_000_000),
    fewer={"files": 100_000, "postgresql": 200_000},
    shapes=((1, BATCH), (4, BATCH), (1, 1)),
    rounds=3,
    round_seconds=240.0,
    seconds=2.0,
    calls=20,
    sustained=12.0,
    sustained_rounds=3,
    opens=5,
    tail=48_000_000,
)
QUICK = Size(
    keys=(1_000, 20_000),
    fewer={"files": 10_000},
    shapes=((1, BATCH), (4, BATCH), (1, 1)),
    rounds=1,
    round_seconds=60.0,
    seconds=0.5,
    calls=10,
    sustained=2.0,
    sustained_rounds=1,
    opens=3,
    tail=4_800_000,
)


@dataclass(frozen=True)
class Loaded:
    """A store that has been filled with so many keys, though more may have been asked for."""

    url: str
    asked: int
    held: int


@dataclass
class Cell:
    """What one kind of store did with so many keys, writers and values in a batch."""

    scheme: str
    store: Loaded
    writers: int
    batch: int
    rounds: list[list[Timed]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.scheme}_{label(self.store.held)}_{self.writers}w_b{self.batch}"

    def rate(self, of: str) -> float:
        """Values per second of all writers: one of ``RATES``, by the median."""
        return median(_rate(those, of) for those in self.rounds)

    def latencies(self) -> dict[str, float]:
        """How long calls took, in milliseconds."""
        timed = [each for those in self.rounds for each in those]
        put, late_put = percentiles([took for each in timed for took in each.puts])
        get, late_get = percentiles([took for each in timed for took in each.later_gets])
        return {
            "put_p50_ms": put,
            "put_p99_ms": late_put,
            "get_p50_ms": get,
            "get_p99_ms": late_get,
        }

    def results(self) -> list[Result]:
        """All numbers."""
        rates = [Result(f"{self.name}_{of}_per_second", self.rate(of), "values/s") for of in RATES]
        return rates + [
            Result(f"{self.name}_{name}", value, "ms") for name, value in self.latencies().items()
        ]

    def row(self) -> list[str]:
        """The numbers for people."""
        whose = [self.scheme, f"{self.store.held:,}", str(self.writers), str(self.batch)]
        rates = [f"{self.rate(of):,.0f}" for of in RATES]
        latencies = [f"{value:.3g}" for value in self.latencies().values()]
        return [*whose, *rates, *latencies]


def _rate(those: Sequence[Timed], of: str) -> float:
    """Values per second of writers that ran at the same time."""
    return sum(float(getattr(timed, of)) for timed in those)


_HEADING = ["store", "keys", "writers", "batch", "ops/s", "writes/s", "reads/s", "mixed/s"]
_HEADING += ["put ms", "99 %", "get ms", "99 %"]


def label(number: int) -> str:
    """A number as part of a name: 1k, 1m."""
    for unit, size in (("m", 1_000_000), ("k", 1_000)):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


# -- the measurements ------------------------------------------------------------------------


class Course:
    """All stores, filled, and the order in which they are measured."""

    def __init__(self, writers: Writers, urls: Mapping[str, Urls], size: Size) -> None:
        self._writers, self._size = writers, size
        self.stores = {
            (scheme, keys): self._load(scheme, urls[scheme], keys)
            for scheme in urls
            for keys in size.keys
        }

    def _load(self, scheme: str, urls: Urls, keys: int) -> Loaded:
        held = min(keys, self._size.fewer.get(scheme, keys))
        loaded = Loaded(urls(label(keys)), keys, held)
        took = self._writers.load(loaded.url, held)
        fewer = f", instead of {keys:,}" if held < keys else ""
        note(f"{scheme}: {held:,} keys loaded{fewer}, {held / took:,.0f} a second")
        return loaded

    def measure(self, cell: Cell, seconds: float) -> None:
        """Take one round of a cell."""
        store, shape = cell.store, (cell.writers, cell.batch)
        cell.rounds.append(
            self._writers.drive(store.url, store.held, *shape, seconds, self._size.calls)
        )

    def cells(self) -> list[Cell]:
        """Measure everything, in rounds."""
        size = self._size
        groups = [
            [
                Cell(scheme, store, writers, batch)
                for (scheme, asked), store in self.stores.items()
                if asked == keys
            ]
            for keys in size.keys
            for writers, batch in size.shapes
        ]
        for number in rounds(size.rounds, size.round_seconds):
            note(f"round {number + 1} of {size.rounds}")
            for group in groups:
                # There and back again: a machine that drifts treats all alike.
                for cell in group if number % 2 == 0 else reversed(group):
                    self.measure(cell, size.seconds)
        cells = [cell for group in groups for cell in group]
        note_table([_HEADING, *(cell.row() for cell in cells)])
        return cells

    def sustained(self) -> list[Result]:
        """The log with few and with many keys, for long enough to tidy up in between."""
        size = self._size
        few, many = (Cell("log", self.stores["log", keys], 1, BATCH) for keys in size.keys)
        for number in range(size.sustained_rounds):
            for cell in (few, many) if number % 2 == 0 else (many, few):
                self.measure(cell, size.sustained)
                note(f"log, {cell.store.held:,} keys, {size.sustained:g} s: {_rates(cell)}")
        names = [label(cell.store.held) for cell in (few, many)]
        rates = [cell.rate("operations") for cell in (few, many)]
        return [
            Result(f"log_{names[0]}_sustained_per_second", rates[0], "values/s"),
            Result(f"log_{names[1]}_sustained_per_second", rates[1], "values/s"),
            Goal(f"log_{names[1]}_vs_{names[0]}_keys", rates[1] / rates[0], "times", at_least=SAME),
        ]


def _rates(cell: Cell) -> str:
    return ", ".join(f"{_rate(cell.rounds[-1], of):,.0f} {of}/s" for of in RATES)


def against_files(cells: Sequence[Cell]) -> list[Result]:
    """How many times the values per second the log writes and reads.

    The goals are for few keys, one writer and full batches: there both have the same keys.
    """
    shapes: dict[tuple[int, int, int], dict[str, Cell]] = {}
    for cell in cells:
        shape = (cell.store.asked, cell.writers, cell.batch)
        shapes.setdefault(shape, {})[cell.scheme] = cell
    goals = {"writes": WRITES, "reads": READS}
    first = (min(asked for asked, _, _ in shapes), 1, BATCH)
    results: list[Result] = []
    for shape, both in shapes.items():
        for of in ("writes", "reads", "mixed_reads"):
            name, ratio = f"log_vs_files_{of}", both["log"].rate(of) / both["files"].rate(of)
            if shape == first and of in goals:
                results.append(Goal(name, ratio, "times", at_least=goals[of]))
            else:
                keys = "_".join(dict.fromkeys(label(both[it].store.held) for it in _BOTH))
                shaped = f"{name}_{keys}_{shape[1]}w_b{shape[2]}"
                results.append(Result(shaped, ratio, "times"))
    return results


_BOTH = ("log", "files")


def stores(folder: Path, size: Size, schemes: Sequence[str] = SCHEMES) -> list[Result]:
    """Take all measurements."""
    note(f"values of {VALUE_BYTES} bytes; what is written is synced before a call returns")
    with ExitStack() as stack:
        urls = {scheme: stack.enter_context(served(scheme, folder)) for scheme in schemes}
        writers = stack.enter_context(writers_for(writers for writers, _ in size.shapes))
        course = Course(writers, urls, size)
        many = size.keys[-1]
        log, name = course.stores["log", many].url, label(many)
        place = Path(log.removeprefix("log://"))
        index = rebuilds(log, place, name, opens=size.opens, at_most=REBUILD_MS)
        index += rebuild_after_crash(log, name, keys=many, tail=size.tail)
        for part in index:
            note(f"{part.name}: {part.value:.3g} {part.unit}")
        sustained = course.sustained()
        cells = course.cells()
    results = [result for cell in cells for result in cell.results()]
    return [*results, *index, *sustained, *against_files(cells)]


def main() -> None:
    """Take the measurements that the command line asks for."""
    parser = parser_for(__doc__.splitlines()[0])
    asked = asked_of(parser)
    size = QUICK if asked.quick else FULL
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        try:
            results = stores(Path(folder), size)
        except Missing as missing:
            raise SystemExit(str(missing)) from None
    print_table(results)
    note_goals(results)
    if asked.json is not None:
        about = environment(None)
        about["versions"] |= store_versions()
        about |= {"quick": asked.quick, "fewer_keys": dict(size.fewer)}
        write_results(asked.json, results, about)


if __name__ == "__main__":
    main()
