"""The HTTP API of one run: its server, its tokens, and their renewal in the registry."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from millstream.api.contract import Right
from millstream.api.guard import LOGIN
from millstream.api.served_run import ServedRun
from millstream.api.server import ApiServer, is_loopback
from millstream.api.tokens import TOKEN_LIFETIME, TokenBook
from millstream.log_context import inheriting
from millstream.wire.run_registry import ApiAccess

log = logging.getLogger("millstream")


class RunApi:
    """Serves a run until it is closed."""

    def __init__(self, run: ServedRun, address: tuple[str, int], *, version: str) -> None:
        host, port = address
        self._tokens = TokenBook()
        self._server = ApiServer(run, self._tokens, host=host, port=port, version=version)
        self._ended = threading.Event()
        if not is_loopback(host):
            log.warning(
                "the dashboard listens on %s without encryption: use it through an SSH tunnel, or "
                "a proxy with TLS",
                self._server.url,
            )

    def access(self) -> ApiAccess:
        """The address, and new tokens for it."""
        viewer, operator = self._tokens.issue("viewer"), self._tokens.issue("operator")
        return ApiAccess(self._server.url, viewer.text, operator.text, viewer.expires)

    def login_link(self, right: Right) -> str:
        """A link that logs a browser in, once."""
        return f"{self._server.url}{LOGIN}?code={self._tokens.login_code(right).text}"

    def start(self, renew: Callable[[ApiAccess], None]) -> None:
        """Begin to answer; ``renew`` gets new tokens long before the old ones expire."""
        self._server.start()
        work = inheriting(partial(self._renew, renew))
        threading.Thread(target=work, name="millstream-tokens", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._ended.set()
        self._server.close()

    def _renew(self, renew: Callable[[ApiAccess], None]) -> None:
        while not self._ended.wait(TOKEN_LIFETIME / 2):
            renew(self.access())
