"""The files of a folder that Spark's stream has not read yet; Spark does not report them.

Spark logs the files of each epoch of a source before it runs. What a listing has beyond these is
the backlog. Only plain local folders are listed; a listing may take a hundredth of the time.
"""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Callable, Iterator
from urllib.parse import unquote, urlsplit

_LEAST = 2.0
_SHARE = 100  # between two listings passes as many times what the last one took
_COMPACT = ".compact"
_LOCAL = "FileStreamSource[file:"


class FileBacklog:
    """Counts the files that wait at one source."""

    def __init__(self, log: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``log`` is the folder of Spark's log of the source."""
        self._log = log
        self._clock = clock
        self._read: set[str] = set()
        self._through = -1
        self._due = float("-inf")
        self._counted: int | None = None

    def count(self, description: str, through: int) -> int | None:
        """Count what is not in the log up to an entry; None if that is not known.

        ``description`` is Spark's, with the path that it reads.
        """
        if not description.startswith(_LOCAL) or "{" in description:
            return None  # another file system, or alternatives, which only Hadoop's globs have
        now = self._clock()
        if now < self._due:
            return self._counted
        try:
            self._read_log(through)
            path = description[len(_LOCAL) : -1]
            self._counted = sum(1 for file in _files(path) if file not in self._read)
        except (OSError, ValueError):  # the run does not depend on it
            self._counted = None
        self._due = self._clock() + max(_LEAST, _SHARE * (self._clock() - now))
        return self._counted

    def _read_log(self, through: int) -> None:
        """Add the files of the entries since the last call; a compact one has all before it."""
        names = set(os.listdir(self._log))
        compact = [
            number
            for name in names
            if name.endswith(_COMPACT)
            and self._through < (number := int(name[: -len(_COMPACT)])) <= through
        ]
        if compact:
            self._through = max(compact)
            self._read = set(self._entries(f"{self._through}{_COMPACT}"))
        for number in range(self._through + 1, through + 1):
            self._read.update(self._entries(str(number)))
            self._through = number

    def _entries(self, name: str) -> Iterator[str]:
        with open(os.path.join(self._log, name), encoding="utf-8") as lines:
            next(lines)  # the version
            for line in lines:
                yield unquote(urlsplit(json.loads(line)["path"]).path)


def _files(path: str) -> Iterator[str]:
    """The files that Spark reads: all below a path, or below what a glob matches."""
    for root in glob.glob(path):
        if os.path.isfile(root):
            yield root
        for folder, folders, names in os.walk(root):
            folders[:] = filter(_is_read, folders)
            yield from (os.path.join(folder, name) for name in names if _is_read(name))


def _is_read(name: str) -> bool:
    """Whether Spark reads a file or folder of that name."""
    return not name.startswith((".", "_")) and not name.endswith("._COPYING_")
