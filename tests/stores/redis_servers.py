"""Real Redis servers, each with a socket and a folder of its own."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import redis

from tests.contract.backends import server

DURABLE = {"appendonly": "yes", "appendfsync": "always"}


class RedisServer:
    """A server that can be killed and started again."""

    def __init__(self, folder: Path, **settings: str) -> None:
        folder.mkdir(exist_ok=True)
        self.socket = folder / "redis.sock"
        self._folder = folder
        self._settings = {
            "dir": str(folder),
            "unixsocket": str(self.socket),
            "port": "0",
            "save": "",
            "logfile": str(folder / "log"),
            **DURABLE,
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis+unix://{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def client(self) -> redis.Redis:
        """A connection past the store, for looking and for harm."""
        return redis.Redis(
            unix_socket_path=str(self.socket), password=self._settings.get("requirepass")
        )

    def start(self) -> None:
        """Start it; returns when it answers."""
        command = [server("redis-server")]
        for name, value in self._settings.items():
            command += [f"--{name}", value]
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text())
            time.sleep(0.01)

    def _answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

    def kill(self) -> None:
        """End it with SIGKILL, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Proxy:
    """Stands between a store and its server, and loses an answer now and then."""

    def __init__(self, server: RedisServer, socket_path: Path) -> None:
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(socket_path))
        self._listener.listen()
        self.url = f"redis+unix://{socket_path}"
        self.lose_answer_to: bytes | None = None
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._server.socket))
            # One answer to one request, which all fit: a store waits for each.
            while request := client.recv(1 << 20):
                server.sendall(request)
                answer = server.recv(1 << 20)
                if self.lose_answer_to is not None and self.lose_answer_to in request:
                    self.lose_answer_to = None
                    self.lost += 1
                    return
                client.sendall(answer)
