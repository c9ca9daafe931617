"""The HTTP server of a run, in a thread of the driver process."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import threading

import uvicorn

from millstream.api.app import application
from millstream.api.served_run import ServedRun
from millstream.api.tokens import TokenBook
from millstream.errors import ConfigError
from millstream.log_context import inheriting

log = logging.getLogger("millstream")

_END = 2.0  # seconds that requests have when the server ends
_MOST_AT_ONCE = 128
_ANY = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not listened on


class ApiServer:
    """Serves a run on a port; listens from the first moment on."""

    def __init__(
        self, run: ServedRun, tokens: TokenBook, *, host: str, port: int, version: str
    ) -> None:
        """With port 0 the system chooses one."""
        self._socket = _listen(host, port)
        self.host, self.port = host, self._socket.getsockname()[1]
        self.cookie = f"millstream_{self.port}"  # cookies of a host are sent to all of its ports
        names = (host, socket.gethostname(), socket.getfqdn()) if not is_loopback(host) else (host,)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        app = application(
            run,
            tokens,
            cookie=self.cookie,
            version=version,
            hosts=names,
            is_ending=self._ending.is_set,
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=_MOST_AT_ONCE,
                timeout_graceful_shutdown=int(_END),
            )
        )

    @property
    def url(self) -> str:
        """The address for browsers and commands on this host."""
        shown = "127.0.0.1" if self.host in _ANY else self.host
        return f"http://[{shown}]:{self.port}" if ":" in shown else f"http://{shown}:{self.port}"

    def start(self) -> None:
        """Begin to answer."""
        work = inheriting(self._serve)
        self._thread = threading.Thread(target=work, name="millstream-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and free the port."""
        self._ending.set()
        self._server.should_exit = True
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(2 * _END)
        with contextlib.suppress(OSError):
            self._socket.close()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception:  # the run does not depend on it
            log.exception("the HTTP API has ended")


def is_loopback(host: str) -> bool:
    """Whether only this host can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError as problem:
        listening.close()
        raise ConfigError(
            f"the dashboard cannot listen on {host}:{port}: {problem}; pass another address, "
            'such as dashboard="127.0.0.1:0", or dashboard=False'
        ) from None
    return listening
