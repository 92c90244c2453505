"""Which lines a claim asks, without a store: here a window has three."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from freshq.model.task import Task
from freshq.policy.groups import SHARED_EQUALLY, GroupRoom, GroupRule, GroupRules, StartLog
from freshq.policy.order import Order
from freshq.policy.value import Decay, ValueClass
from freshq.queue import lines
from freshq.queue.claim import PARTIAL_ROUNDS, Search, preview
from freshq.queue.lines import (
    MIN_ASKED,
    RELOOK_SECONDS,
    CountedClaim,
    Level,
    LineBook,
    OpenLines,
    by_group,
    gaps,
)
from freshq.stores.base import Lines as StoreLines
from freshq.stores.lines import (
    END,
    Choice,
    ClaimRequest,
    LevelSchedulers,
    Line,
    LineOrders,
    LineReader,
    Stored,
    line_key,
    parse_line,
)
from freshq.testing import make_task

KEYS = st.builds(
    line_key,
    st.integers(0, 9),
    st.one_of(st.none(), st.text("ab\x01Z~é", min_size=1, max_size=3)),
    st.sampled_from(["", *(ValueClass(band, 9, Decay.STEP).code for band in (0, 1))]),
)


@given(
    st.integers(0, 9),
    st.one_of(st.none(), st.text("ab\x01\x02Z~é", min_size=1, max_size=3)),
    st.sampled_from(["", ValueClass(0, 9, Decay.STEP).code, ValueClass(7, 1, Decay.LINEAR).code]),
)
def test_a_key_tells_its_line(level: int, group: str | None, of_class: str) -> None:
    assert parse_line(line_key(level, group, of_class)) == Line(level, group, of_class)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "WINDOW_LINES", 3)


@pytest.fixture
def book() -> LineBook:
    return LineBook(LevelSchedulers())


@dataclass
class Lines:
    """The keys of the lines that have tasks, and the looks for them."""

    keys: list[str]
    found: list[tuple[str, str, int]] = field(default_factory=list)
    more_lines: int = 0

    def begin(self, after: str, _until: str) -> str:
        return after

    def searches(self, _key: str) -> bool:
        return True

    def lines(self, after: str, until: str, count: int) -> list[str]:
        self.found.append((after, until, count))
        return [key for key in sorted(self.keys) if after < key < until][:count]

    def last_line(self, until: str) -> str | None:
        self.found.append(("", until, 1))
        return max((key for key in self.keys if key < until), default=None)

    def seen(self, book: LineBook) -> list[list[str]]:
        """Return the lines that the next look shows, by level."""
        reader: Any = self
        return [[*chain.from_iterable(level.keys.values())] for level in book.look(reader)]


def test_all_lines_are_shown_in_one_look_if_they_are_few(book: LineBook) -> None:
    few = Lines(["0", "0b", "9a"])
    assert few.seen(book) == [["9a"], ["0", "0b"]]
    assert few.found == [("", END, 4)]
    assert not book.is_partial
    assert book.has_lines


def test_without_a_line_nothing_is_known(book: LineBook) -> None:
    assert book.choose(1) is None
    assert Lines(["0"]).seen(book) == [["0"]]
    assert Lines([]).seen(book) == []
    assert not book.has_lines
    assert book.choose(1) is None


def test_many_lines_take_turns_level_by_level(book: LineBook) -> None:
    many = Lines(["0", "0a", "0b", "0c", "0d", "5x"])
    assert many.seen(book) == [["5x"], ["0", "0a", "0b"]]
    assert many.seen(book) == [["5x"], ["0c", "0d", "0"]]
    assert many.seen(book) == [["5x"], ["0a", "0b", "0c"]]
    many.keys.remove("5x")
    many.keys.append("0e")
    peek = book.copy(LevelSchedulers())
    first = many.seen(book)
    assert many.seen(peek) == first
    assert {key for _ in range(2) for level in many.seen(book) for key in level} == {*many.keys}


def test_a_queue_with_many_lines_may_have_few_again(book: LineBook) -> None:
    many = Lines(["0a", "0b", "0c", "0d"])
    assert many.seen(book) == [["0a", "0b", "0c"]]
    assert book.is_partial
    assert book.copy(LevelSchedulers()).is_partial
    del many.keys[1:]
    assert many.seen(book) == [["0a"]]
    assert not book.copy(LevelSchedulers()).is_partial
    many = Lines(["0a", "0b", "0c", "0d"])
    many.seen(book)
    assert Lines([]).seen(book) == []
    assert not book.copy(LevelSchedulers()).is_partial
    many.seen(book)
    book.is_whole()
    assert not book.is_partial


def test_known_lines_are_asked_while_no_better_line_appears(book: LineBook) -> None:
    Lines(["3", "5", "5b"]).seen(book)
    known = Level(5, {None: ["5"], "b": ["5b"]}, (("5\x01", "5b"), ("5b\x01", END)))
    assert book.choose(2) == (known, {None: 1, "b": 1})
    for _ in range(100):
        book.in_turn(known, {"b": 1}, [make_task("work", task_id="t", group="b")])
    chosen = book.choose(2)
    assert chosen is not None
    assert chosen[0] == known


def test_of_many_lines_all_have_their_turn_before_new_ones(book: LineBook) -> None:
    many = Lines(["8a", "8b", "8c", "8d"])
    many.seen(book)
    known = Level(8, {"a": ["8a"], "b": ["8b"], "c": ["8c"]}, (("9", END),))
    assert book.choose(3) == (known, dict.fromkeys("abc", 1))
    tasks = [make_task("work", task_id=group, group=group) for group in "abc"]
    book.in_turn(known, dict.fromkeys("abc", 1), tasks[:2])
    assert book.choose(1) == (known, dict.fromkeys("cab", 1))
    book.in_turn(known, dict.fromkeys("abc", 1), tasks[2:])
    assert book.choose(1) is None


def test_a_window_that_wraps_around_is_used_no_longer_than_for_its_turns(book: LineBook) -> None:
    many = Lines(["3x", "8a", "8b", "8c", "8d"])
    many.seen(book)
    assert many.seen(book) == [["8d", "8a", "8b"], ["3x"]]
    known = Level(8, {"d": ["8d"], "a": ["8a"], "b": ["8b"]}, (("9", END),))
    assert book.choose(1) == (known, dict.fromkeys("dab", 1))
    for group in "dab":
        book.in_turn(known, {group: 1}, [make_task("work", task_id=group, group=group)])
    assert book.choose(1) is None


def test_all_lines_of_a_level_are_known_beside_a_level_with_many(book: LineBook) -> None:
    many = Lines(["3a", "3b", "3c", "3d", "8a", "8c"])
    assert many.seen(book) == [["8a", "8c"], ["3a", "3b", "3c"]]
    known = Level(8, {"a": ["8a"], "c": ["8c"]}, (("8", "8a"), ("8a\x01", "8c"), ("8c\x01", END)))
    assert book.choose(2) == (known, {"a": 1, "c": 1})
    assert book.is_partial


def test_few_lines_are_all_known_wherever_the_window_begins(book: LineBook) -> None:
    lines_left = Lines(["0a", "0b", "0c", "0d"])
    lines_left.seen(book)
    del lines_left.keys[:2]
    assert lines_left.seen(book) == [["0d", "0c"]]
    lines_left.seen(book)
    gaps_left = (("0", "0c"), ("0c\x01", "0d"), ("0d\x01", END))
    assert book.choose(2) == (Level(0, {"c": ["0c"], "d": ["0d"]}, gaps_left), {"c": 1, "d": 1})


def test_while_other_lines_appear_at_every_look_claims_look_first(book: LineBook) -> None:
    for keys, is_known in (
        (["0a"], True),
        (["0a", "0b"], False),
        (["0c"], False),
        (["0c"], True),
        ([], False),
    ):
        Lines(keys).seen(book)
        assert (book.choose(1) is not None) is is_known


@given(st.integers(0, 9), st.sets(KEYS, max_size=6), KEYS)
def test_a_line_in_no_gap_is_known_or_on_a_lower_level(level: int, keys: set[str], other: str) -> None:
    of_level = sorted(key for key in keys if key[0] == str(level))
    in_gap = [first for first, until in gaps(level, of_level) if first <= other < until]
    assert len(in_gap) == (other not in of_level and other >= str(level))


@given(st.integers(0, 9), st.sets(KEYS, max_size=6), KEYS)
def test_beside_the_only_level_any_other_line_is_in_a_gap(level: int, keys: set[str], other: str) -> None:
    of_level = sorted(key for key in keys if key[0] == str(level))
    in_gap = [first for first, until in gaps(level, of_level, is_only=True) if first <= other < until]
    assert len(in_gap) == (other not in of_level)


def test_a_claim_of_one_task_asks_a_few_more_lines_than_it_needs(book: LineBook) -> None:
    groups = [f"{number:02}" for number in range(20)]
    level = Level(0, {group: [Line(0, group).key] for group in groups})
    assert book.ask(level, groups[:1], 7) == {"00": 7}
    assert list(book.ask(level, groups, 1)) == groups[:MIN_ASKED]
    assert list(book.ask(level, groups, 5)) == groups[:5]
    assert list(book.ask(level, groups, 5, every=True)) == groups
    assert set(book.ask(level, groups, 40).values()) == {2}


def room_of(*groups: str) -> GroupRoom:
    """Return the room of a claim that has some in the given groups only."""
    rules = GroupRules(default=GroupRule(max_running=1))
    return GroupRoom(rules, lambda group: int(group not in groups), StartLog(), 0.0)


@pytest.mark.parametrize("count", [2, 40])
def test_a_line_with_room_is_found_beside_many_without(book: LineBook, count: int) -> None:
    keys = [f"0{number:02}" for number in range(count)]
    reader: Any = Lines(keys)
    request = request_for(1, Order.LIFO, LevelSchedulers())
    request.room = room_of(keys[-1][1:])
    request.groups = GroupRules(default=GroupRule(max_running=1))
    claim = CountedClaim(reader, request, request.room)
    for _ in range(3):
        levels = OpenLines(book).levels(claim, 0.0)
        shown = [group for level in levels for group in level.keys if claim.counted().allows(group)]
        assert {*shown} == {keys[-1][1:]}
    claim.count(keys)  # everything is counted already
    assert claim.room.allows(keys[-1][1:])


@pytest.mark.parametrize("name", ["take", "take_locked", "take_each", "look"])
def test_a_store_names_itself_if_it_is_asked_to_take_in_another_way(name: str) -> None:
    bare: Any = type("Bare", (StoreLines,), {})()
    with pytest.raises(NotImplementedError, match="Bare takes tasks in another way"):
        getattr(bare, name)(None, None)
    with pytest.raises(NotImplementedError, match="Bare takes tasks in another way"):
        bare.line_reader("q")


# --- a whole search, beside all tasks in one list


@dataclass
class Shelf:
    """A store of lines that do no more than they must: a model of all stores."""

    waiting: list[Task]
    stale: Collection[str | None] = ()  # groups whose tasks nobody can take
    locks_to_take: bool = False
    takes_each: bool = False
    takes: int = 0

    def searches_again(self, _queue: str) -> bool:
        return False

    def clear_stale(self, _queue: str, _now: float) -> int:
        return 0

    def line_reader(self, _queue: str) -> Lines:
        return Lines(sorted({line_key(task.priority, task.group) for task in self.waiting}))

    def take(self, _request: ClaimRequest, choice: Choice) -> list[Task]:
        self.takes += 1
        keys = self.line_reader("").keys
        if any(first <= key < until for first, until in choice.unless for key in keys):
            return []
        found: list[Task] = []
        for key, wanted in choice.lines.items():
            of_line = [task for task in self.waiting if line_of(task) == key and task.group not in self.stale]
            of_line.sort(key=lambda task: task.created, reverse=choice.newest_first)
            found += of_line[: min(wanted, choice.limit - len(found))]
        self.waiting = [task for task in self.waiting if task not in found]
        return found[::-1]


@dataclass
class ShelfReader(Lines):
    """Reads the lines of a shelf, two tasks at a time."""

    waiting: list[Task] = field(default_factory=list)

    def page(
        self, key: str, _moment: object, count: int, _looked: int, *, newest_first: bool
    ) -> list[Stored]:
        of_line = [task for task in self.waiting if line_of(task) == key]
        of_line.sort(key=lambda task: task.created, reverse=newest_first)
        return [Stored(task, None) for task in of_line[:count]]

    def tasks(self, found: Iterable[Stored], count: int) -> list[Task]:
        return [each.task for each in islice(found, count)]


class OneByOne(Shelf):
    """A shelf from which a claim takes one task after the other; some of them another claimer has."""

    def __init__(self, waiting: list[Task], gone: Collection[str] = ()) -> None:
        super().__init__(waiting, takes_each=True)
        self.gone = gone

    def reader(self) -> Any:
        return ShelfReader(self.line_reader("").keys, waiting=[*self.waiting])

    def look(self, _request: ClaimRequest, work: Callable[[LineReader[Any]], list[Task]]) -> list[Task]:
        return work(self.reader())

    def take_each(
        self, request: ClaimRequest, work: Callable[[LineReader[Any]], Iterator[Stored]]
    ) -> list[Task]:
        found = (each.task for each in work(self.reader()) if each.task_id not in self.gone)
        taken = list(islice(found, request.limit))
        self.waiting = [task for task in self.waiting if task not in taken]
        return taken


def task_at(number: int, level: int, group: str | None) -> Task:
    return make_task("work", task_id=f"{number:03}", priority=level, group=group, created=float(number))


def naive(tasks: list[Task], schedulers: LevelSchedulers, limit: int, *, newest_first: bool) -> list[Task]:
    """Return the next tasks: level by level, groups in turn, each line in its order."""

    def all_tasks() -> Any:
        for level in sorted({task.priority for task in tasks}, reverse=True):
            groups = sorted({task.group for task in tasks if task.priority == level}, key=lambda g: g or "")
            of_group = {
                group: iter(
                    sorted(
                        (task for task in tasks if (task.priority, task.group) == (level, group)),
                        key=lambda task: task.created,
                        reverse=newest_first,
                    )
                )
                for group in groups
            }
            yield from schedulers.interleave(level, of_group)

    return list(islice(all_tasks(), limit))


def line_of(task: Task) -> str:
    return line_key(task.priority, task.group)


def request_for(limit: int, order: Order, schedulers: LevelSchedulers) -> ClaimRequest:
    return ClaimRequest(
        "q", LineOrders(order, 60.0), schedulers, SHARED_EQUALLY, limit, "token", lambda: 1000.0,
        60, 60, 0, 60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "waits", "later_seconds", "is_enough"),
    [
        (["0"], [None], 0.04, True),
        (["7a"], ["a"], 0.04, True),
        (["0a", "0b"], ["a", "b"], 0.04, True),
        (["0a", "0b"], ["a"] * 5 + ["b"], 0.04, False),
        (["0"], [], 0.04, False),
        (["0"], [None], 2 * RELOOK_SECONDS, False),
        (["0"], [None], -0.01, False),
        (["0", "5"], [None], 0.04, False),
    ],
)
def test_a_claim_that_has_taken_all_looks_for_no_lines(
    book: LineBook, keys: list[str], waits: list[str | None], later_seconds: float, is_enough: bool
) -> None:
    Lines(keys).seen(book)
    book.note_look(1000.0)
    level, asked = book.choose(4) or pytest.fail("no line is known")
    tasks = [task_at(number, level.number, group) for number, group in enumerate(waits)]
    taken = [task for group in asked for task in tasks if task.group == group][: sum(asked.values())]
    assert book.has_no_more(level, asked, taken, 1000.0 + later_seconds) is is_enough


@dataclass
class CountedShelf(Shelf):
    looks: int = 0

    def line_reader(self, _queue: str) -> Lines:
        self.looks += _queue == "q"
        return super().line_reader(_queue)


@pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO])
def test_of_a_known_line_one_call_takes_what_there_is(book: LineBook, order: Order) -> None:
    shelf = CountedShelf([])
    store: Any = shelf
    calls = []
    for number in range(3):
        shelf.waiting = [task_at(number, 0, None)]
        shelf.looks = shelf.takes = 0
        request = request_for(5, order, LevelSchedulers())
        assert len(Search(book, OpenLines(book), request).run(store)) == 1
        calls.append((shelf.looks, shelf.takes))
        assert request.saw_no_line is (number > 0)
    assert calls[1:] == [(0, 1), (0, 1)]


PUTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, "a", "b"])), max_size=4)


@patch.object(lines, "WINDOW_LINES", 64)
@given(st.lists(st.tuples(PUTS, st.integers(1, 4)), max_size=8), st.sampled_from([Order.LIFO, Order.FIFO]))
def test_a_search_takes_what_a_look_at_all_tasks_would_choose(
    steps: list[tuple[list[tuple[int, str | None]], int]], order: Order
) -> None:
    schedulers, shelf, number = LevelSchedulers(), Shelf([]), 0
    store: Any = shelf
    book = LineBook(schedulers)
    for puts, limit in steps:
        for level, group in puts:
            number += 1
            task = task_at(number, level, group)
            shelf.waiting.append(task)
        wanted = naive(shelf.waiting, schedulers.copy(), limit, newest_first=order is Order.LIFO)
        taken = Search(book, OpenLines(book), request_for(limit, order, schedulers)).run(store)
        assert [task.priority for task in taken] == [task.priority for task in wanted]
        # Two groups may start a turn at the same virtual time; then either may be first.
        assert sorted(taken, key=line_of) == sorted(wanted, key=line_of)


@patch.object(lines, "WINDOW_LINES", 64)
@given(st.lists(st.tuples(PUTS, st.integers(1, 4)), max_size=8), st.sampled_from([Order.LIFO, Order.FIFO]))
def test_tasks_that_are_taken_one_by_one_are_those_in_order(
    steps: list[tuple[list[tuple[int, str | None]], int]], order: Order
) -> None:
    schedulers, shelf, number = LevelSchedulers(), OneByOne([]), 0
    store: Any = shelf
    book = LineBook(schedulers)
    for puts, limit in steps:
        for level, group in puts:
            number += 1
            shelf.waiting.append(task_at(number, level, group))
        wanted = naive(shelf.waiting, schedulers.copy(), limit, newest_first=order is Order.LIFO)
        shown = preview(book, store, request_for(limit, order, schedulers.copy()))
        taken = Search(book, OpenLines(book), request_for(limit, order, schedulers)).run(store)
        assert shown == taken == wanted


def test_tasks_are_taken_one_by_one_past_those_that_others_took_first() -> None:
    tasks = [task_at(number, number // 6, "ab"[number % 2]) for number in range(9)]
    schedulers, shelf = LevelSchedulers(), OneByOne(tasks, gone=["008", "005"])
    store: Any = shelf
    book, request = LineBook(schedulers), request_for(4, Order.LIFO, schedulers)
    preview_request = request_for(9, Order.LIFO, schedulers.copy())
    shown = [task.task_id for task in preview(book, store, preview_request)]
    assert (shown[:3], len(shown)) == (["008", "007", "006"], 9)
    taken = Search(book, OpenLines(book), request).run(store)
    assert [task.task_id for task in taken][:2] == ["007", "006"]
    assert {task.task_id for task in taken[2:]} < {"004", "003", "002"}
    assert not request.search_incomplete


def test_groups_take_turns_within_a_claim_and_from_one_to_the_next() -> None:
    schedulers = LevelSchedulers()
    shelf = Shelf([task_at(number, 0, "a" if number > 4 else "b") for number in range(9)])
    store: Any = shelf
    book = LineBook(schedulers)
    taken: list[str | None] = []
    for limit in (3, 1, 4):
        taken += [
            task.group
            for task in Search(book, OpenLines(book), request_for(limit, Order.LIFO, schedulers)).run(store)
        ]
    assert taken[:3] in (["a", "b", "a"], ["b", "a", "b"])
    assert [taken[:count].count("a") for count in (2, 4, 8)] == [1, 2, 4]


def test_groups_take_turns_among_claims_of_one_task() -> None:
    schedulers = LevelSchedulers()
    shelf = Shelf([task_at(number, 0, "a" if number > 4 else "b") for number in range(8)])
    store: Any = shelf
    book = LineBook(schedulers)
    taken = [
        Search(book, OpenLines(book), request_for(1, Order.LIFO, schedulers)).run(store)[0].group
        for _ in range(4)
    ]
    assert taken in (["a", "b", "a", "b"], ["b", "a", "b", "a"])


@patch.object(lines, "WINDOW_LINES", 64)
@given(st.lists(st.integers(0, 15), max_size=40), st.lists(st.integers(1, 12), max_size=8))
@example([2, 12, 14, 0, 8, 4, 7, 12, 12, 3, 11, 10], [12])
def test_a_search_takes_as_many_tasks_as_wait(groups: list[int], limits: list[int]) -> None:
    """However unevenly they are spread over the groups."""
    turns = LevelSchedulers()
    shelf = Shelf([task_at(number, 0, f"{group:02}") for number, group in enumerate(groups)])
    store: Any = shelf
    book = LineBook(turns)
    for limit in limits:
        waiting = len(shelf.waiting)
        taken = Search(book, OpenLines(book), request_for(limit, Order.LIFO, turns)).run(store)
        assert len(taken) == min(limit, waiting)


@pytest.mark.parametrize("stale", [0, 3, MIN_ASKED, 9, 11])
@patch.object(lines, "WINDOW_LINES", 64)
def test_a_line_behind_others_with_nothing_to_take_is_found(stale: int) -> None:
    schedulers, groups = LevelSchedulers(), [f"{number:02}" for number in range(12)]
    shelf = Shelf([task_at(number, 0, group) for number, group in enumerate(groups)], groups[:stale])
    store: Any = shelf
    book = LineBook(schedulers)
    found = Search(book, OpenLines(book), request_for(1, Order.LIFO, schedulers)).run(store)
    assert [task.group for task in found] == [groups[stale]]
    assert shelf.takes <= PARTIAL_ROUNDS + 1


def test_groups_come_in_their_order_whatever_the_classes_of_their_lines() -> None:
    keys = sorted(line_key(1, group, code) for group, code in [("b", "80as"), ("a", "88as"), ("c", "84as")])
    assert [*by_group(keys)] == ["a", "b", "c"]
    assert [*by_group(["1b", "1c", "1a"])] == ["b", "c", "a"]
