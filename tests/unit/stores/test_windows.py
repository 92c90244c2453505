"""Which lines a claim on SQL is shown, without a database: here a window has three."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from freshq.stores.sql import windows
from freshq.stores.sql.schema import schema
from freshq.stores.sql.windows import END, FOLLOWING, LAST, NO_OTHERS, REUSE_SECONDS, LineWindow, Window
from tests.conftest import Clock

QUEUE = "default"


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW_LINES", 3)
    monkeypatch.setattr(windows, "FEW_LINES", 1)


@pytest.fixture
def window(clock: Clock) -> LineWindow:
    return LineWindow(schema("tasks", "sqlite"), sqlite.dialect(), clock)


class Lines:
    """The lines of a queue, and the lookups of them."""

    def __init__(self, *lines: str) -> None:
        self.lines = sorted(lines)
        self.found: list[tuple[str, dict[str, Any]]] = []

    def find(self, name: str, where: Mapping[str, Any]) -> Sequence[str]:
        self.found.append((name, dict(where)))
        assert where["of_queue"] == QUEUE
        before = [line for line in self.lines if line < where["of_until"]]
        if name == LAST:
            return before[-1:]
        assert name == FOLLOWING
        return [line for line in before if line > where["of_after"]][: where["of_count"]][::-1]

    def seen(self, window: LineWindow) -> list[list[str]]:
        """Return the lines that the next claim is shown, by level."""
        return [
            [f"{level}{group or ''}" for level, group in lines] for lines in window.levels(self.find, QUEUE)
        ]


def test_all_lines_are_shown_in_one_lookup_if_they_are_few(window: LineWindow) -> None:
    lines = Lines("0", "0b", "9a")
    assert lines.seen(window) == [["9a"], ["0", "0b"]]
    assert lines.found == [
        (FOLLOWING, {"of_queue": QUEUE, "of_after": "", "of_until": END, "of_count": 4}),
    ]
    assert not window.is_partial(QUEUE)
    assert window.known_lines(QUEUE)
    assert not window.known_lines("another")


def test_without_a_line_nothing_is_known(window: LineWindow) -> None:
    assert Lines("0").seen(window) == [["0"]]
    assert Lines().seen(window) == []
    assert not window.known_lines(QUEUE)
    assert window.known(QUEUE) is None


def test_many_lines_take_turns_level_by_level(window: LineWindow) -> None:
    lines = Lines("0", "0a", "0b", "0c", "0d", "5x")
    assert lines.seen(window) == [["5x"], ["0", "0a", "0b"]]
    assert lines.seen(window) == [["5x"], ["0c", "0d", "0"]]
    assert lines.seen(window) == [["5x"], ["0a", "0b", "0c"]]
    lines.lines.remove("5x")
    lines.lines.append("0e")
    peek = window.copy()
    first = lines.seen(window)
    assert lines.seen(peek) == first
    assert {line for _ in range(2) for level in lines.seen(window) for line in level} == {*lines.lines}


def test_a_queue_with_many_lines_may_have_few_again(window: LineWindow) -> None:
    lines = Lines("0a", "0b", "0c", "0d")
    assert lines.seen(window) == [["0a", "0b", "0c"]]
    assert window.is_partial(QUEUE)
    assert window.copy().is_partial(QUEUE)
    del lines.lines[1:]
    assert lines.seen(window) == [["0a"]]
    assert not window.is_partial(QUEUE)
    lines = Lines("0a", "0b", "0c", "0d")
    lines.seen(window)
    assert Lines().seen(window) == []
    assert not window.is_partial(QUEUE)
    lines.seen(window)
    window.is_whole(QUEUE)
    assert not window.is_partial(QUEUE)


def test_one_line_is_claimed_again_without_a_lookup_while_it_is_alone(window: LineWindow) -> None:
    Lines("5b").seen(window)
    known = window.known(QUEUE)
    assert known is not None
    window.used(QUEUE, 100)
    assert window.known(QUEUE) is known
    assert known.others == {"others_from": "5b\x01", "level_from": "5", "others_until": "5b"}
    assert Window(5, [None], 1, 0.0).others == {
        "others_from": "5\x01",
        "level_from": "5",
        "others_until": "5",
    }


def test_several_lines_are_claimed_again_for_their_turns_and_for_a_while(
    window: LineWindow, clock: Clock
) -> None:
    lines = Lines("5a", "5b")
    lines.seen(window)
    known = window.known(QUEUE)
    assert known is not None
    assert (known.level, known.groups, known.turns_left) == (5, ["a", "b"], 2)
    assert known.others == {"others_from": "6", "level_from": "5", "others_until": "5"} != NO_OTHERS
    window.used(QUEUE, 1)
    assert window.known(QUEUE) is known
    window.used(QUEUE, 1)
    assert window.known(QUEUE) is None
    lines.seen(window)
    clock.advance(REUSE_SECONDS)
    assert window.known(QUEUE) is None
    window.used("another", 1)


def test_of_many_lines_all_have_their_turn_before_new_ones(window: LineWindow, clock: Clock) -> None:
    Lines("0a", "0b", "0c", "0d").seen(window)
    clock.advance(100 * REUSE_SECONDS)
    known = window.known(QUEUE)
    assert known is not None
    assert known.turns_left == 3
