"""The handle that Spark's processors get in ``init``: state variables and timers, without Spark."""

# ruff: noqa: N802, N803 (the names are those of Spark)
from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

from millstream.state.key_view import View
from millstream.times import FIRST, LAST, instant
from millstream.work.processors.state_schema import MakeRow, StateSchema, tuples
from millstream.work.processors.variables import (
    UNBOUND,
    ListVariable,
    MapVariable,
    ScalarsVariable,
    ScalarVariable,
    Scope,
    ValueVariable,
    Variable,
    entries_of,
    escaped,
)

TimeMode = Literal["none", "processingtime", "eventtime"]
TTL_TIMER = "ttl"


def time_in(milliseconds: int) -> datetime:
    """A time that Spark counts in milliseconds since 1970, or the nearest that a datetime has."""
    return instant(min(max(milliseconds * 1000, FIRST), LAST))


class QueryInfo:
    """What a processor can learn of the query that it runs in."""

    def __init__(self, job: str, scope: Scope) -> None:
        self._job = job
        self._scope = scope

    def getQueryId(self) -> uuid.UUID:
        """The id of the job, the same after every restart."""
        return uuid.uuid5(uuid.NAMESPACE_OID, self._job)

    def getBatchId(self) -> int:
        """The number of the epoch, which is Spark's batch id."""
        return self._scope.epoch


def _made_in(name: str) -> str:
    """The entry with the epoch in which a variable was written that each epoch begins without."""
    return f"{escaped(name)}@epoch"


class ProcessorHandle:
    """State variables and timers of the key that is being processed."""

    def __init__(self, time_mode: TimeMode, job: str = "", make_row: MakeRow = tuples) -> None:
        self._make_row = make_row
        self.scope = Scope()
        self.scope.view = UNBOUND
        self._mode = time_mode
        self._job = job
        self._variables: dict[str, Variable] = {}
        self._deleted: set[str] = set()
        self._remade: set[str] = set()
        self._expiring: list[Variable] = []
        self._is_open = True
        self.fires: int | None = None
        """When the timer that fires at the moment was due."""

    # -- what a processor calls ----------------------------------------------------------

    def getValueState(
        self,
        stateName: str,
        schema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        ttl = self._ttl(stateName, ttlDurationMs)
        found = self._schema(schema, f"value state {stateName!r}")
        if ttl is None and found.only is not None:
            return self._add(ScalarVariable(stateName, self.scope, found))
        if ttl is None and found.are_scalars:
            return self._add(ScalarsVariable(stateName, self.scope, found))
        return self._add(ValueVariable(stateName, self.scope, found, ttl))

    def getListState(
        self,
        stateName: str,
        schema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        ttl = self._ttl(stateName, ttlDurationMs)
        found = self._schema(schema, f"list state {stateName!r}")
        return self._add(ListVariable(stateName, self.scope, found, ttl))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        ttl = self._ttl(stateName, ttlDurationMs)
        keys = self._schema(userKeySchema, f"the key of map state {stateName!r}")
        values = self._schema(valueSchema, f"map state {stateName!r}")
        return self._add(MapVariable(stateName, self.scope, keys, values, ttl))

    def deleteIfExists(self, stateName: str) -> None:
        self._require_init("deleteIfExists")
        if stateName in self._variables:
            raise ValueError(f"state {stateName!r} cannot be deleted: init has just made it")
        self._deleted.add(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timers().set(
            str(int(expiryTimestampMs)),
            at=time_in(int(expiryTimestampMs)),
            time=self._domain,
        )

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers().cancel(str(int(expiryTimestampMs)), time=self._domain)

    def listTimers(self) -> Iterator[int]:
        names = [timer.name for timer in self._timers().list() if timer.name != TTL_TIMER]
        fires = () if self.fires is None else (self.fires,)
        return iter(sorted({*map(int, names), *fires}))

    def getQueryInfo(self) -> QueryInfo:
        return QueryInfo(self._job, self.scope)

    # -- what its reducer calls ----------------------------------------------------------

    @property
    def is_plain(self) -> bool:
        """Whether nothing is to be done before and after a key but to bind its state."""
        return self._mode == "none" and not self._deleted

    def initialized(self) -> None:
        """``init`` has ended: from now on there are no new variables."""
        self._is_open = False

    def bind(self, view: View) -> None:
        """Work on the state of a key."""
        self.scope.bind(view)
        self.fires = None
        for name in self._deleted:
            if view.get(_made_in(name)) != self.scope.epoch:
                for entry in entries_of(view, name):
                    del view[entry]

    def release(self) -> None:
        """The key is done."""
        if self.scope.expires is not None:
            self._purge_at(self.scope.expires)
        for name in self._remade:
            if entries_of(self.scope.view, name):
                self.scope.view[_made_in(name)] = self.scope.epoch
        self.scope.view = UNBOUND

    def purge(self) -> None:
        """Remove what has expired of the key; called when its timer for that fires."""
        times = [variable.purge() for variable in self._expiring]
        due = [time for time in times if time is not None]
        if due:
            self._purge_at(min(due))

    def _purge_at(self, expires: int) -> None:
        """Set the timer, unless it is set for an earlier time: then it is set again later."""
        timers, at = self.scope.view.timers, time_in(expires)
        known = timers.get(TTL_TIMER)
        if known is None or at < known:
            timers.set(TTL_TIMER, at=at)

    def _schema(self, given: Any, role: str) -> StateSchema:
        return StateSchema(given, role, self._make_row)

    # -- checks --------------------------------------------------------------------------

    def _require_init(self, called: str) -> None:
        if not self._is_open:
            raise RuntimeError(f"{called} can be called in init only")

    def _ttl(self, name: str, ttl: int | None) -> int | None:
        self._require_init("a state variable")
        if not isinstance(name, str) or not name:
            raise TypeError(f"a state variable has the name {name!r}; give a non-empty string")
        if ttl is None:
            return None
        if self._mode != "processingtime":
            raise ValueError(
                f"state {name!r} has a ttlDurationMs, which needs time_mode='processingTime'"
            )
        if ttl <= 0:
            raise ValueError(f"state {name!r} has ttlDurationMs={ttl}; give a positive number")
        return int(ttl)

    def _add(self, variable: Variable) -> Variable:
        if variable.name in self._variables:
            raise ValueError(f"init makes two state variables called {variable.name!r}")
        if variable.name in self._deleted:
            # Spark runs init with every batch, so that it is empty at the beginning of each.
            self._remade.add(variable.name)
        self._variables[variable.name] = variable
        if variable.expires:
            self._expiring.append(variable)
        return variable

    @property
    def _domain(self) -> Literal["processing", "event"]:
        return "event" if self._mode == "eventtime" else "processing"

    def _timers(self) -> Any:
        if self._mode == "none":
            raise RuntimeError(
                "timers need time_mode='processingTime' or 'eventTime', but it is 'none'"
            )
        return self.scope.view.timers
