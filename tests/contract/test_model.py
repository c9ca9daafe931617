"""Whatever is done to a store, it answers as a dictionary would."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.contract.backends import Backend
from tests.contract.children import writer

KEYS = st.sampled_from(["a", "a/1", "a/2", "a/21", "b/%", "b/_", "b/é", "é", "k" * 400])
FIRST_KEYS = st.sampled_from(["first/1", "first/2", "first/3"])
VALUES = st.one_of(st.binary(max_size=40), st.integers(0, 255).map(lambda n: bytes([n]) * 70_000))


def test_a_store_answers_as_a_dictionary_would(backend: Backend) -> None:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            backend.fresh(small=False)
            self.store = backend.open(writer())
            self.model: dict[str, bytes] = {}

        @rule(items=st.dictionaries(KEYS, VALUES, max_size=5))
        def put(self, items: dict[str, bytes]) -> None:
            self.store.put(items)
            self.model.update(items)

        @rule(key=FIRST_KEYS, value=VALUES)
        def put_if_absent(self, key: str, value: bytes) -> None:
            assert self.store.put_if_absent(key, value) == (key not in self.model)
            self.model.setdefault(key, value)

        @rule(keys=st.lists(KEYS | FIRST_KEYS, max_size=3))
        def delete(self, keys: list[str]) -> None:
            self.store.delete(keys)
            for key in keys:
                self.model.pop(key, None)

        @rule(keys=st.lists(KEYS | FIRST_KEYS, max_size=5))
        def get(self, keys: list[str]) -> None:
            assert self.store.get(keys) == {k: self.model[k] for k in keys if k in self.model}

        @rule(prefix=st.sampled_from(["a", "a/", "a/2", "b/_", "é", "f"]))
        def scan(self, prefix: str) -> None:
            expected = [key for key in self.model if key.startswith(prefix)]
            assert self.store.scan(prefix) == sorted(expected, key=str.encode)

        @rule()
        def reopen(self) -> None:
            self.store.close()
            self.store = backend.open(writer())

        @invariant()
        def same(self) -> None:
            assert self.store.scan() == sorted(self.model, key=str.encode)

        def teardown(self) -> None:
            assert self.store.get(self.model) == self.model
            assert not list(self.store.verify())
            self.store.close()

    run_state_machine_as_test(
        Machine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None)
    )
