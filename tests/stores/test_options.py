from __future__ import annotations

import pytest

from millstream.errors import ConfigError
from millstream.stores.options import DEFAULT_PATIENCE, patience_of, split_options


def test_options_follow_the_question_mark() -> None:
    assert split_options("x:///a?b=1&c=%2F", {"b", "c"}) == ("x:///a", {"b": "1", "c": "/"})
    assert split_options("x:///a", {"b"}) == ("x:///a", {})


def test_unknown_and_repeated_options_are_rejected() -> None:
    with pytest.raises(ConfigError, match="x:// has no option 'c'; it has a, b"):
        split_options("x://?c=1", {"b", "a"})
    with pytest.raises(ConfigError, match="twice"):
        split_options("x://?a=1&a=1", {"a"})


def test_what_may_be_a_password_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        split_options("x://user:pass?secret@host/", {"a"})
    assert "secret" not in str(raised.value)


def test_patience_is_a_number_of_seconds() -> None:
    assert patience_of({}) == DEFAULT_PATIENCE
    assert patience_of({"patience": "0.5"}) == 0.5
    assert patience_of({"patience": "0"}) == 0
    for text in ("x", "-1", "nan", "inf"):
        with pytest.raises(ConfigError, match="patience"):
            patience_of({"patience": text})
