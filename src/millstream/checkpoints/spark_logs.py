"""Spark's offset and commit logs: which epochs they cover, what a new incarnation resumes from.

Every incarnation has a folder with an offset log (the offsets of an epoch, written before it runs)
and a commit log (written when the epoch has finished). A new incarnation gets the entries of an
earlier one up to an epoch, and the offsets of the next epoch if Spark has fixed them already.

Spark purges its logs and the chain is garbage-collected, each by a count of its own: the chain may
hold an epoch whose offsets are purged. No I/O: the files are listed and read through ``LogFolder``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol

from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.manifest import Manifest
from millstream.errors import MillstreamError

SPARK_LOGS = "spark"
"""The folder in a checkpoint with one folder for each incarnation."""
ORIGIN = "origin.json"
MIN_RETAINED = 100
"""How many epochs Spark retains by default; a run may raise it, and never lowers it."""

Kind = Literal["offsets", "commits"]


class EpochNotRetainedError(MillstreamError):
    """Spark has purged the offsets of an epoch."""

    def __init__(self, path: str, epoch: int, retained: tuple[int, int] | None) -> None:
        super().__init__(path, epoch, retained)
        self.path, self.epoch, self.retained = path, epoch, retained

    def __str__(self) -> str:
        if self.retained is None:
            return (
                f"cannot resume from epoch {self.epoch}: Spark's offset log in {self.path} is "
                "empty; pass a copy of the whole checkpoint, or a new checkpoint location"
            )
        oldest, newest = self.retained
        return (
            f"cannot resume from epoch {self.epoch}: Spark's offset log in {self.path} has only "
            f"epochs {oldest} to {newest}; choose one of these; to retain more "
            "epochs from now on, pass a greater retain= to ms.run"
        )


class LogFolder(Protocol):
    """Where Spark's logs are: a folder with one folder in it for each incarnation."""

    def names(self, name: str) -> list[str]:
        """What is in a folder; nothing if it does not exist."""

    def read(self, name: str) -> str | None:
        """The text of a file, or None if it does not exist."""


@dataclass(frozen=True)
class Origin:
    """Where an incarnation began: after which epoch, and with the logs of which incarnation."""

    after: int
    source: int | None


def folder_of(incarnation: int) -> str:
    """The name of the folder with an incarnation's logs."""
    return f"{incarnation:06d}"


class SparkLogs:
    """The logs of all incarnations of a workflow; every call reads them again."""

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder

    def incarnations(self) -> list[int]:
        """The incarnations that have a folder, oldest first."""
        return sorted(int(name) for name in self._folder.names("") if name.isdigit())

    def origins(self) -> dict[int, Origin]:
        """The origins of the incarnations whose folder was completed, oldest first."""
        origins = {number: self._origin(number) for number in self.incarnations()}
        return {number: origin for number, origin in origins.items() if origin is not None}

    def _origin(self, incarnation: int) -> Origin | None:
        text = self._folder.read(f"{folder_of(incarnation)}/{ORIGIN}")
        try:
            return Origin(**json.loads(text)) if text else None
        except ValueError:
            return None

    def epochs(self, incarnation: int, kind: Kind) -> set[int]:
        """The epochs in one of an incarnation's logs."""
        names = self._folder.names(f"{folder_of(incarnation)}/{kind}")
        return {int(name) for name in names if name.isdigit()}

    def find_source(
        self, incarnation: int, after: int, by: int | None
    ) -> tuple[int | None, list[int]]:
        """As the function ``find_source``, on the logs as they are now."""
        return find_source(incarnation, after, by, self.origins(), self.epochs)


class ResumableEpochs:
    """The epochs of a lineage from which the next incarnation can resume."""

    def __init__(self, folder: LogFolder, lineage: Lineage) -> None:
        logs = SparkLogs(folder)
        self._lineage = lineage
        self._origins = logs.origins()
        self._epochs = cache(logs.epochs)

    def __contains__(self, epoch: int) -> bool:
        manifest = self._lineage.manifest(epoch)
        by = None if manifest is None else manifest.incarnation
        number = self._lineage.incarnation + 1
        source, _ = find_source(number, epoch, by, self._origins, self._epochs)
        return source is not None

    @property
    def span(self) -> tuple[int, int] | None:
        """The oldest and the newest of them, if there is any."""
        epochs = [manifest.epoch for manifest in self._lineage.manifests]
        oldest = next(filter(self.__contains__, epochs), None)
        newest = next(filter(self.__contains__, reversed(epochs)), None)
        return None if oldest is None or newest is None else (oldest, newest)

    def require(self, epoch: int, path: str) -> None:
        """Raise ``EpochNotRetainedError``, naming the path of the logs, for any other epoch."""
        if epoch not in self:
            raise EpochNotRetainedError(path, epoch, self.span)


def find_source(
    incarnation: int,
    after: int,
    by: int | None,
    origins: Mapping[int, Origin],
    epochs_of: Callable[[int, Kind], Collection[int]],
) -> tuple[int | None, list[int]]:
    """Find whose logs a new incarnation resumes from after an epoch, and which offsets to copy.

    ``origins`` are those of the incarnations whose folder was completed. ``by`` is the one that
    committed the epoch, if known: another one may have fixed other offsets for it, and lost.
    If no logs suffice: None, and the epochs that they do cover.
    """
    earlier = [number for number in origins if number < incarnation]
    at = by if by in earlier else max(earlier, default=None)
    covered: set[int] = set()
    limit = math.inf
    while at is not None and (origin := origins.get(at)) is not None:
        # Commits first: Spark writes an epoch's commit before the next one's offsets.
        commits, epochs = epochs_of(at, "commits"), epochs_of(at, "offsets")
        # Offsets that Spark has fixed for the next epoch are copied: it runs with the same rows.
        copied = sorted(epoch for epoch in epochs if epoch <= after + (after in commits))
        if after in epochs and _has_start(copied):
            return at, copied
        covered.update(epoch for epoch in epochs if epoch <= limit)
        # What this one fixed itself and has purged since is nowhere else. An older one may have an
        # epoch of that number, too, fixed by a driver that woke up and was fenced.
        if origin.after < after <= max(epochs, default=-1):
            break
        at, limit = origin.source, origin.after
    return None, sorted(covered)


def _has_start(epochs: Sequence[int]) -> bool:
    """Whether Spark finds where the last epoch begins: it reads that from the one before it."""
    return epochs[-1] == 0 or epochs[-1] - 1 in epochs


def surely_retained(manifests: Iterable[Manifest]) -> int:
    """The oldest epoch that Spark has certainly not purged, where its logs cannot be read.

    Pass also manifests that were withdrawn: Spark had run these epochs, and purged older ones.
    """
    known = list(manifests)
    newest = max(manifest.epoch for manifest in known)
    # Spark may be ahead of the chain by as many epochs as there are between two manifests.
    ahead = max(manifest.epoch - manifest.parent for manifest in known)
    return max(newest + ahead - MIN_RETAINED, 0)
