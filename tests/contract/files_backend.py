"""``files://`` for the contract suite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import ClassVar

from millstream.stores.file_format import name_of
from tests.contract.backends import Backend, Harm
from tests.contract.disks import SmallDisk, power_cut


class FilesBackend(Backend):
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
        self.url = f"files://{self._root}"

    @contextmanager
    def outage(self) -> Iterator[None]:
        away = self._place / "away"
        self._root.rename(away)
        try:
            yield
        finally:
            away.rename(self._root)

    def power_cut(self) -> AbstractContextManager[None]:
        return power_cut(self._place)

    def damage(self, key: str, harm: Harm) -> None:
        [file] = self._root.rglob(name_of(key).replace("[", "[[]"))
        data = bytearray(file.read_bytes())
        if harm == "tear":
            del data[-3:]
        else:
            data[len(data) // 2] ^= 16
        file.write_bytes(data)

    def fill_up(self) -> AbstractContextManager[None]:
        return self._small.full()


BACKEND = FilesBackend
