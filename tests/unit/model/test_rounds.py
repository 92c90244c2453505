"""Rounds in which no task is twice."""

import pytest

from freshq.model.lifecycle import rounds


@pytest.mark.parametrize(
    ("task_ids", "expected"),
    [
        ("", []),
        ("abc", [[0, 1, 2]]),
        ("aab", [[0, 2], [1]]),
        ("abaaab", [[0, 1], [2, 5], [3], [4]]),
    ],
)
def test_the_same_id_comes_in_its_order(task_ids: str, expected: list[list[int]]) -> None:
    assert list(rounds(task_ids)) == expected
