from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from streamtrain.window.ages import Ages


def test_the_age_of_a_record_is_that_of_its_transaction() -> None:
    ages = Ages(base=10, capacity=100)
    ages.add(12, 1.0)
    ages.add(15, 2.0)
    assert [ages.published_at(n) for n in (10, 11, 12, 14, 15)] == [1.0, 1.0, 2.0, 2.0, None]


def test_what_was_published_before_is_not_known() -> None:
    ages = Ages(base=10, capacity=100)
    assert not ages.knows(9)
    assert ages.knows(10)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=300), st.integers(2, 20))
def test_memory_is_bounded_and_a_record_never_looks_younger_than_it_is(sizes: list[int], capacity: int) -> None:
    ages = Ages(base=0, capacity=capacity)
    counts = list(accumulate(sizes))
    for at, count in enumerate(counts):
        ages.add(count, float(at))
    assert len(ages._counts) <= capacity
    for at, count in enumerate(counts):
        told = ages.published_at(count - 1)
        assert told is not None
        assert told <= at
    assert ages.published_at(counts[-1]) is None
