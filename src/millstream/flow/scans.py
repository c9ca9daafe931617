"""Which sources are scanned by Python tasks instead of Spark's readers, by their descriptions.

Spark lists and logs the files of every epoch in both cases. What only the files themselves show,
``millstream.spark.file_scans`` checks in every epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream.flow.plan import Plan
from millstream.flow.sources import FilesSource, FolderSource
from millstream.flow.vertices import SourceVertex

# Of Spark's file streams: they choose files, and do not change what is in them.
_LISTING = {
    "cleansource",
    "discardcachedinputratio",
    "filenameonly",
    "latestfirst",
    "maxbytespertrigger",
    "maxcachedfiles",
    "maxfileage",
    "maxfilespertrigger",
    "modifiedafter",
    "modifiedbefore",
    "pathglobfilter",
    "recursivefilelookup",
    "sourcearchivedir",
}
_REMOTE = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]*:")


def spark_readers(plan: Plan) -> Mapping[int, str]:
    """The sources that Spark reads, each with the reason; Python tasks scan the others.

    An epoch has one map stage, so all sources are scanned or none.
    """
    reasons = {at: _reason(plan, at, vertex) for at, vertex in plan.of_kind(SourceVertex)}
    given = {at: reason for at, reason in reasons.items() if reason is not None}
    if not given:
        return {}
    names = {at: vertex.name for at, vertex in plan.of_kind(SourceVertex)}
    first = next(iter(given))
    return {at: reason or f"so is {names[first]}" for at, reason in reasons.items()}


def _reason(plan: Plan, at: int, vertex: SourceVertex) -> str | None:
    source = vertex.source
    if not isinstance(source, FolderSource):
        return "it has no files"
    if source.scan == "spark":
        return 'scan="spark"'
    if isinstance(source, FilesSource):
        if source.format != "parquet":
            return f"it parses {source.format}"
        other = [name for name, _ in source.options if name.lower() not in _LISTING]
        if other:
            return f"option {other[0]}"
    if _REMOTE.match(source.path):
        return "the file system is not local"
    if any(plan.in_source_frame[reader] for reader in plan.consumers[at]):
        return "a step in the JVM follows"
    return None
