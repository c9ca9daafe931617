"""What the contract does not say: several databases in a folder, damage in RocksDB's files."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rocksdict import DBRecoveryMode, Rdict

from millstream.errors import ConfigError
from millstream.stores import disk
from millstream.stores.durable_folder import DurableFolder
from millstream.stores.registry import open_store
from millstream.stores.retries import UnavailableError
from millstream.stores.rocksdb import RocksStore, home
from millstream.stores.rocksdb.errors import first_bad_record, translate
from millstream.stores.rocksdb.home import OpenHome, options
from millstream.stores.rocksdb.others import Other
from millstream.stores.stamps import Stamps
from millstream.stores.store import (
    CorruptRecordError,
    Damage,
    Store,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)


class Folder:
    """A folder with stores, all closed at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[Store] = []

    def store(self, writer: str, **given: str) -> RocksStore:
        query = "&".join(f"{name}={value}" for name, value in ({"patience": "5"} | given).items())
        store = open_store(f"rocksdb://{self.path}?{query}", writer)
        assert isinstance(store, RocksStore)
        self._open.append(store)
        return store

    def writers(self) -> list[str]:
        return sorted(os.listdir(self.path / "writers"))

    def removed(self) -> list[str]:
        return os.listdir(self.path / "removed")

    def files(self, writer: str, kind: str) -> list[Path]:
        return sorted((self.path / "writers" / writer / "db").glob(f"*.{kind}"))

    def parts(self) -> list[Path]:
        return list(self.path.rglob(".part-*"))

    def flush(self, writer: str) -> None:
        db = Rdict(str(self.path / "writers" / writer / "db"), options(1 << 20, 1 << 20))
        db.flush()
        db.close()

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "store")
    yield folder
    folder.close()


def flip(path: Path, content: bytes) -> int:
    """Flip a bit in the midst of some bytes of a file; where they begin."""
    data = bytearray(path.read_bytes())
    at = data.index(content)
    data[at + len(content) // 2] ^= 1
    path.write_bytes(data)
    return at


def test_the_newest_of_several_writers_counts(folder: Folder) -> None:
    one, two = folder.store("one"), folder.store("two")

    one.put({"k": b"1"})
    two.put({"k": b"2"})
    seen = folder.store("reader").get(["k"])
    one.put({"k": b"3"})

    assert seen == {"k": b"2"}
    assert folder.store("reader-2").get(["k"]) == {"k": b"3"}
    assert folder.store("reader-3").scan() == ["k"]


def test_a_writer_sees_what_was_written_under_its_name_before(folder: Folder) -> None:
    before = folder.store("one")
    before.put({"k": b"1"})
    before.close()

    again = folder.store("one")
    seen = again.get(["k"])
    again.put({"l": b"2"})

    assert seen == {"k": b"1"}
    assert again.get(["k", "l"]) == {"k": b"1", "l": b"2"}


def test_one_name_is_not_used_twice_at_once(folder: Folder) -> None:
    folder.store("one").put({"k": b"1"})

    with pytest.raises(StoreUnavailableError, match="writes to it as 'one'"):
        folder.store("one", patience="0").put({"k": b"2"})


def test_a_reader_leaves_no_files(folder: Folder) -> None:
    folder.store("one").put({"k": b"1"})

    reader = folder.store("reader")
    reader.get(["k"])
    reader.close()

    assert folder.writers() == ["one"]


def test_deleting_hides_at_once_what_a_living_writer_carries_out_later(folder: Folder) -> None:
    one, two = folder.store("one"), folder.store("two")
    one.put({"a": b"1", "b": b"2"})

    two.delete(["a"])
    deletions = folder.path / "writers" / "one" / "deletions"
    left = len(list(deletions.iterdir()))

    assert left == 1
    assert two.scan() == folder.store("reader").scan() == ["b"]
    assert two.get(["a"]) == {}

    one.put({"c": b"3"})

    assert not list(deletions.iterdir())
    assert one.get(["a", "b", "c"]) == {"b": b"2", "c": b"3"}
    assert two.scan() == ["b", "c"]


def test_what_was_written_after_a_deletion_stays(folder: Folder) -> None:
    one, two = folder.store("one"), folder.store("two")
    one.put({"a": b"1"})
    two.delete(["a"])

    one.put({"a": b"2"})  # carries out the deletion, too

    assert one.get(["a"]) == {"a": b"2"}
    assert folder.store("reader").get(["a"]) == {"a": b"2"}


def test_deleting_an_own_value_does_not_restore_an_older_one(folder: Folder) -> None:
    one, two = folder.store("one"), folder.store("two")
    one.put({"a": b"1"})
    two.put({"a": b"2"})

    two.delete(["a"])

    assert two.get(["a"]) == {}
    assert folder.store("reader").get(["a"]) == {}


def test_the_database_of_an_ended_writer_is_emptied_and_removed(folder: Folder) -> None:
    one, two = folder.store("one"), folder.store("two")
    one.put({"a": b"1", "b": b"2"})
    one.close()
    two.put({"c": b"3"})

    two.delete(["a"])
    after_one = folder.writers()
    two.delete(["b"])

    assert after_one == ["one", "two"]
    assert folder.writers() == ["two"]
    assert two.scan() == ["c"]


def test_a_killed_writer_has_lost_nothing(folder: Folder) -> None:
    script = (
        "import sys\n"
        "from millstream.stores.registry import open_store\n"
        "store = open_store(sys.argv[1], 'one')\n"
        "store.put({f'k{n}': b'v' * 1000 for n in range(100)})\n"
        "print('put', flush=True)\n"
        "sys.stdin.read()\n"
    )
    reader = folder.store("reader")
    with subprocess.Popen(
        [sys.executable, "-c", script, f"rocksdb://{folder.path}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "put\n"
        alive = reader.get(["k0"])
        process.send_signal(signal.SIGKILL)

    assert alive == {"k0": b"v" * 1000}
    assert len(reader.scan("k")) == 100
    reader.delete(reader.scan())
    assert folder.writers() == []


def test_damage_in_a_log_is_reported_with_file_and_offset(folder: Folder) -> None:
    one = folder.store("one")
    for n in range(3):
        one.put({f"k{n}": bytes([65 + n]) * 100})
    [log] = folder.files("one", "log")
    at = flip(log, b"B" * 100)

    reader = folder.store("reader")
    with pytest.raises(CorruptRecordError) as caught:
        reader.get(["k1"])
    damages = list(reader.verify())

    assert damages == [caught.value.damage] == list(one.verify())
    assert one.get(["k1"]) == {"k1": b"B" * 100}  # which it has in memory
    assert damages[0].place == str(log)
    assert 0 <= at - damages[0].offset < 100  # the record's header, and the key
    assert reader.get(["k0"]) == {"k0": b"A" * 100}
    assert reader.scan() == ["k0"]


def test_damage_in_a_table_is_reported_with_file_and_offset(folder: Folder) -> None:
    one = folder.store("one")
    values = {f"k{n}": os.urandom(5000) for n in range(3)}
    one.put(values)
    one.close()
    folder.flush("one")
    [table] = folder.files("one", "sst")
    flip(table, values["k1"])

    reader = folder.store("reader")
    with pytest.raises(CorruptRecordError) as caught:
        reader.get(["k0", "k1"])
    damages = list(reader.verify())

    assert caught.value.damage.key == "k1"
    assert [damage.place for damage in damages] == [str(table)]
    assert damages[0].offset > 0
    assert reader.get(["k0", "k2"]) == {"k0": values["k0"], "k2": values["k2"]}
    assert reader.scan() == ["k0", "k1", "k2"]


@pytest.mark.parametrize("kind", ["*.sst", "CURRENT", "MANIFEST-*"])
def test_a_database_that_lacks_a_file_is_damaged_and_not_empty(folder: Folder, kind: str) -> None:
    one = folder.store("one")
    one.put({"k": b"1"})
    one.close()
    folder.flush("one")
    [missing] = (folder.path / "writers" / "one" / "db").glob(kind)
    missing.unlink()
    folder.store("two").put({"l": b"2"})

    reader = folder.store("reader")
    with pytest.raises(CorruptRecordError):
        reader.get(["k"])

    assert len(list(reader.verify())) == 1
    assert reader.get(["l"]) == {"l": b"2"}


def half_removed(folder: Folder, writer: str) -> Path:
    """The home of a writer without keys, as a removal leaves it that was cut off."""
    path = folder.path / "writers" / writer
    (path / "db").mkdir(parents=True)
    for name in ("lock", "db/LOCK", "db/000004.log"):
        (path / name).touch()
    return path


def half_made(folder: Folder, writer: str) -> Path:
    """The home of a writer that was killed before its database was complete."""
    path = folder.path / "writers" / writer
    (path / "db").mkdir(parents=True)
    (path / "lock").touch()
    (path / "db" / "MANIFEST-000001").write_bytes(b"the beginning of it")
    return path


@pytest.mark.parametrize("make", [half_removed, half_made])
def test_a_home_without_a_database_is_not_damage_and_is_removed(
    folder: Folder, make: Callable[[Folder, str], Path]
) -> None:
    make(folder, "gone")

    reader = folder.store("reader")
    assert reader.get(["k"]) == {}
    assert reader.scan() == []
    assert not list(reader.verify())
    assert folder.writers() == ["gone"]  # who only reads changes nothing

    folder.store("one").put({"k": b"1"})

    assert folder.writers() == ["one"]
    assert folder.removed() == []
    assert reader.get(["k"]) == {"k": b"1"}


@pytest.mark.parametrize("make", [half_removed, half_made])
def test_a_writer_may_reuse_a_home_without_a_database(
    folder: Folder, make: Callable[[Folder, str], Path]
) -> None:
    make(folder, "one")
    one = OpenHome(folder.path / "writers" / "one", options(1 << 20, 1 << 20))
    one.write({"k": b"1"}, Stamps())
    one.close()

    assert folder.store("reader").get(["k"]) == {"k": b"1"}


def test_what_was_in_a_home_does_not_outlive_it(folder: Folder) -> None:
    one, reader = folder.store("one"), folder.store("reader")
    one.put({"k": b"1"})
    one.close()
    before = reader.scan()
    folder.store("two").delete(["k"])
    half_made(folder, "one")

    assert before == ["k"]
    assert reader.scan() == []


def test_a_locked_home_is_not_removed(folder: Folder) -> None:
    path = half_made(folder, "new")
    with open(path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.store("one").put({"k": b"1"})

    assert folder.writers() == ["new", "one"]


def test_an_empty_home_is_moved_before_it_is_removed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = folder.store("one")
    one.put({"a": b"1"})
    one.delete(["a"])
    removing, steps = shutil.rmtree, []

    def killed(path: Path, *args: Any, **options: Any) -> None:
        if folder.path in Path(path).parents:
            steps.append(f"remove from {path.parent.name}")
        else:
            removing(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(home, "sync_folder", lambda path: steps.append(f"sync {path.name}"))
        patch.setattr(shutil, "rmtree", killed)
        one.close()

    assert steps == ["sync writers", "remove from removed"]
    assert folder.writers() == []
    assert len(folder.removed()) == 1
    assert folder.store("reader").get(["a", "b"]) == {}

    folder.store("two").put({"k": b"1"})

    assert folder.removed() == []


def test_a_home_that_goes_while_it_is_opened_is_no_damage(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = folder.store("one")
    one.put_if_absent("a", b"1")
    opening = Other._open

    def late(other: Other, recovery: DBRecoveryMode) -> Rdict:
        one.close()
        return opening(other, recovery)

    monkeypatch.setattr(Other, "_open", late)

    assert folder.store("reader").get(["a", "k"]) == {"a": b"1"}


def test_a_damaged_key_that_was_written_once_is_reported(folder: Folder) -> None:
    store = folder.store("one")
    store.put_if_absent("a", b"A" * 100)
    store.put_if_absent("b", b"B" * 100)
    [damaged] = [p for p in (folder.path / "once").iterdir() if b"AAA" in p.read_bytes()]
    flip(damaged, b"A" * 100)

    with pytest.raises(CorruptRecordError):
        store.get(["a"])

    assert [damage.place for damage in store.verify()] == [str(damaged)]
    assert store.get(["b"]) == {"b": b"B" * 100}


def killed(folder: Folder, writer: str, items: Mapping[str, bytes]) -> Path:
    """A writer that put items one by one and was killed; its log."""
    path, saved = folder.path / "writers" / writer, folder.path.with_name("saved")
    store = folder.store(writer)
    for key, value in items.items():
        store.put({key: value})
    shutil.copytree(path, saved)
    store.close()
    shutil.rmtree(path)
    saved.rename(path)
    [log] = folder.files(writer, "log")
    return log


def test_damage_in_the_log_of_a_dead_writer_does_not_prevent_put_if_absent(folder: Folder) -> None:
    log = killed(folder, "dead", {f"k{n}": bytes([65 + n]) * 100 for n in range(3)})
    flip(log, b"B" * 100)

    one, two = folder.store("one"), folder.store("two")
    answers = [one.put_if_absent("a", b"1"), two.put_if_absent("a", b"2")]

    assert answers == [True, False]
    assert two.get(["a"]) == {"a": b"1"}
    assert not two.put_if_absent("k0", b"late")
    with pytest.raises(CorruptRecordError):
        two.get(["k1"])


def test_unreadable_names_do_not_prevent_put_if_absent(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.store("one").put({"k": b"1"})
    damage = Damage(None, "000009.sst", 0, "block checksum mismatch")

    def damaged(other: Other, keys: list[str]) -> list[str]:
        raise CorruptRecordError(damage)

    monkeypatch.setattr(Other, "holds", damaged)

    assert folder.store("two").put_if_absent("a", b"1")


def test_a_damaged_value_is_not_absent(folder: Folder) -> None:
    one = folder.store("one")
    values = {f"k{n}": os.urandom(5000) for n in range(3)}
    one.put(values)
    one.close()
    folder.flush("one")
    [table] = folder.files("one", "sst")
    flip(table, values["k1"])

    two = folder.store("two")

    assert not two.put_if_absent("k1", b"late")
    with pytest.raises(CorruptRecordError):
        two.get(["k1"])


def test_an_own_value_is_not_claimed(folder: Folder) -> None:
    one = folder.store("one")
    one.put({"k": b"1"})

    assert not one.put_if_absent("k", b"2")
    assert one.get(["k"]) == {"k": b"1"}


def test_a_damaged_key_is_still_present(folder: Folder) -> None:
    one, two = folder.store("one"), folder.store("two")
    one.put_if_absent("a", b"A" * 100)
    [claim] = (folder.path / "once").iterdir()
    flip(claim, b"A" * 100)

    assert not two.put_if_absent("a", b"2")
    assert folder.writers() == []  # no database is made for keys that are written once
    with pytest.raises(CorruptRecordError):
        two.get(["a"])


class Unsynced:
    """Lets the first sync of the folder ``once`` fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.failed = 0
        self._sync = disk.sync_folder
        patch.setattr(disk, "sync_folder", self)

    def __call__(self, folder: Path) -> None:
        if not self.failed:
            self.failed += 1
            raise OSError(errno.EIO, "a moment")
        self._sync(folder)


def test_the_winner_of_a_key_is_reported_though_the_first_sync_failed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = folder.store("one")
    unsynced = Unsynced(monkeypatch)

    won = one.put_if_absent("a", b"1")

    assert unsynced.failed == 1
    assert won
    assert one.get(["a"]) == {"a": b"1"}
    assert not one.put_if_absent("a", b"1")
    assert folder.parts() == []


def test_the_loser_of_a_key_is_reported_though_the_first_sync_failed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = folder.store("one"), folder.store("two")
    write_part = DurableFolder._write_part

    def overtaken(self: DurableFolder, where: str, data: Sequence[bytes]) -> str:
        part = write_part(self, where, data)
        with monkeypatch.context() as patch:
            patch.setattr(DurableFolder, "_write_part", write_part)
            assert two.put_if_absent("a", b"the same")
        Unsynced(monkeypatch)
        return part

    monkeypatch.setattr(DurableFolder, "_write_part", overtaken)

    assert not one.put_if_absent("a", b"the same")
    assert folder.parts() == []


def test_a_part_that_could_not_be_written_is_removed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = folder.store("one")
    one.put({"k": b"1"})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(StoreFullError):
            one.put_if_absent("a", b"1")

    assert folder.parts() == []
    assert one.put_if_absent("a", b"1")


def test_intact_logs_have_no_bad_record(folder: Folder) -> None:
    one = folder.store("one")
    for n in range(20):
        one.put({f"k{n}": os.urandom(7000)})
    [log] = folder.files("one", "log")

    assert log.stat().st_size > 3 * 32768
    assert first_bad_record(log.read_bytes()) is None
    assert first_bad_record(log.read_bytes()[:-100]) is None


def test_messages_become_typed_errors(tmp_path: Path) -> None:
    full = translate("IO error: No space left on device: While appending", tmp_path)
    away = translate("IO error: While lock file: Resource temporarily unavailable", tmp_path)

    assert isinstance(full, StoreFullError)
    assert isinstance(away, UnavailableError)
    assert type(translate("Invalid argument: too large", tmp_path)) is StoreError


def test_a_closed_store_raises_a_clear_error(folder: Folder) -> None:
    store = folder.store("one")
    store.put({"k": b"1"})
    store.close()

    with pytest.raises(StoreError, match="closed"):
        store.get(["k"])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("rocksdb://", "has no folder"),
        ("rocksdb:///", "has no folder"),
        ("rocksdb://host/folder", "has no folder"),
        ("rocksdb:///f?colour=red", "no option 'colour'"),
        ("rocksdb:///f?buffer=1KB", "at least 64KB"),
        ("rocksdb:///f?buffer=many", "number of bytes"),
        ("rocksdb:///f?cache=0", "at least one byte"),
        ("rocksdb:///f?patience=-1", "patience"),
    ],
)
def test_urls_that_are_invalid_are_rejected(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        open_store(url, "one")


def test_a_store_of_an_earlier_version_is_rejected_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()

    with pytest.raises(ConfigError, match="earlier version"):
        open_store(f"rocksdb://{tmp_path}", "one")

    assert [found.name for found in tmp_path.iterdir()] == ["claims"]
