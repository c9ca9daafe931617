from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis

from millstream.errors import ConfigError
from millstream.stores import redis as redis_store
from millstream.stores.redis import RedisStore, open_store
from millstream.stores.store import (
    CorruptRecordError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from tests.stores.redis_servers import Proxy, RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    with server.client() as client:
        client.flushall()
    with closing(open_store(server.url, "w")) as store:
        yield store


@pytest.mark.parametrize(
    "setting",
    [("appendonly", "no"), ("appendfsync", "everysec"), ("no-appendfsync-on-rewrite", "yes")],
)
def test_a_server_that_is_not_durable_is_rejected(
    server: RedisServer, setting: tuple[str, str]
) -> None:
    name, value = setting
    with server.client() as client:
        before = client.config_get(name)[name]
        client.config_set(name, value)
        try:
            with pytest.raises(ConfigError, match=f"it has {name} {value}; set {name} {before}"):
                open_store(server.url, "w")
            with closing(open_store(f"{server.url}?durability=relaxed", "w")) as store:
                store.put({"key": b"value"})
        finally:
            client.config_set(name, before)


def test_a_server_that_evicts_is_rejected(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        open_store(server.url, "w").close()  # it has all the memory it wants
        client.config_set("maxmemory", "1gb")
        try:
            for url in (server.url, f"{server.url}?durability=relaxed"):
                with pytest.raises(ConfigError, match="noeviction"):
                    open_store(url, "w")
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")


def test_a_server_with_a_hidden_configuration_is_used_with_a_warning(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shy", "on", ">pw", "~*", "+@all", "-config")
    url = server.url.replace("://", "://shy:pw@")
    with caplog.at_level(logging.WARNING), closing(open_store(url, "w")) as store:
        store.put({"key": b"value"})
        assert store.get(["key"]) == {"key": b"value"}
    assert "appendfsync always" in caplog.text
    assert "pw" not in caplog.text


def test_a_password_is_used_and_never_printed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    server = RedisServer(tmp_path, requirepass="hush", port=str(port), databases="4")
    server.start()
    shown = []
    try:
        url = f"redis://:hush@127.0.0.1:{port}/3?patience=0.1"
        with closing(open_store(url, "w")) as store:
            store.put({"key": b"value"})
            with server.client() as client:
                client.select(3)
                client.set("millstream/key", b"damaged")
            with pytest.raises(CorruptRecordError) as corrupt:
                store.get(["key"])
            shown += [repr(store), str(corrupt.value), repr(corrupt.value)]
            assert f"127.0.0.1:{port}/3, entry 'millstream/key'" in str(corrupt.value)
            with pytest.raises(ConfigError, match="password") as refused:
                open_store(url.replace("hush", "hushhush"), "w")
            shown += [str(refused.value), str(refused.value.__cause__)]
            server.kill()
            with pytest.raises(StoreUnavailableError) as away:
                store.get(["key"])
            shown += [str(away.value), str(away.value.__cause__)]
    finally:
        server.kill()
    assert not [text for text in shown if "hush" in text]


def test_stores_with_different_prefixes_share_a_server(server: RedisServer) -> None:
    urls = [f"{server.url}?prefix={prefix}" for prefix in ("t*/", "t1/", "t%5B1%5D/")]
    stores = [open_store(url, "w") for url in urls]
    for number, store in enumerate(stores):
        store.put({"key": b"%d" % number, f"{number}": b""})
    for number, store in enumerate(stores):
        assert store.get(["key"]) == {"key": b"%d" % number}
        assert store.scan() == [f"{number}", "key"]
        store.close()


def test_a_batch_is_one_command(server: RedisServer, store: RedisStore) -> None:
    with server.client() as client:
        client.config_resetstat()
        store.put({f"{n}": b"value" for n in range(5000)})
        calls: Any = client.info("commandstats")
    assert calls["cmdstat_mset"]["calls"] == 1
    assert "cmdstat_set" not in calls


def test_a_lost_answer_does_not_lose_the_race(
    server: RedisServer, store: RedisStore, tmp_path: Path
) -> None:
    with closing(Proxy(server, tmp_path / "proxy.sock")) as proxy:
        with closing(open_store(proxy.url, "w")) as far:
            proxy.lose_answer_to = b"NX"
            assert far.put_if_absent("mine", b"far")
            assert not far.put_if_absent("mine", b"far")

            store.put_if_absent("theirs", b"near")
            proxy.lose_answer_to = b"NX"
            assert not far.put_if_absent("theirs", b"far")

            proxy.lose_answer_to = b"MSET"
            far.put({"key": b"value"})
    assert proxy.lost == 3
    assert store.get(["mine", "theirs", "key"]) == {
        "mine": b"far",
        "theirs": b"near",
        "key": b"value",
    }


def test_a_scan_starts_again_when_the_server_does(server: RedisServer, store: RedisStore) -> None:
    keys = sorted(f"{n}" for n in range(3000))
    store.put(dict.fromkeys(keys, b""))
    scan, calls = redis.Redis.scan, iter(range(10_000))

    def crashing_scan(client: redis.Redis, *given: Any, **named: Any) -> Any:
        if next(calls) == 15:
            server.kill()
            server.start()
        return scan(client, *given, **named)

    with (
        patch.object(redis_store, "_NAME_BATCH", 100),
        patch.object(redis.Redis, "scan", crashing_scan),
    ):
        assert store.scan() == keys
    assert next(calls) > 30


def test_a_value_that_is_too_large_for_the_server_is_rejected(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("proto-max-bulk-len", "1mb")
        try:
            with closing(open_store(server.url, "w")) as store:
                for write in (store.put_if_absent, lambda key, value: store.put({key: value})):
                    with pytest.raises(StoreError, match="'large' has 1048576 bytes"):
                        write("large", bytes(1 << 20))
                store.put({"fits": bytes((1 << 20) - 20)})
        finally:
            client.config_set("proto-max-bulk-len", "512mb")


def test_a_hanging_server_is_retried_and_then_an_error(server: RedisServer) -> None:
    with closing(open_store(f"{server.url}?patience=0.2", "w")) as store:
        store.put({"key": b"value"})
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailableError):
                store.get(["key"])
            with pytest.raises(StoreUnavailableError):
                open_store(f"{server.url}?patience=0.2", "w")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert store.get(["key"]) == {"key": b"value"}


def test_a_server_that_cannot_save_is_full(tmp_path: Path) -> None:
    (tmp_path / "dump.rdb").mkdir()  # so that no snapshot can take its place
    server = RedisServer(tmp_path, save="3600 1000000")
    server.start()
    try:
        with closing(open_store(server.url, "w")) as store, server.client() as client:
            store.put({"key": b"value"})
            client.bgsave()
            while client.info("persistence")["rdb_bgsave_in_progress"]:
                pass
            with pytest.raises(StoreFullError, match="MISCONF"):
                store.put({"key": b"new"})
            with pytest.raises(StoreFullError, match="MISCONF"):
                store.put_if_absent("first", b"new")
            assert store.get(["key"]) == {"key": b"value"}
    finally:
        server.kill()


def test_foreign_entries_are_ignored(server: RedisServer, store: RedisStore) -> None:
    store.put({"key": b"value"})
    with server.client() as client:
        client.set("other/key", b"")
        client.rpush("millstream/list", b"")
        client.set("millstream/short", b"")
        client.set(b"millstream/\xff", b"")
    assert store.scan() == ["key", "short"]
    assert [damage.key for damage in store.verify()] == ["short"]


def test_errors_survive_pickling(store: RedisStore, server: RedisServer) -> None:
    with server.client() as client:
        client.set("millstream/key", b"??")
    with pytest.raises(CorruptRecordError) as raised:
        store.get(["key"])
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
