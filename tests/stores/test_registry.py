from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.stores.files import FileStore
from millstream.stores.registry import open_store


def test_a_store_is_opened_by_its_url(tmp_path: Path) -> None:
    store = open_store(f"files://{tmp_path}/store", "w")
    assert isinstance(store, FileStore)
    store.close()


@pytest.mark.parametrize(
    ("url", "shown"), [("/a/folder", "'/a/folder'"), ("rediss://me:hush@host", "'rediss://…'")]
)
def test_what_is_no_store_is_refused_without_its_password(url: str, shown: str) -> None:
    with pytest.raises(ConfigError, match="files://, log://") as raised:
        open_store(url, "w")
    assert str(raised.value).startswith(f"{shown} is no store")


@pytest.mark.parametrize("writer", ["", "a/b", "a b", "w" * 65, "ä"])
def test_bad_names_of_writers_are_refused(writer: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a writer's name"):
        open_store(f"files://{tmp_path}/store", writer)
