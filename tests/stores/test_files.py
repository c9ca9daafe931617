from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from millstream.errors import ConfigError
from millstream.stores.file_format import name_of, record
from millstream.stores.files import FileStore, open_store
from millstream.stores.store import CorruptRecordError, StoreError, StoreUnavailableError
from tests.contract.disks import power_cut

LONG = "é" * 200


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "store"


@pytest.fixture
def store(root: Path) -> FileStore:
    return FileStore(root, "w", patience=0.1)


def file_of(root: Path, key: str) -> Path:
    [file] = root.rglob(name_of(key))
    return file


def test_every_value_is_a_file_named_for_its_key(store: FileStore, root: Path) -> None:
    store.put({f"job/{n}": b"" for n in range(200)})
    files = list(root.glob("??/*"))
    assert sorted(file.name for file in files) == sorted(f"job%2F{n}.value" for n in range(200))
    assert len({file.parent for file in files}) > 50
    assert not list(root.rglob(".part-*"))


def test_what_crashed_writers_left_is_ignored_and_removed_when_it_is_old(
    store: FileStore, root: Path
) -> None:
    store.put({"key": b"value"})
    young, old = root / "00" / ".part-dead-1", root / "00" / ".part-dead-2"
    for part in (young, old):
        part.write_bytes(record("torn", b"value")[:-1])
    os.utime(old, (0, 0))

    again = FileStore(root, "w2", patience=0.1)
    assert again.scan() == ["key"]
    assert not list(again.verify())
    assert young.exists() and not old.exists()


def test_a_file_that_is_torn_to_nothing_is_damage(store: FileStore, root: Path) -> None:
    store.put({"key": b"value"})
    file = file_of(root, "key")
    for length in range(file.stat().st_size - 1, -1, -1):
        os.truncate(file, length)
        [damage] = store.verify()
        assert (damage.key, damage.place) == ("key", str(file))
        assert "torn" in damage.why
        with pytest.raises(CorruptRecordError):
            store.get(["key"])


def test_any_flipped_bit_is_damage(store: FileStore, root: Path) -> None:
    for key in ("key", LONG):
        store.put({key: b"value"})
        file = file_of(root, key)
        data = file.read_bytes()
        for place in range(len(data)):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            [damage] = store.verify()
            assert damage.place == str(file) and damage.offset <= place
            with pytest.raises(CorruptRecordError):
                store.get([key])
        store.delete([key])


def test_an_unreadable_long_key_is_reported_by_its_file(store: FileStore, root: Path) -> None:
    store.put({LONG: b"value", "short": b"value"})
    file = file_of(root, LONG)
    data = file.read_bytes()
    file.write_bytes(data[:50] + b"?" + data[51:])

    assert store.scan() == ["short"]
    [damage] = store.verify()
    assert (damage.key, damage.place, damage.offset) == (None, str(file), 0)


def test_a_value_that_turns_up_under_another_key_is_damage(store: FileStore, root: Path) -> None:
    store.put({"one": b"1", "two": b"2"})
    shutil.copy(file_of(root, "one"), file_of(root, "two"))
    with pytest.raises(CorruptRecordError, match="not the one that the file is named for"):
        store.get(["two"])
    assert store.get(["one"]) == {"one": b"1"}


def test_foreign_files_are_ignored(store: FileStore, root: Path) -> None:
    store.put({"key": b"value"})
    (root / "00" / "notes.txt").write_text("hello")
    assert not list(store.verify())
    for name in ("%ff.value", "not%quoted.value", "short.long"):
        (root / "00" / name).write_bytes(b"?")
    assert store.scan() == ["key"]
    assert [damage.key for damage in store.verify()] == [None] * 3


def test_an_unmounted_folder_is_not_an_empty_store(store: FileStore, root: Path) -> None:
    store.put({"key": b"value"})
    root.rename(root.with_name("elsewhere"))
    root.mkdir()
    with pytest.raises(StoreUnavailableError):
        store.get(["key"])
    with pytest.raises(StoreUnavailableError):
        store.scan()
    with pytest.raises(StoreUnavailableError):
        store.delete(["key"])
    with pytest.raises(StoreUnavailableError):
        list(store.verify())
    with pytest.raises(StoreUnavailableError):
        store.put({"other": b"value"})
    assert not list(root.iterdir())


def test_a_missing_folder_is_reported(store: FileStore, root: Path) -> None:
    store.put({"key": b"value"})
    folder = file_of(root, "key").parent
    shutil.rmtree(folder)
    [damage] = store.verify()
    assert (damage.key, damage.place) == (None, str(folder))
    with pytest.raises(StoreUnavailableError):
        store.get(["key"])


def test_a_link_whose_answer_got_lost_still_wins(store: FileStore) -> None:
    link = os.link

    def lost(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    with patch("os.link", lost):
        assert store.put_if_absent("key", b"mine")
        assert not store.put_if_absent("key", b"late")
    assert store.get(["key"]) == {"key": b"mine"}


def test_a_loser_has_synced_what_it_lost_to(store: FileStore, root: Path) -> None:
    with power_cut(root.parent):
        fsync = os.fsync
        with patch("os.fsync", lambda file: None if _is_folder(file) else fsync(file)):
            assert store.put_if_absent("key", b"winner")
        assert not store.put_if_absent("key", b"loser")
    assert FileStore(root, "w2", patience=0.1).get(["key"]) == {"key": b"winner"}


def _is_folder(file: int) -> bool:
    return Path(f"/proc/self/fd/{file}").is_dir()


def test_a_write_that_fails_leaves_no_part_and_the_old_value(store: FileStore, root: Path) -> None:
    store.put({"key": b"old"})
    with patch("os.fdatasync", side_effect=PermissionError), pytest.raises(StoreError):
        store.put({"key": b"new"})
    with patch("os.rename", side_effect=PermissionError), pytest.raises(StoreError):
        store.put({"key": b"new"})
    assert store.get(["key"]) == {"key": b"old"}
    assert not list(root.rglob(".part-*"))


@pytest.mark.parametrize("url", ["files://host/folder", "files://", "files:///a#b"])
def test_a_store_needs_an_absolute_folder(url: str) -> None:
    with pytest.raises(ConfigError, match="absolute"):
        open_store(url, "w")


def test_a_folder_may_have_special_characters(tmp_path: Path) -> None:
    open_store(f"files://{tmp_path}/a%20b%3Fc", "w").put({"key": b""})
    assert (tmp_path / "a b?c").is_dir()


def test_a_store_of_another_version_is_rejected(store: FileStore, root: Path) -> None:
    (root / "format").write_text("millstream files 2\n")
    with pytest.raises(ConfigError, match="millstream files 2"):
        FileStore(root, "w2", patience=0.1)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        FileStore(tmp_path / "file", "w", patience=0.1)


def test_unsuitable_file_systems_are_rejected(tmp_path: Path) -> None:
    with patch("os.link", side_effect=PermissionError(1, "Operation not permitted")):
        with pytest.raises(ConfigError, match="hard links"):
            FileStore(tmp_path / "fat", "w", patience=0.1)

    FileStore(tmp_path / "mac", "w", patience=0.1)
    (tmp_path / "mac" / "FORMAT").write_text("what a lookup would find")
    with pytest.raises(ConfigError, match="'a' from 'A'"):
        FileStore(tmp_path / "mac", "w2", patience=0.1)


def test_a_read_during_a_replacement_returns_a_whole_value(root: Path) -> None:
    store = FileStore(root, "w", patience=1.0)
    values = [b"x", b"y" * 5_000]
    store.put({"key": values[0]})
    done = threading.Event()

    def replace() -> None:
        for at in range(300):
            store.put({"key": values[at % 2]})
        done.set()

    thread = threading.Thread(target=replace)
    thread.start()
    while not done.is_set():
        assert store.get(["key"])["key"] in values
    thread.join()
