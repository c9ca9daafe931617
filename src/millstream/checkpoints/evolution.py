"""How a workflow may differ from the one that wrote a checkpoint.

Functions may change; the meaning of state may not. Jobs store their state under an id that is
independent of their names, so that a job can be renamed, and a new one take an old name. A job that
is not durable has no state to restore, and a new id with every start. A job that is fused into
another one has no state either: its windows are among those of the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from millstream.checkpoints.manifest import JobMetadata, WorkflowMetadata
from millstream.errors import ConfigError, MillstreamError
from millstream.flow.identity import gains_timers, loses_timers


@dataclass(frozen=True)
class Changes:
    """The declared differences between the jobs of a workflow and of its checkpoint."""

    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        named = {
            "added": sorted(self.added),
            "removed": sorted(self.removed),
            "renamed": dict(sorted(self.renamed.items())),
        }
        return json.dumps({name: jobs for name, jobs in named.items() if jobs})


def changes(
    *,
    added: Iterable[str] = (),
    removed: Iterable[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> Changes:
    """Declare how jobs changed since the checkpoint: ``renamed`` is ``{old name: new name}``.

    >>> declared = ms.changes(added=["alerts"], renamed={"n": "orders"})
    """
    for option, names in (("added", added), ("removed", removed)):
        if isinstance(names, str):
            raise ConfigError(f"{option} must be a list of job names, got {names!r}")
    return Changes(frozenset(added), frozenset(removed), dict(renamed or {}))


class WorkflowChangedError(MillstreamError):
    """A workflow cannot resume from a checkpoint of another form of itself."""

    def __init__(self, workflow: str, differences: tuple[str, ...]) -> None:
        super().__init__(workflow, differences)
        self.workflow, self.differences = workflow, differences

    def __str__(self) -> str:
        listed = "\n".join(f"  - {difference}" for difference in self.differences)
        return (
            f"workflow {self.workflow!r} cannot resume from this checkpoint:\n{listed}\n"
            "Revert the change, declare it with changes=ms.changes(...), or begin with a new "
            "checkpoint"
        )


def evolve(
    old: WorkflowMetadata, new: WorkflowMetadata, declared: Changes, incarnation: int
) -> WorkflowMetadata:
    """The new workflow with the ids under which its jobs find their state.

    Changes are idempotent: a program that is restarted unchanged declares them again, which must
    neither be rejected nor drop the state of a job that was added.
    """
    new = replace(new, changes=str(declared))
    if new.changes == old.changes:
        declared = Changes()
    differences = [
        *_of_the_workflow(old, new),
        *_contradictions(declared),
        *_undeclared(old, new, declared),
    ]
    before = {
        declared.renamed.get(job.name, job.name): job
        for job in old.jobs
        if job.name not in declared.removed
    }
    jobs = []
    for job in new.jobs:
        known = None if job.name in declared.added else before.get(job.name)
        id_ = new_id(job.name, incarnation)
        if known is not None and known.durable and job.durable:
            differences.extend(_of_a_job(known, job))
            id_ = known.id
        jobs.append(replace(job, id=id_))
    if differences:
        raise WorkflowChangedError(new.name, tuple(differences))
    return replace(new, jobs=tuple(jobs))


def begin(new: WorkflowMetadata, incarnation: int) -> WorkflowMetadata:
    """A workflow on an empty checkpoint."""
    return replace(
        new, jobs=tuple(replace(job, id=new_id(job.name, incarnation)) for job in new.jobs)
    )


def new_id(name: str, incarnation: int) -> str:
    """The id of a job that appears with an incarnation."""
    return f"{name}@{incarnation}"


def _of_the_workflow(old: WorkflowMetadata, new: WorkflowMetadata) -> Iterator[str]:
    if old.slots != new.slots:
        yield f"slots={new.slots}, but the state has {old.slots} slots, which cannot change"
    if old.sources != new.sources:
        yield (
            f"its sources are {_listed(new.sources)}, but were {_listed(old.sources)}: their "
            "offsets are stored in the order of the sources"
        )


def _contradictions(declared: Changes) -> Iterator[str]:
    renamed = list(declared.renamed.values())
    for name in sorted(declared.removed & set(declared.renamed)):
        yield f"changes= has job {name!r} both as removed and as renamed"
    for name in sorted(declared.added & set(renamed)):
        yield f"changes= has job {name!r} both as added and as a new name"
    for name in sorted({name for name in renamed if renamed.count(name) > 1}):
        yield f"changes= renames several jobs to {name!r}; which of them has its state?"


def _undeclared(old: WorkflowMetadata, new: WorkflowMetadata, declared: Changes) -> Iterator[str]:
    had, has = {job.name for job in old.jobs}, {job.name for job in new.jobs}
    fused_before, fused_now = _fused_into(old), _fused_into(new)
    for name in sorted({*declared.removed, *declared.renamed} - had):
        yield f"changes= names job {name!r}, which {_absent(name, fused_before, 'checkpoint')}"
    for name in sorted({*declared.added, *declared.renamed.values()} - has):
        yield f"changes= names job {name!r}, which {_absent(name, fused_now, 'workflow')}"
    missing = had - declared.removed - set(declared.renamed)
    appeared = has - declared.added - set(declared.renamed.values())
    for name in sorted(missing & has - appeared):
        yield (
            f"job {name!r} is not new, the checkpoint has one of this name: leave it out of "
            f"changes=, or drop the state of the old one with removed=[{name!r}]"
        )
    for name in sorted(missing - has):
        if name in fused_now:
            yield (
                f"job {name!r} had its own state, and is fused into {fused_now[name]!r} now: "
                f"define the two in the old order, or {name!r} with share=False; or declare "
                f"removed=[{name!r}]"
            )
        else:
            yield f"job {name!r} is missing: removed=[{name!r}], or renamed={{{name!r}: ...}}"
    for name in sorted(appeared - missing):
        if name in fused_before:
            yield (
                f"job {name!r} was fused into {fused_before[name]!r}, whose state has its windows, "
                f"and has its own state now: let it be fused again, or added=[{name!r}]"
            )
        else:
            yield f"job {name!r} is new: added=[{name!r}], or renamed={{...: {name!r}}}"


def _fused_into(workflow: WorkflowMetadata) -> dict[str, str]:
    """The job that each fused job is fused into."""
    return {fused: job.name for job in workflow.jobs for fused in job.fused}


def _absent(name: str, fused: Mapping[str, str], where: str) -> str:
    if name in fused:
        return f"has no state of its own in the {where}: it is fused into job {fused[name]!r}"
    return f"the {where} does not have"


def _of_a_job(old: JobMetadata, new: JobMetadata) -> Iterator[str]:
    called = repr(new.name) if old.name == new.name else f"{new.name!r} (formerly {old.name!r})"
    if loses_timers(old.reducer, new.reducer):
        yield (
            f"keys of job {called} may have timers, which would never fire without on_timer=: give "
            "it one, such as a function that returns nothing"
        )
    elif old.reducer != new.reducer and not gains_timers(old.reducer, new.reducer):
        yield f"the state of job {called} is of {old.reducer}, and the reducer is {new.reducer} now"
    elif old.windows != new.windows:
        yield (
            f"the state of job {called}{_with_fused(old)} is for windows {old.windows or 'none'}, "
            f"which are {new.windows or 'none'}{_with_fused(new)} now"
        )
    elif old.form != new.form:
        yield f"the state of job {called} is of form {old.form!r}, and would be {new.form!r} now"
    if None not in (old.key_type, new.key_type) and old.key_type != new.key_type:
        yield f"the keys of job {called} are {old.key_type}, and declared as {new.key_type} now"


def _with_fused(job: JobMetadata) -> str:
    return f" (with those of {_listed(job.fused)})" if job.fused else ""


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
