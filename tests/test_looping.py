"""The loop over values: it runs all of them, names those that fail, and takes fixtures, stacking and hypothesis."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looping import for_each


def test_every_value_runs_and_every_failure_is_named():
    seen = []

    @for_each("number", [1, 2, 3, 4])
    @for_each(("letter", "expected"), [("a", True), ("b", False)])
    def check(number, letter, expected):
        seen.append((number, letter))
        if number == 4:
            pytest.fail("four")
        assert number != 2 or expected

    with pytest.raises(BaseExceptionGroup, match="2 of 4 values failed: 2; 4") as caught:
        check()
    assert seen == [(number, letter) for number in (1, 2, 3, 4) for letter in "ab"]
    two, four = caught.value.exceptions
    assert two.__notes__ == ["with number: 2"]
    assert [error.__notes__ for error in two.exceptions] == [["with letter, expected: 'b', False"]]
    assert len(four.exceptions) == 2


def test_no_values_prove_nothing():
    with pytest.raises(ValueError, match=r"for_each\('number'\) has no values"):
        for_each("number", [])


@for_each("low", [0, 10])
@settings(max_examples=5, deadline=None)
@given(number=st.integers(0, 5))
def test_fixtures_and_hypothesis_go_with_it(low, number, tmp_path):
    assert low <= low + number
    assert tmp_path.is_dir()
