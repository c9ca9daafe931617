"""RocksDB in a folder, as the contract suite sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
from rocksdict import (
    BottommostLevelCompaction,
    CompactOptions,
    DBCompressionType,
)

from millstream.stores.log.format import HEAD_BYTES
from millstream.stores.rocksdb.home import VALUES, open_database, options
from tests.contract.backends import Backend, Harm

_SMALL = "4m"
_DISK = 128 << 20


class RocksBackend(Backend):
    lacks: ClassVar[Mapping[str, str]] = {
        "outage": "it is a folder of this machine: there is no server to be away",
        "crash": "it is a folder of this machine: there is no server to crash",
    }

    def start(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        self._mounts: list[Path] = []

    def stop(self) -> None:
        for mount in reversed(self._mounts):
            subprocess.run(["umount", "--lazy", mount], check=True)

    def fresh(self, *, small: bool) -> None:
        self._use(self._path())
        if small:
            self._mount(self._store, "-t", "tmpfs", "-o", f"size={_SMALL}", "tmpfs")

    def _path(self) -> Path:
        path = self._folder / f"store-{next(self._numbers)}"
        path.mkdir()
        return path

    def _use(self, path: Path) -> None:
        self._store = path
        self.url = f"rocksdb://{path}?buffer=64KB"

    def _mount(self, place: Path, *what: str) -> None:
        done = subprocess.run(["mount", *what, place], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"only root may mount: {done.stderr.strip()}")
        self._mounts.append(place)

    @contextmanager
    def power_cut(self) -> Iterator[None]:
        """On a disk of its own, which is copied as it is: what is not synced is not on it."""
        disk, at, after = self._folder / f"disk-{next(self._numbers)}", self._path(), self._path()
        with open(disk, "wb") as file:
            file.truncate(_DISK)
        subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
        self._mount(at, "-o", "loop,commit=600", str(disk))
        shutil.copytree(self._store, at, dirs_exist_ok=True)
        os.sync()
        self._use(at)
        yield
        copy = disk.with_suffix(".after")
        shutil.copyfile(disk, copy)
        self._mount(after, "-o", "loop", str(copy))
        self._use(after)

    def damage(self, key: str, harm: Harm) -> None:
        for once in (self._store / "once").iterdir():
            if key.encode() in once.read_bytes():
                # The end of the value, before the record's foot.
                _harm(once, once.stat().st_size - HEAD_BYTES, harm)
                return
        for database in (self._store / "writers").glob("*/db"):
            data = _in_plain_tables(database, key)
            for table in database.glob("*.sst"):
                at = table.read_bytes().find(data) if data else -1
                if at >= 0:
                    _harm(table, at + len(data), harm)
                    return
        raise AssertionError(f"there is no record of {key!r}")

    @contextmanager
    def fill_up(self) -> Iterator[None]:
        ballast = self._store / "ballast"
        with open(ballast, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        yield
        ballast.unlink()


def _in_plain_tables(database: Path, key: str) -> bytes:
    """Bring a database into tables without compression; the record of a key in them."""
    chosen = options(1 << 20, 1 << 20)
    chosen.set_compression_type(DBCompressionType.none())
    rewrite = CompactOptions()
    rewrite.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    db = open_database(database, chosen)
    db.flush()
    db.compact_range(None, None, rewrite)
    data: bytes | None = db.get(VALUES + key.encode())
    db.close()
    return data or b""


def _harm(path: Path, end: int, harm: Harm) -> None:
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[end - 1] ^= 1
    elif end == len(data):
        del data[-3:]
    else:
        data[end - 3 : end] = bytes(3)  # what never reached the disk, in the midst of a file
    path.write_bytes(data)


BACKEND = RocksBackend
