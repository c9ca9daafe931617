"""Messages that go to many processes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace

import pytest

from millstream.wire.auth import (
    UnprovedPeerError,
    new_nonce,
    new_secret,
    proved_answer,
    verified,
)
from millstream.wire.pickled_once import PickledOnce


class Counted:
    pickles = 0

    def __reduce__(self) -> tuple[type[Counted], tuple[()]]:
        Counted.pickles += 1
        return Counted, ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counted)


@dataclass(frozen=True)
class Message(PickledOnce):
    number: int
    content: Counted | str


def test_a_message_to_many_is_pickled_once() -> None:
    message, Counted.pickles = Message(7, Counted()), 0

    sent = [pickle.dumps([message, receiver], 5) for receiver in range(3)]

    assert [pickle.loads(each) for each in sent] == [[message, n] for n in range(3)]
    assert Counted.pickles == 1


def test_a_changed_message_is_pickled_again() -> None:
    message = Message(7, Counted())
    pickle.dumps(message, 5)

    assert pickle.loads(pickle.dumps(replace(message, number=8), 5)).number == 8


def test_an_answer_that_many_get_is_serialised_once_and_proved_for_each() -> None:
    secret, message = new_secret(), Message(7, Counted())
    Counted.pickles = 0

    for nonce in (new_nonce(), new_nonce()):
        answer = proved_answer(secret, "address", nonce, message)
        assert pickle.loads(verified(secret, "address", nonce, answer)) == message
        with pytest.raises(UnprovedPeerError):
            verified(secret, "address", new_nonce(), answer)

    assert Counted.pickles == 1


def test_a_large_message_is_compressed() -> None:
    message = Message(7, "again and " * 10_000)

    sent = pickle.dumps(message, 5)

    assert len(sent) < 1_000
    assert pickle.loads(sent) == message
