"""Connections to the primary server, and the pool of them that a store has."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import psycopg

from millstream.errors import ConfigError
from millstream.stores.postgresql.address import Address
from millstream.stores.retries import UnavailableError
from millstream.stores.store import StoreError

T = TypeVar("T")

log = logging.getLogger("millstream")

_SETTINGS = """
    SELECT current_setting('fsync'), reset_val, current_setting('synchronous_standby_names'),
        set_config('synchronous_commit',
            CASE reset_val WHEN 'remote_apply' THEN reset_val ELSE 'on' END, false)
    FROM pg_settings WHERE name = 'synchronous_commit'
"""
# Written to the log and to the standbys, and nowhere else.
_NOTHING = "SELECT pg_logical_emit_message(true, 'millstream', '')"


class DeadlineError(UnavailableError):
    """The server has not answered in time, and may still execute the statement."""


class Session(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose every wait ends at ``deadline``."""

    deadline = math.inf
    warning: str | None = None
    trusted = False

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Wait as psycopg does, but not for longer than until the deadline."""
        return super().wait(self._until_deadline(gen), *args, **options)

    def _until_deadline(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > self.deadline:
                    raise DeadlineError("no answer; a write also waits for a standby to confirm it")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result

    def confirm(self) -> None:
        """Raise ``UnavailableError`` if what was just written may not be on any standby.

        A commit whose wait for the standbys is cancelled succeeds, with a warning.
        """
        if self.warning is not None:
            raise UnavailableError(self.warning)

    def record_warning(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.severity_nonlocalized == "WARNING":
            self.warning = diagnostic.message_primary


class Sessions:
    """The connections of a store, one for each thread that needs one just now."""

    def __init__(self, address: Address) -> None:
        self._address = address
        # An old primary that returns after a failover answers, but its commits are not confirmed:
        # there must be time to try the next server.
        self._time_to_check = max(1.0, address.patience / 4)
        self._change = threading.Condition()
        self._free: list[Session] = []
        self._count = 0
        self._turn = 0
        self._warned = False
        self._closed = False

    @contextmanager
    def session(self, deadline: float) -> Iterator[Session]:
        """A connection for one operation; closed if the operation fails."""
        session = self._take(deadline) or self._connect(deadline)
        session.warning = None
        try:
            if not session.trusted:
                session.deadline = min(deadline, time.monotonic() + self._time_to_check)
                self._check(session)
                session.trusted = True
            session.deadline = deadline
            yield session
        except BaseException as error:
            # A commit that waits for standbys is not cancelled: it would become visible
            # without being on any. A check makes nothing visible, and must not block the server.
            if isinstance(error, DeadlineError) and not session.trusted:
                with suppress(psycopg.Error):
                    session.cancel_safe(timeout=1)
            session.close()
            self._discard_all()
            raise
        self._return(session)

    def close(self) -> None:
        """Close the connections; those in use as soon as they are returned."""
        with self._change:
            self._closed = True
            for session in self._free:
                session.close()
            self._free.clear()
            self._change.notify_all()

    def _take(self, deadline: float) -> Session | None:
        """A free connection, or None if a new one may be opened."""
        with self._change:
            while True:
                if self._closed:
                    raise StoreError("the store was closed; open it again to use it")
                if self._free:
                    return self._free.pop()
                if self._count < self._address.connections:
                    self._count += 1
                    return None
                left = deadline - time.monotonic()
                if left <= 0:
                    raise UnavailableError(
                        f"all {self._count} connections are waiting for an answer"
                    )
                self._change.wait(left)

    def _discard_all(self) -> None:
        with self._change:
            self._turn += 1
            # What broke one connection has probably broken all.
            for other in self._free:
                other.close()
            self._count -= 1 + len(self._free)
            self._free.clear()
            self._change.notify_all()

    def _return(self, session: Session) -> None:
        with self._change:
            if self._closed:
                session.close()
            else:
                self._free.append(session)
            self._change.notify()

    def _connect(self, deadline: float) -> Session:
        parameters: dict[str, Any] = self._address.starting_at(self._turn)
        left = math.ceil(max(1.0, deadline - time.monotonic()))
        parameters["connect_timeout"] = min(int(parameters["connect_timeout"]) or left, left)
        try:
            session = Session.connect(autocommit=True, **parameters)
        except BaseException:
            self._discard_all()
            raise
        session.add_notice_handler(session.record_warning)
        return session

    def _check(self, session: Session) -> None:
        """Reject a server that is not durable."""
        row = session.execute(_SETTINGS).fetchone()
        assert row is not None
        fsync, commit, names, _ = row
        for setting, value in (("fsync", fsync), ("synchronous_commit", commit)):
            if value == "off":
                raise ConfigError(
                    f"{self._address.place} would lose acknowledged writes in a crash: "
                    f"set {setting} = on in its postgresql.conf"
                )
        standbys = synchronous_standbys(names)
        if standbys < self._address.replicas:
            raise ConfigError(
                f"{self._address.place} confirms writes on {standbys} standbys, and "
                f"replicas={self._address.replicas} is required: set synchronous_standby_names, "
                f"to 'ANY {self._address.replicas} (...)' for example"
            )
        if standbys == 0 and not self._warned:
            self._warned = True
            log.info("%s has no synchronous standby: writes are on one disk", self._address.place)
        # Whatever is visible from here on is on as many disks as required: a server that has
        # crashed also shows what it had not replicated.
        session.execute(_NOTHING)
        session.confirm()


def synchronous_standbys(names: str) -> int:
    """How many standbys a commit waits for, by ``synchronous_standby_names``."""
    if not names.strip():
        return 0
    number = re.match(r"\s*(?:(?:ANY|FIRST)\s+)?(\d+)\s*\(", names, re.IGNORECASE)
    return int(number[1]) if number else 1
