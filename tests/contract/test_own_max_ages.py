"""Overload by the tasks' own deadlines, on every store: a long max age, and tasks that live for 2 s."""

import random
from collections import Counter
from typing import Any, Final

import pytest

from freshq import Overloaded
from freshq.cli.commands.watch import Watcher
from freshq.cli.dashboard.snapshots import PageWatcher, queue_row
from freshq.model.answers import Claim
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.pressure import LONGEST_WINDOW_SECONDS, AdmissionLimit
from freshq.queue.core import core_of
from freshq.queue.gauges import gauges
from tests.conftest import StoreUnderTest

OWN_SECONDS: Final = 2.0
# Tasks that the worker does in a second.
CAPACITY: Final = 5


class Traffic:
    """A producer and a worker of a queue, on a clock that only they move.

    Attributes:
        ends: The fates of the tasks: done, or turned away.
    """

    def __init__(
        self, store: StoreUnderTest, *, own_seconds: float | None = OWN_SECONDS, **options: Any
    ) -> None:
        self.clock = store.clock
        self.producer, self.worker = (
            store.queue(**{"max_age_seconds": 60.0, **options}, rng=random.Random(3)) for _ in range(2)
        )
        self.own_seconds = own_seconds
        self.ends: Counter[str] = Counter()
        self.switches: list[bool] = []
        self._held: list[Claim] = []

    def run(self, seconds: int, load: float) -> None:
        """Let tasks arrive at a multiple of the capacity."""
        arrived = 0.0
        for step in range(seconds * CAPACITY):
            arrived += load
            while arrived >= 1:
                arrived -= 1
                self._put()
            self.clock.advance(1 / CAPACITY)
            for claim in self._held:
                self.worker.complete(claim)
                self.ends["done"] += 1
            self._held = list(self.worker.claim(1))
            if step % CAPACITY == 0:
                self.worker.admin.recover()
            self.switches += [switch.newest_first for switch in self.worker.admin.take_order_switches()]
        self.worker.admin.flush()
        self.producer.admin.flush()

    def _put(self) -> None:
        try:
            self.producer.put("work", max_age_seconds=self.own_seconds)
        except Overloaded:
            self.ends["turned away"] += 1


@pytest.mark.matrix("order", "max_age_seconds")
@pytest.mark.parametrize(("order", "max_age_seconds"), [("lifo", 20.0), ("fifo", 3600.0), ("adaptive", 20.0)])
def test_every_figure_says_that_half_of_the_tasks_expires(
    store: StoreUnderTest, order: str, max_age_seconds: float
) -> None:
    traffic = Traffic(store, order=order, max_age_seconds=max_age_seconds)
    traffic.run(20, load=2)
    queue = traffic.producer
    pressure = queue.pressure()
    assert pressure.overloaded
    assert pressure.probability_in_time == pytest.approx(0.5, abs=0.1)
    assert pressure.own_ratio == 1
    assert pressure.own_max_age_seconds == pytest.approx(OWN_SECONDS, rel=1e-3)
    assert pressure.retry_after_seconds == pytest.approx(OWN_SECONDS, rel=0.6)
    found = gauges(queue.stats(approximate=True), pressure, paused=False)
    assert found["ShedRatio"] == pytest.approx(0.5, abs=0.1)
    assert queue_row(queue)["overloaded"]
    shown = Watcher(queue).snapshot()
    assert shown.pressure.overloaded
    assert shown.forecast is not None
    assert shown.forecast.in_time_ratio.low < 1
    page = PageWatcher(queue).snapshot()
    assert page["overloaded"]
    if max_age_seconds < LONGEST_WINDOW_SECONDS:  # otherwise rates, and a forecast by them, are low at first
        assert page["probability_in_time"] == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("load", [1.5, 3.0])
@pytest.mark.parametrize("max_age_seconds", [60.0, None])
def test_an_adaptive_order_switches_by_the_tasks_own_deadlines(
    store: StoreUnderTest, load: float, max_age_seconds: float | None
) -> None:
    traffic = Traffic(store, order="adaptive", max_age_seconds=max_age_seconds)
    traffic.run(12, load)
    assert traffic.switches == [True]
    traffic.run(8, load=0.2)
    assert traffic.switches == [True, False]


def test_below_capacity_nothing_is_wrong(store: StoreUnderTest) -> None:
    traffic = Traffic(store, order="fifo")
    traffic.run(20, load=0.8)
    pressure = traffic.producer.pressure()
    assert (pressure.overloaded, pressure.probability_in_time) == (False, 1.0)


def test_the_admission_limit_turns_tasks_away_by_their_own_deadlines(store: StoreUnderTest) -> None:
    traffic = Traffic(store, admission=AdmissionLimit(1.5))
    traffic.run(15, load=4)
    assert traffic.ends["turned away"] > 10 * CAPACITY
    long_lived = [traffic.producer.put("work") for _ in range(20)]
    assert len(long_lived) == 20, "a task with a minute left is not turned away because others have 2 s"


def test_the_admission_limit_opens_again_when_the_downstream_is_back(store: StoreUnderTest) -> None:
    traffic = Traffic(store, admission=AdmissionLimit(1.0))
    traffic.run(10, load=2)
    for _ in range(70):  # nothing is served
        traffic.clock.advance(1)
        traffic._put()
    traffic.clock.advance(OWN_SECONDS)
    traffic.ends.clear()
    traffic.run(5, load=0.5)
    assert traffic.ends["turned away"] == 0


@pytest.mark.parametrize("order", ["fifo", "adaptive"])
def test_a_reserve_learned_while_services_were_slow_does_not_lock_short_lived_tasks_out(
    store: StoreUnderTest, order: str
) -> None:
    queue = store.queue(max_age_seconds=60.0, order=order)
    for number in range(24):
        queue.put(number, max_age_seconds=4.0)
        claims = queue.claim(1)
        store.clock.advance(3)
        for claim in claims:
            queue.complete(claim)
    done = 0
    for number in range(20):
        queue.put(number, max_age_seconds=OWN_SECONDS)
        for claim in queue.claim(1):
            store.clock.advance(0.1)
            queue.complete(claim)
            done += 1
        store.clock.advance(1)
    assert done >= 10


@pytest.mark.parametrize("max_age_seconds", [60.0, 3600.0, None])
def test_tasks_that_expired_are_counted_though_no_task_waits_now(
    store: StoreUnderTest, max_age_seconds: float | None
) -> None:
    queue = store.queue(max_age_seconds=max_age_seconds)
    queue.put_many([{"payload": n, "max_age_seconds": OWN_SECONDS} for n in range(20)])
    store.clock.advance(OWN_SECONDS + 1)
    before = queue.pressure()
    assert (before.overloaded, before.probability_in_time) == (True, 0.0)
    queue.claim(1)
    queue.admin.recover()
    queue.admin.flush()
    after = queue.pressure()
    assert (after.overloaded, after.probability_in_time) == (True, 0.0)
    stats = queue.stats()
    assert (stats.pending, stats.shed) == (0, 20)


def test_each_task_that_expires_is_counted_once(store: StoreUnderTest) -> None:
    """By upkeep, by claims and by the estimate between them: the sum is the same at every moment."""
    queue = store.queue(max_age_seconds=60.0)
    for number in range(5):
        queue.put_many([{"payload": n, "max_age_seconds": OWN_SECONDS} for n in range(8)])
        store.clock.advance(OWN_SECONDS + 1)
        if number % 2:
            queue.claim(1)
            queue.admin.recover()
        now = store.clock()
        flow = core_of(queue).rules.meter.flow_with_stale(now)
        assert flow.expired == pytest.approx(flow.offered)


def test_a_full_backlog_tells_each_task_to_come_back_within_its_own_life(store: StoreUnderTest) -> None:
    limit = BacklogLimit(1, when_full=WhenFull.REFUSE_NEWEST)
    queue = store.queue(max_age_seconds=3600.0, backlog=limit)
    queue.put("first")
    for max_age_seconds, retry_seconds in ((OWN_SECONDS, 0.2), (None, 360.0)):
        with pytest.raises(Overloaded) as refused:
            queue.put("second", max_age_seconds=max_age_seconds)
        assert refused.value.retry_after_seconds == pytest.approx(retry_seconds)
