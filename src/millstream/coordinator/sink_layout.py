"""The layout of a file sink's folder, shared by its writer and its compaction. No Spark, no JVM."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from millstream.errors import MillstreamError

OURS = "_millstream"
EPOCHS = "epochs"  # the lock under which what is published is replaced or removed
EPOCHS_PATIENCE = timedelta(seconds=30)  # how long to wait for that lock
_EPOCH = "epoch="
_POLL = 0.05


def epoch_folder(epoch: int) -> str:
    """The folder of an epoch. Padded, so that names sort; Spark still reads a whole number."""
    return f"{_EPOCH}{epoch:012d}"


def epoch_of(folder: str) -> int:
    """The epoch of a folder."""
    return int(folder.removeprefix(_EPOCH))


def epochs_in(names: Iterable[str]) -> list[int]:
    """The visible epochs, from the names in a sink's folder."""
    return sorted(epoch_of(name) for name in names if name.startswith(_EPOCH))


class SinkBusyError(MillstreamError):
    """Another process is changing what a sink has published."""

    def __init__(self, path: str, purpose: str) -> None:
        super().__init__(path, purpose)
        self.path, self.purpose = path, purpose

    def __str__(self) -> str:
        return (
            f"another process holds {self.path}/{OURS}/{self.purpose}.lock: it compacts the sink "
            "or withdraws epochs; retry when it has finished, or stop it"
        )


@contextmanager
def locked(sink: Path, purpose: str, *, wait: timedelta = timedelta()) -> Iterator[None]:
    """Hold a lock of a local sink, or raise ``SinkBusyError``."""
    handle = os.open(sink / OURS / f"{purpose}.lock", os.O_CREAT | os.O_RDWR, 0o666)
    deadline = time.monotonic() + wait.total_seconds()
    try:
        while not _lock(handle):
            if time.monotonic() >= deadline:
                raise SinkBusyError(str(sink), purpose)
            time.sleep(_POLL)
        yield
    finally:
        os.close(handle)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
