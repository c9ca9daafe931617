"""Manifests and claims: the links of the chain that defines which epochs are committed.

They are JSON, for people and tools; only the records that they name contain users' objects. A
*delta record* has the changes of the epochs (since, through] to a range of slots of one job; a
*base record* has the complete state of a range of slots of all jobs, each part through its own
epoch.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from millstream.errors import MillstreamError

FORMAT = 2
Form = Literal["stateful", "combining", "aggregate", "arrow", "windowed", "join"]


class BadManifestError(MillstreamError):
    """A link of the chain has a format that this version does not write."""


@dataclass(frozen=True)
class JobMetadata:
    """What a checkpoint records of a job.

    Records refer to it by its ``id``, which does not change with its name. ``reducer`` identifies
    the form of its state, and ``windows`` are those that the state has, if any, also of the jobs
    that are ``fused`` into this one; a job that is not ``durable`` begins with empty state
    after a restart.
    """

    name: str
    form: Form
    reducer: str
    id: str = ""
    durable: bool = True
    key_type: pa.DataType | None = None
    output: pa.Schema | None = None
    windows: str = ""
    fused: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkflowMetadata:
    """What a checkpoint records of a workflow: what must not change undeclared.

    ``changes`` are those that were declared last.
    """

    name: str
    slots: int
    jobs: tuple[JobMetadata, ...]
    sources: tuple[str, ...] = ()
    changes: str = ""

    def job(self, name: str) -> JobMetadata | None:
        return next((job for job in self.jobs if job.name == name), None)


@dataclass(frozen=True)
class DeltaRecord:
    """A record with the changes of some epochs to a range of slots of the job with an id."""

    key: str
    job: str
    slots: range
    since: int
    through: int
    bytes: int


@dataclass(frozen=True)
class BaseRecord:
    """A record with the complete state of a range of slots, in parts.

    Every part is complete through ``through`` at least, and through ``reaches`` at most.
    """

    key: str
    slots: range
    through: int
    reaches: int
    bytes: int


@dataclass(frozen=True)
class Staged:
    """Outputs that are invisible until the manifest that names them is durable."""

    epoch: int
    attempt: str
    sinks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A driver's claim to run the workflow from now on, after an epoch of the chain."""

    position: int
    incarnation: int
    after: int
    time: int
    host: str
    pid: int
    token: str


@dataclass(frozen=True)
class Manifest:
    """The durable record that commits the epochs (parent, epoch].

    ``clocks`` has the time of the epoch, and the watermarks of windowed jobs; ``layout`` how slots
    are shared among nodes.
    """

    position: int
    incarnation: int
    epoch: int
    try_: int
    parent: int
    time: int
    workflow: WorkflowMetadata
    deltas: tuple[DeltaRecord, ...]
    bases: tuple[BaseRecord, ...]
    staged: tuple[Staged, ...]
    published: int
    token: str = ""
    clocks: Mapping[str, Any] = field(default_factory=dict, hash=False)
    layout: Mapping[str, Any] = field(default_factory=dict, hash=False)


Link = Claim | Manifest


def encode(link: Link) -> bytes:
    """A link as it is stored."""
    kind = "claim" if isinstance(link, Claim) else "manifest"
    fields = {name: getattr(link, name) for name in link.__dataclass_fields__}
    fields = {name.rstrip("_"): _plain(value) for name, value in fields.items()}
    return json.dumps({"format": FORMAT, "kind": kind, **fields}, separators=(",", ":")).encode()


def decode(data: bytes, key: str) -> Link:
    """Read a link."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise BadManifestError(
                f"{key} has format {found['format']!r}, and this version reads {FORMAT}; use the "
                "version of Millstream that wrote it"
            )
        return _claim(found) if found["kind"] == "claim" else _manifest(found)
    except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as problem:
        raise BadManifestError(
            f"{key} is not a link of a checkpoint's chain: {problem!r}"
        ) from None


def as_json(link: Link) -> dict[str, Any]:
    """A link as tools print it: without serialised types."""
    printed: dict[str, Any] = json.loads(encode(link))
    if isinstance(link, Manifest):
        for job, known in zip(printed["workflow"]["jobs"], link.workflow.jobs, strict=True):
            job["key_type"] = None if known.key_type is None else str(known.key_type)
            output = known.output
            job["output"] = None if output is None else {f.name: str(f.type) for f in output}
    return printed


def _plain(value: Any) -> Any:
    if isinstance(value, WorkflowMetadata):
        jobs = [
            {
                **asdict(replace(job, key_type=None, output=None)),
                "key_type": _type_text(job.key_type),
                "output": _schema_text(job.output),
            }
            for job in value.jobs
        ]
        return {**asdict(replace(value, jobs=())), "jobs": jobs, "sources": list(value.sources)}
    if isinstance(value, tuple):
        return [_flat(item) for item in value]
    return value


def _flat(item: Any) -> dict[str, Any]:
    flat = asdict(item)
    if "slots" in flat:
        flat["slots"] = [item.slots.start, item.slots.stop]
    return flat


def _claim(found: dict[str, Any]) -> Claim:
    return Claim(**{name: found[name] for name in Claim.__dataclass_fields__})


def _manifest(found: dict[str, Any]) -> Manifest:
    workflow = found["workflow"]
    jobs = tuple(map(_job, workflow["jobs"]))
    return Manifest(
        position=found["position"],
        incarnation=found["incarnation"],
        epoch=found["epoch"],
        try_=found["try"],
        parent=found["parent"],
        time=found["time"],
        workflow=WorkflowMetadata(
            workflow["name"],
            workflow["slots"],
            jobs,
            tuple(workflow["sources"]),
            workflow["changes"],
        ),
        deltas=tuple(DeltaRecord(**{**d, "slots": range(*d["slots"])}) for d in found["deltas"]),
        bases=tuple(BaseRecord(**{**b, "slots": range(*b["slots"])}) for b in found["bases"]),
        staged=tuple(
            Staged(one["epoch"], one["attempt"], tuple(one["sinks"])) for one in found["staged"]
        ),
        published=found["published"],
        token=found["token"],
        clocks=found["clocks"],
        layout=found.get("layout", {}),
    )


def _job(found: dict[str, Any]) -> JobMetadata:
    types = {"key_type": _type(found["key_type"]), "output": _schema(found["output"])}
    return JobMetadata(**{**found, **types, "fused": tuple(found["fused"])})


def _schema_text(schema: pa.Schema | None) -> str | None:
    return None if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema(text: str | None) -> pa.Schema | None:
    if text is None:
        return None
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def _type_text(kind: pa.DataType | None) -> str | None:
    return None if kind is None else _schema_text(pa.schema([("key", kind)]))


def _type(text: str | None) -> pa.DataType | None:
    schema = _schema(text)
    return None if schema is None else schema.field(0).type
