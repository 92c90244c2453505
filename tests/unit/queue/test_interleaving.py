"""Processes of a queue in many orders on three stores, and queues that lack one of their guards."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest import mock

import pytest

from freshq import GroupRule, GroupRules
from freshq.model.task import Task, TaskStatus
from freshq.queue.polling import Interval
from freshq.stores.base import Conflict, Guard
from freshq.stores.dynamodb.batches import Batches
from freshq.stores.memory import MemoryStore
from freshq.stores.wakes import Signal
from tests.support.interleaving import (
    NO_FAULTS,
    Faults,
    Found,
    InDynamoDB,
    InMemory,
    InSqlite,
    Interleaving,
    Scenario,
    explore,
    extender,
    long_runner,
    minimized,
    operator,
    producer,
    replayed,
    sweeper,
    waiter,
    worker,
)

WORLDS: Final = {"memory": InMemory, "sqlite": InSqlite, "dynamodb": InDynamoDB}


def tasks_and_workers(
    run: Interleaving,
    tasks: int = 2,
    group: str | None = None,
    max_age_seconds: float | None = None,
    **how: Any,
) -> None:
    """Put tasks, and add three workers and a sweep."""
    run.world.queue("put").put_many(
        [
            {
                "payload": number,
                "task_id": f"task-{number}",
                "group": group,
                "max_age_seconds": max_age_seconds,
            }
            for number in range(tasks)
        ]
    )
    for number in range(3):
        run.add(f"worker-{number}", worker(4, **how))
    run.add("sweep", sweeper(6))


def operators(run: Interleaving) -> None:
    """Put tasks for workers, and for two operators, of whom one uses force."""
    tasks_and_workers(run, tasks=3)
    run.add("operator", operator(3, force=False))
    run.add("forcer", operator(3, force=True))


def groups_that_come_and_go(run: Interleaving) -> None:
    """Put tasks of groups now and then, so that lines are announced and closed beside the puts."""
    run.add("producer", producer(5, groups=("a", "b"), rest_seconds=3))
    for number in range(2):
        run.add(f"worker-{number}", worker(8, rest_seconds=2))
    run.add("sweep", sweeper(8, rest_seconds=4))


def a_waiter(run: Interleaving) -> None:
    """Put tasks for somebody who waits for them."""
    run.add("producer", producer(3, rest_seconds=2))
    run.add("waiter", waiter(4))


def threads_that_extend_one_lease(run: Interleaving) -> None:
    """Put tasks for a process of which two threads extend the same claims."""
    run.world.queue("put").put_many([{"payload": number, "task_id": f"task-{number}"} for number in range(2)])
    run.add("worker", long_runner)
    run.add("worker.extender", extender)
    run.add("other", worker(6, rest_seconds=6))


LOST_REPLIES: Final = replace(NO_FAULTS, lost=0.15, stall=0.03, tick=0.05)
LIMITED: Final = {"groups": GroupRules(GroupRule(max_running=1))}
SCENARIOS: Final[dict[str, Callable[[Any], Scenario]]] = {
    "workers": lambda world: Scenario(world, tasks_and_workers),
    "batches": lambda world: Scenario(world, partial(tasks_and_workers, tasks=3, together=True)),
    # Writes that land later than the line records allow may strand a task: docs/guarantees.md assumes none.
    "groups": lambda world: Scenario(world, groups_that_come_and_go, faults=Faults(late=0, twice=0)),
    "limits": lambda world: Scenario(world, partial(tasks_and_workers, tasks=4, group="a"), options=LIMITED),
    "extensions": lambda world: Scenario(
        world, threads_that_extend_one_lease, faults=Faults(kill=0, stall=0)
    ),
    "replies": lambda world: replace(SCENARIOS["limits"](world), faults=LOST_REPLIES),
    "stale": lambda world: Scenario(world, partial(tasks_and_workers, tasks=3, max_age_seconds=15)),
    "operators": lambda world: Scenario(world, operators, verbs=("fail",), forces=("forcer",)),
    "waits": lambda world: Scenario(world, a_waiter, faults=NO_FAULTS),
}


class Unversioned(Guard):
    """A guard of a holder that compares no version."""

    def __init__(
        self, status: TaskStatus, lease_token: str | None = None, request_token: str | None = None
    ) -> None:
        super().__init__(status, lease_token, None if lease_token else request_token)


class Forgetful(Interval):
    """A wait for what comes after the look."""

    def __init__(self, seconds: float, signal: Signal, _seen: int) -> None:
        super().__init__(seconds, signal, signal.count)


class Careless(Guard):
    """A guard that compares the status only."""

    def __init__(self, status: TaskStatus, *_: object, **__: object) -> None:
        super().__init__(status)


def by_attempt(store: MemoryStore, task: Task, guard: Guard) -> Task:
    """Compare the attempts of a task instead of the token."""
    current = store.get(task.task_id)
    # A release takes its own attempt back.
    if guard.lease_token is not None and current and current.attempts - task.attempts not in (0, 1):
        raise Conflict(current)
    return REPLACE(store, task, Guard(guard.status, request_token=guard.request_token))


def over_what_others_wrote(store: Any, queue: str, name: str, change: Callable[[Any], Any]) -> bool:
    """Change a shared record whoever changed it since it was read."""
    record = store.read_record(queue, name)
    values = change({} if record is None else record.values)
    while values is not None:
        record = store.read_record(queue, name)
        if store.write_record(queue, name, values, None if record is None else record.version):
            break
    return True


def as_if_all_were_carried_out(batches: Batches, statements: list[Any]) -> list[Any]:
    """Take a settlement that was not carried out for one that was."""
    return [
        {"Item": {"taskId": {"S": "any"}}}
        if response.get("Error", {}).get("Code") == "TransactionConflict"
        and '"endedToken" = ?' in sent["Statement"]
        else response
        for sent, response in zip(statements, SEND(batches, statements), strict=True)
    ]


REPLACE, SEND = MemoryStore.replace, Batches._send
# Each with a store, a scenario, what to replace and by what, and a seed that finds it.
PLANTED: Final[dict[str, tuple[Any, str, str, Any, int]]] = {
    "a lost guard": (InDynamoDB, "workers", "freshq.queue.core.Guard", Careless, 17),
    "a fence by attempt": (InMemory, "workers", "freshq.stores.memory.MemoryStore.replace", by_attempt, 82),
    "an extension without a version": (InMemory, "extensions", "freshq.queue.core.Guard", Unversioned, 1),
    "a sweep that trusts an old read": (InMemory, "workers", "freshq.queue.upkeep.Guard", Careless, 238),
    "a limit counted twice": (
        *(InDynamoDB, "limits", "freshq.queue.shared.limits.change_record", over_what_others_wrote, 25),
    ),
    "a closing that forgets a put": (
        *(InDynamoDB, "groups", "freshq.stores.dynamodb.line_records.LineClosings._put_closing"),
        *(lambda *_: None, 28),
    ),
    "a batch that takes a partial answer for success": (
        *(
            InDynamoDB,
            "batches",
            "freshq.stores.dynamodb.batches.Batches._send",
            as_if_all_were_carried_out,
            43,
        ),
    ),
    # Defects of the code that such schedules found.
    "a lease record that the sweep moved while the reply was lost": (
        *(InDynamoDB, "limits", "freshq.stores.dynamodb.leases.ConditionFailed", KeyError, 371),
    ),
    "an extension after the end of its lease": (
        *(InDynamoDB, "limits", "freshq.queue.core.Core.count_lapsed", lambda *_: False, 28),
    ),
    "a repeated claim that looks like the one before it": (
        *(InSqlite, "replies", "freshq.stores.sql.lines.new_token", lambda: "the same", 37),
    ),
    "a lost wake": (
        *(InMemory, "waits", "freshq.queue.polling.Interval"),
        *(Forgetful, 9),
    ),
}


def found_with(name: str, seeds: Sequence[int]) -> Found | None:
    """Return the first of some schedules that finds a planted bug."""
    world, scenario, target, broken, _seed = PLANTED[name]
    with mock.patch(target, broken):
        return explore(SCENARIOS[scenario](world), seeds)


# `make test` tries a few orders of each store and scenario, `make test-all` 500 in all, `make soak` 100,000.
SOAKED: Final = "FRESHQ_SCHEDULES" in os.environ


def seeds(config: pytest.Config) -> range:
    """Return the seeds for one store and one scenario."""
    cases = len(WORLDS) * len(SCENARIOS)
    total = int(os.environ.get("FRESHQ_SCHEDULES", "500")) if SOAKED or config.getoption("all") else 100
    return range(-(-total // cases))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_order_of_calls_breaks_a_rule(world: str, scenario: str, pytestconfig: pytest.Config) -> None:
    assert explore(SCENARIOS[scenario](WORLDS[world]), seeds(pytestconfig)) is None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    # A change of the code may move it to another schedule.
    assert found_with(name, [PLANTED[name][-1], *range(10_000)]) is not None


def test_a_schedule_repeats_and_shrinks() -> None:
    found = found_with("a fence by attempt", [82, *range(10_000)])
    assert found is not None
    world, scenario, target, broken, _seed = PLANTED["a fence by attempt"]
    made = SCENARIOS[scenario](world)
    with mock.patch(target, broken):
        assert replayed(made, found.seed, found.steps) == found.problems
        least = minimized(made, found)
        assert replayed(made, found.seed, least.steps, least.without) == least.problems != []
        for place in range(len(least.steps)):
            fewer = least.steps[:place] + least.steps[place + 1 :]
            assert not replayed(made, found.seed, fewer, least.without)
    assert len(least.steps) < len(found.steps)
    assert replayed(made, found.seed, least.steps, least.without) == []
