"""``log:///folder``: append-only segments with an index in memory. The default store.

The parts, from the bytes upwards: ``format`` (records); ``disk``, ``places``, ``folders`` and
``objects`` (files); ``segments``, ``table`` and ``index`` (where records are); ``flushed`` (the
index as a file); ``writer`` (group commit); ``reader`` (others' records, values); ``once``
(``put_if_absent``); ``compact`` (space); and ``store``, which puts them together.
``docs/log-format.md`` describes the files.
"""

from __future__ import annotations

from millstream.errors import ConfigError
from millstream.stores.log.folder_place import FolderPlace
from millstream.stores.log.options import parse_url
from millstream.stores.log.places import Place
from millstream.stores.log.store import LogStore

__all__ = ["LogStore", "open_store"]


def open_store(url: str, writer: str) -> LogStore:
    """Open ``log:///absolute/folder?segment=64MB&patience=30``, or ``log+s3://bucket/prefix``."""
    where, remote, options = parse_url(url)
    place: Place
    if remote:
        try:
            from millstream.stores.log.objects import ObjectPlace
        except ModuleNotFoundError as missing:
            if missing.name != "fsspec":
                raise
            raise ConfigError(
                f"{url.partition(':')[0]}:// needs fsspec: pip install 'millstream[objects]'"
            ) from None
        place = ObjectPlace(where, options.patience)
    else:
        place = FolderPlace(where, writer, options.patience)
    return LogStore(place, writer, options)
