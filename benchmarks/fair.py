"""Groups that share time, limits by group, and chains with one deadline: simulated, and by real workers."""

from __future__ import annotations

import tempfile
import threading
import time
from array import array
from collections import Counter, defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import merge
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from local.servers import REGION, DynamoDBLocal, MariaDB, Postgres, client_of, create_without_stream

from benchmarks import figures
from freshq import GroupRule, GroupRules, Order, Overloaded, Queue, Worker
from freshq.policy.groups import SHARED_EQUALLY
from freshq.policy.limits import SharedBucket
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.simulate import Load, Simulation, Source, simulate_chains, simulate_load
from freshq.simulate.backlog import Fates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from freshq import Task

SERVERS: Final = 10
MARIADB: Final = "MariaDB"
DYNAMODB: Final = "DynamoDB Local"
SERVER_OF: Final[dict[str, type[Postgres | MariaDB]]] = {"PostgreSQL": Postgres, MARIADB: MariaDB}
# Mean of a quiet group's tasks; the times below are multiples of it. DynamoDB Local answers some hundred
# calls a second, and shares two cores with the worker.
UNIT_SECONDS: Final = 0.1
UNIT_SECONDS_OF: Final = {DYNAMODB: 0.5}
DEADLINE: Final = 30.0
SHORT_DEADLINE: Final = 10.0
SIMULATED: Final = 1000.0
WORKED: Final = 150.0
QUIET, FLOOD = "quiet", "flood"
LENGTHS: Final = (1, 3, 10, 20)
HOPS: Final = (1, 2, 4)
CHAIN_DEADLINE: Final = 20.0
KEYS: Final = 40
WEIGHTED: Final = GroupRules(of={"heavy": GroupRule(weight=3)})
LIMITED: Final = GroupRules(of={FLOOD: GroupRule(max_running=4), QUIET: GroupRule(rate_per_second=20)})
ONE_PARENT: Final = GroupRules(separator="/")
ONE_AT_A_TIME: Final = GroupRules(GroupRule(max_running=1))
# Groups with room, groups at their limit, and claims beside both in turns.
OPEN, FULL, CLAIMS = 100, 4900, 40
# A budget of units that several processes use, and tasks with lognormal costs.
UNITS_PER_SECOND, BURST_UNITS, LARGEST = 1000.0, 500, 900.0
BUDGETED, BUDGET_SECONDS, PROCESSES, BLOCK = 800, 12.0, 3, 8
# The backlog of one key, or of 20 keys of one tenant, before a few tasks of other keys: oldest first, four
# slots, three steps a task (triggerdotdev/trigger.dev, pull request 4353).
BACKLOG: Final = 1500
SCENARIO_SERVERS, SCENARIO_SECONDS = 4, 3.0
SCENARIOS: Final[dict[str, tuple[dict[str, int], dict[str, int]]]] = {
    "one key floods": ({"bulk": BACKLOG}, {f"light-{number}": 10 for number in range(4)}),
    "two keys trickle": ({"bulk": BACKLOG}, {f"light-{number}": 15 for number in range(2)}),
    "a tenant on 20 keys": ({f"bulk/{number}": BACKLOG // 20 for number in range(20)}, {"light-0": 10}),
    "one key alone": ({}, {"light-0": BACKLOG}),
}


def offered(shares: Mapping[str, float], lengths: Mapping[str, float], duration: float, age: float) -> Load:
    """Return Poisson arrivals with exponential service.

    Args:
        shares: The offered load of each group, as a share of the capacity of `SERVERS`.
        lengths: Mean service time of each group.
        duration: How long tasks arrive.
        age: Age at which tasks are stale.
    """

    def arrivals(group: str) -> list[tuple[float, str, float]]:
        rng, now, found = Random(group), 0.0, []
        mean = lengths[group]
        while (now := now + rng.expovariate(shares[group] * SERVERS / mean)) < duration:
            found.append((now, group, rng.expovariate(1 / mean)))
        return found

    tasks = list(merge(*map(arrivals, shares)))
    created = array("d", [now for now, _group, _took in tasks])
    stale = array("d", [now + age for now in created])
    service = array("d", [took for _now, _group, took in tasks])
    return Load(created, service, stale, duration, groups=[group for _now, group, _took in tasks])


def beside_flood(length: float, duration: float, age: float) -> Load:
    """Return a fifth of the capacity of a quiet group, and twice the capacity of longer tasks of a flood."""
    return offered({QUIET: 0.2, FLOOD: 2.0}, {QUIET: 1.0, FLOOD: length}, duration, age)


@dataclass
class Runs:
    """The results of a worker, or the simulator, under a load.

    Attributes:
        load: The load.
        in_time: Numbers of the tasks, or chains, that were done in time.
        used: Time used by group.
        work: Time used by task, or chain.
        most: Largest number of running tasks by group.
        starts: Times of the starts by group.
    """

    load: Load
    in_time: set[int] = field(default_factory=set)
    used: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    work: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    most: Counter[str] = field(default_factory=Counter)
    starts: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def share(self, group: str | None = None) -> float:
        """Return the share done in time of a group's tasks whose deadline is within the load."""
        load = self.load
        counted = [
            task
            for task, stale_at in enumerate(load.deadline)
            if stale_at <= load.duration_seconds and (group is None or load.groups[task] == group)
        ]
        return len(self.in_time.intersection(counted)) / len(counted)

    def row(self, **more: object) -> dict[str, Any]:
        """Return the share of the quiet group, and the flood's part of the capacity."""
        flood = self.used[FLOOD] / SERVERS / self.load.duration_seconds
        return {**more, "quiet": round(self.share(QUIET), 4), "flood": round(flood, 3)}


def simulated(load: Load, order: Order = Order.LIFO, groups: GroupRules = SHARED_EQUALLY) -> Runs:
    """Serve a load in the simulator."""
    age, runs = load.deadline[0] - load.created[0], Runs(load)
    reserve = ReserveRule(automatic=True).for_order(order, has_max_age=True)
    rules = OverloadRules(age, order, reserve, fair=True, groups=groups)
    done: Simulation = simulate_load(load, rules, SERVERS)
    for task, code in enumerate(done.fates):
        if code in (Fates.IN_TIME, Fates.LATE):
            # Without the tail, in which no task arrives.
            left = max(0.0, load.duration_seconds - done.starts[task])
            runs.used[str(load.groups[task])] += min(load.service[task], left)
    runs.in_time = {task for task, code in enumerate(done.fates) if code == Fates.IN_TIME}
    return runs


class _Served(Runs):
    """A load that a `Worker` serves; its times are multiples of `unit_seconds`."""

    def __init__(self, load: Load, queue: Queue, unit_seconds: float, hops: int) -> None:
        super().__init__(load)
        self._queue, self._unit_seconds, self._hops = queue, unit_seconds, hops
        self._lock, self._running, self._began = threading.Lock(), Counter[str](), 0.0

    def serve(self) -> _Served:
        """Put the tasks of the load, and serve them until it ends; return this."""
        putting = threading.Thread(target=self._put)
        self._began = time.monotonic()
        until = self._began + self.load.duration_seconds * self._unit_seconds
        putting.start()
        worker = Worker(self._queue, self._run, concurrency=SERVERS, poll_seconds=0.5)
        worker.run(until=lambda: time.monotonic() > until)
        putting.join()
        return self

    def _put(self) -> None:
        load, first = self.load, 0
        while first < len(load):
            now, last = (time.monotonic() - self._began) / self._unit_seconds, first
            while last < len(load) and load.created[last] <= now:
                last += 1
            tasks = range(first, last)
            self._queue.put_many(
                {"payload": [task, 0], "group": load.groups[task] if load.groups else None, "kind": "0"}
                for task in tasks
            )
            first = last
            time.sleep(0.002)

    def _run(self, task: Task) -> None:
        (number, hop), group, load = task.payload, str(task.group), self.load
        began = time.monotonic()
        with self._lock:
            self._running[group] += 1
            self.most[group] = max(self.most[group], self._running[group])
            self.starts[group].append(task.updated)  # its claim
        time.sleep(load.service[(number + hop * len(load) // self._hops) % len(load)] * self._unit_seconds)
        ended = time.monotonic()
        if hop + 1 < self._hops:
            with suppress(Overloaded):
                self._queue.put([number, hop + 1], kind=str(hop + 1), parent=task)
        left_seconds = task.seconds_left()
        until = self._began + load.duration_seconds * self._unit_seconds
        with self._lock:
            self._running[group] -= 1
            units = (min(ended, until) - min(began, until)) / self._unit_seconds
            self.used[group] += units
            self.work[number] += units
            if hop + 1 == self._hops and (left_seconds is None or left_seconds > 0):
                self.in_time.add(number)


class Stores:
    """Opens a queue for each run."""

    def __init__(self, stack: ExitStack) -> None:
        """Start the servers, which the stack stops."""
        self._opened = 0
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshq-fair-")))
        self._servers = {store: stack.enter_context(server()) for store, server in SERVER_OF.items()}
        self._dynamodb = stack.enter_context(DynamoDBLocal())

    def worked(self, store: str, load: Load, groups: GroupRules = SHARED_EQUALLY, hops: int = 1) -> Runs:
        """Let a `Worker` on a store serve a load."""
        self._opened += 1
        unit_seconds = UNIT_SECONDS_OF.get(store, UNIT_SECONDS)
        age_seconds = unit_seconds * (load.deadline[0] - load.created[0])
        queue = self._opened_queue(store, groups=groups, max_age_seconds=age_seconds)
        return _Served(load, queue, unit_seconds, hops).serve()

    def claimed(self, store: str, full: int) -> Queue:
        """Return a queue with tasks of `OPEN` groups, and of `full` groups at their limit."""
        self._opened += 1
        options: dict[str, Any] = {
            "max_age_seconds": 3600.0,
            "lease_seconds": 3600.0,
            "groups": ONE_AT_A_TIME,
        }
        queue = self._opened_queue(store, **options)
        holder = queue if store == "memory" else self._opened_queue(store, is_new=False, **options)
        holder.put_many({"payload": None, "group": str(number)} for number in range(full))
        left = full
        while left:
            left -= len(holder.claim(100))
        queue.put_many({"payload": None, "group": str(number)} for number in range(full + OPEN))
        return queue

    def shared(self, store: str, **options: Any) -> tuple[Queue, tuple[str, str]]:
        """Return a queue, and where other processes find it: the address of its store, and its name there."""
        self._opened += 1
        queue = self._opened_queue(store)
        queue.configure(**options)
        return queue, (self._address(store), f"fair_{self._opened}")

    def _address(self, store: str) -> str:
        if store == DYNAMODB:
            return self._dynamodb.endpoint_url
        return f"sqlite:///{self._folder / 'fair.db'}" if store == "SQLite" else self._servers[store].url

    def _opened_queue(self, store: str, *, is_new: bool = True, **options: Any) -> Queue:
        name = f"fair_{self._opened}"
        queue: Queue
        if store == "memory":
            queue = Queue.memory(**options)
        elif store == DYNAMODB:
            client = self._dynamodb.client()
            if is_new:
                create_without_stream(client, name)
            queue = Queue.dynamodb(name, client, **options)
        else:
            queue = Queue.sql(self._address(store), name, **options)
            queue.create_table()
        return queue


STORES: Final = ("memory", "SQLite", "PostgreSQL")


def by_length(stores: Stores) -> list[dict[str, Any]]:
    """Return the quiet group's share alongside a flood of longer tasks."""
    rows = [
        simulated(beside_flood(length, SIMULATED, age), order).row(
            where=f"simulator, {order.value}", length=length, deadline=age
        )
        for order, age, length in product(Order, (DEADLINE, SHORT_DEADLINE), LENGTHS)
    ]
    for store, length in product((*STORES, DYNAMODB), LENGTHS):
        runs = stores.worked(store, beside_flood(length, WORKED, DEADLINE))
        rows.append(runs.row(where=f"`Worker`, {store}", length=length, deadline=DEADLINE))
    return rows


def bounds() -> list[dict[str, Any]]:
    """Return the quiet group's share with the short deadline: ahead of the flood always, and with a limit."""
    rows = []
    for length in LENGTHS:
        load = beside_flood(length, SIMULATED, SHORT_DEADLINE)
        first = replace(load, levels=bytes(group == QUIET for group in load.groups))
        rows.append(simulated(first).row(where="always first", length=length))
        limited = GroupRules(of={FLOOD: GroupRule(max_running=8)})
        rows.append(simulated(load, groups=limited).row(where="flood limited to 8 slots", length=length))
    return rows


def by_rules(where: str, run: Callable[[Load, GroupRules], Runs], duration: float) -> dict[str, Any]:
    """Return how weights, parents and limits are kept."""
    both = {"heavy": 2.0, "light": 2.0}
    # Longer, because shares of time differ by a few long tasks at the start and the end.
    weighted = run(offered(both, {"heavy": 3.0, "light": 1.0}, 3 * duration, DEADLINE), WEIGHTED)
    shares = {"victim": 0.4} | {f"acme/{number}": 0.05 for number in range(KEYS)}
    split = offered(shares, dict.fromkeys(shares, 1.0), duration, DEADLINE)
    found = {
        "where": where,
        "ratio": round(weighted.used["heavy"] / weighted.used["light"], 3),
        "victim": round(run(split, ONE_PARENT).share("victim"), 4),
    }
    if where.startswith("simulator"):
        without = run(split, SHARED_EQUALLY).share("victim")
        return found | {"victim_without_parent": round(without, 4)}
    limited = run(beside_flood(3.0, duration, DEADLINE), LIMITED)
    starts = limited.starts[QUIET]
    most = max(sum(at <= each < at + 1 for each in starts) for at in starts)
    return found | {"most_running": limited.most[FLOOD], "most_starts": most}


def by_hops(stores: Stores) -> list[dict[str, Any]]:
    """Return the share of chains done at twice the capacity, and of the work done for them."""
    rows = []
    for hops in HOPS:
        rate = 2.0 * SERVERS / hops
        load = Source(rate, SIMULATED, CHAIN_DEADLINE, seed=7).load()
        result = simulate_chains(load, OverloadRules(CHAIN_DEADLINE), SERVERS, hops)
        done, useful = round(result.done_ratio, 3), round(result.useful_ratio, 3)
        rows.append({"where": "simulator", "hops": hops, "done": done, "useful": useful})
        for store in STORES:
            runs = stores.worked(store, Source(rate, WORKED, CHAIN_DEADLINE, seed=7).load(), hops=hops)
            useful = sum(runs.work[number] for number in runs.in_time) / sum(runs.work.values())
            busy = sum(runs.work.values()) / SERVERS / WORKED
            row = {"where": f"`Worker`, {store}", "hops": hops, "done": round(runs.share(), 3)}
            rows.append({**row, "useful": round(useful, 3), "busy": round(busy, 3)})
    return rows


def beside_full_groups(stores: Stores, store: str) -> dict[str, Any]:
    """Return the median milliseconds of a claim beside few groups, and beside many at their limit."""
    few, many = stores.claimed(store, 0), stores.claimed(store, FULL)
    rounds = [(_claim_ms(few), _claim_ms(many)) for _ in range(CLAIMS)]
    few_ms, many_ms = (median(of_one) for of_one in zip(*rounds, strict=True))
    return {"where": store, "few_ms": round(few_ms, 2), "many_ms": round(many_ms, 2)}


def _claim_ms(queue: Queue) -> float:
    began = time.perf_counter()
    (claim,) = queue.claim(1)
    took = time.perf_counter() - began
    queue.complete(claim)
    return 1000 * took


def by_limit(stores: Stores) -> list[dict[str, Any]]:
    """Return how several processes use a budget of units while tasks with lognormal costs wait."""
    dice = Random(7)
    costs = [min(LARGEST, dice.lognormvariate(3.5, 1)) for _ in range(BUDGETED)]
    rule = GroupRule(units_per_second=UNITS_PER_SECOND, burst_units=BURST_UNITS)
    limits = {
        "group": GroupRules(of={"of": rule}),
        "kind": GroupRules(kinds={"of": rule}),
        "queue": GroupRules(),
    }
    rows = []
    for store, (limit, rules) in product(("SQLite", "PostgreSQL", DYNAMODB), limits.items()):
        queue, place = stores.shared(store, groups=rules)
        queue.put_many({"payload": None, "group": "of", "kind": "of", "cost": cost} for cost in costs)
        found = figures.in_processes(spend, [(*place, limit == "queue")] * PROCESSES)
        started = sorted(start for starts in found for start in starts)
        rows.append({"where": store, "limit": limit, **budget(started)})
        queue.close()
    return rows


def budget(started: list[tuple[float, float]]) -> dict[str, float]:
    """Return the part of the budget that was used, and the fullest window, as a part of its bound."""
    largest, fullest = max(units for _at, units in started), 0.0
    until = started[0][0] + BUDGET_SECONDS
    for place, (since, _units) in enumerate(started):
        used = 0.0
        for at, units in started[place:]:
            used += units
            bound = BURST_UNITS + UNITS_PER_SECOND * (at - since) + largest
            fullest = max(fullest, used / bound)
    whole = BURST_UNITS + UNITS_PER_SECOND * BUDGET_SECONDS
    used = sum(units for at, units in started if at <= until) / whole
    return {"tasks": len(started), "used": round(used, 4), "fullest": round(fullest, 4)}


def spend(
    wait: Callable[[], object],
    location: str,
    name: str,
    is_shared: bool,  # noqa: FBT001 - crosses processes
) -> list[tuple[float, float]]:
    """Run tasks; return when each was claimed, and its units."""
    queue = queue_at(location, name)
    started: list[tuple[float, float]] = []

    def run(task: Task) -> None:
        started.append((task.last_claim_at or 0.0, task.units))
        time.sleep(0.01)

    limits: Any = {}
    if is_shared:
        limits = {"shared_bucket": SharedBucket(UNITS_PER_SECOND, BURST_UNITS, block=BLOCK)}
    worker = Worker(queue, run, concurrency=4, poll_seconds=0.5, **limits)
    wait()
    until = time.monotonic() + BUDGET_SECONDS
    worker.run(until=lambda: time.monotonic() > until)
    queue.close()
    return started


def queue_at(location: str, name: str) -> Queue:
    """Return a queue by the endpoint of DynamoDB Local, or the address of its database."""
    if location.startswith("http"):
        return Queue.dynamodb(name, client_of(location, "local", REGION))
    return Queue.sql(location, name)


def by_scenario() -> list[dict[str, Any]]:
    """Return the mean wait of the light keys and the makespan, with one line and with groups."""
    rows = []
    for name, (bulk, light) in SCENARIOS.items():
        groups = [key for keys in (bulk, light) for key, count in keys.items() for _ in range(count)]
        created = array("d", [index / 1e6 for index in range(len(groups))])
        service = array("d", [SCENARIO_SECONDS]) * len(groups)
        load = Load(created, service, array("d", [1e6]) * len(groups), 1.0, groups=groups)
        row: dict[str, Any] = {"scenario": name}
        for kind, fair in (("line", False), ("groups", True)):
            rules = OverloadRules(1e7, Order.FIFO, fair=fair, groups=ONE_PARENT if fair else SHARED_EQUALLY)
            starts = simulate_load(load, rules, SCENARIO_SERVERS).starts
            waits = [starts[task] for task, group in enumerate(groups) if group in light]
            row[f"{kind}_wait"] = round(sum(waits) / len(waits), 1)
            row[f"{kind}_makespan"] = round(max(starts) + SCENARIO_SECONDS, 1)
        rows.append(row)
    return rows


def main() -> None:
    """Simulate, and measure workers on each store."""
    with ExitStack() as stack:
        stores = Stores(stack)
        ways = {f"`Worker`, {store}": (partial(stores.worked, store), WORKED) for store in STORES}
        found = {
            "by_length": by_length(stores),
            "bounds": bounds(),
            "rules": [
                by_rules("simulator", lambda load, groups: simulated(load, groups=groups), SIMULATED),
                *(by_rules(where, *way) for where, way in ways.items()),
            ],
            "scenarios": by_scenario(),
        }
    figures.write("fair", found)


def chains() -> None:
    """Simulate chains, and let workers on each store run them."""
    with ExitStack() as stack:
        figures.write("chains", {"chains": by_hops(Stores(stack))})


def limits() -> None:
    """Time claims beside groups at their limit, in turns with claims beside few groups."""
    with ExitStack() as stack:
        stores = Stores(stack)
        claims = [beside_full_groups(stores, store) for store in (*STORES, MARIADB, DYNAMODB)]
    figures.write("limits", {"claims": claims})


def units() -> None:
    """Let several processes use budgets of units on each store."""
    with ExitStack() as stack:
        figures.write("units", {"processes": PROCESSES, "budgets": by_limit(Stores(stack))})
