from __future__ import annotations

from millstream.cli.demo.word_count import differences, verdict


def test_differences_names_wrong_missing_and_surplus_words() -> None:
    found = {"mill": 2, "stream": 1, "only": 1}
    expected = {"mill": 2, "stream": 3, "gone": 4}

    assert differences(found, expected) == {"gone": (0, 4), "only": (1, 0), "stream": (1, 3)}
    assert differences(expected, dict(expected)) == {}


def test_a_wrong_count_is_named_and_not_exact() -> None:
    assert verdict({"mill": 2}, {"mill": 2}) == ["exact: yes"]
    assert verdict({"mill": 2}, {"mill": 3}) == ["mill: counted 2, should be 3", "exact: no"]
