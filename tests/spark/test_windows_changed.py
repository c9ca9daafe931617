"""What a checkpoint records of windowed jobs, and which of their changes it rejects."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import millstream as ms
from millstream.checkpoints.evolution import Changes, WorkflowChangedError, begin, changes, evolve
from millstream.checkpoints.manifest import WorkflowMetadata
from millstream.flow.plan import plan
from millstream.spark.checkpoint import metadata_of

MINUTE = timedelta(minutes=1)


def window(key: Any, values: Any, window: Any) -> None:
    return None


def metadata(*jobs: tuple[str, dict[str, Any]]) -> WorkflowMetadata:
    """The metadata of a workflow whose jobs read one source, and differ in what is given."""
    flow = ms.Workflow("flow")
    rows = flow.source("rows", ms.read.rate())
    for name, options in jobs:
        given = dict(options)
        reduce, window = given.pop("reduce", ms.count()), given.pop("window", None)
        share = given.pop("share", True)
        keyed = rows.key_by("value")
        if window is None:
            keyed.reduce(name, reduce, **given)
            continue
        windows = window if isinstance(window, list) else [window]
        divided = keyed.window(*windows, **{"time": "timestamp", **given})
        divided.reduce(name, reduce, share=share)
    return metadata_of(plan(flow), 16)


def one(**options: Any) -> WorkflowMetadata:
    return metadata(("job", options))


def differences(
    old: WorkflowMetadata, new: WorkflowMetadata, meant: Changes | None = None
) -> tuple[str, ...]:
    with pytest.raises(WorkflowChangedError) as caught:
        evolve(begin(old, 1), new, meant or changes(), 2)
    return caught.value.differences


SLIDING: dict[str, Any] = {"window": ms.sliding(4 * MINUTE, 2 * MINUTE)}
SHORT = ("short", {"window": ms.tumbling(2 * MINUTE)})
LONG = ("long", {"window": ms.tumbling(10 * MINUTE)})


@pytest.mark.parametrize(
    ("new", "reported"),
    [
        ({"window": ms.sliding(4 * MINUTE, MINUTE)}, "4m every 1m now"),
        ({"window": ms.tumbling(4 * MINUTE)}, "tumbling 4m now"),
        ({"window": ms.session(MINUTE)}, "session, gap 1m now"),
        ({"window": ms.count_window(4, 2)}, "count 4 every 2 now"),
        ({"window": ms.global_window(ms.every(3))}, "global, every 3 values now"),
        ({"window": [SLIDING["window"], ms.tumbling(4 * MINUTE)]}, ", tumbling 4m now"),
        ({**SLIDING, "time": ms.processing_time}, "by processing time now"),
    ],
)
def test_state_for_some_windows_is_of_no_use_to_others(new: dict[str, Any], reported: str) -> None:
    [difference] = differences(one(**SLIDING), one(**new))

    assert difference.startswith("the state of job 'job' is for windows sliding 4m every 2m, ")
    assert difference.endswith(reported)


@pytest.mark.parametrize(
    ("reduce", "reported"),
    [
        (ms.sum("value"), "of value=count(), and the reducer is value=sum(column='value') now"),
        (window, "of value=count(), and the reducer is a function (key, values) of windows now"),
    ],
)
def test_the_state_of_a_window_fits_its_reducer(reduce: object, reported: str) -> None:
    [difference] = differences(one(**SLIDING), one(**SLIDING, reduce=reduce))

    assert difference == f"the state of job 'job' is {reported}"


def test_a_window_cannot_be_added_to_state_nor_removed() -> None:
    [put] = differences(one(reduce=window), one(**SLIDING, reduce=window))
    [taken] = differences(one(**SLIDING), one())

    assert "(key, values, state), and the reducer is a function (key, values) of windows now" in put
    assert taken.endswith("is for windows sliding 4m every 2m, which are none now")


@pytest.mark.parametrize(
    "options",
    [
        {"lateness": MINUTE},
        {"early_every": MINUTE},
        {"panes": False},
        {"panes": True},
        {"share": False},
    ],
)
def test_what_a_window_holds_does_not_depend_on_these(options: dict[str, Any]) -> None:
    evolve(begin(one(**SLIDING), 1), one(**SLIDING, **options), changes(), 2)


# -- jobs that share panes -------------------------------------------------------------------


def test_jobs_that_share_panes_resume() -> None:
    old = begin(metadata(SHORT, LONG), 1)

    [job] = evolve(old, metadata(SHORT, LONG), changes(), 2).jobs

    assert (job.name, job.id, job.fused) == ("short", "short@1", ("long",))


def test_a_led_job_may_be_called_otherwise() -> None:
    evolve(begin(metadata(SHORT, LONG), 1), metadata(SHORT, ("other", LONG[1])), changes(), 2)


def alone(job: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    return job[0], {**job[1], "share": False}


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        (
            [SHORT],
            [SHORT, LONG],
            [
                "the state of job 'short' is for windows tumbling 2m, which are tumbling 2m, "
                "tumbling 10m (with those of long) now"
            ],
        ),
        (
            [SHORT, LONG],
            [SHORT],
            [
                "the state of job 'short' (with those of long) is for windows tumbling 2m, "
                "tumbling 10m, which are tumbling 2m now"
            ],
        ),
        (
            [SHORT, LONG],
            [LONG],
            ["job 'short' is missing", "job 'long' was fused into 'short'"],
        ),
        (
            [SHORT, LONG],
            [LONG, SHORT],
            [
                "job 'short' had its own state, and is fused into 'long' now",
                "job 'long' was fused into 'short'",
            ],
        ),
        (
            [SHORT, LONG],
            [SHORT, alone(LONG)],
            ["job 'long' was fused into 'short'", "the state of job 'short' (with those of long)"],
        ),
        (
            [SHORT, alone(LONG)],
            [SHORT, LONG],
            ["job 'long' had its own state, and is fused into 'short' now", "the state of job"],
        ),
    ],
)
def test_the_fusion_of_jobs_cannot_change(old: Any, new: Any, reported: list[str]) -> None:
    found = differences(metadata(*old), metadata(*new))

    assert len(found) == len(reported)
    assert all(line.startswith(begin) for line, begin in zip(found, reported, strict=True)), found


@pytest.mark.parametrize(
    ("old", "new", "meant", "where"),
    [
        ([SHORT, LONG], [SHORT], changes(removed=["long"]), "checkpoint"),
        ([SHORT], [SHORT, LONG], changes(added=["long"]), "workflow"),
    ],
)
def test_changes_of_a_fused_job_name_the_job_that_it_is_fused_into(
    old: Any, new: Any, meant: Changes, where: str
) -> None:
    found = differences(metadata(*old), metadata(*new), meant)

    assert found[0] == (
        f"changes= names job 'long', which has no state of its own in the {where}: it is "
        "fused into job 'short'"
    )
    assert found[1].startswith("the state of job 'short'")


def test_windows_of_removed_jobs_begin_empty_if_declared() -> None:
    meant = changes(removed=["short"], added=["long"])

    [job] = evolve(begin(metadata(SHORT, LONG), 1), metadata(LONG), meant, 2).jobs

    assert job.id == "long@2"
