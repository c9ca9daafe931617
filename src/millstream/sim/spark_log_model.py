"""Spark's offset and commit logs, simulated: how a query writes them and restarts from them.

A folder for each incarnation, as in ``spark.query_log_files``: the offsets of an epoch are
written before its body runs, its commit when ``foreachBatch`` has returned. At a start Spark runs
the newest epoch again, with the same offsets, unless it is in the commit log; later epochs get new
offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.spark_logs import (
    ORIGIN,
    Origin,
    ResumableEpochs,
    SparkLogs,
    folder_of,
)
from millstream.errors import MillstreamError
from millstream.sim.network import SimNet, World

_LARGEST = 16
_NO_DATA = 0.1


class OffsetsMissingError(MillstreamError):
    """Spark cannot resume: offsets that it needs are missing.

    This happens to a driver that slept so long that its successors have removed its logs.
    """


@dataclass
class _Folder:
    offsets: dict[int, int] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    origin: Origin | None = None


@dataclass(frozen=True)
class Cut:
    """An epoch: which records of the source it has."""

    epoch: int
    start: int
    end: int


class SimQueryLogs:
    """The folders of all incarnations."""

    def __init__(self, world: World, records: int) -> None:
        self._world = world
        self._records = records
        self._folders: dict[int, _Folder] = {}

    def view(self, net: SimNet) -> QueryLogsView:
        """The folders as one process reads and writes them."""
        return QueryLogsView(self._world, self._folders, net, self._records)


class QueryLogsView:
    """The folders as one process uses them."""

    def __init__(
        self, world: World, folders: dict[int, _Folder], net: SimNet, records: int
    ) -> None:
        self._world = world
        self._folders = folders
        self._net = net
        self._records = records

    def _step(self, what: str) -> None:
        self._world.step(f"logs {what}", self._net.process)
        self._net.sleep(self._world.delay())

    def derive(self, incarnation: int, after: int, by: int | None) -> None:
        """Make the folder in which a new incarnation resumes after an epoch."""
        self._step("begin")
        mine = self._folders[incarnation] = _Folder()
        origin = Origin(-1, None)
        if after >= 0:
            source, epochs = SparkLogs(self).find_source(incarnation, after, by)
            if source is None:
                raise OffsetsMissingError(f"no offsets of epoch {after}, only of {epochs}")
            taken = self._folders.get(source, _Folder())
            self._step("copy commits")
            mine.commits = {epoch for epoch in taken.commits if epoch <= after}
            self._step("copy offsets")
            mine.offsets = {e: taken.offsets[e] for e in epochs if e in taken.offsets}
            origin = Origin(after, source)
        self._step("finish")
        mine.origin = origin

    def require(self, seen: Lineage, epoch: int) -> None:
        """Raise if Spark's logs do not allow to resume after an epoch."""
        resumable = ResumableEpochs(self, seen)
        if epoch not in resumable:
            raise OffsetsMissingError(f"no offsets of epoch {epoch}, only of {resumable.span}")

    def names(self, name: str) -> list[str]:
        """What is in a folder, as ``checkpoints.spark_logs.LogFolder``."""
        self._step(f"list {name}")
        if not name:
            return [folder_of(number) for number in self._folders]
        number, _, kind = name.partition("/")
        folder = self._folders.get(int(number), _Folder())  # pruned meanwhile, by a newer driver
        return [str(epoch) for epoch in (folder.offsets if kind == "offsets" else folder.commits)]

    def read(self, name: str) -> str | None:
        """The origin of an incarnation, if its folder was completed."""
        number, _, file = name.partition("/")
        folder = self._folders.get(int(number))
        if file != ORIGIN or folder is None or folder.origin is None:
            return None
        return json.dumps(asdict(folder.origin))

    def prune(self, retain: int) -> None:
        """Remove the folders of all but the newest incarnations."""
        self._step("prune")
        newest = sorted(n for n, f in self._folders.items() if f.origin is not None)[-retain:]
        older = [n for n in self._folders if newest and n < newest[-1] and n not in newest]
        for number in older:
            del self._folders[number]

    def query(self, incarnation: int) -> Iterator[Cut]:
        """The epochs that Spark runs, until the source is at its end."""
        if incarnation not in self._folders:
            raise OffsetsMissingError(f"incarnation {incarnation} is long over")
        folder = self._folders[incarnation]
        latest = max(folder.offsets, default=-1)
        if latest >= 0 and latest not in folder.commits:
            yield self._again(folder, latest)
            self._step(f"commit {latest}")
            folder.commits.add(latest)
        while latest < 0 or folder.offsets[latest] < self._records:
            start = folder.offsets[latest] if latest >= 0 else 0
            latest += 1
            size = self._world.random.randint(1, _LARGEST)
            end = min(start + (0 if self._world.maybe(_NO_DATA) else size), self._records)
            self._step(f"cut {latest}")
            folder.offsets[latest] = end
            self._world.note(f"incarnation {incarnation} cuts epoch {latest}: {start} to {end}")
            yield Cut(latest, start, end)
            self._step(f"commit {latest}")
            folder.commits.add(latest)

    @staticmethod
    def _again(folder: _Folder, epoch: int) -> Cut:
        if epoch > 0 and epoch - 1 not in folder.offsets:
            raise OffsetsMissingError(
                f"epoch {epoch} has to be replayed, but its offsets are missing"
            )
        start = folder.offsets[epoch - 1] if epoch > 0 else 0
        return Cut(epoch, start, folder.offsets[epoch])
