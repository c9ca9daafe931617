from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.elastic.actions import Action, AddNodes, MoveSlots
from millstream.elastic.limits import Limits
from millstream.elastic.load import Load
from millstream.elastic.policy import PolicyError, policy
from millstream.errors import Place, WorkflowError
from millstream.ring.ring import NodeId, Ring
from tests.elastic.closed_loop import load_of

FILE = str(Path(__file__))
A, B = map(NodeId, "ab")
RING = Ring.even([A, B], 8)
HISTORY = [load_of(RING, {A: 0.9, B: 0.1})]
LIMITS = Limits(max_nodes=3)


def adding(history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
    return [AddNodes(count=1, relieve=(A,), reason=f"epoch {history[-1].epoch}")]


def raising(history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
    return json.loads("{")  # type: ignore[no-any-return]


def foreign(history: Sequence[Load], ring: Ring, limits: Limits) -> list[Action]:
    return [MoveSlots(slots=(range(8),), source=A, to=B, reason="all of them")]


def forgetful(history: Sequence[Load], ring: Ring, limits: Limits) -> Any:
    """Returns nothing."""


def line(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


def error_of(function: Any) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        policy(function).decide(HISTORY, RING, LIMITS)
    return caught.value


def test_a_function_is_a_policy() -> None:
    own = policy(adding)

    assert own.name == "adding"
    assert own.decide(HISTORY, RING, LIMITS) == [AddNodes(count=1, relieve=(A,), reason="epoch 1")]
    assert own.decide([], RING, LIMITS) == []


def test_an_exception_names_the_function_and_the_line_that_raised_it() -> None:
    error = error_of(raising)

    assert error.place == Place(FILE, line(raising) + 1)
    assert str(error).startswith(
        f"{FILE}:{line(raising) + 1}: the policy, raising, raised json.decoder.JSONDecodeError: "
    )
    assert isinstance(error.__cause__, json.JSONDecodeError)


def test_an_impossible_action_names_the_function() -> None:
    error = error_of(foreign)

    assert str(error) == (
        f"{FILE}:{line(foreign)}: the policy, foreign, returned an action that is not possible: "
        "a does not own all of slots 0 to 7; move slots from the node that ring.owner(slot) names"
    )


def test_what_is_no_list_of_actions_is_rejected() -> None:
    assert "returned None (NoneType); return a list of actions" in str(error_of(forgetful))


def test_the_error_survives_pickling() -> None:
    error = error_of(foreign)

    again = pickle.loads(pickle.dumps(error))

    assert str(again) == str(error)
    assert again.place == error.place


def test_a_function_of_the_wrong_shape_is_rejected_at_once() -> None:
    with pytest.raises(WorkflowError, match=r"cannot be called as \(history, ring, limits\)"):
        policy(lambda history: [])  # type: ignore[arg-type, misc]
    with pytest.raises(WorkflowError, match=r"ms.policy got 3 \(int\), which cannot be called"):
        policy(3)  # type: ignore[arg-type]
