"""The files of Spark's offset and commit logs: a folder per incarnation, made from an earlier one.

A query writes only to the folder of its incarnation, so an older driver that wakes up does no
harm. A new folder holds what Spark needs to resume after an epoch: the offsets and commits up to
it, the offsets of the next epoch if Spark has fixed them already, and the logs of the sources.
The caller chooses the epoch, and ensures that only one driver has an incarnation.

``origin.json`` is written last. A folder without it was never completed and is never used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from millstream.checkpoints.spark_logs import (
    ORIGIN,
    EpochNotRetainedError,
    Origin,
    SparkLogs,
    folder_of,
)
from millstream.errors import ConfigError, MillstreamError
from millstream.spark.folder import Folder

_NO_OFFSET = "-"  # Spark writes this for a source that has no offset yet
_COMPACT = ".compact"


class SourcesChangedError(MillstreamError):
    """A workflow reads another number of streams than the one that wrote its checkpoint."""

    def __init__(self, path: str, before: int, now: int) -> None:
        super().__init__(path, before, now)
        self.path, self.before, self.now = path, before, now

    def __str__(self) -> str:
        return (
            f"{self.path} was written by a workflow that reads {self.before} streams, and this "
            f"one reads {self.now}; run the workflow that wrote it, or choose a new checkpoint "
            "location"
        )


class QueryLogDamagedError(MillstreamError):
    """A file of Spark's offset log is missing or unreadable."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path, self.problem = path, problem

    def __str__(self) -> str:
        return f"{self.path} {self.problem}; restore an older epoch, or choose a new checkpoint"


def source_folders(frame: DataFrame) -> tuple[int, ...]:
    """List the folder of ``sources/`` in which the source of each offset has its log.

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
    """The folders of all incarnations of one workflow."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._logs = SparkLogs(folder)

    def incarnations(self) -> list[int]:
        """The incarnations whose folder was completed, oldest first."""
        return list(self._logs.origins())

    def derive(
        self,
        incarnation: int,
        after: int | None,
        folders: Sequence[int],
        *,
        by: int | None = None,
    ) -> str:
        """Make the folder in which a new incarnation resumes after epoch ``after``.

        None or -1 begins anew. ``folders`` are the ``source_folders`` of the query that will run.
        ``by`` is the incarnation that committed ``after``, if known: another one may have fixed
        other offsets for it, and lost. Return the query's ``checkpointLocation``.
        """
        name = folder_of(incarnation)
        self._remove(incarnation)
        if after is None or after < 0:
            self._folder.make(name)
            origin = Origin(-1, None)
        else:
            source, epochs = self._logs.find_source(incarnation, after, by)
            if source is None:
                covered = (epochs[0], epochs[-1]) if epochs else None
                raise EpochNotRetainedError(self._folder.text(""), after, covered)
            files = self._files(source, after, epochs, folders)
            self._folder.copy(files, folder_of(source), name)
            origin = Origin(after, source)
        self._folder.write(f"{name}/{ORIGIN}", json.dumps(vars(origin)))
        return self._folder.text(name)

    def prune(self, retain: int) -> None:
        """Remove the folders of all but the ``retain`` newest incarnations."""
        if retain < 1:
            raise ConfigError(f"retain must be at least 1, got {retain}")
        retained = self.incarnations()[-retain:]
        for number in self._logs.incarnations():
            # One that is newer than all completed ones is being made.
            if retained and number < retained[-1] and number not in retained:
                self._remove(number)

    def _files(
        self, source: int, after: int, epochs: Sequence[int], folders: Sequence[int]
    ) -> Iterator[str]:
        """Name the files that the next incarnation needs."""
        ends = self._offsets(source, epochs[-1])
        newest = self._offsets(source, max(self._logs.epochs(source, "offsets")))
        if len(folders) != max(ends) + 1:
            raise SourcesChangedError(self._folder.text(""), max(ends) + 1, len(folders))
        yield "metadata"
        commits = self._logs.epochs(source, "commits")
        yield from (f"commits/{epoch}" for epoch in commits if epoch <= after)
        yield from (f"offsets/{epoch}" for epoch in epochs)
        for folder, at in {folders[at]: at for at in ends}.items():
            end = _log_end(ends[at])
            if ends[at] == _NO_OFFSET and _log_end(newest.get(at, _NO_OFFSET)) is not None:
                end = -1
            yield from self._source_log(source, folder, end)

    def _source_log(self, source: int, folder: int, end: int | None) -> Iterator[str]:
        """Name the files of a source's own log.

        A file source lists in it what it has read, and would read all that is listed after the
        epoch's end as one epoch. Other sources (``end`` is None) write once where they began.
        """
        path = f"sources/{folder}"
        names = self._folder.names(f"{folder_of(source)}/{path}")
        if end is None:
            retained = [name for name in names if not name.startswith(".") and ".crc" not in name]
        else:
            entries = {_entry(name): name for name in names}
            self._check_unbroken(f"{folder_of(source)}/{path}", entries, end)
            retained = [name for entry, name in entries.items() if 0 <= entry <= end]
        return (f"{path}/{name}" for name in retained)

    def _check_unbroken(self, path: str, entries: Mapping[int, str], end: int) -> None:
        """Reject a list of files with a gap between its last compacted entry and its end."""
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
        raise QueryLogDamagedError(self._folder.text(name), "is not a readable list of offsets")

    def _remove(self, incarnation: int) -> None:
        # First what marks it as complete: after a crash the rest of the folder must not count.
        self._folder.delete(f"{folder_of(incarnation)}/{ORIGIN}")
        self._folder.delete(folder_of(incarnation))


def _log_end(offset: str) -> int | None:
    """The last log entry of a file source that belongs to an offset; None for other sources."""
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
    """The uses of sources, in the order of their offsets in Spark's log."""
    children = plan.children()
    size = children.size()
    if size == 0 and plan.isStreaming():
        yield plan
    for at in range(size):
        yield from _streaming_leaves(children.apply(at))
