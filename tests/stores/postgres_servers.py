"""Three real PostgreSQL servers on loopback: one that is written to, two that stand by.

A commit is acknowledged when it is on the disks of two servers. A standby looks for whoever can be
written to among the three, so that it follows a server that was promoted by itself.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO

import psycopg

from tests.chaos.processes import descendants, gone_within, send
from tests.contract.backends import server as program

USER = "millstream"
_START_TIMEOUT = 120.0
_MEMORY = Path("/dev/shm")
_ENOUGH = 2 << 30
_SETTINGS = """\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = on
synchronous_commit = on
synchronous_standby_names = 'ANY 1 (a, b, c)'
wal_keep_size = 256MB
wal_retrieve_retry_interval = 100ms
log_line_prefix = '%m %p '
"""


class PostgresServer:
    """One server: its folder, its port and its process."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name, self.folder, self.port = name, folder, port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={USER} dbname=postgres"

    @property
    def pids(self) -> list[int]:
        """Its processes, the first one first."""
        if self._process is None:
            return []
        return [self._process.pid, *descendants(self._process.pid)]

    def start(self) -> None:
        """Start it; returns when it can be asked."""
        with self._log.open("ab") as log:
            command = [binary("postgres"), "-D", str(self.folder), "-p", str(self.port)]
            self._process = _spawn(command, log)
        wait_until(self._answers, f"server {self.name} to answer")

    def kill(self) -> None:
        """SIGKILL all of its processes, as a machine does that loses its power."""
        if self._process is None:
            return
        pids = self.pids
        send(pids, signal.SIGKILL)
        self._process.wait()
        assert not gone_within(pids, _START_TIMEOUT)
        self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing of it moves while this lasts."""
        pids = self.pids
        send(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            send(pids, signal.SIGCONT)

    def ask(self, query: str) -> object:
        """The first column of the first row of a query's answer."""
        with psycopg.connect(self.conninfo, autocommit=True, connect_timeout=5) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def tell(self, *statements: str) -> None:
        """Run statements that have no answers, and need not reach the standbys."""
        with psycopg.connect(self.conninfo, autocommit=True, connect_timeout=5) as connection:
            for statement in ("SET synchronous_commit = local", *statements):
                connection.execute(statement.encode())

    @property
    def _log(self) -> Path:
        return self.folder.with_suffix(".log")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        with suppress(psycopg.OperationalError):
            return self.ask("SELECT 1") == 1
        return False


class PostgresServers:
    """The three of them; ``primary`` is the one that is written to.

    Their disks may be in memory, if there is enough: that is much quicker, and takes nothing away
    from tests in which processes are killed, and not machines.
    """

    def __init__(self, *, in_memory: bool = False) -> None:
        memory = _MEMORY if in_memory and _free_space(_MEMORY) >= _ENOUGH else None
        self.folder = Path(mkdtemp(prefix="millstream-postgresql-", dir=memory))
        give_away(self.folder)
        ports = _free_ports(3)
        self.servers = [
            PostgresServer(name, self.folder / name, port)
            for name, port in zip("abc", ports, strict=True)
        ]
        self.primary = self.servers[0]
        self._overtaken: set[PostgresServer] = set()

    @property
    def standbys(self) -> list[PostgresServer]:
        """Those that stand by, dead or alive."""
        return [server for server in self.servers if server is not self.primary]

    def url(self, options: str = "") -> str:
        """The URL of a store on these servers."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"postgresql://{USER}@{hosts}/postgres?{options}"

    def start(self) -> None:
        """Make the first server, copy it twice, and start all three."""
        first = self.primary.folder
        options = ["--no-sync", "--auth=trust", "--no-locale", "--encoding=UTF8", "--wal-segsize=1"]
        options += ["--data-checksums"]
        _run(binary("initdb"), *options, f"--username={USER}", f"--pgdata={first}")
        with (first / "postgresql.conf").open("a") as settings:
            settings.write(_SETTINGS + f"primary_conninfo = '{self._whoever_is_written_to()}'\n")
        for server in self.standbys:
            _run("cp", "-a", str(first), str(server.folder))
        for server in self.servers:
            self._prepare(server)
            server.start()
        self.wait_for_standbys(2)

    def stop(self) -> None:
        """Kill whatever runs, and remove everything."""
        for server in self.servers:
            server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def fail_over(self) -> None:
        """Promote the standby that has most; the primary must be dead, both standbys alive."""
        self._overtaken.add(self.primary)
        self.primary = max(self.standbys, key=_received)
        assert self.primary.ask("SELECT pg_promote()")
        wait_until(
            lambda: self.primary.ask("SHOW transaction_read_only") == "off",
            f"server {self.primary.name} to be promoted",
        )

    def rejoin(self, server: PostgresServer) -> None:
        """Make a primary that was overtaken a standby, from a new copy of the present one."""
        self._overtaken.remove(server)
        server.kill()
        shutil.rmtree(server.folder)
        source = ["--dbname", self.primary.conninfo, "--checkpoint=fast", "--no-sync"]
        _run(binary("pg_basebackup"), *source, f"--pgdata={server.folder}")
        self._prepare(server)
        server.start()

    def heal(self) -> None:
        """All three are there again, whatever has happened to them."""
        if not self.primary.pids:
            self.primary.start()
        for server in self.standbys:
            if server in self._overtaken:
                self.rejoin(server)
            elif not server.pids:
                server.start()
        self.wait_for_standbys(2)

    def wait_for_standbys(self, count: int) -> None:
        """Return when the primary counts as many standbys."""
        wait_until(
            lambda: (
                self.primary.ask(
                    "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum' "
                    "AND state = 'streaming'"
                )
                == count
            ),
            f"{count} standbys",
        )

    def _whoever_is_written_to(self) -> str:
        hosts = ",".join("127.0.0.1" for _ in self.servers)
        ports = ",".join(str(server.port) for server in self.servers)
        return (
            f"host={hosts} port={ports} user={USER} connect_timeout=2 "
            "target_session_attrs=read-write"
        )

    def _prepare(self, server: PostgresServer) -> None:
        name = server.folder / "postgresql.auto.conf"
        name.write_text(f"cluster_name = '{server.name}'\n")
        if server is not self.primary:
            mark = server.folder / "standby.signal"
            mark.touch()
            give_away(mark)


def _received(server: PostgresServer) -> int:
    """How far the log of a standby is on its disk."""
    found = server.ask(
        "SELECT (greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0')::bigint"
    )
    assert isinstance(found, int)
    return found


def _somebody() -> pwd.struct_passwd | None:
    """Whom the servers run as when the tests are root's, for whom they would not run."""
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _spawn(command: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    somebody = _somebody()
    return subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        user=somebody and somebody.pw_uid,
        group=somebody and somebody.pw_gid,
        extra_groups=somebody and [],
    )


def _run(*command: str) -> None:
    with TemporaryFile() as output:
        status = _spawn(command, output).wait()
        output.seek(0)
        assert status == 0, output.read().decode()


def give_away(path: Path) -> None:
    """Let the servers write to a file or folder."""
    somebody = _somebody()
    if somebody is not None:
        os.chown(path, somebody.pw_uid, somebody.pw_gid)


def binary(name: str) -> str:
    """The path of a program; Debian keeps them out of the way."""
    kept = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(kept[-1]) if kept else program(name)


def _free_space(folder: Path) -> int:
    return shutil.disk_usage(folder).free if folder.is_dir() else 0


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(happened: Callable[[], object], what: str) -> None:
    """Return when something has happened; fails if it does not."""
    deadline = time.monotonic() + _START_TIMEOUT
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)
