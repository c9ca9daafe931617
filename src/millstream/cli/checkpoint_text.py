"""What ``millstream checkpoint`` prints for people: plain lines and aligned tables."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.checkpoints.manifest import JobMetadata, Manifest
from millstream.checkpoints.parquet_export import Exported
from millstream.checkpoints.state_diff import JobDifference
from millstream.checkpoints.verification import Findings
from millstream.cli.listing import Listing
from millstream.cli.text_table import moment, table

_EPOCH_COLUMNS = (
    "EPOCH",
    "INCARNATION",
    "TIME",
    "PARENT",
    "RECORDS",
    "BYTES",
    "TO RESTORE",
    "BYTES",
    "PUBLISHED",
    "COMPLETE",
)
_MARKS = {"added": "+", "removed": "-", "changed": "~"}


def listing(found: Listing) -> str:
    """The epochs, then the incarnations."""
    claims = table(
        ("INCARNATION", "CLAIMED", "AFTER EPOCH", "BY", "EPOCHS RETAINED"),
        [
            (
                one.incarnation,
                moment(one.time),
                one.after,
                f"{one.host}, process {one.pid}",
                one.epochs,
            )
            for one in found.incarnations
        ],
    )
    if found.workflow is None:
        return f"no epoch has been committed yet\n\n{claims}"
    title = f"workflow {found.workflow}, {found.slots} slots, jobs: {', '.join(found.jobs)}"
    rows = [
        (
            epoch.epoch,
            epoch.incarnation,
            moment(epoch.time),
            epoch.parent,
            epoch.records,
            _many(epoch.bytes),
            epoch.restore_records,
            _many(epoch.restore_bytes),
            "yes" if epoch.published else "not known yet",
            epoch.complete,
        )
        for epoch in found.epochs
    ]
    return f"{title}\n\n{table(_EPOCH_COLUMNS, rows)}\n\n{claims}"


def _many(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def manifest(found: Manifest) -> str:
    """A manifest as lines and tables."""
    parts = [
        f"epoch {found.epoch} (after {found.parent}), try {found.try_} of incarnation "
        f"{found.incarnation}, {moment(found.time)}, link {found.position} of the chain",
        f"workflow {found.workflow.name}, {found.workflow.slots} slots, "
        f"sources: {', '.join(found.workflow.sources) or 'none'}",
        f"outputs were published through epoch {found.published} when it was written",
        table(
            ("JOB", "FORM", "REDUCER", "KEYS", "OUTPUT", "DURABLE"),
            [_job(job) for job in found.workflow.jobs],
        ),
    ]
    if found.bases:
        rows = [(b.key, _range(b.slots), b.through, b.reaches, _many(b.bytes)) for b in found.bases]
        parts.append(table(("BASE", "SLOTS", "THROUGH", "AT MOST", "BYTES"), rows))
    if found.deltas:
        deltas = [(d.key, d.job, _range(d.slots), d.since, _many(d.bytes)) for d in found.deltas]
        parts.append(table(("DELTA", "JOB", "SLOTS", "AFTER", "BYTES"), deltas))
    if found.staged:
        staged = [(one.epoch, one.attempt, ", ".join(one.sinks)) for one in found.staged]
        parts.append(table(("STAGED EPOCH", "ATTEMPT", "SINKS"), staged))
    return "\n\n".join(parts)


def _job(job: JobMetadata) -> Sequence[object]:
    output = None if job.output is None else ", ".join(f"{f.name} {f.type}" for f in job.output)
    keys = None if job.key_type is None else str(job.key_type)
    reducer = ", ".join(filter(None, (job.reducer, job.windows)))
    return job.name, job.form, reducer or None, keys, output, job.durable


def _range(slots: range) -> str:
    return f"{slots.start} to {slots.stop - 1}"


def findings(found: Findings) -> str:
    """The findings of a check, the worst first."""
    lines = [f"damaged: {damage}" for damage in (*found.chain, *found.records)]
    for epoch in found.epochs:
        if epoch.status == "damaged":
            lines.append(f"epoch {epoch.epoch} cannot be restored: {epoch.problems[0]}")
    lines += [f"not needed, but damaged: {damage}" for damage in found.elsewhere]
    for half in found.half_written:
        lines.append(
            f"epoch {half.epoch} of incarnation {half.incarnation} is half-written "
            f"({half.records} records, no manifest): harmless, it was never committed"
        )
    dropped = [epoch.epoch for epoch in found.epochs if epoch.status == "dropped"]
    if dropped:
        lines.append(f"garbage-collected: epochs {_spans(dropped)}")
    if found.leftovers:
        lines.append(f"{found.leftovers} records are not needed; `gc` deletes what is garbage")
    complete = [epoch.epoch for epoch in found.epochs if epoch.status == "complete"]
    lines.append(f"complete: {f'epochs {_spans(complete)}' if complete else 'no epoch'}")
    if complete:
        lines.append(f"newest complete epoch: {found.newest_complete}")
    return "\n".join([*lines, f"intact: {'yes' if found.ok else 'no'}"])


def _spans(epochs: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for epoch in epochs:
        if spans and spans[-1][-1] == epoch - 1:
            spans[-1][1:] = [epoch]
        else:
            spans.append([epoch])
    return ", ".join(" to ".join(map(str, span)) for span in spans)


def differences(found: Sequence[JobDifference]) -> str:
    """Counts for every job, then examples."""
    rows = [(job.job, job.added, job.removed, job.changed, job.unchanged) for job in found]
    lines = [table(("JOB", "ADDED", "REMOVED", "CHANGED", "UNCHANGED"), rows)]
    for job in found:
        lines += ["", f"{job.job}:"] if job.examples else []
        for one in job.examples:
            states = [repr(one.before), repr(one.after)]
            states = states[:1] if one.kind == "removed" else states[one.kind == "added" :]
            lines.append(f"  {_MARKS[one.kind]} {one.key!r}: {' -> '.join(states)}")
    return "\n".join(lines)


def exported(found: Sequence[Exported]) -> str:
    rows = [
        (
            file.file,
            _many(file.rows),
            _many(file.bytes),
            ", ".join(f"{n} {t}" for n, t in file.columns.items()),
        )
        for file in found
    ]
    return table(("FILE", "ROWS", "BYTES", "COLUMNS"), rows)


def restored(epoch: int, withdrawn: Sequence[int], done: bool) -> str:
    """The consequences of restoring an epoch."""
    if done:
        return f"the next start of the workflow resumes from epoch {epoch}"
    lost = f"epochs {_spans(withdrawn)} are withdrawn for good" if withdrawn else "none is lost"
    return (
        f"Restoring epoch {epoch}: {lost}, and the next start reads the input after it again. "
        "A workflow that runs on this checkpoint stops. The start removes the outputs of later "
        "epochs from file sinks; callbacks and other sinks receive them again.\n"
        "Nothing was changed; add --yes to do it."
    )


def collected(records: int, links: int, done: bool) -> str:
    verb = "deleted" if done else "would delete"
    return f"{verb} {records:,} records and {links:,} links of the chain"
