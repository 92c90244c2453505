"""Simulated workers that are scaled by the wanted capacity: the cost of a step of the load."""

from array import array
from collections.abc import Mapping
from random import Random
from typing import Final

import pytest

from freshq.policy.pressure import FlowCounter, assess
from freshq.policy.rules import OverloadRules
from freshq.queue.gauges import wanted_capacity
from freshq.simulate import Stress
from freshq.simulate.backlog import Fates
from freshq.simulate.load import Load
from freshq.simulate.stress import _StressedEngine
from freshq.stores.base import Stats

RULES: Final = OverloadRules(60.0)
SERVICE_SECONDS: Final = 1.0
# As with KEDA, the metric is read every 15 s; a worker takes 15 s to start.
POLL_SECONDS: Final = 15.0
START_SECONDS: Final = 15.0


def stepped(rates: Mapping[float, float], until: float) -> Load:
    """Return Poisson arrivals with rates from some times on."""
    rng, created = Random(1), array("d")
    ends = [*[*rates][1:], until]
    for (begin, rate), end in zip(rates.items(), ends, strict=True):
        now = begin
        while (now := now + rng.expovariate(rate)) < end:
            created.append(now)
    service = array("d", [rng.expovariate(1 / SERVICE_SECONDS) for _ in created])
    return Load(created, service, array("d", [at + RULES.deadline_seconds for at in created]), until)


class Scaled(_StressedEngine):
    """Servers that follow the wanted capacity; with `capacity`, an oracle's servers instead."""

    def __init__(self, load: Load, servers: int, capacity: Mapping[float, int] | None = None) -> None:
        super().__init__(load, RULES, servers, Stress(), 1)
        self.least_busy = self.servers = servers
        self._flow = FlowCounter(RULES.deadline_seconds)
        self._oracle = capacity
        self._planned: list[tuple[float, int]] = [*(capacity or {}).items()]
        self._poll_at = 0.0

    def _run_until(self, until: float) -> None:
        if self._oracle is None:
            while self._poll_at <= min(until, self._requests.duration_seconds):
                self._change(self._poll_at)
                self._planned.append((self._poll_at + START_SECONDS, self._wanted(self._poll_at)))
                self._poll_at += POLL_SECONDS
        self._change(until)
        super()._run_until(until)

    def _change(self, until: float) -> None:
        """Start and stop the servers ordered by now; stopping servers finish their tasks."""
        while self._planned and self._planned[0][0] <= until:
            at, servers = self._planned.pop(0)
            super()._run_until(at)
            self._idle += servers - self.servers
            self.servers = servers
            self._start_idle(at)
        super()._run_until(min(until, self._poll_at))

    def _wanted(self, now: float) -> int:
        self._backlog.expire(now)
        stats = Stats(pending=self._backlog.count(), taken=self._in_work)
        wanted = wanted_capacity(stats, assess(self._flow.flow(now), None, RULES.deadline_seconds, 0.5))
        if stats.pending or stats.taken:
            self.least_busy = min(self.least_busy, wanted)
        return wanted

    def _put(self, request: int, puts_before: int, now: float, parent: int | None = None) -> None:
        self._flow.offered(now)
        super()._put(request, puts_before, now, parent)

    def _ended(self, task: int, end: float) -> None:
        self._flow.ended(end, end - self.starts[task], in_time=True)
        super()._ended(task, end)

    def done(self) -> int:
        """Serve the load; return how many tasks were done in time."""
        self.serve()
        return self.fates.codes.count(Fates.IN_TIME)


@pytest.mark.parametrize("rate", [2.0, 8.0])
def test_a_step_of_ten_times_costs_at_most_a_tenth(rate: float) -> None:
    load = stepped({0.0: rate, 600.0: 10 * rate, 1200.0: rate}, 1800.0)
    enough = round(2 * rate) + 3
    scaled = Scaled(load, enough)
    done = scaled.done()
    oracle = Scaled(load, enough, {600.0: round(11 * rate) + 10, 1260.0: enough}).done()
    assert oracle >= 0.99 * len(load)
    assert 0.9 * oracle <= done < oracle
    assert scaled.least_busy >= 1
    assert scaled.servers < 2 * rate + 5, "scaled in again"


def test_a_queue_with_a_task_now_and_then_is_never_without_a_server_while_busy() -> None:
    load = stepped({0.0: 1 / 300}, 20_000.0)
    scaled = Scaled(load, 1)
    assert scaled.done() == len(load) > 30
    assert scaled.least_busy == 1
    assert scaled.servers == 0, "idle at the end"
