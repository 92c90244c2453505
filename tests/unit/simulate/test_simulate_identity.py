"""The simulator against the queue itself: every single task has the same fate, at the same time.

A real `Queue.memory` serves a load under a virtual clock: arrivals, ends of services and claims are
discrete events. The simulator serves the same load. Both run the objects of `freshq.policy`, so this compares
everything around them.

Features that the simulator lacks, and the scenarios therefore omit:

- Two arrivals at one instant. The queue stamps the second a microsecond later, to keep their order.
- Times below a microsecond, the resolution of the queue's clock. The times here are multiples of 1/64 s.
- Time before the run. The windows of the flow start with the run; a queue's start with the epoch.
- More than one process, failed attempts, delays and leases that expire.
"""

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

import pytest

from freshq import Claim, Overloaded, Queue, TaskStatus
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.groups import GroupRule, GroupRules
from freshq.policy.order import Order, OrderSwitch
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.simulate import Load, simulate_load
from freshq.simulate.backlog import Fates
from tests.support.readings import known

TICK: Final = 1 / 64
DEADLINES_SECONDS: Final = (4.0, 10.0, 100.0)
# Means "never": longer than any run here.
LONG_SECONDS: Final = 1e6
SCENARIOS_EACH: Final = 12
# `make test` tries so many, and more until everything in `MUST_HAPPEN` has happened.
QUICK_SCENARIOS_EACH: Final = 2


@dataclass
class RealRun:
    """A real queue that serves a load with some servers.

    Attributes:
        load: The tasks.
        rules: The policy.
        servers: Number of servers.
        now: The virtual time.
        starts: When each task that was served started, in the order of service.
        fates: The fate of each ended task.
    """

    load: Load
    rules: OverloadRules
    servers: int
    now: float = 0.0
    starts: dict[int, float] = field(default_factory=dict)
    fates: dict[int, str] = field(default_factory=dict)
    switches: list[OrderSwitch] = field(default_factory=list)
    shed_by_reason: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Open the queue."""
        rules = self.rules
        self._queue = Queue.memory(
            order=rules.order,
            max_age_seconds=rules.deadline_seconds,
            reserve=rules.reserve,
            codel=rules.codel,
            backlog=rules.backlog,
            admission=rules.admission,
            groups=rules.groups,
            lease_seconds=LONG_SECONDS,
            retention_seconds=LONG_SECONDS,
            clock=lambda: self.now,
            rng=Random("1/admission"),
        )
        self._idle = self.servers
        self._busy: list[tuple[float, int, Claim]] = []

    def serve(self) -> None:
        """Let every task arrive and be served; then read the fates of the other tasks."""
        for task, created in enumerate(self.load.created):
            self._complete_until(created)
            self.now = created
            self._put(task)
            self._claim()
        self._complete_until(LONG_SECONDS)
        self.now = LONG_SECONDS / 2
        stats = self._queue.stats()
        self.shed_by_reason = stats.shed_by_reason
        for task in range(len(self.load)):
            if task not in self.fates:
                self.fates[task] = self._fate_of(task)
        self.switches = self._queue.admin.take_order_switches()

    def _put(self, task: int) -> None:
        load = self.load
        try:
            self._queue.put(
                None,
                task_id=f"{task:06}",
                priority=load.levels[task] if load.levels else 0,
                group=load.groups[task] if load.groups else None,
                max_age_seconds=load.deadline[task] - load.created[task],
                value=load.values[task] if load.values else None,
                decay="linear" if load.decays and load.decays[task] else None,
            )
        except Overloaded as overloaded:
            self.fates[task] = overloaded.reason

    def _complete_until(self, until: float) -> None:
        """End every service that is due by a time; each free server claims again."""
        while self._busy and self._busy[0][0] <= until:
            self.now = self._busy[0][0]
            freed = 0
            while self._busy and self._busy[0][0] == self.now:
                _end, task, claim = heappop(self._busy)
                done = self._queue.complete(claim)
                self.fates[task] = "in-time" if done.updated <= done.stale_at else "late"
                freed += 1
            for _ in range(freed):
                self._idle += 1
                self._claim()

    def _claim(self) -> None:
        while self._idle and (claims := self._queue.claim()):
            (claim,) = claims
            task = int(claim.task.task_id)
            self.starts[task] = self.now
            heappush(self._busy, (self.now + self.load.service[task], task, claim))
            self._idle -= 1

    def _fate_of(self, number: int) -> str:
        task = known(self._queue, f"{number:06}")
        assert task.status is TaskStatus.SHED
        return task.shed_reason or self._queue._core.rules.reserve.spans().reason(task.stale_at)


def random_load(rng: Random, deadline_seconds: float, servers: int, **kinds: Any) -> Load:
    """Return a load with calm and busy times.

    Args:
        rng: Source of the draws.
        deadline_seconds: Age at which a task is stale, unless it has a shorter one.
        servers: Number of servers.
        kinds: `groups`, `levels`: how many; `own_ages`: whether tasks have max ages of their own;
            `values`: how many different values; `decays`: the share of the tasks whose value decays.
    """
    service_mean = deadline_seconds / rng.choice((4, 10, 20))
    created, now = array("d"), TICK
    for _phase in range(rng.randint(1, 4)):
        rate = rng.choice((0.4, 0.9, 1.2, 2.0, 5.0, 30.0)) * servers / service_mean
        for _ in range(rng.randint(5, 60)):
            now += max(TICK, round(rng.expovariate(rate) / TICK) * TICK)
            created.append(now)
        now += rng.choice((0.0, 0.0, 0.5, 1.5)) * deadline_seconds
    count = len(created)
    even = rng.random() < 0.3
    service = (service_mean if even else rng.expovariate(1 / service_mean) for _ in range(count))
    ages = (deadline_seconds, deadline_seconds / 2, deadline_seconds / 16) if kinds["own_ages"] else ()
    names = [None, "a", "b", "b/c", "b/d"][: kinds["groups"]]
    weights = [rng.choice((1, 1, 8)) for _ in names]
    load = Load(
        created=created,
        service=array("d", [max(TICK, round(seconds / TICK) * TICK) for seconds in service]),
        deadline=array("d", [start + rng.choice(ages or (deadline_seconds,)) for start in created]),
        duration_seconds=now,
        levels=bytes(rng.choices(range(kinds["levels"]), k=count)) if kinds["levels"] > 1 else b"",
        groups=rng.choices(names, weights, k=count) if kinds["groups"] > 1 else (),
    )
    if "values" not in kinds:
        return load
    decays = bytes(rng.random() < kinds["decays"] for _ in created)
    values = [3.0**place for place in range(kinds["values"])]
    return replace(load, values=rng.choices(values, k=count), decays=decays if any(decays) else b"")


def assert_identical(load: Load, rules: OverloadRules, servers: int) -> RealRun:
    """Assert that the queue and the simulator do the same with a load."""
    real = RealRun(load, rules, servers)
    real.serve()
    simulated = simulate_load(load, rules, servers)
    names = {Fates.IN_TIME: "in-time", Fates.LATE: "late"}
    names |= {code: reason.value for reason, code in Fates.SHED.items()}
    served = {Fates.IN_TIME, Fates.LATE}
    starts = {task: simulated.starts[task] for task in range(len(load)) if simulated.fates[task] in served}
    assert starts == real.starts
    fates = [names[code] for code in simulated.fates]
    assert fates == [real.fates[task] for task in range(len(load))]
    assert simulated.switches == real.switches
    sheds = {reason: fates.count(reason) for reason in set(fates) - {"in-time", "late"}}
    assert sheds == real.shed_by_reason
    return real


RESERVES: Final = (ReserveRule(), ReserveRule(1.5), ReserveRule(quantile=0.9), ReserveRule(quantile=0.5))
BACKLOGS: Final = tuple(
    BacklogLimit(most, when_full, share)
    for most in (1, 3, 12)
    for when_full in WhenFull
    for share in (None, 0.3)
)
GROUPS: Final = (
    GroupRules(of={"a": GroupRule(weight=3)}),
    GroupRules(separator="/"),
    GroupRules(of={"b": GroupRule(weight=2), "b/c": GroupRule(weight=0.5)}, separator="/"),
)
LIMITS: Final = (
    GroupRules(default=GroupRule(max_running=1)),
    GroupRules(of={"b": GroupRule(max_running=1), "a": GroupRule(rate_per_second=1.5)}, separator="/"),
    GroupRules(GroupRule(rate_per_second=0.3), {"b/c": GroupRule(weight=3, max_running=2)}, "/"),
)
# The choices of each family of scenarios.
FAMILIES: Final[dict[str, dict[str, Any]]] = {
    **{order.value: {"order": [order]} for order in Order},
    **{f"{order.value}, reserve": {"order": [order], "reserve": RESERVES[1:]} for order in Order},
    "codel": {"order": [Order.FIFO], "codel": [(0.02, 0.1), (0.05, 0.1), (0.1, 0.5)]},
    "codel, reserve": {"order": [Order.FIFO], "codel": [(0.05, 0.1)], "reserve": RESERVES[1:]},
    "weights and parents": {"groups": GROUPS},
    "limits by group": {"groups": LIMITS},
    "backlog": {"backlog": BACKLOGS},
    "admission": {"admission": [AdmissionLimit(1.0), AdmissionLimit(1.5), AdmissionLimit(2.0)]},
    "admission, backlog": {"admission": [AdmissionLimit(1.0), AdmissionLimit(2.0)], "backlog": BACKLOGS},
    "admission, codel": {"order": [Order.FIFO], "admission": [AdmissionLimit(1.0)], "codel": [(0.05, 0.1)]},
    "all": {
        "reserve": RESERVES,
        "admission": [None, AdmissionLimit(1.5)],
        "backlog": [None, *BACKLOGS],
        "groups": GROUPS,
    },
}
# Without this a family would compare nothing that it is there to compare.
MUST_HAPPEN: Final = {
    "expired": [order.value for order in Order],
    "reserve": ["fifo, reserve"],
    "codel": ["codel", "codel, reserve", "admission, codel"],
    "overflow": ["backlog", "admission, backlog", "all"],
    "group": ["backlog"],
    "admission": ["admission", "admission, backlog", "admission, codel"],
    "switch": ["adaptive", "adaptive, reserve"],
}
KINDS: Final = {
    "plain": {"groups": 1, "levels": 1, "own_ages": False},
    "groups": {"groups": 5, "levels": 1, "own_ages": False},
    "levels, groups, max ages": {"groups": 3, "levels": 3, "own_ages": True},
}
VALUES: Final = {
    "values": {"groups": 1, "levels": 1, "own_ages": False, "values": 4, "decays": 0.0},
    "values, max ages": {"groups": 1, "levels": 1, "own_ages": True, "values": 4, "decays": 0.0},
    "linear decay": {"groups": 1, "levels": 1, "own_ages": True, "values": 2, "decays": 1.0},
    "values, levels, groups": {"groups": 4, "levels": 2, "own_ages": True, "values": 3, "decays": 0.3},
}


def random_rules(rng: Random, deadline_seconds: float, choices: dict[str, Any]) -> OverloadRules:
    """Return rules of a family, its times fitted to the deadline."""
    picked = {name: rng.choice(values) for name, values in ({"order": list(Order)} | choices).items()}
    if "codel" in picked:
        target, interval = picked["codel"]
        picked["codel"] = CodelRule(target * deadline_seconds, interval * deadline_seconds)
    return OverloadRules(deadline_seconds, fair=True, **picked)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave out plain loads, which the other kinds include, unless all tests run."""
    if "kind" in metafunc.fixturenames:
        every = metafunc.config.getoption("all")
        metafunc.parametrize("kind", [kind for kind in KINDS if every or kind != "plain"])


@pytest.fixture
def seeds(pytestconfig: pytest.Config) -> range:
    """Return the seeds of the scenarios of a family; all of them only if all tests run."""
    return range(SCENARIOS_EACH if pytestconfig.getoption("all") else QUICK_SCENARIOS_EACH)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_task_has_the_fate_it_has_in_the_queue(family: str, kind: str, seeds: range) -> None:
    happened: Counter[str] = Counter()
    must_happen = [
        what
        for what, families in MUST_HAPPEN.items()
        if family in families and (what != "group" or kind == "groups")
    ]
    for seed in range(SCENARIOS_EACH):
        if seed not in seeds and all(happened[what] for what in must_happen):
            break
        rng = Random(f"{family}/{kind}/{seed}")
        deadline_seconds = rng.choice(DEADLINES_SECONDS)
        rules = random_rules(rng, deadline_seconds, FAMILIES[family])
        servers = rng.choice((1, 2, 3))
        load = random_load(rng, deadline_seconds, servers, **KINDS[kind])
        real = assert_identical(load, rules, servers)
        happened.update(real.shed_by_reason)
        happened["switch"] += len(real.switches)
    assert [what for what in must_happen if not happened[what]] == []


@pytest.mark.parametrize("mix", VALUES)
@pytest.mark.parametrize(
    "family", ["value", "value, reserve", "deadline", "limits by group", "backlog", "admission"]
)
def test_every_task_with_a_value_has_the_fate_it_has_in_the_queue(
    family: str, mix: str, seeds: range
) -> None:
    for seed in seeds:
        rng = Random(f"{family}/{mix}/{seed}")
        deadline_seconds = rng.choice(DEADLINES_SECONDS)
        rules = random_rules(rng, deadline_seconds, {"order": [Order.VALUE]} | FAMILIES[family])
        servers = rng.choice((1, 1, 4))
        load = random_load(rng, deadline_seconds, servers, **VALUES[mix])
        assert_identical(load, rules, servers)
