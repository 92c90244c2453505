"""The scenarios: which processes run together in the schedules that the tests try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from freshq import GroupRule, GroupRules, Queue
from freshq.feeds.relay import Relay
from freshq.feeds.schedules import HighWaterMarks, Scheduler
from freshq.model.task import TaskStatus
from freshq.queue.core import core_of
from tests.support.actors import (
    agent,
    caller,
    configurer,
    desk_sweeper,
    extender,
    long_runner,
    matcher,
    node,
    operator,
    pauser,
    prioritizer,
    producer,
    producer_beside_a_closing,
    producer_of_two,
    program,
    putter_over,
    redriver,
    relay,
    sweeper,
    tick,
    urgent_producer,
    waiter,
    worker,
    worker_by_level,
)
from tests.support.audits import AFTER, DRAINED_SECONDS, IGNORE, LEASE_SECONDS, UPDATE
from tests.support.interleaving import (
    DESTINATION,
    NO_FAULTS,
    Faults,
    InDynamoDB,
    InMemory,
    InSqlite,
    Interleaving,
    Scenario,
)

WORLDS: Final = {"memory": InMemory, "sqlite": InSqlite, "dynamodb": InDynamoDB}
# An id of the source that another queue of the destination's table has taken.
TAKEN_ID: Final = "task-0"
RESOURCES: Final = {
    "ann": {"language": {"en", "fr"}},
    "bob": {"language": "en"},
    "cy": {"language": "fr", "site": "north"},
}


def put(
    run: Interleaving, tasks: int, group: str | None = None, max_age_seconds: float | None = None
) -> None:
    """Put tasks before the schedule begins."""
    given = {"group": group, "max_age_seconds": max_age_seconds}
    new = [given | {"payload": number, "task_id": f"task-{number}"} for number in range(tasks)]
    receipts = run.world.queue("put").put_many(new)
    run.created.update(receipt.task_id for receipt in receipts)


def tasks_and_workers(
    run: Interleaving,
    tasks: int = 2,
    group: str | None = None,
    max_age_seconds: float | None = None,
    **how: Any,
) -> None:
    """Put tasks, and add three workers and a sweep."""
    put(run, tasks, group, max_age_seconds)
    for number in range(3):
        run.add(f"worker-{number}", worker(4, **how))
    run.add("sweep", sweeper(6))


def returned_often(run: Interleaving) -> None:
    """Put tasks that are claimed and returned over several leases."""
    put(run, 2)
    for number in range(3):
        run.add(f"worker-{number}", worker(5, rest_seconds=4))
    for number in range(2):
        run.add(f"sweep-{number}", sweeper(6, rest_seconds=4))


def deaths(run: Interleaving) -> None:
    """Put tasks for workers that die, and bring back those that failed."""
    put(run, 3)
    run.add("producer", producer(6, rest_seconds=6))
    for number in range(3):
        run.add(f"worker-{number}", worker(6, rest_seconds=4))
    run.add("sweep", sweeper(8, rest_seconds=4))
    run.add("operator", redriver(6))


def operators(run: Interleaving) -> None:
    """Put tasks for workers, and for two operators, of whom one uses force."""
    tasks_and_workers(run, tasks=3)
    run.add("operator", operator(3, force=False))
    run.add("forcer", operator(3, force=True))
    run.add("prioritizer", prioritizer(3))


def pauses(run: Interleaving) -> None:
    """Put tasks for workers whose queue is paused now and then."""
    put(run, 2)
    run.add("producer", producer(6, rest_seconds=3))
    run.add("pauser", pauser)
    for number in range(2):
        run.add(f"worker-{number}", worker(10, rest_seconds=2))


def resumed(run: Interleaving) -> None:
    """Finish the remaining tasks of a queue that may be paused."""
    queue = run.world.queue(run.acting)
    queue.resume()
    run.drain(queue)


def groups_that_come_and_go(run: Interleaving) -> None:
    """Put tasks of groups now and then, so that lines are announced and closed beside the puts."""
    run.add("producer", producer(5, groups=("a", "b"), rest_seconds=3))
    for number in range(2):
        run.add(f"worker-{number}", worker(8, rest_seconds=2))
    run.add("sweep", sweeper(8, rest_seconds=4))


def values(run: Interleaving) -> None:
    """Put tasks of several values now and then, in lines of their own, beside workers that plan."""
    run.add("producer", producer(6, groups=(None, "a"), rest_seconds=2, values=(None, 1.0, 8.0, 64.0)))
    for number in range(2):
        run.add(f"worker-{number}", worker(8, rest_seconds=2))
    run.add("sweep", sweeper(8, rest_seconds=4))


def levels(run: Interleaving) -> None:
    """Put tasks of two levels beside workers that must serve the higher one first."""
    run.add("producer", producer(6, groups=(None, "a", "b"), rest_seconds=0.5))
    run.add("boss", urgent_producer)
    # On DynamoDB a process may find a line of another one later.
    looks = not isinstance(run.world, InDynamoDB)
    for number in range(2):
        run.add(f"worker-{number}", worker_by_level(10, looks=looks))


def frozen_puts(run: Interleaving) -> None:
    """Put tasks of groups beside workers that close their lines, and a sweep that looks into them."""
    for number in range(6):
        run.add(f"producer-{number}", producer_of_two)
    for number in range(2):
        run.add(f"worker-{number}", worker(14, rest_seconds=2))
    run.add("sweep", sweeper(250, rest_seconds=0.15))


def closings(run: Interleaving) -> None:
    """Put tasks into lines around the time at which a worker closes them, beside a sweep that looks often."""
    for number in range(4):
        run.add(f"producer-{number}", producer_beside_a_closing)
    run.add("worker", worker(5, rest_seconds=1.0))
    run.add("sweep", sweeper(300, rest_seconds=0.05))


def the_same_ids(run: Interleaving) -> None:
    """Put tasks of the same ids from several processes, while workers end them."""
    for number in range(3):
        run.add(f"producer-{number}", producer(3))
    run.add("worker-0", worker(6, together=True))
    run.add("worker-1", worker(6))


def puts_over(run: Interleaving) -> None:
    """Put tasks over others of the same ids, in both ways, while workers end them."""
    put(run, 2)
    for number in range(2):
        run.add(f"updater-{number}", putter_over(2, UPDATE))
    run.add("ignorer", putter_over(2, IGNORE))
    for number in range(2):
        run.add(f"worker-{number}", worker(5))


def puts_after(run: Interleaving) -> None:
    """Put tasks behind running ones of the same ids, while workers end them and leases expire.

    A task remembers its last three puts: more puts while the reply to one is lost may repeat that.
    """
    put(run, 2)
    for number in range(3):
        run.add(f"follower-{number}", putter_over(2, AFTER, puts=1 if number else 4))
    for number in range(2):
        run.add(f"worker-{number}", worker(6))
    run.add("sweep", sweeper(3, rest_seconds=8))


def a_waiter(run: Interleaving) -> None:
    """Put tasks for an actor who waits for them."""
    run.add("producer", producer(3, rest_seconds=2))
    run.add("waiter", waiter(4))


def threads_that_extend_one_lease(run: Interleaving) -> None:
    """Put tasks for a process of which two threads extend the same claims."""
    put(run, 2)
    run.add("worker", long_runner)
    run.add("worker.extender", extender)
    run.add("other", worker(6, rest_seconds=6))


def programs(run: Interleaving) -> None:
    """Put tasks for two workers with threads."""
    put(run, 4, max_age_seconds=12)
    run.add("producer", producer(3, rest_seconds=5))
    for number in range(2):
        run.add(f"worker-{number}", program(30))
    run.add("sweep", sweeper(4, rest_seconds=10))


def configurers(run: Interleaving) -> None:
    """Let processes change different options of the queue."""
    for number, option in enumerate(
        ("retention_seconds", "dead_letter_retention_seconds", "traceback_bytes")
    ):
        run.add(f"configurer-{number}", configurer(option, range(1000, 1006)))


def relays(run: Interleaving) -> None:
    """Put tasks that two relays move to another queue, which has one of their ids already."""
    others = run.world.queue("put", "others")
    others.put("of another queue", task_id=TAKEN_ID)
    put(run, 3)
    run.add("producer", producer(3, rest_seconds=1))
    for number in range(2):
        run.add(f"relay-{number}", relay(5))
    run.add("sweep", sweeper(6, rest_seconds=3))
    run.add("worker-0", worker(4, rest_seconds=3, queue_of=DESTINATION))


def relayed(run: Interleaving) -> None:
    """Move the remaining tasks; each task that left the source must be in the destination."""
    source, to = run.world.queue(run.acting), run.world.queue(run.acting, DESTINATION)
    moving = Relay(source, to, batch=10, lease_seconds=LEASE_SECONDS)
    for seconds in DRAINED_SECONDS:
        run.now_seconds += seconds
        source.admin.recover()
        while moving.move():
            pass
    at_source, arrived = ({task.task_id: task for task in scanned(each)} for each in (source, to))
    for task_id, task in at_source.items():
        if task.status is TaskStatus.SUCCESS and task_id not in arrived:
            run.problems.append(f"{task_id} was emitted nowhere")
        if task.status is not TaskStatus.SUCCESS and task_id != TAKEN_ID:
            run.problems.append(f"{task_id} is {task.status} at the source")
    run.problems += [f"{task_id} came from nowhere" for task_id in arrived.keys() - at_source.keys()]
    del run.created[TAKEN_ID]
    run.drain(to)


def scanned(queue: Queue) -> Any:
    """Return all tasks of a queue."""
    return core_of(queue).store.scan(queue.name)


def nodes(run: Interleaving) -> None:
    """Add nodes that fire the ticks of a schedule, and a worker."""
    queue, schedule = run.world.queue("put"), tick()
    Scheduler(queue, [schedule]).fire()
    state = HighWaterMarks(queue).read(schedule.record_name)
    run.began = 0.0 if state is None else state.last
    for number in range(3):
        run.add(f"node-{number}", node(6))
    run.add("worker-0", worker(4, rest_seconds=4))


def fired(run: Interleaving) -> None:
    """Fire the remaining ticks; each must have a task."""
    queue, schedule = run.world.queue(run.acting), tick()
    until = run.now()
    Scheduler(queue, [schedule]).fire()
    state = HighWaterMarks(queue).read(schedule.record_name)
    found = {task.task_id for task in scanned(queue)}
    for at in schedule.when.ticks(run.began):
        if at > until:
            break
        if schedule.task_id(at) not in found:
            run.problems.append(f"{schedule.task_id(at)} was not fired; the mark is {state}")
    run.drain(queue)


def a_desk(run: Interleaving) -> None:
    """Let resources wait for callers of both kinds."""
    desk = run.world.desk("put")
    for name, attributes in RESOURCES.items():
        desk.register(name, attributes=attributes)
        desk.offer(name)
    run.add("agents", agent([*RESOURCES]))
    for number in range(2):
        run.add(f"matcher-{number}", matcher(4))
    for language in ("en", "fr"):
        run.add(f"caller-{language}", caller(2, language))
    run.add("sweep", desk_sweeper(4))


def left_alone(run: Interleaving) -> None:
    """Check the remaining resources and callers."""
    asks = {f"caller-{each}.{number}": {"language": each} for each in ("en", "fr") for number in range(2)}
    run.check_desk(run.world.desk(run.acting), asks)


LOST_REPLIES: Final = replace(NO_FAULTS, lost=0.15, stall=0.03, tick=0.05)
STALLS: Final = replace(NO_FAULTS, stall=0.06, tick=0.02)
COPIES: Final = replace(NO_FAULTS, lost=0.02, late=0.15, twice=0.2, kill=0.01, tick=0.03, landing=0.01)
DEATHS: Final = replace(NO_FAULTS, kill=0.01, stall=0.01, tick=0.03, landing=0.005)
# A worker dies beside the write of a task; copies of its lease records and claims land after that; a sweep
# looked at a lease record long before it moves it.
DEATHS_OF: Final = {
    "worker-* update_item *": replace(DEATHS, twice=0.3, kill=0.1, stall=0.0),
    "worker-* put_item *": replace(DEATHS, late=0.1, twice=0.5, stall=0.0),
    "sweep put_item *": replace(DEATHS, stall=0.5),
}
SLOW: Final = replace(NO_FAULTS, stall=0.03, kill=0.01, tick=0.02)
FROZEN: Final = replace(NO_FAULTS, lag=0.05, stall=0.04)
# All that the protocol of lines allows for, mostly to its bounds; a death before a line is closed again, or
# before the look after a put.
TO_THE_BOUNDS: Final = replace(
    NO_FAULTS,
    lag_seconds=(3.0, 3.0),
    stall_seconds=(1.95, 1.95, 1.1 * LEASE_SECONDS, 2.5 * LEASE_SECONDS),
    still_seconds=(0.9, 0.9, 1.1 * LEASE_SECONDS, 2.5 * LEASE_SECONDS),
)
FROZEN_OF: Final = {
    "worker-* put_item *#closing#*": replace(TO_THE_BOUNDS, still=0.7, kill=0.25),
    "worker-* batch_write_item *": replace(TO_THE_BOUNDS, stall=0.7),
    "producer-* batch_get_item *": replace(
        TO_THE_BOUNDS, still=0.7, still_seconds=(0.9, 2.5 * LEASE_SECONDS), kill=0.15
    ),
    "producer-* put_item producer-*": replace(TO_THE_BOUNDS, stall=0.5, lag=0.5),
    "* *_item *": NO_FAULTS,
    "* query *": NO_FAULTS,
}
# Each call takes as long as the protocol of lines allows, and the index lags by its bound. So it shows a task
# whose producer looked right before the record was deleted just before the closing is looked into.
AT_THE_BOUNDS: Final = replace(NO_FAULTS, lag_seconds=(3.0, 3.0), stall_seconds=(1.95,), still_seconds=(0.9,))
CLOSINGS_OF: Final = {
    "worker put_item *#closing#*": replace(AT_THE_BOUNDS, still=0.9),
    "worker batch_write_item *": replace(AT_THE_BOUNDS, stall=0.95),
    "producer-* batch_get_item *": replace(AT_THE_BOUNDS, still=0.9),
    "producer-* put_item producer-*-1": replace(AT_THE_BOUNDS, stall=0.5, lag=0.5),
}
# Copies that land late are left out where the guarantees assume none, or where an older verb of the same
# caller, which it was told had failed, may undo a later one.
AT_ONCE: Final = Faults(late=0, twice=0)
LIMITED: Final = {"groups": GroupRules(GroupRule(max_running=1))}
SCENARIOS: Final[dict[str, Callable[[Any], Scenario]]] = {
    "workers": lambda world: Scenario(world, tasks_and_workers, verbs=("fail",), options={"max_attempts": 3}),
    "batches": lambda world: Scenario(world, partial(tasks_and_workers, tasks=3, together=True)),
    "groups": lambda world: Scenario(world, groups_that_come_and_go, faults=AT_ONCE),
    "values": lambda world: Scenario(world, values, faults=AT_ONCE, options={"order": "value"}),
    "slow puts of values": lambda world: replace(SCENARIOS["values"](world), faults=SLOW),
    "levels": lambda world: Scenario(world, levels, faults=AT_ONCE),
    "slow puts": lambda world: Scenario(world, groups_that_come_and_go, faults=SLOW),
    "frozen puts": lambda world: Scenario(
        world, frozen_puts, faults=FROZEN, faults_of=FROZEN_OF, verbs=("complete",) * 6
    ),
    "closings": lambda world: Scenario(
        world, closings, faults=NO_FAULTS, faults_of=CLOSINGS_OF, verbs=("complete",) * 12
    ),
    "limits": lambda world: Scenario(world, partial(tasks_and_workers, tasks=4, group="a"), options=LIMITED),
    "extensions": lambda world: Scenario(
        world, threads_that_extend_one_lease, faults=Faults(kill=0, stall=0)
    ),
    "stalls": lambda world: replace(SCENARIOS["limits"](world), faults=STALLS),
    "copies": lambda world: Scenario(world, returned_often, faults=COPIES, verbs=("release",) * 12),
    "deaths": lambda world: Scenario(world, deaths, faults=DEATHS, faults_of=DEATHS_OF, verbs=("fail",) * 6),
    "replies": lambda world: replace(SCENARIOS["limits"](world), faults=LOST_REPLIES),
    "repeats": lambda world: replace(SCENARIOS["workers"](world), faults=LOST_REPLIES),
    "stale": lambda world: Scenario(world, partial(tasks_and_workers, tasks=3, max_age_seconds=15)),
    "operators": lambda world: Scenario(world, operators, verbs=("fail",), forces=("forcer",)),
    "waits": lambda world: Scenario(world, a_waiter, faults=NO_FAULTS),
    "pauses": lambda world: Scenario(world, pauses, faults=AT_ONCE, drain=resumed),
    "same ids": lambda world: Scenario(world, the_same_ids),
    "puts over": lambda world: Scenario(world, puts_over, faults=AT_ONCE),
    "slow puts over": lambda world: replace(SCENARIOS["puts over"](world), faults=LOST_REPLIES),
    "puts after": lambda world: Scenario(world, puts_after, faults=AT_ONCE),
    "slow puts after": lambda world: replace(SCENARIOS["puts after"](world), faults=LOST_REPLIES),
    "programs": lambda world: Scenario(world, programs),
    "options": lambda world: Scenario(world, configurers),
    "relays": lambda world: Scenario(world, relays, drain=relayed),
    "schedules": lambda world: Scenario(world, nodes, drain=fired),
    "matches": lambda world: Scenario(world, a_desk, drain=left_alone),
}
