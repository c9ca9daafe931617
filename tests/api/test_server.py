"""The server on a real port."""

from __future__ import annotations

import http.client
import socket
import time

import pytest

from millstream.api.server import ApiServer, is_loopback
from millstream.api.tokens import TokenBook
from millstream.errors import ConfigError
from tests.api.stand_in import StandInRun


def test_a_server_ends_although_a_stream_is_open() -> None:
    tokens = TokenBook()
    server = ApiServer(StandInRun(), tokens, host="127.0.0.1", port=0, version="1")
    server.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {"Authorization": f"Bearer {tokens.issue('viewer').text}"}
    connection.request("GET", "/api/v1/stream", headers=headers)
    answer = connection.getresponse()
    assert answer.readline() == b"event: snapshot\n"

    server.close()

    deadline = time.monotonic() + 30
    while answer.read1(65536):
        assert time.monotonic() < deadline
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


def test_a_port_that_is_taken_is_an_error_that_says_what_to_pass() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            ApiServer(StandInRun(), TokenBook(), host="127.0.0.1", port=port, version="1")


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("127.h", False)],
)
def test_loopback_is_told_from_other_hosts(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local
