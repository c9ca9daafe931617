"""Three PostgreSQL servers, as the contract suite sees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

from tests.contract.backends import Backend, Harm
from tests.contract.disks import SmallDisk
from tests.stores.postgres_servers import PostgresServers, give_away

_HARMS = {
    "flip": "set_byte(data, length(data) / 2, get_byte(data, length(data) / 2) # 16)",
    "tear": "substring(data, 1, length(data) - 1)",
}


class PostgresBackend(Backend):
    def start(self, folder: Path) -> None:
        self._servers = PostgresServers(in_memory=True)
        self._numbers = count()
        self._table = "none"
        self._disks: list[SmallDisk] = []
        self._servers.start()

    def stop(self) -> None:
        for disk in self._disks:
            disk.unmount()
        self._servers.stop()

    def fresh(self, *, small: bool) -> None:
        self._servers.heal()
        self._servers.primary.tell(f"DROP TABLE IF EXISTS {self._table}")  # copies stay small
        self._table = f"store_{next(self._numbers)}"
        self.url = self._servers.url(f"table={self._table}&replicas=1")
        if small:
            self._disks.append(self._small_disk())
            self.url += f"&options=-cdefault_tablespace%3D{self._table}"

    def _small_disk(self) -> SmallDisk:
        """Give the primary a tablespace on a small disk of its own."""
        primary = self._servers.primary
        primary.tell(
            "SET allow_in_place_tablespaces = on",
            f"CREATE TABLESPACE {self._table} LOCATION ''",
        )
        number = primary.ask(f"SELECT oid FROM pg_tablespace WHERE spcname = '{self._table}'")
        folder = primary.folder / "pg_tblspc" / str(number)
        [inside] = folder.iterdir()
        disk = SmallDisk(folder)
        disk.mount()
        inside.mkdir()
        give_away(inside)
        return disk

    @contextmanager
    def outage(self) -> Iterator[None]:
        self._servers.primary.kill()
        try:
            yield
        finally:
            self._servers.heal()

    def crash(self) -> None:
        self._servers.primary.kill()
        self._servers.primary.start()

    @contextmanager
    def power_cut(self) -> Iterator[None]:
        """The primary and its disk are gone: what no standby has on its disk is lost."""
        yield
        self._servers.primary.kill()
        self._servers.fail_over()
        self._servers.heal()

    def damage(self, key: str, harm: Harm) -> None:
        self._servers.primary.tell(
            f"UPDATE {self._table} SET data = {_HARMS[harm]} "
            f"WHERE key = '\\x{key.encode().hex()}' AND part = 0"
        )

    def fill_up(self) -> AbstractContextManager[None]:
        return self._disks[-1].full()


BACKEND = PostgresBackend
