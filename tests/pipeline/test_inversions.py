"""Claims out of turn, vectorized and by comparing every pair."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from freshq_pipeline.gold.inversions import out_of_turn

TIME = st.integers(0, 12)


@given(
    st.lists(st.tuples(TIME, TIME), max_size=20),
    st.lists(st.tuples(TIME, TIME, TIME), max_size=20),
)
def test_vectorized_equals_pairwise(claims: list[tuple[int, int]], waits: list[tuple[int, int, int]]) -> None:
    columns = [
        np.array([row[place] for row in rows], dtype=np.int64)
        for rows, width in ((claims, 2), (waits, 3))
        for place in range(width)
    ]
    expected = [
        any(since < at < until and created > own for since, until, created in waits) for at, own in claims
    ]
    assert out_of_turn(*columns).tolist() == expected
