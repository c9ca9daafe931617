"""What ``postgresql://`` promises beyond the contract: servers may die, or be set wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from threading import Event
from typing import cast

import pytest

from millstream.errors import ConfigError
from millstream.stores.postgresql.address import Address
from millstream.stores.postgresql.sessions import synchronous_standbys
from millstream.stores.postgresql.store import PostgresStore
from millstream.stores.registry import open_store
from millstream.stores.store import CorruptRecordError, Store, StoreError, StoreUnavailableError
from tests.contract.children import children, value_of, writer
from tests.stores.postgres_servers import PostgresServer, PostgresServers, wait_until

_WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServers]:
    servers = PostgresServers(in_memory=True)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def servers(cluster: PostgresServers) -> PostgresServers:
    cluster.heal()
    return cluster


@pytest.fixture
def table() -> str:
    return f"test_{next(_numbers)}"


@pytest.fixture
def url(servers: PostgresServers, table: str) -> str:
    return servers.url(f"table={table}&replicas=1")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def opened(url: str, *options: str) -> closing[Store]:
    return closing(open_store("&".join((url, *options)), writer()))


def waiting(server: PostgresServer) -> int:
    """How many commits wait for a standby."""
    return cast(int, server.ask(f"SELECT count(*) {_WAITING}"))


def kill_standbys(servers: PostgresServers) -> None:
    for standby in servers.standbys:
        standby.kill()


def test_the_store_resumes_with_a_promoted_standby_without_loss(
    servers: PostgresServers, url: str, pool: ThreadPoolExecutor
) -> None:
    stop = Event()
    acknowledged: list[str] = []

    def write(store: Store, name: str) -> None:
        for turn in count():
            key = f"{name}/{turn:06}"
            store.put({key: key.encode(), f"{key}/more": b""})
            acknowledged.append(key)
            if stop.is_set():
                return

    with opened(url) as store:
        writers = [pool.submit(write, store, name) for name in "abcd"]
        for _ in range(2):
            wait_for_more(acknowledged)
            servers.primary.kill()
            servers.fail_over()
            wait_for_more(acknowledged)
            servers.heal()
        stop.set()
        for each in writers:
            each.result()

        assert store.get(acknowledged) == {key: key.encode() for key in acknowledged}
        assert not list(store.verify())


def wait_for_more(acknowledged: list[str]) -> None:
    enough = len(acknowledged) + 40
    wait_until(lambda: len(acknowledged) > enough, "more writes")


def test_of_processes_that_race_across_a_failover_exactly_one_wins(
    servers: PostgresServers, url: str
) -> None:
    links = 40
    with opened(url) as store, children(url, 3) as racers:
        for racer in racers:
            racer.tell("add_links", links)
        wait_until(lambda: len(store.scan("chain/")) > links, "the race")
        servers.primary.kill()
        servers.fail_over()
        for racer in racers:
            assert racer.hear() is None
        names = {racer.writer for racer in racers}
        chain = store.get(store.scan("chain/")).values()
    # Each counted the links that it had added: none is missing, none is there twice.
    assert sorted(chain) == sorted(
        f"{name} {number}".encode() for name in names for number in range(links)
    )


def test_one_dead_standby_blocks_no_writes(servers: PostgresServers, url: str) -> None:
    with opened(url, "patience=5") as store:
        servers.standbys[0].kill()
        store.put({"a": b"1"})
        assert store.put_if_absent("b", b"2")
    with opened(url, "patience=5") as store:
        assert store.get(["a", "b"]) == {"a": b"1", "b": b"2"}


def test_without_standbys_writes_wait_then_fail_and_resume_later(
    servers: PostgresServers, url: str, pool: ThreadPoolExecutor
) -> None:
    with (
        opened(url) as patient,
        opened(url, "patience=0.5") as impatient,
        opened(url) as reader,
    ):
        assert reader.scan() == []
        kill_standbys(servers)
        written = pool.submit(patient.put, {"patient": b"1"})
        for _ in range(4):
            with pytest.raises(StoreUnavailableError, match="patience"):
                impatient.put({"impatient": b"2"})
        assert not written.done()
        assert reader.scan() == []
        # However often it is tried, the server is not filled with connections that wait.
        wait_until(lambda: waiting(servers.primary) == 2, "the others to be gone")

        servers.standbys[0].start()
        written.result(30)
        impatient.put({"later": b"3"})
        assert reader.scan() == ["impatient", "later", "patient"]


def test_a_commit_whose_wait_for_standbys_is_cancelled_is_not_acknowledged(
    servers: PostgresServers, url: str, pool: ThreadPoolExecutor
) -> None:
    with opened(url) as store:
        kill_standbys(servers)
        written = pool.submit(store.put, {"a": b"1"})
        wait_until(lambda: waiting(servers.primary), "a commit that waits")
        waits = servers.primary.ask(f"SELECT pid {_WAITING}")
        assert servers.primary.ask(f"SELECT pg_cancel_backend({waits})")
        other = f"SELECT count(*) {_WAITING} AND pid <> {waits}"
        wait_until(lambda: servers.primary.ask(other), "another try")
        assert not written.done()
        servers.heal()
        written.result(30)


def test_what_only_a_crashed_primary_has_is_not_read_before_a_standby_has_it(
    servers: PostgresServers, table: str, url: str
) -> None:
    with opened(url, "patience=0.5") as store:
        kill_standbys(servers)
        with pytest.raises(StoreUnavailableError):
            store.put({"a": b"1"})
        servers.primary.kill()
        servers.primary.start()

        assert servers.primary.ask(f"SELECT count(*) FROM {table}") == 1
        with pytest.raises(StoreUnavailableError):
            store.get(["a"])
        with pytest.raises(StoreUnavailableError):
            opened(url, "patience=0.5")
        servers.heal()
        assert store.get(["a"]) == {"a": b"1"}


@pytest.mark.parametrize("part_bytes", [1 << 20, 100])
def test_a_writer_that_loses_an_acknowledgement_learns_that_it_was_first(
    servers: PostgresServers, url: str, pool: ThreadPoolExecutor, part_bytes: int
) -> None:
    store = PostgresStore(Address.parse(url, writer()), part_bytes=part_bytes)
    with closing(store), opened(url) as other:
        kill_standbys(servers)
        first = pool.submit(store.put_if_absent, "a", b"mine" * 100)
        wait_until(lambda: waiting(servers.primary), "a commit that waits")
        servers.primary.kill()
        assert not first.done()
        servers.heal()

        assert first.result(30) is True
        assert not other.put_if_absent("a", b"theirs")
        assert other.get(["a"]) == {"a": b"mine" * 100}


def test_a_hanging_server_times_out_and_is_used_again(servers: PostgresServers, url: str) -> None:
    with opened(url, "patience=0.5") as store:
        store.put({"a": b"1"})
        with servers.primary.frozen():
            with pytest.raises(StoreUnavailableError):
                store.get(["a"])
        store.put({"b": b"2"})
        assert store.get(["a", "b"]) == {"a": b"1", "b": b"2"}


def test_an_old_primary_that_returns_after_a_failover_is_skipped(
    servers: PostgresServers, url: str
) -> None:
    while servers.primary is not servers.servers[0]:  # the one that is tried first
        servers.primary.kill()
        servers.fail_over()
        servers.heal()
    with opened(url, "patience=8") as store:
        store.put({"a": b"1"})
        old = servers.primary
        old.kill()
        servers.fail_over()
        old.start()
        assert old.ask("SHOW transaction_read_only") == "off"

        store.put({"b": b"2"})
        with opened(url, "patience=8") as another:
            another.put({"c": b"3"})
        assert store.get("abc") == {"a": b"1", "b": b"2", "c": b"3"}


def test_a_server_that_confirms_too_little_after_a_failover_is_waited_for(
    servers: PostgresServers, url: str
) -> None:
    with opened(url, "patience=0.5") as store:
        with changed(servers.primary, "synchronous_standby_names", ""):
            servers.primary.tell(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'millstream %'"
            )
            with pytest.raises(StoreUnavailableError, match="synchronous_standby_names"):
                store.put({"a": b"1"})
        store.put({"b": b"2"})
        assert store.scan() == ["b"]


def test_large_values_are_stored_in_parts(servers: PostgresServers, table: str, url: str) -> None:
    large, other = bytes(range(256)) * 20, b"other" * 500
    with closing(PostgresStore(Address.parse(url, writer()), part_bytes=1000)) as store:
        store.put({"a": large, "b": other, "c": b"small"})
        assert store.put_if_absent("d", large)
        assert not store.put_if_absent("d", other)
        rows = "SELECT count(*) FROM {} WHERE key = 'd'"
        assert servers.primary.ask(rows.format(table)) == 6
        assert store.get("abcd") == {"a": large, "b": other, "c": b"small", "d": large}
        assert store.scan() == ["a", "b", "c", "d"]

        store.put({"a": other, "b": b"small", "c": large})
        assert store.get("abc") == {"a": other, "b": b"small", "c": large}
        assert not list(store.verify())
        store.delete(["c"])
        assert store.get(["c"]) == {}

        servers.primary.tell(f"DELETE FROM {table} WHERE key = 'd' AND part = 3")
        [damage] = store.verify()
        assert (damage.key, damage.why) == ("d", "of 6 parts, [3] are missing")
        with pytest.raises(CorruptRecordError, match="parts"):
            store.get(["d"])


def test_values_that_are_large_together_are_written_completely(
    servers: PostgresServers, url: str
) -> None:
    values = {f"{n}": bytes([n]) * (6 << 20) for n in range(4)}
    with opened(url) as store, opened(url) as other:
        store.put(values)
        assert other.get(values) == values
        assert not list(other.verify())


def test_a_damaged_page_is_detected(servers: PostgresServers, table: str, url: str) -> None:
    primary = servers.primary
    with opened(url) as store:
        store.put({f"{n:03}": value_of(f"{n}")[:1000] for n in range(50)})
        primary.tell("CHECKPOINT")
        where = cast(str, primary.ask(f"SELECT pg_relation_filepath('{table}')"))
        primary.kill()
        with (primary.folder / where).open("r+b") as file:
            file.seek(8192 + 4000)
            file.write(b"\0\xff\0\xff")
        primary.start()

        with pytest.raises(CorruptRecordError, match="page"):
            store.get(f"{n:03}" for n in range(50))
        [damage] = store.verify()
        assert "page" in damage.why and table in damage.place
    primary.kill()
    servers.fail_over()


def test_concurrent_openings_of_a_new_store_create_one(url: str, pool: ThreadPoolExecutor) -> None:
    def make(number: int) -> None:
        with opened(url) as store:
            store.put({f"{number}": b""})

    for made in [pool.submit(make, number) for number in range(8)]:
        made.result()
    with opened(url) as store:
        assert store.scan() == [f"{number}" for number in range(8)]


@pytest.mark.parametrize(
    "definition",
    [
        "TABLE {} (key text PRIMARY KEY, value bytea)",
        "UNLOGGED TABLE {} (key bytea, part integer, parts integer, data bytea, token uuid)",
        "VIEW {} AS SELECT 1 AS one",
    ],
)
def test_a_table_that_is_not_a_store_is_rejected(
    servers: PostgresServers, table: str, url: str, definition: str
) -> None:
    servers.primary.tell(f"CREATE {definition.format(table)}")
    with pytest.raises(ConfigError, match=table):
        opened(url)


@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [
        ("fsync", "off", "set fsync = on"),
        ("synchronous_commit", "off", "set synchronous_commit = on"),
        ("synchronous_standby_names", "", "set synchronous_standby_names"),
    ],
)
def test_a_server_that_would_lose_writes_is_rejected(
    servers: PostgresServers, url: str, setting: str, value: str, fix: str
) -> None:
    with changed(servers.primary, setting, value):
        with pytest.raises(ConfigError, match=fix):
            opened(url)


def test_commits_wait_for_standbys_even_if_the_server_would_not(
    servers: PostgresServers, url: str, pool: ThreadPoolExecutor
) -> None:
    with changed(servers.primary, "synchronous_commit", "local"), opened(url) as store:
        kill_standbys(servers)
        written = pool.submit(store.put, {"a": b"1"})
        wait_until(lambda: waiting(servers.primary) or written.done(), "the commit")
        assert not written.done()
        servers.heal()
        written.result(30)


def test_a_server_without_standbys_is_logged(
    servers: PostgresServers, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    with changed(servers.primary, "synchronous_standby_names", ""):
        with caplog.at_level(logging.INFO, "millstream"):
            with opened(servers.url(f"table={table}")) as store:
                store.put({"a": b"1"})
    assert [record.message for record in caplog.records if "standby" in record.message]


class changed:  # noqa: N801
    """A setting of a server is another one while this lasts."""

    def __init__(self, server: PostgresServer, setting: str, value: str) -> None:
        self._server, self._setting, self._value = server, setting, value

    def __enter__(self) -> None:
        self._before = self._server.ask(f"SHOW {self._setting}")
        self._change(f"SET {self._setting} = '{self._value}'", self._value)

    def __exit__(self, *_: object) -> None:
        self._change(f"RESET {self._setting}", self._before)

    def _change(self, how: str, value: object) -> None:
        self._server.tell(f"ALTER SYSTEM {how}", "SELECT pg_reload_conf()")
        wait_until(lambda: self._server.ask(f"SHOW {self._setting}") == value, "the setting")


@pytest.mark.parametrize(
    ("names", "standbys"),
    [
        ("", 0),
        ("a", 1),
        ("a, b", 1),
        ("*", 1),
        ("ANY 2 (a, b, c)", 2),
        ("first 3(a, b, c)", 3),
        ("2 (a, b)", 2),
        ("any", 1),
    ],
)
def test_the_number_of_synchronous_standbys_is_read(names: str, standbys: int) -> None:
    assert synchronous_standbys(names) == standbys


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("host/db?table=Robert'); DROP", ConfigError),
        ("host/db?replicas=some", ConfigError),
        ("host/db?connections=0", ConfigError),
        ("host/db?colour=blue", ConfigError),
        ("host:port/db", ConfigError),
        ("[::1/db", ConfigError),
        ("p@rt/db", ConfigError),
        ("part/db@host", ConfigError),
        ("127.0.0.1:1/db?patience=0.1", StoreUnavailableError),
        ("127.0.0.1:1,127.0.0.1:2/db?patience=0.1&connect_timeout=1", StoreUnavailableError),
    ],
)
def test_no_error_contains_the_password(rest: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        open_store(f"postgresql://me:s3cret@{rest}", writer())
    assert "s3cret" not in texts_of(raised.value)


def texts_of(error: BaseException | None) -> str:
    """What an error shows, with those that led to it."""
    if error is None:
        return ""
    before = error.__cause__ if error.__suppress_context__ else error.__context__
    return f"{error!r} {error} {texts_of(before)}"


@pytest.mark.parametrize("secret", ["s3c@ret", "s3c/ret", "s3c?ret", "s3c?r=et"])
def test_no_part_of_a_password_with_separators_is_printed(secret: str) -> None:
    with pytest.raises(ConfigError, match="%40") as raised:
        open_store(f"postgresql://me:{secret}@127.0.0.1:1/db?patience=0.1", writer())
    assert "s3c" not in texts_of(raised.value)
    assert "ret" not in texts_of(raised.value)


def test_a_closed_store_raises_a_clear_error(url: str) -> None:
    with opened(url) as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        store.scan()


def test_an_error_of_the_server_is_reported(servers: PostgresServers, table: str, url: str) -> None:
    with opened(url) as store:
        servers.primary.tell(f"DROP TABLE {table}")
        with pytest.raises(StoreError, match="does not exist"):
            store.scan()
