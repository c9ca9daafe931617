"""``files:///folder``: one file per key. The plain baseline to measure ``log://`` against.

The folder must be on a file system with hard links and case-sensitive names, and be the same for
all who use the store. It holds:

* ``format``, written last when a store is made. Without it the store is away: a folder whose disk
  is not mounted is empty, and must not be taken for a store without keys;
* ``00`` to ``3f``, over which the values (``file_format``) are spread by the hash of their keys;
* ``parts``, files that are being written. They are synced, then renamed (or linked, which decides
  races) to where they belong. What crashed writers left there is removed after a day.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import google_crc32c

from millstream.errors import ConfigError
from millstream.stores.file_format import SUFFIXES, damage_in, key_of, name_of, record, value_in
from millstream.stores.options import patience_of, split_options
from millstream.stores.retries import UnavailableError, wait_for
from millstream.stores.store import Damage, StoreError, StoreFullError, Usage, check_key

T = TypeVar("T")

_FORMAT = b"millstream files 1\n"
_FOLDERS = 64
_OLD = 24 * 3600.0
_FULL = {errno.ENOSPC, errno.EDQUOT}
_AWAY = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ENODEV,
    errno.ENXIO,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}


def open_store(url: str, writer: str) -> FileStore:
    """Open ``files:///absolute/folder?patience=30``; makes the folder if there is none."""
    bare, options = split_options(url, {"patience"})
    parts = urlsplit(bare)
    folder = unquote(parts.path)
    if parts.netloc or not folder.startswith("/") or parts.fragment:
        raise ConfigError(f"files:// takes an absolute folder, as in files:///folder; got {bare!r}")
    return FileStore(Path(folder), writer, patience=patience_of(options))


class FileStore:
    """One file per key."""

    def __init__(self, root: Path, writer: str, *, patience: float) -> None:
        self._root = root
        self._patience = patience
        self._marker = root / "format"
        self._parts = root / "parts"
        self._folders = [root / f"{number:02x}" for number in range(_FOLDERS)]
        # One writer may be open twice in a process: the name alone would not tell them apart.
        self._part = f"{writer}-{uuid.uuid4().hex}"
        self._numbers = itertools.count()
        self._patiently(self._make)
        self._patiently(self._remove_old_parts)

    def put(self, items: Mapping[str, bytes]) -> None:
        files = {self._file(key): key for key in items}
        for file, key in files.items():
            self._patiently(partial(self._replace, file, record(key, items[key])))
        self._patiently(lambda: _sync({file.parent for file in files}))

    def put_if_absent(self, key: str, value: bytes) -> bool:
        file = self._file(key)
        part = self._patiently(lambda: self._write(record(key, value)))

        def link() -> bool:
            with suppress(FileExistsError):
                os.link(part, file)
            # Not by what link() said: over a network its answer may be lost, and it be sent again.
            won = os.path.samefile(part, file)
            # Also for the loser, who may act on what the winner has not synced yet.
            _sync([file.parent])
            return won

        try:
            return self._patiently(link)
        finally:
            _discard(part)

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        found = {}
        for key in keys:
            file = self._file(key)
            data = self._patiently(partial(_read, file))
            if data is not None:
                found[key] = value_in(key, data, str(file))
        return found

    def scan(self, prefix: str = "") -> list[str]:
        files = itertools.chain.from_iterable(map(self._values, self._folders))
        keys = (key for _, key in files if key is not None and key.startswith(prefix))
        return sorted(keys, key=str.encode)

    def delete(self, keys: Iterable[str]) -> None:
        files = [self._file(key) for key in keys]

        def remove() -> None:
            for file in files:
                file.unlink(missing_ok=True)
            _sync({file.parent for file in files})

        self._patiently(remove)

    def verify(self) -> Iterator[Damage]:
        self._patiently(self._marker.stat)
        for folder in self._folders:
            if not folder.is_dir():
                yield Damage(None, str(folder), 0, "the folder is missing, with all values in it")
                continue
            for file, key in self._values(folder):
                data = self._patiently(partial(_read, file))
                damage = None if data is None else damage_in(key, data, str(file))
                if damage is not None:
                    yield damage

    def usage(self) -> Usage:
        sizes = []
        for folder in self._folders:
            for file, _ in self._values(folder):
                with suppress(FileNotFoundError):
                    sizes.append(file.stat().st_size)
        return Usage(bytes=sum(sizes), files=len(sizes))

    def close(self) -> None:
        """Nothing is held between calls."""

    def __repr__(self) -> str:
        return f"FileStore({str(self._root)!r})"

    def _file(self, key: str) -> Path:
        number = int(google_crc32c.value(check_key(key).encode())) % _FOLDERS
        return self._folders[number] / name_of(key)

    def _values(self, folder: Path) -> list[tuple[Path, str | None]]:
        """The files of values in a folder, with their keys as far as these can be told."""

        def look() -> list[tuple[Path, str | None]]:
            found = []
            for name in os.listdir(folder):
                if name.endswith(SUFFIXES):
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found.append((folder / name, key_of(folder / name)))
            return found

        return self._patiently(look)

    def _make(self) -> None:
        """Make the store unless it is there; two may do so at once."""
        if not self._marker.exists():
            above = (self._root, *self._root.parents)
            made = list(itertools.takewhile(lambda folder: not folder.exists(), above))
            self._root.mkdir(parents=True, exist_ok=True)
            for folder in (self._parts, *self._folders):
                folder.mkdir(exist_ok=True)
            # The marker comes last, and stands for all the others. If it is lost with the power, it
            # is made again.
            _sync({self._root, *made, *(folder.parent for folder in made)})
            part = self._write(_FORMAT)
            try:
                os.link(part, self._marker)
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise ConfigError(
                    f"{self._root} is on a file system without hard links, which files:// needs; "
                    "use log://"
                ) from error
            finally:
                _discard(part)
        if (self._root / "FORMAT").exists():
            raise ConfigError(
                f"{self._root} is on a file system that takes 'a' and 'A' for one name, where "
                "files:// cannot keep its keys apart; use log://"
            )
        if (found := self._marker.read_bytes()) != _FORMAT:
            raise ConfigError(
                f"{self._root} is no store for this version of files://: {self._marker} "
                f"begins with {found[:40]!r}"
            )

    def _remove_old_parts(self) -> None:
        before = time.time() - _OLD
        for name in os.listdir(self._parts):
            part = self._parts / name
            with suppress(FileNotFoundError):
                if part.stat().st_mtime < before:
                    part.unlink()

    def _replace(self, file: Path, content: bytes) -> None:
        part = self._write(content)
        try:
            os.rename(part, file)
        except BaseException:
            _discard(part)
            raise

    def _write(self, content: bytes) -> Path:
        """Write a file that is durable, but under no key yet."""
        part = self._parts / f"{self._part}-{next(self._numbers)}"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        except BaseException:
            _discard(part)
            raise
        finally:
            os.close(descriptor)
        return part

    def _patiently(self, act: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return act()
            except OSError as error:
                if error.errno in _FULL:
                    raise StoreFullError(
                        f"there is no space left in {self._root} ({error.strerror}); make some"
                    ) from error
                if error.errno in _AWAY:
                    raise UnavailableError(str(error)) from error
                raise StoreError(f"{self._root} cannot be used: {error}") from error

        return wait_for(f"the folder {self._root}", self._patience, attempt)


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        file.parent.stat()  # raises if it is the store that is not there
        return None


def _discard(part: Path) -> None:
    """Remove a part that nobody needs any more; one that stays is removed when it is old."""
    with suppress(OSError):
        part.unlink()


def _sync(folders: Iterable[Path]) -> None:
    """Make durable which files are in folders."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
