"""The plan of the order by value, the classes of values, and what is learned of the service."""

import math
from itertools import permutations
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.value import (
    ANY_CLASS,
    LARGEST_VALUE,
    MAX_LINES,
    MAX_PLANNED,
    MIN_TIMES,
    NEW_SHARE,
    SAFE_DEVIATIONS,
    SAFE_FACTOR,
    SLOT_CLAIMS,
    SMALLEST_VALUE,
    UNKNOWN,
    ClassLine,
    DeadlinePlan,
    Decay,
    LineTimes,
    Ranked,
    ServiceTimes,
    ValueClass,
    ValuePlan,
    plan,
    value_at,
)


class Service(NamedTuple):
    """What serves tasks of equal lengths."""

    mean_seconds: float = 0.0
    safe_seconds: float = math.inf
    slots: int = 1
    least_seconds: float = 0.0

    @property
    def times(self) -> LineTimes:
        return LineTimes(self.mean_seconds, self.safe_seconds, self.least_seconds)


class Waiting(NamedTuple):
    """A waiting task."""

    task_id: str
    created: float
    deadline: float | None


def ranked(*tasks: tuple[float, float | None], decays: bool = False) -> list[Ranked[Waiting]]:
    """Return tasks by value and time left, as a plan takes them; their ids are their numbers."""
    found = [
        Ranked.of(Waiting(str(number), 0, left), value, LineTimes(), 0, decays=decays)
        for number, (value, left) in enumerate(tasks)
    ]
    return sorted(found, key=lambda each: each.rank)


def planned(tasks: list[Ranked[Waiting]], service: Service) -> list[Waiting]:
    """Return the plan of tasks that all take equally long."""
    timed = [each._replace(times=service.times) for each in tasks]
    return plan(timed, service.slots, service.safe_seconds)


def ids(heads: list[Waiting]) -> str:
    return "".join(head.task_id for head in heads)


@given(
    st.floats(SMALLEST_VALUE, LARGEST_VALUE),
    st.floats(1e-6, math.inf, exclude_min=True),
    st.sampled_from(Decay),
)
def test_a_code_tells_its_class(value: float, max_age_seconds: float, decay: Decay) -> None:
    found = ValueClass.of(value, max_age_seconds, decay)
    assert ValueClass.of_code(found.code) == found
    assert len(found.code) == 4
    assert found.value <= value * (1 + 1e-9) < found.value * math.sqrt(2) * (1 + 1e-8)
    dearer = ValueClass.of(min(LARGEST_VALUE, 2 * value), max_age_seconds, decay)
    assert dearer.code >= found.code


@pytest.mark.parametrize(
    ("max_age_seconds", "digit"),
    [(0, 0), (1 / 1024, 0), (1 / 512, 1), (0.99, 9), (1, 10), (1.99, 10), (2, 11), (2**24, 34), (2**25, 35)],
)
def test_max_ages_are_alike_within_a_factor_of_two(max_age_seconds: float, digit: int) -> None:
    assert ValueClass.of(1, max_age_seconds, Decay.STEP).age_digit == digit


@pytest.mark.parametrize("code", ["x", "zz9s", "80zx", "80zs0", "80Zs", "80\ufffds"])
def test_a_damaged_code_is_that_of_any_task(code: str) -> None:
    assert ValueClass.of_code(code) == ANY_CLASS


def test_a_task_without_a_value_counts_as_one_without_a_deadline() -> None:
    assert ValueClass.of_code("") == ANY_CLASS == ValueClass(0, 35, Decay.STEP)
    assert ANY_CLASS.value == 1


class TestPlan:
    def test_without_service_times_the_dearest_and_newest_is_served(self) -> None:
        assert ids(planned(ranked((1, 9), (5, 2), (5, 3)), Service())) == "2"

    def test_a_cheap_task_goes_first_if_the_dear_one_can_wait(self) -> None:
        service = Service(1, 1)
        assert ids(planned(ranked((9, 2), (1, 1)), service)) == "10"
        assert ids(planned(ranked((9, 1.9), (1, 1)), service)) == "0"

    def test_the_margin_keeps_cheap_tasks_behind(self) -> None:
        assert ids(planned(ranked((9, 3), (1, 1.5)), Service(1, 1.5))) == "10"
        assert ids(planned(ranked((9, 2.9), (1, 1.5)), Service(1, 1.5))) == "0"

    def test_a_dear_task_that_is_nearly_late_is_tried_at_once(self) -> None:
        assert ids(planned(ranked((9, 0.5), (1, 5)), Service(1, 2))) == "0"

    def test_a_task_that_cannot_be_done_in_time_comes_last(self) -> None:
        constant = Service(1, 1, 1, 1)
        assert ids(planned(ranked((9, 0.5), (1, 5)), constant)) == "1"
        assert ids(planned(ranked((9, 0.5), (8, 0.5)), constant)) == "0"

    def test_a_task_that_dearer_ones_crowd_out_is_passed_over(self) -> None:
        assert ids(planned(ranked((9, 3), (8, 2), (7, 3), (6, 3), (1, 9)), Service(1, 1))) == "102"

    def test_several_slots_do_more_at_a_time(self) -> None:
        tasks = [(9.0, 1.5), (8.0, 1.5), (7.0, 1.5), (6.0, 1.5)]
        assert len(planned(ranked(*tasks), Service(1, 1, 1))) == 1
        assert len(planned(ranked(*tasks), Service(1, 1, 2))) == 2
        assert len(planned(ranked(*tasks), Service(1, 1, 8))) == 4

    def test_tasks_without_a_deadline_can_wait_forever(self) -> None:
        assert ids(planned(ranked((9, None), (1, 2), (5, None)), Service(1, 1))) == "102"

    def test_behind_a_task_that_is_passed_over_others_are_planned(self) -> None:
        assert ids(planned(ranked((9, 2), (5, 0.5), (3, 9), (2, 2.5)), Service(1, 1))) == "032"

    @pytest.mark.parametrize("safe_seconds", [1, 0.5])
    def test_a_safe_time_below_the_average_changes_nothing_for_the_others(self, safe_seconds: float) -> None:
        unusual = Ranked.of(Waiting("u", 0, 9), 5, LineTimes(2, safe_seconds, 0.1), 0, decays=False)
        usual = ranked((4, 12), (3, 13))
        timed = [each._replace(times=LineTimes(1, 1, 1)) for each in usual]
        assert ids(plan([unusual, *timed], 1, 1)) == "u01"

    def test_what_decays_goes_at_once_unless_a_dearer_task_would_be_late(self) -> None:
        decaying = Ranked.of(Waiting("d", 0, 9), 3, LineTimes(), 0, decays=True)
        for left, first in ((2, "d"), (1.9, "0")):
            dear = ranked((9, left))[0]
            assert ids(planned([dear, decaying], Service(1, 1))) == first
        late = Ranked.of(Waiting("late", 0, 0.5), 3, LineTimes(), 0, decays=True)
        assert ids(planned([*ranked((9, 5)), late], Service(0.4, 1))) == "0"

    def test_the_dearest_second_comes_first_not_the_dearest_task(self) -> None:
        long = Ranked.of(Waiting("0", 0, 10), 10, LineTimes(10, 10, 10), 0, decays=False)
        short = Ranked.of(Waiting("short", 0, 10), 4, LineTimes(1, 1, 1), 0, decays=False)
        assert ids(plan(sorted([long, short], key=lambda each: each.rank), 1, 1)) == "short"

    def test_a_long_task_goes_first_only_if_the_dear_ones_can_wait_for_it(self) -> None:
        long = Ranked.of(Waiting("0", 0, 10), 10, LineTimes(10, 10, 10), 0, decays=False)
        for left, first in ((11, "0short"), (10.9, "short")):
            short = Ranked.of(Waiting("short", 0, left), 4, LineTimes(1, 1, 1), 0, decays=False)
            assert ids(plan([short, long], 1, 1)) == first

    def test_a_plan_is_bounded(self) -> None:
        tasks = ranked(*((1, 1000 + number) for number in range(MAX_PLANNED + 9)))
        assert len(planned(tasks, Service(1, 1))) == MAX_PLANNED

    def test_nothing_is_planned_if_nothing_waits(self) -> None:
        assert planned([], Service(1, 1)) == []

    @given(
        st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 6)), min_size=1, max_size=6),
        st.integers(1, 2),
    )
    def test_the_planned_tasks_are_all_in_time_and_worth_most(
        self, tasks: list[tuple[float, float]], seconds: int
    ) -> None:
        tasks = [task for task in tasks if task[1] >= seconds]
        found = planned(ranked(*tasks), Service(seconds, seconds))
        of = {str(number): task for number, task in enumerate(tasks)}
        lefts = [of[head.task_id][1] for head in found]
        if len(found) > 1:
            assert all(left >= (k + 1) * seconds for k, left in enumerate(lefts))
        best = max(in_time(order, seconds) for order in permutations(tasks))
        assert bool(found) == bool(tasks)
        if tasks:
            assert sum(of[head.task_id][0] for head in found) <= best
            assert max(value for value, left in tasks if left >= seconds) <= max(
                of[head.task_id][0] for head in found
            )


def in_time(order: tuple[tuple[float, float], ...], seconds: float) -> float:
    """Return the value of the tasks that end in time, if they are served in an order without late ones."""
    value, ended = 0.0, 0.0
    for worth, left in order:
        if ended + seconds <= left:
            value += worth
            ended += seconds
    return value


def line(
    code: ValueClass, *deadlines: float | None, created: float = 0.0, times: LineTimes = UNKNOWN
) -> ClassLine[Waiting]:
    heads = [Waiting(f"{code.code}-{deadline}", created, deadline) for deadline in deadlines]
    return ClassLine(code, times, lambda: heads)


def class_of(value: float, decay: Decay = Decay.STEP) -> ValueClass:
    return ValueClass.of(value, 10, decay)


class TestTurns:
    def test_lines_are_read_as_far_as_needed(self) -> None:
        read: list[float] = []

        def of(value: float) -> ClassLine[Waiting]:
            found = [Waiting(f"{value}", 0, 1.0)]
            return ClassLine(class_of(value), LineTimes(1, 1), lambda: read.append(value) or found)  # type: ignore[func-returns-value]

        turns = ValuePlan([of(1), of(8), of(64)], 1, 0).turns()
        assert ids(next(turns)) == "64"
        assert read == [64]
        assert [ids(each) for each in turns] == ["8", "1"]

    def test_lines_of_one_class_are_both_read(self) -> None:
        lines = [line(class_of(2), 5.0, 4.0), line(class_of(2), 6.0)]
        served = [head.deadline for turn in ValuePlan(lines, 1, 0).turns() for head in turn]
        assert served == [6.0, 5.0, 4.0]

    def test_as_many_as_there_are_slots_are_served_at_a_time(self) -> None:
        lines = [line(class_of(2), 50.0, 40.0, 30.0, times=LineTimes(1, 1))]
        turns = ValuePlan(lines, 2, 0).turns()
        assert [[head.deadline for head in turn] for turn in turns] == [[30.0, 40.0], [50.0]]

    def test_a_value_that_decays_counts_for_what_is_left_of_it(self) -> None:
        lines = [line(class_of(8, Decay.LINEAR), 10.0), line(class_of(2), 10.0)]
        for now, first in ((0.0, Decay.LINEAR), (7.4, Decay.LINEAR), (7.6, Decay.STEP)):
            fresh = [ClassLine(each.of_class, each.times, each.read) for each in lines]
            (head,) = next(ValuePlan(fresh, 1, now).turns())
            assert ValueClass.of_code(head.task_id[:4]).decay is first

    def test_a_decay_without_a_deadline_never_begins(self) -> None:
        of = Ranked.of(Waiting("a", 0, None), 8, LineTimes(), 5, decays=True)
        assert (of.rank, of.left_seconds, of.decays) == ((-8, -math.inf), math.inf, False)

    def test_the_earliest_deadline_that_can_be_met_comes_first(self) -> None:
        lines = [
            line(class_of(2), 5.0, 0.9, None, times=LineTimes(1, 1)),
            line(class_of(4), 1.0, 7.0, times=LineTimes(1, 1)),
        ]
        turns = [[head.deadline for head in turn] for turn in DeadlinePlan(lines, 2, 0).turns()]
        assert turns == [[1.0, 5.0], [7.0, None], [0.9]]
        assert (ValuePlan.newest_first, DeadlinePlan.newest_first) == (True, False)


class TestServiceTimes:
    def test_nothing_is_known_before_a_few_services(self) -> None:
        times = ServiceTimes[str]()
        for _ in range(MIN_TIMES - 1):
            times.ended("a", "line", 2.0)
        assert times.times("line", 1) == LineTimes(0, math.inf, 0)
        times.ended("a", "line", 2.0)
        assert times.times("line", 1) == LineTimes(2, 2, 2)

    def test_the_margin_is_wide_for_times_that_vary(self) -> None:
        times = ServiceTimes[str]()
        for seconds in (1.0, 3.0) * 5:
            times.ended("a", "line", seconds)
        service = times.times("other", 1)
        assert service.mean_seconds == pytest.approx(2)
        assert service.safe_seconds == pytest.approx(2 + SAFE_DEVIATIONS)
        assert service.least_seconds == pytest.approx(2 - SAFE_DEVIATIONS)
        assert times.times("line", 2).safe_seconds == pytest.approx(2 + SAFE_DEVIATIONS)

    def test_several_slots_need_a_margin_even_if_times_are_alike(self) -> None:
        times = ServiceTimes[str]()
        for _ in range(MIN_TIMES):
            times.ended("a", "line", 1.0)
        assert times.times("line", 2) == LineTimes(1, SAFE_FACTOR, 1)

    def test_old_times_fade(self) -> None:
        times = ServiceTimes[str]()
        for seconds in [1.0] * 200 + [3.0] * 100:
            times.ended("a", "line", seconds)
        assert times.times("line", 1).mean_seconds == pytest.approx(3 - 2 * (1 - NEW_SHARE) ** 100)

    def test_slots_are_those_that_were_in_use_lately(self) -> None:
        times = ServiceTimes[str]()
        times.claimed("abc", 0)
        times.ended("b", "line", 1)
        times.claimed("d", 1)
        assert times.slots(1) == 3
        assert times.slots(9) == 9
        for task in "acd":
            times.ended(task, "line", 1)
        for number in range(SLOT_CLAIMS):
            times.claimed([], number)
        assert times.slots(1) == 1

    def test_tasks_that_were_lost_no_longer_run(self) -> None:
        times = ServiceTimes[str]()
        times.claimed("ab", 0)
        times.claimed("c", 5)
        times.forget_before(5)
        times.claimed("d", 6)
        assert times.slots(1) == 3
        for number in range(SLOT_CLAIMS - 1):
            times.claimed([], number)
        assert times.slots(1) == 2

    def test_a_line_whose_services_clearly_differ_has_times_of_its_own(self) -> None:
        times = ServiceTimes[str]()
        for _ in range(20):
            times.ended("a", "short", 1.0)
            times.ended("b", "long", 4.0)
            times.ended("c", "alike", 2.4)
        assert times.times("short", 1) == LineTimes(1, 1, 1)
        assert times.times("long", 1) == LineTimes(4, 4, 4)
        assert times.times("alike", 1) == times.times("unknown", 1)
        assert times.times("unknown", 1).mean_seconds == pytest.approx(7.4 / 3, rel=0.1)

    def test_a_line_whose_services_differ_by_chance_has_those_of_all(self) -> None:
        rng = Random(7)
        times = ServiceTimes[str]()
        own = 0
        for number in range(3_000):
            line = f"{number % 20}"
            times.ended("a", line, rng.expovariate(1.0))
            own += times.times(line, 1) != times.times("unknown", 1)
        assert own < 60  # 2 of 100: one line may seem to differ for a while
        for _ in range(60):
            times.ended("a", "longer", rng.expovariate(0.3))
        assert times.times("longer", 1).mean_seconds > 2

    def test_averages_of_the_lines_served_last_are_kept(self) -> None:
        times = ServiceTimes[str]()
        for line in ("old", "used"):
            for _ in range(MIN_TIMES):
                times.ended("a", line, 9.0)
        for number in range(MAX_LINES - 1):
            times.ended("a", f"{number}", 1.0)
            times.ended("a", "used", 9.0)
        assert times.times("used", 1).mean_seconds == pytest.approx(9)
        assert times.times("old", 1) == times.times("unknown", 1)


@pytest.mark.parametrize(
    ("moment", "decays", "deadline", "worth"),
    [
        (0.0, False, 10.0, 4.0),
        (10.0, False, 10.0, 4.0),
        (10.1, False, 10.0, 0.0),
        (0.0, True, 10.0, 4.0),
        (7.5, True, 10.0, 1.0),
        (10.0, True, 10.0, 0.0),
        (-1.0, True, 10.0, 4.0),  # a clock that is behind the producer's
        (1e9, True, math.inf, 4.0),
    ],
)
def test_the_value_of_a_task_falls_by_its_decay(
    moment: float, decays: bool, deadline: float, worth: float
) -> None:
    assert value_at(moment, 4.0, 0.0, deadline, decays=decays) == worth
