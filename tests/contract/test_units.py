"""Limits of groups in units: what tasks cost, corrected by what their runs took."""

import random
from collections import Counter
from threading import Thread

import pytest

from freshq import GroupRule, GroupRules, Queue, Settlement, Task, Worker
from freshq.model.answers import Claims
from freshq.queue.core import core_of
from freshq.telemetry import Outcome
from tests.conftest import StoreUnderTest
from tests.support.readings import known
from tests.support.worker_threads import Quiet

RULES = GroupRules(of={"a": GroupRule(units_per_second=100, burst_units=1000)})


def started(queue: Queue, count: int = 100) -> list[float]:
    return [claim.task.units for claim in queue.claim(count)]


def queues(store: StoreUnderTest, rules: GroupRules = RULES, number: int = 2) -> list[Queue]:
    found = [store.queue(groups=rules) for _ in range(number)]
    found[0].create_table()
    return found


def put(queue: Queue, *costs: float | None, group: str | None = "a") -> None:
    queue.put_many([{"payload": n, "group": group, "cost": cost} for n, cost in enumerate(costs)])


def test_a_task_keeps_its_cost(store: StoreUnderTest) -> None:
    (queue,) = queues(store, number=1)
    queue.put("x", task_id="dear", cost=700)
    queue.put("x", task_id="plain")
    assert [(known(queue, name).cost, known(queue, name).units) for name in ("dear", "plain")] == [
        (700, 700),
        (None, 1),
    ]
    assert queue.put("x", task_id="dear", cost=700.5, on_conflict="update").outcome == "UPDATED"
    assert queue.put("x", task_id="dear", cost=700.5, on_conflict="update").outcome == "DUPLICATE"
    assert queue.put("x", task_id="plain", cost=1, on_conflict="update").outcome == "DUPLICATE"
    claims = queue.claim(2)
    assert sorted(claim.task.units for claim in claims) == [1, 700.5]
    queue.put("y", task_id="dear", cost=2.000001, on_conflict="after")
    queue.settle_many([])
    for claim in claims:
        queue.complete(claim)
    assert known(queue, "dear").cost == 2.000001


def test_costs_count_against_the_units_of_a_group_for_every_process(store: StoreUnderTest) -> None:
    queue, other = queues(store)
    put(queue, *[400] * 6)
    assert started(queue) == [400] * 3  # 1200 with 1000 there: the last one is a debt of 200
    claims = other.claim(9)
    assert claims == []
    assert claims.room_in_seconds == pytest.approx(2.5)
    store.clock.advance(1.99)
    assert started(other) == []
    store.clock.advance(0.02)
    assert started(other) == [400]
    store.clock.advance(12)
    assert started(queue) == [400, 400]


def test_a_task_dearer_than_the_burst_runs_and_the_next_ones_wait(store: StoreUnderTest) -> None:
    queue, other = queues(store)
    put(queue, 5000)
    assert started(queue) == [5000]
    put(queue, None)
    store.clock.advance(39.9)
    assert started(other) == []
    store.clock.advance(0.2)
    assert started(other) == [1]


def test_other_groups_and_tasks_without_a_group_are_not_held_up(store: StoreUnderTest) -> None:
    queue, _other = queues(store)
    put(queue, 1, 5000)  # the newest one is first
    put(queue, 1, 5000, group="b")
    put(queue, 1, 5000, group=None)
    groups = Counter(claim.task.group for _ in range(2) for claim in queue.claim(9))
    assert groups == {"a": 1, "b": 2, None: 2}


def test_a_parent_and_its_child_are_both_charged(store: StoreUnderTest) -> None:
    rules = GroupRules(
        of={"acme": GroupRule(units_per_second=10), "acme/1": GroupRule(units_per_second=4)}, separator="/"
    )
    queue, other = queues(store, rules)
    put(queue, 6, 6, group="acme/1")
    put(queue, 6, 6, group="acme/2")
    assert sum(started(queue)) == 12  # 6 of each, or both of the second
    assert started(other) == []


@pytest.mark.parametrize("how", ["complete", "fail", "retry"])
@pytest.mark.parametrize(("took", "left"), [(600, 400), (1400, -400), (0, 1000), (None, 0)])
def test_what_a_run_took_replaces_its_cost(
    store: StoreUnderTest, how: str, took: float | None, left: float
) -> None:
    queue, other = queues(store)
    put(queue, 1000)
    (claim,) = queue.claim(9)
    if took is not None:
        claim.task.set_cost(took)
    getattr(queue, how)(claim)
    kept = 1000 if took is None or how == "retry" else took
    assert known(other, claim.task.task_id).cost == kept
    assert units_left(other) == pytest.approx(left)


def units_left(queue: Queue) -> float:
    """Return the units that the group has left; a dear task is charged if these are above 0."""
    put(queue, 1e6, 1e6)
    charged = 1e6 * len(queue.claim(1))
    return charged + 50 - 100 * queue.claim(1).room_in_seconds  # it waits for a twentieth of the burst


def test_an_attempt_that_does_not_count_costs_nothing_unless_it_said_so(store: StoreUnderTest) -> None:
    queue, other = queues(store)
    put(queue, 1000)
    (claim,) = queue.claim(9)
    queue.release(claim)
    (claim,) = other.claim(9)
    claim.task.set_cost(1000)
    other.release(claim)
    put(other, 1)
    assert queue.claim(9).room_in_seconds == pytest.approx(0.5)


def test_a_redriven_task_is_never_free(store: StoreUnderTest) -> None:
    (queue,) = queues(store, number=1)
    put(queue, 400, 500)
    claims = queue.claim(9)
    for took, claim in zip((0, 300), claims, strict=True):
        claim.task.set_cost(took)
        queue.fail(claim)
    queue.redrive([claim.task.task_id for claim in claims])
    assert sorted(started(queue)) == [1, 300]


@pytest.mark.parametrize("took", [0, 900])
@pytest.mark.parametrize("at_most_once", [False, True])
def test_what_a_run_took_counts_although_its_end_settles_no_task(took: float, at_most_once: bool) -> None:
    queue = Queue.memory(groups=GroupRules(of={"a": GroupRule(units_per_second=1e-9, burst_units=1000)}))
    queue.put("x", task_id="x", group="a", cost=500)

    def run(task: Task) -> None:
        task.set_cost(took)
        if not at_most_once:
            queue.cancel("x", force=True)

    Worker(queue, run, idle_exit_seconds=0, observer=Quiet(), at_most_once=at_most_once).run()
    assert known(queue, "x").status == ("SUCCESS" if at_most_once else "CANCELLED")
    put(queue, *[300] * 9)
    assert len(started(queue)) == (4 if took == 0 else 1)


def test_corrections_of_many_runs_take_one_write(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = queues(store)
    put(queue, *[300] * 3)
    claims = queue.claim(9)
    for claim in claims:
        claim.task.set_cost(100)
    limits, corrected = core_of(queue).limits, list[object]()
    monkeypatch.setattr(
        limits, "correct_units", lambda correct=limits.correct_units: corrected.append(correct())
    )
    queue.settle_many([Settlement.complete(claim) for claim in claims])
    assert len(corrected) == 1
    put(other, *[200] * 9)
    assert started(other) == [200] * 4  # 700 were left


def test_a_worker_corrects_what_its_runs_took(store: StoreUnderTest) -> None:
    queue, other = queues(store)
    put(queue, *[500] * 4)

    def run(task: Task) -> None:
        task.progress(0.5)
        task.set_cost(100)

    worker = Worker(queue, run, idle_exit_seconds=0, concurrency=1, observer=Quiet())
    assert worker.run().outcomes[Outcome.SUCCEEDED] == 4
    put(other, *[300] * 9)
    assert started(other) == [300] * 2


@pytest.mark.parametrize("cost", [0, -1, 1e-7, 2e9, float("nan"), float("inf"), "7", True])
def test_a_wrong_cost_is_refused(store: StoreUnderTest, cost: object) -> None:
    (queue,) = queues(store, number=1)
    with pytest.raises(ValueError, match=r"^cost: "):
        queue.put("x", task_id="a", cost=cost)  # type: ignore[arg-type]
    assert queue.get("a") is None
    if cost not in {0, 1e-7}:
        queue.put("x")
        with pytest.raises(ValueError, match=r"^cost: "):
            queue.claim()[0].task.set_cost(cost)  # type: ignore[arg-type]


def test_several_processes_stay_within_the_budget_and_use_it(store: StoreUnderTest) -> None:
    rate, burst, seconds = 1000.0, 1000.0, 8.0
    rules = GroupRules(of={"a": GroupRule(units_per_second=rate, burst_units=burst)})
    several, dice = queues(store, rules, 3), random.Random(3)
    costs = [min(3000.0, dice.lognormvariate(4.5, 1.2)) for _ in range(200)]
    put(several[0], *costs)
    begin, starts = store.clock.now, list[tuple[float, float]]()
    while store.clock.now < begin + seconds:
        claims: Claims = dice.choice(several).claim(4)
        starts += [(store.clock.now, claim.task.units) for claim in claims]
        store.clock.advance(min(claims.room_in_seconds, 0.01) if not claims else 0.001)
    assert several[0].stats().pending > 0
    largest = max(units for _at, units in starts)
    for place, (since, _units) in enumerate(starts):
        used = 0.0
        for at, units in starts[place:]:
            used += units
            assert used <= burst + rate * (at - since) + largest + 1e-3
    assert sum(units for _at, units in starts) >= 0.95 * (burst + rate * seconds)


def test_threads_of_several_processes_never_take_more_than_there_is(store: StoreUnderTest) -> None:
    several = queues(store, number=4)
    put(several[0], *[100] * 60)
    taken: list[float] = []

    def claim(queue: Queue) -> None:
        for _ in range(4):
            taken.extend(started(queue, 3))

    threads = [Thread(target=claim, args=(queue,)) for queue in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == [100] * 10


KINDS = GroupRules(kinds={"embed": GroupRule(units_per_second=100, burst_units=1000)})


def put_kinds(queue: Queue, *kinds: str | None, cost: float = 400) -> None:
    groups = ("a", "b", None)
    queue.put_many(
        [{"payload": n, "kind": kind, "group": groups[n % 3], "cost": cost} for n, kind in enumerate(kinds)]
    )


def test_units_of_a_kind_count_for_every_process_and_group(store: StoreUnderTest) -> None:
    queue, other = queues(store, KINDS)
    put_kinds(queue, *["embed"] * 6)
    assert started(queue) == [400] * 3
    assert started(other) == []
    store.clock.advance(1.9)
    assert started(other) == []
    store.clock.advance(0.7)  # it waits until a twentieth of the burst is there
    assert started(other) == [400]
    store.clock.advance(12)
    assert started(queue) == [400, 400]


def test_claims_look_past_tasks_of_a_kind_without_room(store: StoreUnderTest) -> None:
    queue, other = queues(store, KINDS)
    put_kinds(queue, "mail", None, *["embed"] * 40, cost=5000)  # the newest one is first
    kinds = Counter(claim.task.kind for _ in range(20) for claim in other.claim(4))
    assert kinds == {"embed": 1, "mail": 1, None: 1}


def test_a_kind_has_a_rate_of_starts(store: StoreUnderTest) -> None:
    queue, other = queues(store, GroupRules(kinds={"embed": GroupRule(rate_per_second=2)}))
    put_kinds(queue, *["embed"] * 4)
    assert len(queue.claim(9)) == 2
    assert len(other.claim(9)) == 0
    store.clock.advance(1.6)
    assert len(other.claim(9)) == 2


def test_what_a_run_took_corrects_its_kind(store: StoreUnderTest) -> None:
    queue, other = queues(store, KINDS)
    put_kinds(queue, "embed", cost=1000)
    (claim,) = queue.claim(9)
    claim.task.set_cost(300)
    queue.complete(claim)
    put_kinds(other, *["embed"] * 9, cost=350)
    assert started(other) == [350] * 2


@pytest.mark.parametrize("corrected", [False, True])
def test_groups_share_units_instead_of_time(store: StoreUnderTest, corrected: bool) -> None:
    (queue,) = queues(store, GroupRules(share="units", of={"cheap": GroupRule(weight=2)}), number=1)
    estimate = None if corrected else 10
    queue.put_many({"payload": n, "group": "dear", "cost": estimate} for n in range(30))
    queue.put_many({"payload": n, "group": "cheap"} for n in range(90))
    taken = Counter[str]()
    for _ in range(60):
        for claim in queue.claim(1):
            dear = claim.task.group == "dear"
            taken[str(claim.task.group)] += 10 if dear else 1
            store.clock.advance(0.01 if dear else 1)  # by time it would be the other way round
            claim.task.set_cost(10 if dear else 1)
            queue.complete(claim)
    assert 1.4 < taken["cheap"] / taken["dear"] < 2.6


def test_claims_by_value_look_past_tasks_of_a_kind_without_room(store: StoreUnderTest) -> None:
    queue = store.queue(groups=KINDS, order="value", max_age_seconds=600)
    queue.create_table()
    queue.put_many(
        {"payload": n, "kind": "embed", "cost": 5000, "value": 9} for n in range(70)
    )  # more than a plan reads
    queue.put("a letter", kind="mail")
    kinds = Counter(claim.task.kind for _ in range(10) for claim in queue.claim(10))
    assert kinds == {"embed": 1, "mail": 1}
