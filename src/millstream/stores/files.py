"""``files:///folder``: one file per key. The plain baseline to measure ``log://`` against.

The folder must be on a file system with hard links and case-sensitive names, and be the same for
all processes of the store. The values (``file_format``) are spread over the folders ``00`` to
``3f`` by the hash of their keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import google_crc32c

from millstream.errors import ConfigError
from millstream.stores.disk import FileGoneError
from millstream.stores.durable_folder import DurableFolder
from millstream.stores.file_format import (
    HEAD_BYTES,
    SUFFIXES,
    damage_in,
    key_of,
    name_of,
    record,
    value_in,
)
from millstream.stores.options import patience_of, split_options
from millstream.stores.store import Damage, check_key

_FORMAT = "millstream files 1"
_FOLDERS = tuple(f"{number:02x}" for number in range(64))


def open_store(url: str, writer: str) -> FileStore:
    """Open ``files:///absolute/folder?patience=30``; creates the folder if it does not exist."""
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
        self._files = DurableFolder(str(root), _FOLDERS, _FORMAT, writer, patience)
        if (root / "FORMAT").exists():
            raise ConfigError(
                f"{root} is on a file system that does not distinguish 'a' from 'A', as the keys "
                "of files:// need; use log://"
            )
        self._files.remove_parts()

    def put(self, items: Mapping[str, bytes]) -> None:
        places = {key: _place(key) for key in items}
        for key, (folder, name) in places.items():
            self._files.write(folder, name, [record(key, items[key])], sync=False)
        for folder in {folder for folder, _ in places.values()}:
            self._files.sync(folder)

    def put_if_absent(self, key: str, value: bytes) -> bool:
        return self._files.write_once(*_place(key), record(key, value))

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        found = {}
        for key in keys:
            folder, name = _place(key)
            with suppress(FileGoneError):
                data = self._files.read_file(folder, name)
                found[key] = value_in(key, data, self._files.path(folder, name))
        return found

    def scan(self, prefix: str = "") -> list[str]:
        keys = (key for folder in _FOLDERS for _, key in self._values(folder))
        return sorted((key for key in keys if key and key.startswith(prefix)), key=str.encode)

    def delete(self, keys: Iterable[str]) -> None:
        names: dict[str, list[str]] = defaultdict(list)
        for folder, name in map(_place, keys):
            names[folder].append(name)
        for folder, some in names.items():
            self._files.remove(folder, some)

    def verify(self) -> Iterator[Damage]:
        for folder in _FOLDERS:
            if not self._files.has_folder(folder):
                place = str(self._root / folder)
                yield Damage(None, place, 0, "the folder is missing, with all values in it")
                continue
            for name, key in self._values(folder):
                with suppress(FileGoneError):
                    data = self._files.read_file(folder, name)
                    damage = damage_in(key, data, self._files.path(folder, name))
                    if damage is not None:
                        yield damage

    def close(self) -> None:
        """Nothing is open between calls."""

    def __repr__(self) -> str:
        return f"FileStore({str(self._root)!r})"

    def _values(self, folder: str) -> Iterator[tuple[str, str | None]]:
        """The files of values in a folder, with their keys as far as these are known."""
        for name in self._files.list(folder):
            if name.endswith(SUFFIXES):
                with suppress(FileGoneError):  # deleted meanwhile
                    yield name, self._key_of(folder, name)

    def _key_of(self, folder: str, name: str) -> str | None:
        return key_of(name, lambda: self._files.read(folder, name, 0, HEAD_BYTES))


def _place(key: str) -> tuple[str, str]:
    """The folder and the name of a key's file."""
    number = int(google_crc32c.value(check_key(key).encode())) % len(_FOLDERS)
    return _FOLDERS[number], name_of(key)
