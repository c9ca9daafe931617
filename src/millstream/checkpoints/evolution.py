"""How a workflow may differ from the one that wrote a checkpoint.

Functions may change; what the state means may not. Jobs keep their state under an id that
outlives their names, so that a job can be renamed, and a new one take an old name. A job that is
not durable has none to keep, and another id with every start. Nor has a job that another one
leads: its windows are among those of its leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from millstream.checkpoints.manifest import JobMetadata, WorkflowMetadata
from millstream.errors import ConfigError, MillstreamError


@dataclass(frozen=True)
class Changes:
    """What the user says about jobs that differ from those of the checkpoint."""

    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        said = {
            "added": sorted(self.added),
            "removed": sorted(self.removed),
            "renamed": dict(sorted(self.renamed.items())),
        }
        return json.dumps({name: jobs for name, jobs in said.items() if jobs})


def changes(
    *,
    added: Iterable[str] = (),
    removed: Iterable[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> Changes:
    """Say how jobs changed since the checkpoint: new ones, gone ones, ``{old name: new name}``.

    >>> meant = ms.changes(added=["alerts"], renamed={"n": "orders"})
    """
    for option, names in (("added", added), ("removed", removed)):
        if isinstance(names, str):
            raise ConfigError(f"{option} must be a list of job names, got {names!r}")
    return Changes(frozenset(added), frozenset(removed), dict(renamed or {}))


class WorkflowChangedError(MillstreamError):
    """A workflow cannot go on from a checkpoint of another form of itself."""

    def __init__(self, workflow: str, differences: tuple[str, ...]) -> None:
        super().__init__(workflow, differences)
        self.workflow, self.differences = workflow, differences

    def __str__(self) -> str:
        listed = "\n".join(f"  - {difference}" for difference in self.differences)
        return (
            f"workflow {self.workflow!r} cannot go on from this checkpoint:\n{listed}\n"
            "Change it back, say what was meant with changes=ms.changes(...), or begin with a new "
            "checkpoint"
        )


def evolve(
    old: WorkflowMetadata, new: WorkflowMetadata, meant: Changes, incarnation: int
) -> WorkflowMetadata:
    """The new workflow with the ids under which its jobs find their state.

    Changes that the checkpoint has seen already are done: a program that says them is started
    again as it is, and must not be refused, or forget the state of a job that began anew.
    """
    new = replace(new, changes=str(meant))
    if new.changes == old.changes:
        meant = Changes()
    differences = [*_of_the_whole(old, new), *_contradictions(meant), *_unmeant(old, new, meant)]
    before = {
        meant.renamed.get(job.name, job.name): job
        for job in old.jobs
        if job.name not in meant.removed
    }
    jobs = []
    for job in new.jobs:
        known = None if job.name in meant.added else before.get(job.name)
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


def _of_the_whole(old: WorkflowMetadata, new: WorkflowMetadata) -> Iterator[str]:
    if old.slots != new.slots:
        yield f"slots={new.slots}, but state is kept in {old.slots} slots, for good"
    if old.sources != new.sources:
        yield (
            f"its sources are {_listed(new.sources)}, but were {_listed(old.sources)}: what was "
            "read is known by the order of the sources"
        )


def _contradictions(meant: Changes) -> Iterator[str]:
    renamed = list(meant.renamed.values())
    for name in sorted(meant.removed & set(meant.renamed)):
        yield f"changes= says of job {name!r} that it is removed, and that it is renamed"
    for name in sorted(meant.added & set(renamed)):
        yield f"changes= says of job {name!r} that it is added, and that another is renamed to it"
    for name in sorted({name for name in renamed if renamed.count(name) > 1}):
        yield f"changes= renames several jobs to {name!r}; which of them has its state?"


def _unmeant(old: WorkflowMetadata, new: WorkflowMetadata, meant: Changes) -> Iterator[str]:
    had, has = {job.name for job in old.jobs}, {job.name for job in new.jobs}
    led_then, led_now = _leaders(old), _leaders(new)
    for name in sorted({*meant.removed, *meant.renamed} - had):
        yield f"changes= speaks of job {name!r}, which {_absent(name, led_then, 'checkpoint')}"
    for name in sorted({*meant.added, *meant.renamed.values()} - has):
        yield f"changes= speaks of job {name!r}, which {_absent(name, led_now, 'workflow')}"
    gone = had - meant.removed - set(meant.renamed)
    come = has - meant.added - set(meant.renamed.values())
    for name in sorted(gone & has - come):
        yield (
            f"job {name!r} is not new, the checkpoint has one of this name: leave it out of "
            f"changes=, or say with removed=[{name!r}] that the old one is to be forgotten"
        )
    for name in sorted(gone - has):
        if name in led_now:
            yield (
                f"job {name!r} had state of its own, and {led_now[name]!r} leads it now: define "
                f"the two in the order of before, or {name!r} with share=False; or say "
                f"removed=[{name!r}]"
            )
        else:
            yield f"job {name!r} is gone: removed=[{name!r}], or renamed={{{name!r}: ...}}"
    for name in sorted(come - gone):
        if name in led_then:
            yield (
                f"job {name!r} was led by {led_then[name]!r}, whose state held its windows, and "
                f"has state of its own now: let it be led again, or added=[{name!r}]"
            )
        else:
            yield f"job {name!r} is new: added=[{name!r}], or renamed={{...: {name!r}}}"


def _leaders(workflow: WorkflowMetadata) -> dict[str, str]:
    """Of each job that is led, by which one."""
    return {led: job.name for job in workflow.jobs for led in job.led}


def _absent(name: str, leaders: Mapping[str, str], where: str) -> str:
    if name in leaders:
        return f"has no state of its own in the {where}: job {leaders[name]!r} leads it"
    return f"the {where} does not have"


def _of_a_job(old: JobMetadata, new: JobMetadata) -> Iterator[str]:
    called = repr(new.name) if old.name == new.name else f"{new.name!r} (once {old.name!r})"
    if old.reducer != new.reducer:
        yield f"the state of job {called} is of {old.reducer}, and the reducer is {new.reducer} now"
    elif old.windows != new.windows:
        yield (
            f"the state of job {called}{_leading(old)} is for windows {old.windows or 'none'}, "
            f"which are {new.windows or 'none'}{_leading(new)} now"
        )
    elif old.form != new.form:
        yield f"the state of job {called} is of form {old.form!r}, and would be {new.form!r} now"
    if None not in (old.key_type, new.key_type) and old.key_type != new.key_type:
        yield f"the keys of job {called} are {old.key_type}, and declared as {new.key_type} now"


def _leading(job: JobMetadata) -> str:
    return f" (with those of {_listed(job.led)})" if job.led else ""


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
