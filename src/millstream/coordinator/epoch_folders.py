"""The folders of a file sink: how an epoch that was staged is published, dropped and withdrawn.

::

    <path>/epoch=000000000007/part-…            what readers see, whole epochs only
    <path>/_millstream/staged/epoch=…-<attempt> written, not visible; Spark ignores ``_`` folders
    <path>/_millstream/withdrawn/epoch=…        on its way out, because a run goes back before it

What is published stays as it is until it is withdrawn: a task that is late may write below
``staged`` again, and is ignored. That an epoch is seen as a whole rests on the file system's folder
rename being atomic (local disks, HDFS, ABFS; plain S3 is not). What the files hold, and who writes
them, is the sink's business; when to call what is the engine's.
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
    """A folder with files and folders in it; names are relative to it."""

    def exists(self, name: str) -> bool:
        """Whether there is a file or folder of that name."""

    def names(self, name: str) -> list[str]:
        """What is in a folder; nothing if there is no such folder."""

    def rename(self, source: str, target: str) -> bool:
        """Rename at once; false if there is no such source.

        A target that exists is a folder to move *into*, as Hadoop has it.
        """

    def delete(self, name: str) -> None:
        """Delete a folder with all that is in it, one after the other."""


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


class EpochFolders:
    """The epochs of one file sink, staged and published."""

    def __init__(self, tree: Tree, path: str) -> None:
        """``path`` is the sink's name in messages."""
        self._tree = tree
        self._path = path

    def publish(self, epoch: int, attempt: str) -> None:
        """Make the epoch visible; if it is visible already, do nothing."""
        staged, final = staged_folder(epoch, attempt), epoch_folder(epoch)
        # Hadoop's rename moves *into* a folder that exists, hence the look before.
        if self._tree.exists(final):
            self._tree.delete(staged)  # at most what a late task has written since
        elif not self._tree.rename(staged, final) and not self._tree.exists(final):
            raise OutputLostError(self._path, epoch, attempt)

    def discard(self, epoch: int, attempt: str) -> None:
        """Drop what was staged."""
        self._tree.delete(staged_folder(epoch, attempt))

    def shown(self, after: int) -> list[int]:
        """The epochs after one that readers see."""
        return sorted(epoch for epoch in epochs_in(self._tree.names("")) if epoch > after)

    def withdraw(
        self, epochs: Iterable[int], require_claim: Callable[[], None] = lambda: None
    ) -> None:
        """Remove epochs, the last one first, because the run goes back before them.

        ``require_claim`` raises if another run has taken over since. It is asked when nobody else
        can withdraw anything: then what is in sight here cannot be a successor's, who would have
        to withdraw what was there before it.
        """
        with self._exclusive():
            require_claim()
            for epoch in sorted(epochs, reverse=True):
                self._remove(epoch_folder(epoch), epoch_folder(epoch))

    def clean(self, keep: Container[tuple[int, str]] | None) -> None:
        """Drop what was staged, except what is to be kept, and what was being withdrawn.

        Without ``keep`` nothing staged is dropped.
        """
        for name in self._tree.names(WITHDRAWN):
            self._tree.delete(f"{WITHDRAWN}/{name}")
        if keep is None:
            return
        for name in self._tree.names(STAGED):
            final, _, attempt = name.partition("-")
            if (epoch_of(final), attempt) not in keep:
                # Else a driver that was replaced while it published might show the rest of it.
                self._remove(f"{STAGED}/{name}", name)

    def check_new(self) -> None:
        """Refuse a folder with epochs of another run: readers would see both."""
        if epochs_in(self._tree.names("")):
            raise ConfigError(
                f"{self._path} holds epochs of an earlier run; remove the folder, or give "
                "the sink a new one"
            )

    def _remove(self, name: str, aside: str) -> None:
        """Take a folder away at once, unlike a deletion, and then delete it."""
        self._tree.delete(f"{WITHDRAWN}/{aside}")
        self._tree.rename(name, f"{WITHDRAWN}/{aside}")
        self._tree.delete(f"{WITHDRAWN}/{aside}")

    def _exclusive(self) -> AbstractContextManager[None]:
        """Keep others from changing what is published meanwhile."""
        return nullcontext()


def staged_folder(epoch: int, attempt: str) -> str:
    """Where a try of an epoch is staged."""
    return f"{STAGED}/{epoch_folder(epoch)}-{attempt}"
