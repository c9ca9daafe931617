"""Spark's notes of a query: one folder per incarnation, made from an earlier one.

A query writes only to the folder of its incarnation, so an older driver that wakes up disturbs
nobody. A new folder holds what Spark needs to go on behind an epoch ``after``: the offsets and
commits up to it, the cut of the epoch behind it if there is one already, and what the sources
have noted about them. Which epoch that is, and that only one driver has an incarnation, is for
the caller to say.

``origin.json`` is written last. A folder without it was never finished and is never used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from millstream.checkpoints.spark_log_origin import Origin, find_log_origin
from millstream.checkpoints.spark_logs import ORIGIN, Incarnations, folder_of
from millstream.errors import ConfigError, MillstreamError
from millstream.spark.folder import Folder

_NOTHING = "-"  # how Spark writes that a source has no offset yet
_COMPACT = ".compact"


class EpochNotRetainedError(MillstreamError):
    """Spark no longer has the offsets of an epoch."""

    def __init__(self, path: str, epoch: int, retained: tuple[int, int] | None) -> None:
        super().__init__(path, epoch, retained)
        self.path, self.epoch, self.retained = path, epoch, retained

    def __str__(self) -> str:
        if self.retained is None:
            return (
                f"{self.path} has no offsets at all, so epoch {self.epoch} cannot be gone on from; "
                "give a copy of the whole checkpoint, or a new checkpoint location"
            )
        oldest, newest = self.retained
        return (
            f"{self.path} has no offsets of epoch {self.epoch}, only of epochs {oldest} to "
            f"{newest}; choose one of these, and set spark.sql.streaming.minBatchesToRetain "
            "higher to keep more"
        )


class SourcesChangedError(MillstreamError):
    """A workflow reads another number of sources than its checkpoint was made with."""

    def __init__(self, path: str, before: int, now: int) -> None:
        super().__init__(path, before, now)
        self.path, self.before, self.now = path, before, now

    def __str__(self) -> str:
        return (
            f"{self.path} was written by a workflow that reads {self.before} streams, and this "
            f"one reads {self.now}; run the workflow that it was made with, or give a new "
            "checkpoint location"
        )


class QueryLogDamagedError(MillstreamError):
    """A file of Spark's notes is missing or unreadable."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path} {self.problem}; restore an older epoch, or give a new checkpoint"


def source_folders(frame: DataFrame) -> tuple[int, ...]:
    """Say in which folder of ``sources/`` each offset of an epoch has its notes.

    Spark writes an offset for every use of a source, but numbers the folders by distinct sources:
    they differ as soon as one stream is in a union twice.
    """
    distinct: list[Any] = []
    folders = []
    for leaf in _streaming_leaves(frame._jdf.queryExecution().analyzed()):
        if leaf not in distinct:
            distinct.append(leaf)
        folders.append(distinct.index(leaf))
    return tuple(folders)


class QueryLogs:
    """The folders of all incarnations of one workflow, on any file system that Spark knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._folder = Folder(spark, root)
        self._known = Incarnations(self._folder)

    def incarnations(self) -> list[int]:
        """The incarnations whose folder was finished, oldest first."""
        return list(self._known.finished())

    def derive(
        self,
        incarnation: int,
        after: int | None,
        folders: Sequence[int],
        *,
        by: int | None = None,
    ) -> str:
        """Make the folder in which a new incarnation goes on behind epoch ``after``.

        None or -1 begins anew. ``folders`` is what ``source_folders`` says of the query that will
        run. ``by`` is the incarnation that committed ``after``, if that is known: another one may
        have cut the same epoch differently, and lost. Return the query's ``checkpointLocation``.
        """
        name = folder_of(incarnation)
        self._remove(incarnation)
        if after is None or after < 0:
            self._folder.make(name)
            origin = Origin(-1, None)
        else:
            source, kept = self._holder(incarnation, after, by)
            self._folder.copy(self._cut(source, after, kept, folders), folder_of(source), name)
            origin = Origin(after, source)
        self._folder.write(f"{name}/{ORIGIN}", json.dumps(vars(origin)))
        return self._folder.text(name)

    def prune(self, keep: int) -> None:
        """Remove the folders of all but the ``keep`` newest incarnations."""
        if keep < 1:
            raise ConfigError(f"keep must be at least 1, got {keep}")
        finished = self.incarnations()
        kept = finished[-keep:]
        for number in self._known.numbers():
            # A newer one than all finished ones is being made.
            if kept and number < kept[-1] and number not in kept:
                self._remove(number)

    def _holder(self, incarnation: int, after: int, by: int | None) -> tuple[int, list[int]]:
        """Find the newest earlier incarnation to go on from, and the epochs to take over."""
        finished = self._known.finished()
        source, epochs = find_log_origin(incarnation, after, by, finished, self._known.entries)
        if source is None:
            retained = (epochs[0], epochs[-1]) if epochs else None
            raise EpochNotRetainedError(self._folder.text(""), after, retained)
        return source, epochs

    def _cut(
        self, source: int, after: int, kept: Sequence[int], folders: Sequence[int]
    ) -> Iterator[str]:
        """Name the files that the next incarnation needs."""
        ends = self._offsets(source, kept[-1])
        newest = self._offsets(source, max(self._known.entries(source, "offsets")))
        if len(folders) != max(ends) + 1:
            raise SourcesChangedError(self._folder.text(""), max(ends) + 1, len(folders))
        yield "metadata"
        commits = self._known.entries(source, "commits")
        yield from (f"commits/{epoch}" for epoch in commits if epoch <= after)
        yield from (f"offsets/{epoch}" for epoch in kept)
        for folder, at in {folders[at]: at for at in ends}.items():
            end = _log_end(ends[at])
            if ends[at] == _NOTHING and _log_end(newest.get(at, _NOTHING)) is not None:
                end = -1
            yield from self._notes(source, folder, end)

    def _notes(self, source: int, folder: int, end: int | None) -> Iterator[str]:
        """Name the files of a source's own notes.

        A source of files lists in them what it has read, and would take all that is listed beyond
        the cut as one epoch. Other sources (``end`` is None) note where they began, once for all.
        """
        path = f"sources/{folder}"
        names = self._folder.names(f"{folder_of(source)}/{path}")
        if end is None:
            kept = [name for name in names if not name.startswith(".") and ".crc" not in name]
        else:
            entries = {_entry(name): name for name in names}
            self._check_unbroken(f"{folder_of(source)}/{path}", entries, end)
            kept = [name for entry, name in entries.items() if 0 <= entry <= end]
        return (f"{path}/{name}" for name in kept)

    def _check_unbroken(self, path: str, entries: Mapping[int, str], end: int) -> None:
        """Refuse a list of files with a hole between its last compacted entry and its end."""
        number = end
        while number >= 0 and not entries.get(number, "").endswith(_COMPACT):
            if number not in entries:
                raise QueryLogDamagedError(self._folder.text(f"{path}/{number}"), "is missing")
            number -= 1

    def _offsets(self, incarnation: int, epoch: int) -> dict[int, str]:
        """Where each source ends in an epoch, by its place in the query."""
        name = f"{folder_of(incarnation)}/offsets/{epoch}"
        lines = (self._folder.read(name) or "").split("\n")
        version, offsets = lines[0], lines[2:]
        if version == "v1" and offsets:
            return dict(enumerate(offsets))
        if version == "v2" and offsets:
            pairs = [line.partition(":") for line in offsets]
            if all(place.isdigit() for place, _, _ in pairs):
                return {int(place): offset for place, _, offset in pairs}
        raise QueryLogDamagedError(
            self._folder.text(name), "is no list of offsets that can be read"
        )

    def _remove(self, incarnation: int) -> None:
        # First what makes it a finished one: a crash must not leave half of a folder that counts.
        self._folder.delete(f"{folder_of(incarnation)}/{ORIGIN}")
        self._folder.delete(folder_of(incarnation))


def _log_end(offset: str) -> int | None:
    """The last entry of a source of files that belongs to an offset; None for other sources."""
    try:
        value = json.loads(offset)
    except ValueError:
        return None
    if isinstance(value, dict) and value.keys() == {"logOffset"}:
        return int(value["logOffset"])
    return None


def _entry(name: str) -> int:
    number = name.removesuffix(_COMPACT)
    return int(number) if number.isdigit() else -1


def _streaming_leaves(plan: Any) -> Iterator[Any]:
    """The uses of sources, in the order in which Spark lists their offsets."""
    children = plan.children()
    size = children.size()
    if size == 0 and plan.isStreaming():
        yield plan
    for at in range(size):
        yield from _streaming_leaves(children.apply(at))
