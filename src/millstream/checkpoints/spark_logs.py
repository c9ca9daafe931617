"""What Spark's notes say, and which epochs they still reach; read without Spark.

Spark deletes its notes by a count of its own, and the chain is tidied up by another. So an epoch
may be in the chain whose offsets are gone, and a claim after it could not be gone on from.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Protocol

from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.spark_log_origin import Kind, Origin, find_log_origin

ORIGIN = "origin.json"


def folder_of(incarnation: int) -> str:
    """The name of the folder with an incarnation's notes."""
    return f"{incarnation:06d}"


class Notes(Protocol):
    """The folder of Spark's notes, with one folder in it for each incarnation."""

    def names(self, name: str) -> list[str]:
        """What is in a folder; nothing if there is no such folder."""

    def read(self, name: str) -> str | None:
        """The text of a file, or None if there is none."""


class LocalLogFolder:
    """Notes on a file system that is mounted here."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, name: str) -> list[str]:
        try:
            return [found.name for found in (self._root / name).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> str | None:
        try:
            return (self._root / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None


class Incarnations:
    """What the notes of each incarnation say; asked anew every time."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def numbers(self) -> list[int]:
        """The incarnations that have a folder, oldest first."""
        return sorted(int(name) for name in self._notes.names("") if name.isdigit())

    def finished(self) -> dict[int, Origin]:
        """Where those began whose folder was finished, oldest first."""
        origins = {number: self._origin(number) for number in self.numbers()}
        return {number: origin for number, origin in origins.items() if origin is not None}

    def _origin(self, incarnation: int) -> Origin | None:
        text = self._notes.read(f"{folder_of(incarnation)}/{ORIGIN}")
        try:
            return Origin(**json.loads(text)) if text else None
        except ValueError:
            return None

    def entries(self, incarnation: int, kind: Kind) -> set[int]:
        """The epochs of which an incarnation has notes of a kind."""
        names = self._notes.names(f"{folder_of(incarnation)}/{kind}")
        return {int(name) for name in names if name.isdigit()}


class LoggedEpochs:
    """The epochs of a lineage as Spark's notes know them."""

    def __init__(self, notes: Notes, lineage: Lineage) -> None:
        incarnations = Incarnations(notes)
        self._lineage = lineage
        self._finished = incarnations.finished()
        self._entries = cache(incarnations.entries)

    def reach(self, epoch: int) -> bool:
        """Whether the next incarnation can go on behind an epoch."""
        manifest = self._lineage.manifest(epoch)
        by = None if manifest is None else manifest.incarnation
        number = self._lineage.incarnation + 1
        source, _ = find_log_origin(number, epoch, by, self._finished, self._entries)
        return source is not None

    @property
    def span(self) -> tuple[int, int] | None:
        """The oldest and the newest epoch that can be gone on from, if there is any."""
        epochs = [manifest.epoch for manifest in self._lineage.manifests]
        oldest = next(filter(self.reach, epochs), None)
        newest = next(filter(self.reach, reversed(epochs)), None)
        return None if oldest is None or newest is None else (oldest, newest)
