"""The processes of a schedule, and their notes for the audit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from math import inf
from typing import Any, Final

from freshq import Claim, LeaseLost, MatchQueue, Queue, Settlement
from freshq.errors import PutIncomplete, RefusedError, StoreError
from freshq.feeds.relay import Relay
from freshq.feeds.schedules import Every, HighWaterMarks, Schedule, Scheduler
from freshq.matching import Match
from freshq.model.answers import Busy, PutOutcome, Receipt
from freshq.model.task import Task, TaskStatus
from freshq.worker.report import Observer, Outcome
from freshq.worker.worker import Worker
from tests.support.audits import LEASE_SECONDS, REPRIORITIZE
from tests.support.interleaving import DESTINATION, Actor, Interleaving
from tests.support.readings import known

# A waiter in the process of a put claims its task sooner.
LATE_SECONDS: Final = 1.0
TICK_SECONDS: Final = 5.0
CREATED: Final = PutOutcome.CREATED


def worker(rounds: int, *, together: bool = False, rest_seconds: float = 0.0, queue_of: str = "") -> Actor:
    """Return an actor that claims tasks, perhaps extends their leases, and settles them."""

    def work(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        queue = run.world.queue(run.acting, queue_of) if queue_of else queue
        for _ in range(rounds):
            with suppress(StoreError, RefusedError):
                began = run.now()
                claims = queue.claim(rng.randint(1, 3))
                run.check_pause(claims, began)
                for claim in claims:
                    run.hand_out(claim)
                if together:
                    settle_together(run, queue, claims, rng)
                else:
                    for claim in claims:
                        settle(run, queue, claim, rng)
            if rest_seconds:
                time.sleep(rng.choice([0.2, 1.0, 2.0]) * rest_seconds)

    return work


def urgent_producer(run: Interleaving, queue: Queue, rng: random.Random) -> None:
    """Put tasks of a higher level, each into a line of its own or one that others use."""
    for number in range(4):
        time.sleep(rng.choice([0.1, 1.0, 4.0]))
        task_id = f"urgent-{number}"
        with suppress(StoreError, RefusedError):
            queue.put(number, task_id=task_id, priority=1, group=rng.choice([None, "a", task_id]))
            run.urgent.append(task_id)


def worker_by_level(rounds: int, *, looks: bool) -> Actor:
    """Return an actor that claims tasks, and perhaps looks whether a task of a higher level was left."""

    def work(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        for _ in range(rounds):
            time.sleep(rng.choice([0.1, 0.5]))
            with suppress(StoreError, RefusedError):
                urgent = [*run.urgent] if looks else []
                claims = queue.claim(rng.randint(1, 2))
                for claim in claims:
                    run.hand_out(claim)
                run.check_levels(claims, [known(queue, task_id) for task_id in urgent])
                for claim in claims:
                    settle(run, queue, claim, rng)

    return work


def extender(run: Interleaving, queue: Queue, rng: random.Random) -> None:
    """Extend the claims that another thread of the process works on, for less time than it does."""
    for _ in range(6):
        time.sleep(rng.choice([0.1, 0.5]))
        for claim in [*run.claims.values()]:
            with suppress(LeaseLost, StoreError):
                queue.extend(claim)


def long_runner(run: Interleaving, queue: Queue, rng: random.Random) -> None:
    """Claim tasks, and run each for longer than a lease."""
    for _ in range(3):
        with suppress(LeaseLost, StoreError):
            for claim in queue.claim():
                run.claims[claim.token] = claim
                time.sleep(rng.choice([0.1, 0.5]))
                run.hand_out(queue.extend(claim, lease_seconds=3 * LEASE_SECONDS))
                time.sleep(2 * LEASE_SECONDS)
                del run.claims[claim.token]
                run.handed.pop((claim.task.task_id, claim.token))
                queue.complete(claim)


def settle(run: Interleaving, queue: Queue, claim: Claim, rng: random.Random) -> None:
    """Settle a claim in a random way, and note whether it was confirmed or denied."""
    mark = claim.token[-8:]
    verb = rng.choice(["complete", "complete", "retry", "release", *run.scenario.verbs])
    try:
        if rng.random() < 0.4:
            claim = queue.extend(claim)
            run.hand_out(claim)
        run.handed.pop((claim.task.task_id, claim.token), None)
        if verb == "complete":
            queue.complete(claim, result=mark)
            run.told.setdefault(claim.task.task_id, []).append(mark)
        elif verb == "retry":
            queue.retry(claim, delay_seconds=rng.choice([0, 2]))
        elif verb == "fail":
            queue.fail(claim)
        else:
            queue.release(claim)
    except LeaseLost:
        run.denied.setdefault(claim.task.task_id, []).append(mark)


def settle_together(run: Interleaving, queue: Queue, claims: Sequence[Claim], rng: random.Random) -> None:
    """Settle claims in one call."""
    ends = [
        Settlement.complete(claim, result=claim.token[-8:])
        if rng.random() < 0.7
        else Settlement.release(claim)
        for claim in claims
    ]
    for claim in claims:
        run.handed.pop((claim.task.task_id, claim.token), None)
    for claim, end, answer in zip(claims, ends, queue.settle_many(ends), strict=True):
        noted = run.denied if isinstance(answer, LeaseLost) else run.told
        if isinstance(answer, Task | LeaseLost) and end.result is not None:
            noted.setdefault(claim.task.task_id, []).append(claim.token[-8:])


def operator(tasks: int, *, force: bool) -> Actor:
    """Return an actor that cancels tasks, and brings back dead ones."""

    def operate(_run: Interleaving, queue: Queue, rng: random.Random) -> None:
        for _ in range(8):
            task_id = f"task-{rng.randrange(tasks)}"
            with suppress(StoreError, RefusedError):
                verb = rng.choice(["cancel", "die", "redrive", "redrive", "return"])
                if verb == "redrive":
                    queue.redrive([task_id], as_new=True, force=force)
                elif verb == "return":
                    queue.redrive([task_id])
                elif rng.random() < 0.5:
                    queue.cancel(task_id, dead=verb == "die", force=force)

    return operate


def redriver(rounds: int) -> Actor:
    """Return an actor that brings back the tasks that are dead, now and then."""

    def redrive(_run: Interleaving, queue: Queue, rng: random.Random) -> None:
        for _ in range(rounds):
            time.sleep(rng.choice([1.0, 6.0, 15.0]))
            with suppress(StoreError):
                queue.redrive()

    return redrive


def prioritizer(tasks: int) -> Actor:
    """Return an actor that moves tasks to other levels."""

    def move(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        run.doing[run.acting] = REPRIORITIZE
        for _ in range(8):
            with suppress(StoreError, RefusedError):
                queue.reprioritize(f"task-{rng.randrange(tasks)}", priority=rng.randrange(3))

    return move


def pauser(run: Interleaving, queue: Queue, rng: random.Random) -> None:
    """Pause the queue and resume it."""
    for _ in range(3):
        with suppress(StoreError):
            queue.pause()
            run.paused_at = run.now()
            time.sleep(rng.choice([2.0, 6.0, 15.0]))
        run.paused_at = inf
        with suppress(StoreError):
            queue.resume()
        time.sleep(rng.choice([0.5, 3.0]))


def sweeper(rounds: int, rest_seconds: float = 0.0) -> Actor:
    """Return an actor that recovers due tasks and leases."""

    def sweep(_run: Interleaving, queue: Queue, _rng: random.Random) -> None:
        for _ in range(rounds):
            with suppress(StoreError):
                queue.admin.recover()
            if rest_seconds:
                time.sleep(rest_seconds)

    return sweep


def producer(
    tasks: int,
    *,
    groups: Sequence[str | None] = (None,),
    rest_seconds: float = 0.0,
    values: Sequence[float | None] = (),
) -> Actor:
    """Return an actor that puts tasks, one or two at a time."""

    def put(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        for number in range(tasks):
            given: dict[str, Any] = {"payload": number, "group": rng.choice(groups)}
            if values:
                given["value"] = rng.choice(values)
            names = [f"put-{number}", *([f"put-{number}-too"] if rng.random() < 0.3 else [])]
            with suppress(StoreError, RefusedError):
                try:
                    receipts: Sequence[Any] = queue.put_many([given | {"task_id": name} for name in names])
                except PutIncomplete as incomplete:
                    receipts = incomplete.receipts
                run.created.update(
                    each.task_id for each in receipts if isinstance(each, Receipt) and each.outcome == CREATED
                )
            if rest_seconds:
                time.sleep(rng.choice([0.2, 1.0, 2.0]) * rest_seconds)

    return put


def producer_of_two(run: Interleaving, queue: Queue, rng: random.Random) -> None:
    """Put a task into a line of its own, and another one around the time at which the line is closed."""
    for number, pauses in enumerate(([0.1, 5.0, 20.0], [rng.uniform(2.0, 10.0), rng.uniform(2.0, 35.0)])):
        time.sleep(rng.choice(pauses))
        with suppress(StoreError):
            queue.put(number, task_id=f"{run.acting}-{number}", group=run.acting)


def producer_beside_a_closing(_run: Interleaving, queue: Queue, rng: random.Random) -> None:
    """Put a task into a line of its own, and another one when the line is closed, as the first is in work."""
    first, second = (f"{queue.admin.config.worker_name}-{number}" for number in range(2))
    queue.put("first", task_id=first, group=first)
    for _ in range(200):
        if known(queue, first).status is not TaskStatus.PENDING:
            break
        time.sleep(0.1)
    time.sleep(rng.uniform(1.5, 3.5))
    queue.put("second", task_id=second, group=first)


def putter_over(tasks: int, on_conflict: Any, puts: int = 6) -> Actor:
    """Return an actor that puts tasks under the ids of others."""

    def put(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        name = run.acting
        run.doing[name] = on_conflict
        for number in range(puts):
            task_id, payload = f"task-{rng.randrange(tasks)}", f"{name}-{number}"
            with suppress(StoreError, RefusedError):
                receipt = queue.put(payload, task_id=task_id, on_conflict=on_conflict)
                run.check_put(task_id, payload, receipt.outcome)

    return put


def relay(rounds: int) -> Actor:
    """Return an actor that moves tasks to the other queue."""

    def move(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        to = run.world.queue(run.acting, DESTINATION)
        moving = Relay(queue, to, batch=2, lease_seconds=LEASE_SECONDS)
        for _ in range(rounds):
            with suppress(StoreError):
                moving.move()
            time.sleep(rng.choice([0.2, 1.0, 3.0]))

    return move


def tick(fails: Callable[[], bool] = lambda: False) -> Schedule:
    """Return the schedule that the nodes share; its payload may fail."""

    def payload(instant: datetime) -> str:
        if fails():
            raise ValueError("no payload")
        return instant.isoformat()

    return Schedule.of("tick", Every(TICK_SECONDS), payload, catch_up=1000)


def node(rounds: int) -> Actor:
    """Return an actor that fires the ticks of a schedule; its high-water mark must not go back."""

    def fire(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        def note(_schedule: Schedule, receipt: Receipt) -> None:
            run.created[receipt.task_id] += receipt.outcome == CREATED

        schedule = tick(lambda: rng.random() < 0.2)
        scheduler = Scheduler(queue, [schedule], note)
        last = 0.0
        for _ in range(rounds):
            with suppress(StoreError, ValueError):
                scheduler.fire()
            with suppress(StoreError):
                state = HighWaterMarks(queue).read(schedule.record_name)
                if state is None or state.last < last:
                    run.problems.append(f"the mark went back from {last} to {state}")
                else:
                    last = state.last
            time.sleep(rng.choice([0.2, 1.0, 2.0]) * TICK_SECONDS)

    return fire


def agent(names: Sequence[str]) -> Actor:
    """Return an actor that lets resources wait, and stops them."""

    def offer(run: Interleaving, _queue: Queue, rng: random.Random) -> None:
        desk = run.world.desk(run.acting)
        for _ in range(10):
            name = rng.choice(names)
            with suppress(StoreError, RefusedError):
                if rng.random() < 0.8:
                    desk.offer(name)
                else:
                    desk.withdraw(name)
            time.sleep(rng.choice([0.1, 1.0, 3.0]))

    return offer


def matcher(rounds: int) -> Actor:
    """Return an actor that takes resources, and ends the matches."""

    def match(run: Interleaving, _queue: Queue, rng: random.Random) -> None:
        desk = run.world.desk(run.acting)
        for _ in range(rounds):
            with suppress(StoreError, RefusedError):
                for found in desk.match({"language": rng.choice(["en", "fr"])}, limit=rng.randint(1, 2)):
                    serve(run, desk, found, rng)
            time.sleep(rng.choice([0.1, 1.0, 3.0]))

    return match


def caller(rounds: int, language: str) -> Actor:
    """Return an actor that waits in line for a resource, and ends the match."""

    def wait(run: Interleaving, _queue: Queue, rng: random.Random) -> None:
        desk, name = run.world.desk(run.acting), run.acting
        for number in range(rounds):
            caller_id = f"{name}.{number}"
            for _ in range(6):
                with suppress(StoreError, RefusedError):
                    found = desk.request({"language": language}, caller_id=caller_id)
                    if found is not None:
                        serve(run, desk, found, rng)
                        break
                time.sleep(rng.choice([0.3, 2.0]))
            else:
                with suppress(StoreError, RefusedError):
                    desk.abandon(caller_id)

    return wait


def serve(run: Interleaving, desk: MatchQueue, match: Match, rng: random.Random) -> None:
    """Work with a resource, and end its match."""
    run.hand_over(match)
    if rng.random() < 0.4:
        match = desk.extend(match)
        run.hand_over(match)
    if rng.random() < 0.5:
        time.sleep(rng.choice([0.3, 2.0]))
    if run.matches.get(match.resource_id, ("",))[0] == match.token:
        del run.matches[match.resource_id]
    if rng.random() < 0.5:
        desk.complete(match)
        desk.offer(match.resource_id)
    else:
        desk.release(match)


def desk_sweeper(rounds: int) -> Actor:
    """Return an actor that recovers resources whose callers are gone."""

    def sweep(run: Interleaving, _queue: Queue, rng: random.Random) -> None:
        desk = run.world.desk(run.acting)
        for _ in range(rounds):
            with suppress(StoreError):
                desk.admin.recover()
            time.sleep(rng.choice([1.0, 4.0]))

    return sweep


def waiter(rounds: int) -> Actor:
    """Return an actor that waits for tasks, and must be woken by a put of its process."""

    def wait(run: Interleaving, queue: Queue, _rng: random.Random) -> None:
        for _ in range(rounds):
            with suppress(StoreError):
                for claim in queue.claim(wait_seconds=8):
                    late_seconds = run.now() - claim.task.created
                    if late_seconds > LATE_SECONDS:
                        run.problems.append(f"{claim.task.task_id} woke nobody for {late_seconds:.1f} s")
                    queue.complete(claim)

    return wait


def configurer(option: str, values: Sequence[Any]) -> Actor:
    """Return an actor that changes an option of the queue, which nobody else changes."""

    def configure(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        possible: set[Any] = set()
        for value in values:
            with suppress(StoreError, RefusedError):
                stored = getattr(queue.configure(), option)
                if possible and stored not in possible:
                    run.problems.append(f"{option} is {stored}, not one of {sorted(possible)}")
                possible |= {stored, value}
                queue.configure(**{option: value})
                possible = {value}
            time.sleep(rng.choice([0.0, 0.5]))

    return configure


def program(seconds: float) -> Actor:
    """Return an actor that runs a `Worker`, whose threads are actors too."""

    def work(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        class Notes(Observer):
            def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
                del run_seconds, error
                noted = {Outcome.SUCCEEDED: run.told, Outcome.LEASE_LOST: run.denied}.get(outcome)
                if noted is not None:
                    noted.setdefault(claim.task.task_id, []).append(claim.token[-8:])

        def runner(task: Task) -> str:
            if task.stale_at <= run.now():
                run.problems.append(f"{task.task_id} was started stale")
            time.sleep(rng.choice([0.0, 0.3, 2.0, 1.5 * LEASE_SECONDS]))
            if rng.random() < 0.2:
                raise Busy
            return str(task.lease_token)[-8:]

        Worker(queue, runner, concurrency=2, poll_seconds=1.0, observer=Notes()).run(run.now() + seconds)

    return work
