"""``log://`` for the contract suite."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

from millstream.stores.disk import OsDisk
from millstream.stores.log.format import (
    HEAD_BYTES,
    HEADER_BYTES,
    decode_header,
    read_records,
)
from millstream.stores.log.once import file_name
from tests.contract.backends import Backend, Harm
from tests.contract.disks import SmallDisk, power_cut


class LogBackend(Backend):
    lacks: ClassVar = {"crash": "there is no server: only writers crash"}

    def start(self, folder: Path) -> None:
        self._folder = folder
        self._small = SmallDisk(folder / "small")
        self._numbers = itertools.count()

    def stop(self) -> None:
        self._small.unmount()

    def fresh(self, *, small: bool) -> None:
        if small:
            self._small.mount()
        parent = self._small.folder if small else self._folder
        self._place = parent / f"test{next(self._numbers)}"
        self._place.mkdir()
        self._root = self._place / "store"
        self.url = f"log://{self._root}"

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The folder is away, and so are the files in it that are open."""

        def stale(*_: object) -> bytes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        away = self._place / "away"
        self._root.rename(away)
        try:
            with patch.object(OsDisk, "read", stale), patch.object(OsDisk, "append", stale):
                yield
        finally:
            away.rename(self._root)

    def power_cut(self) -> AbstractContextManager[None]:
        return power_cut(self._place)

    def damage(self, key: str, harm: Harm) -> None:
        once = self._root / "once" / file_name(key)
        if once.exists():
            data = bytearray(once.read_bytes())
            if harm == "tear":
                del data[-3:]
            else:
                data[len(data) // 2] ^= 16
            once.write_bytes(data)
            return
        [(file, start, end)] = self._records(key)
        data = bytearray(file.read_bytes())
        if harm == "tear":
            # In the middle of a log nothing can be missing: a page of it was never written.
            half = (start + end) // 2
            data[half:end] = bytes(end - half)
        else:
            data[(start + end) // 2] ^= 16
        file.write_bytes(data)

    def _records(self, key: str) -> Iterator[tuple[Path, int, int]]:
        """Where the records of a key lie."""
        for file in (self._root / "segments").iterdir():
            data = file.read_bytes()
            header = decode_header(data)
            assert header is not None
            for record in read_records(data[HEADER_BYTES:], HEADER_BYTES, header.seed)[0]:
                if record.key == key.encode():
                    size = 2 * HEAD_BYTES + len(record.key) + record.length
                    yield file, record.offset, record.offset + size

    def fill_up(self) -> AbstractContextManager[None]:
        return self._small.full()


BACKEND = LogBackend
