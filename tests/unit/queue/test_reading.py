"""Which lines are read for a count or an age, and what is read of them: of lists, and of real stores."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from typing_extensions import override

from freshq import Queue
from freshq.policy.order import FIRST_TO_EXPIRE
from freshq.queue.core import core_of
from freshq.queue.reading import (
    MAX_LINES,
    count_waiting,
    first_to_expire,
    newest_created,
    oldest_created,
    oldest_expiring,
    oldest_tasks,
)
from freshq.stores.base import Lines, Store
from freshq.stores.lines import ALL_LINES, WaitingReader, parse_line
from tests.conftest import Clock

T = TypeVar("T")


class ListedLines(WaitingReader):
    """Lines that are lists of creation times, oldest first; notes which are read."""

    def __init__(self, lines: Mapping[str, list[float]], *, by_deadline: bool = True) -> None:
        self.by_deadline = by_deadline
        self.seen: list[str] = []
        self._lines = lines

    def _times(self, key: str) -> list[float]:
        self.seen.append(key)
        if key == ALL_LINES:
            return sorted(created for times in self._lines.values() for created in times)
        return self._lines[key]

    @override
    def lines(self, after: str, until: str, count: int) -> list[str]:
        return sorted(key for key in self._lines if after < key < until)[:count]

    @override
    def count(self, key: str, now: float, created_after: float, at_most: int) -> dict[str | None, int]:
        return {parse_line(key or "0")[1]: min(at_most, len(self._times(key)))}

    @override
    def newest(self, key: str, now: float, created_after: float, count: int) -> dict[str | None, list[float]]:
        return {parse_line(key or "0")[1]: self._times(key)[::-1][:count]}

    @override
    def oldest(self, key: str, now: float, created_after: float, count: int) -> Iterable[tuple[float, str]]:
        return [(created, f"{key}@{created:g}") for created in self._times(key)[:count]]

    @override
    def first_to_expire(self, key: str, now: float, created_after: float) -> list[tuple[float, float]]:
        return [(created, created + 60) for created in self._times(key)]

    @override
    def expiring(self, now: float, created_after: float, until: float) -> list[float]:
        return [created for key in self._lines for created in self._times(key) if created + 60 <= until]

    @override
    def listed(self, task_ids: Any) -> Any:
        return list(task_ids)

    def read_waiting(self, _queue: str, _now: float, work: Callable[[WaitingReader], T]) -> T:
        return work(self)


def read(reader: ListedLines, verb: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return verb(cast("Lines", reader), "q", 100.0, 0.0, *arguments, **options)


def many(times: list[float]) -> dict[str, list[float]]:
    return {f"0g{n:03}": times for n in range(MAX_LINES + 1)}


class TestWhichLines:
    def test_counts_of_a_group_are_those_of_its_lines(self) -> None:
        reader = ListedLines({"0": [1], "0a": [2, 3], "5a": [4]})
        assert read(reader, count_waiting, 9) == {None: 1, "a": 3}
        assert read(reader, newest_created, 1) == {None: [1], "a": [3, 4]}
        assert ALL_LINES not in reader.seen

    @pytest.mark.parametrize("verb", [count_waiting, newest_created])
    def test_many_lines_are_read_at_once(self, verb: Callable[..., Any]) -> None:
        reader = ListedLines(many([1.0]))
        read(reader, verb, 9)
        assert reader.seen == [ALL_LINES]

    @pytest.mark.parametrize("verb", [count_waiting, newest_created, oldest_tasks])
    def test_without_an_order_by_deadlines_they_are_read_one_by_one(self, verb: Callable[..., Any]) -> None:
        lines = many([1.0])
        reader = ListedLines(lines, by_deadline=False)
        read(reader, verb, len(lines))
        assert reader.seen == sorted(lines)

    def test_a_line_that_shows_none_may_hide_an_older_task(self) -> None:
        assert read(reader := ListedLines({"0": [7], "0a": [8]}), oldest_created) == 7
        assert reader.seen == ["0", "0a"]
        read(reader := ListedLines({"0": [], "0a": [8], "0b": []}), oldest_created)
        assert reader.seen == ["0", "0a", "0b", ALL_LINES]
        read(reader := ListedLines({"0": [], "0a": [8]}, by_deadline=False), oldest_created)
        assert reader.seen == ["0", "0a"]
        assert read(reader := ListedLines(many([5.0, 6.0])), oldest_created) == 5
        assert reader.seen == [ALL_LINES]
        assert read(ListedLines({}), oldest_created) is None

    def test_the_nearest_deadlines_are_those_of_all_lines(self) -> None:
        assert read(ListedLines({"0": [2], "1": [1]}), first_to_expire) == [(1, 61), (2, 62)]


class TestOldestTasks:
    LINES: Mapping[str, list[float]] = {"0a": [5, 8], "0b": [6, 7], "3a": [1], "9": [2]}

    @pytest.mark.parametrize(
        ("count", "options", "expected", "seen"),
        [
            (3, {}, "0a@5 0b@6 0b@7", "0a 0b"),
            (5, {}, "0a@5 0b@6 0b@7 0a@8 3a@1", "0a 0b 3a"),
            (9, {"groups": ["a"]}, "0a@5 0a@8 3a@1", "0a 3a"),
            (9, {"level": 9, "groups": [None]}, "9@2", "9"),
            (9, {"groups": []}, "", ""),
            (0, {}, "", ""),
        ],
    )
    def test_the_lowest_level_is_first(
        self, count: int, options: dict[str, Any], expected: str, seen: str
    ) -> None:
        reader = ListedLines(self.LINES)
        assert read(reader, oldest_tasks, count, **options) == expected.split()
        assert reader.seen == seen.split()

    def test_of_many_lines_named_ones_are_read_at_each_level(self) -> None:
        lines = many([1.0]) | {f"{level}x": [2.0 + level] for level in range(10)}
        reader = ListedLines(lines)
        assert read(reader, oldest_tasks, 2, groups=["x"]) == ["0x@2", "1x@3"]
        assert reader.seen == ["0x", "1x"]
        assert read(reader, oldest_tasks, 1) == ["@1"]


@pytest.fixture(params=["memory", "sqlite"])
def queue(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Queue]:
    if request.param == "memory":
        yield Queue.memory(clock=clock, max_age_seconds=60)
        return
    with Queue.sql(f"sqlite:///{tmp_path}/tasks.db", clock=clock, max_age_seconds=60) as queue:
        queue.create_table()
        yield queue


@pytest.mark.parametrize("groups", [3, MAX_LINES])
def test_answers_are_those_of_reading_every_task(queue: Queue, clock: Clock, groups: int) -> None:
    chance = random.Random(groups)
    for _second in range(80):
        clock.advance(1)
        for _ in range(3):
            group = chance.choice([None, *(f"g{n}" for n in range(groups))])
            life = chance.choice([60, 60, 30, 2])
            queue.put("work", group=group, priority=chance.choice([0, 0, 4]), max_age_seconds=life)
    store: Store = core_of(queue).store
    now = queue.admin.now()
    where = (store, queue.name, now, now - 60)
    live = [task for task in store.scan(queue.name) if task.stale_at > now and task.created > now - 60]
    live.sort(key=lambda task: (task.priority, task.created, task.task_id))
    assert Counter(count_waiting(*where, 1_000)) == Counter(task.group for task in live)
    found = {group: sorted(times) for group, times in newest_created(*where, 1_000).items() if times}
    times: dict[str | None, list[float]] = {}
    for task in sorted(live, key=lambda task: task.created):
        times.setdefault(task.group, []).append(task.created)
    assert found == times
    assert oldest_created(*where) == min(task.created for task in live)
    for seconds in (0.5, 1.5, 20):
        near = [task.created for task in live if task.stale_at <= now + seconds]
        assert oldest_expiring(*where, now + seconds) == min(near, default=None)
    deadlines = sorted(deadline for _created, deadline in first_to_expire(*where))
    assert deadlines == sorted(task.stale_at for task in live)[:FIRST_TO_EXPIRE]
    assert oldest_tasks(*where, 20) == live[:20]
    of_groups = [task for task in live if task.group in ("g0", "g1")]
    assert oldest_tasks(*where, 9, ["g0", "g1"]) == of_groups[:9]
    of_line = [task for task in of_groups if (task.group, task.priority) == ("g0", 4)]
    assert oldest_tasks(*where, 9, ["g0"], 4) == of_line[:9]
