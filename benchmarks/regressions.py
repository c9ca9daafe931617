"""Whether ratios are worse than those that are checked in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TOLERANCE = 0.15


def badness(goal: Mapping[str, Any]) -> float | None:
    """A number that is in proportion to how bad a result is; None if it is no promise.

    A cost or a gain is a part of something: what grows and shrinks with it is the rest.
    """
    value = float(goal["value"])
    if goal.get("at_most") is None and goal.get("at_least") is None:
        return None
    more_is_better = goal.get("at_least") is not None
    if goal["unit"] == "times":
        return 1 / value if more_is_better else value
    if goal["unit"].startswith("of "):
        return 1 - value if more_is_better else 1 + value
    return value


def regressions(
    known: Sequence[Mapping[str, Any]],
    taken: Sequence[Mapping[str, Any]],
    *,
    all_of_them: bool = True,
) -> list[str]:
    """What is worse by more than the tolerance, or missing of all of them; one line each."""
    found = {result["name"]: result for result in taken}
    lines = []
    for before in known:
        was = badness(before)
        if was is None:
            continue
        name = before["name"]
        if name not in found:
            if all_of_them:
                lines.append(f"{name} was not measured")
            continue
        now = badness(found[name])
        if now is not None and now > was * (1 + TOLERANCE):
            lines.append(
                f"{name} is {found[name]['value']:.3g}, was {before['value']:.3g}: "
                f"{now / was - 1:.0%} worse"
            )
    return lines
