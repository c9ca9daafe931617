"""Spark's executors: which of them live, and how to ask for more or for fewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from millstream.elastic.pool_options import ExecutorSupply
from millstream.elastic.pool_plan import Executor


class Executors:
    """The executors of a session."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._known: dict[str, Executor] = {}
        dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        self.supply = supply_of(str(context.master), dynamic=dynamic)

    def living(self) -> list[Executor]:
        """The executors that are registered now; in local mode the driver."""
        scala = self._context._jsc.sc()
        if self.supply is ExecutorSupply.LOCAL:
            names = ["driver"]
        else:
            names = [name for name in scala.getExecutorIds().mkString(",").split(",") if name]
        # What is known about an executor does not change, and each call to the JVM takes time.
        known = {name: self._known.get(name) or self._described(name) for name in names}
        self._known = {name: executor for name, executor in known.items() if executor is not None}
        return list(self._known.values())

    def request(self, total: int) -> None:
        """Ask Spark to have so many executors; it may take a while, or never happen."""
        nothing = _scala(self._context).toScalaMap({})
        self._context._jsc.sc().requestTotalExecutors(total, 0, nothing)

    def release(self, names: Sequence[str]) -> None:
        """Have Spark end executors; request how many there shall be afterwards.

        Spark lowers the number that was requested last, and to zero if there was none: then it
        would not replace executors that die later.
        """
        self._context._jsc.sc().killExecutors(_scala(self._context).toSeq(list(names)))

    def _described(self, name: str) -> Executor | None:
        try:
            found = self._context._jsc.sc().statusStore().executorSummary(name)
        except Py4JJavaError:
            return None  # it has just registered, and is not listed yet
        host = str(found.hostPort()).rpartition(":")[0]
        # A summary without a host is not complete yet.
        return Executor(name=name, host=host, cores=int(found.totalCores())) if host else None


def supply_of(master: str, *, dynamic: bool) -> ExecutorSupply:
    """Whether the number of executors of a master can be changed by us.

    With dynamic allocation it is Spark that does so. A ``local-cluster`` is a standalone cluster
    with one worker per executor: it ends and starts executors, up to the number in its name.
    """
    if master.startswith("local") and not master.startswith("local-cluster"):
        return ExecutorSupply.LOCAL
    return ExecutorSupply.FIXED if dynamic else ExecutorSupply.ELASTIC


def _scala(context: SparkContext) -> Any:
    """Spark's converters to collections of Scala."""
    jvm = context._jvm
    assert jvm is not None  # it is there as long as the session is
    return jvm.PythonUtils
