"""The folders of a file sink: how staged epochs are published, discarded and withdrawn.

::

    <path>/epoch=000000000007/part-…            visible to readers, complete epochs only
    <path>/_millstream/staged/epoch=…-<attempt> written, not visible; Spark ignores ``_`` folders
    <path>/_millstream/withdrawn/epoch=…        being deleted, because a run rewound before it

A published epoch is not changed until it is withdrawn: a late task may write below ``staged``
again, which has no effect. Epochs become visible atomically if the file system renames folders
atomically (local disks, HDFS, ABFS; plain S3 does not). The sink writes the files; the engine
decides when to publish, discard and withdraw.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from millstream.coordinator.sink_layout import OURS, epoch_folder, epoch_of, epochs_in
from millstream.errors import ConfigError, MillstreamError

STAGED = f"{OURS}/staged"
WITHDRAWN = f"{OURS}/withdrawn"


class Tree(Protocol):
    """A folder of a file system; names are relative to it."""

    def exists(self, name: str) -> bool:
        """Whether a file or folder of that name exists."""

    def names(self, name: str) -> list[str]:
        """List a folder; empty if it does not exist."""

    def rename(self, source: str, target: str) -> bool:
        """Rename atomically; return false if the source does not exist.

        If the target exists, the source is moved *into* it, as in Hadoop.
        """

    def delete(self, name: str) -> None:
        """Delete a folder recursively; not atomic."""


class OutputLostError(MillstreamError):
    """An epoch is committed, but its output is neither staged nor published."""

    def __init__(self, path: str, epoch: int, attempt: str) -> None:
        super().__init__(path, epoch, attempt)
        self.path, self.epoch, self.attempt = path, epoch, attempt

    def __str__(self) -> str:
        return (
            f"{self.path} has no staged output of epoch {self.epoch}, attempt {self.attempt}, "
            "and the epoch was not published; if files were removed by hand, restore an earlier "
            "epoch and run again"
        )


class SinkFolders:
    """The epochs of one file sink, staged and published."""

    def __init__(self, tree: Tree, path: str) -> None:
        """``path`` names the sink in error messages."""
        self._tree = tree
        self._path = path

    def publish(self, epoch: int, attempt: str) -> None:
        """Make the epoch visible; idempotent."""
        staged, final = staged_folder(epoch, attempt), epoch_folder(epoch)
        # Hadoop's rename moves *into* a folder that exists, hence the check.
        if self._tree.exists(final):
            self._tree.delete(staged)  # at most what a late task has written since
        elif not self._tree.rename(staged, final) and not self._tree.exists(final):
            raise OutputLostError(self._path, epoch, attempt)

    def discard(self, epoch: int, attempt: str) -> None:
        """Delete the staged files of an attempt."""
        self._tree.delete(staged_folder(epoch, attempt))

    def visible(self, after: int) -> list[int]:
        """The visible epochs after one."""
        return sorted(epoch for epoch in epochs_in(self._tree.names("")) if epoch > after)

    def withdraw(
        self, epochs: Iterable[int], require_claim: Callable[[], None] = lambda: None
    ) -> None:
        """Delete visible epochs, the last one first, because the run rewinds before them.

        ``require_claim`` raises if another run has claimed the checkpoint since. It is called under
        the lock of withdrawals: then what is visible cannot be the successor's, which would have to
        withdraw what was there before it.
        """
        with self._exclusive():
            require_claim()
            for epoch in sorted(epochs, reverse=True):
                self._remove(epoch_folder(epoch), epoch_folder(epoch))

    def clean(self, needed: Container[tuple[int, str]] | None) -> None:
        """Delete staged epochs, except the ``needed`` ones, and what was being withdrawn.

        With None nothing staged is deleted.
        """
        for name in self._tree.names(WITHDRAWN):
            self._tree.delete(f"{WITHDRAWN}/{name}")
        if needed is None:
            return
        for name in self._tree.names(STAGED):
            final, _, attempt = name.partition("-")
            if (epoch_of(final), attempt) not in needed:
                # By a rename: a superseded driver that publishes it now must not publish a part.
                self._remove(f"{STAGED}/{name}", name)

    def check_new(self) -> None:
        """Reject a folder with epochs of another run: readers would see both."""
        if epochs_in(self._tree.names("")):
            raise ConfigError(
                f"{self._path} contains epochs of an earlier run; delete the folder, or give the "
                "sink a new one"
            )

    def _remove(self, name: str, aside: str) -> None:
        """Move a folder away, which is atomic, and then delete it."""
        self._tree.delete(f"{WITHDRAWN}/{aside}")
        self._tree.rename(name, f"{WITHDRAWN}/{aside}")
        self._tree.delete(f"{WITHDRAWN}/{aside}")

    def _exclusive(self) -> AbstractContextManager[None]:
        """Lock what is published against changes by other processes."""
        return nullcontext()


def staged_folder(epoch: int, attempt: str) -> str:
    """The folder in which a try of an epoch is staged."""
    return f"{STAGED}/{epoch_folder(epoch)}-{attempt}"
