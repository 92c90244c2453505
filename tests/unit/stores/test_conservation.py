"""In any sequence of verbs no task is lost, none is held twice, and the newest is served first.

Hypothesis calls random verbs on a queue, and on a model of it, which is a dictionary.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from freshq import Claim, LeaseLost, PutOutcome, Queue, TaskStatus
from freshq.errors import IllegalTransition
from freshq.queue.upkeep import SMALL_PORTION
from freshq.stores.base import Store
from freshq.stores.dynamodb import line_records
from tests.conftest import Clock, StoreUnderTest
from tests.support.readings import counts, ids, known

SETTLEMENTS: Final = ["complete", "fail", "retry", "release", "extend"]
CHANGES: Final = ["cancel", "reprioritize", "redrive"]
REPAIRS: Final[dict[str, Callable[..., object]]] = {
    "cancel": lambda queue, task_id, force: queue.cancel(task_id, force=force),
    "cancel as dead": lambda queue, task_id, force: queue.cancel(task_id, dead=True, force=force),
    "redrive as new": lambda queue, task_id, force: queue.redrive([task_id], as_new=True, force=force),
}
MAX_ATTEMPTS: Final = 3
MAX_AGE_SECONDS: Final = 120.0


@dataclass
class Expected:
    """The expected state of a task."""

    status: TaskStatus
    created: float
    deadline: float
    priority: int
    not_before: float | None
    attempts: int = 0
    token: str | None = None
    lease_until: float = 0.0

    def state(self, now: float) -> str:
        """Return the field of `Stats` that counts it."""
        if self.status is TaskStatus.PENDING:
            if self.deadline <= now:
                return "shed"
            return "delayed" if self.not_before is not None else "pending"
        return self.status.lower()

    def due(self, now: float) -> bool:
        """Return whether a sweep must change it."""
        if self.status is TaskStatus.TAKEN:
            return self.lease_until <= now
        return self.status is TaskStatus.PENDING and self.not_before is not None and self.not_before <= now

    def becomes(self, status: TaskStatus) -> None:
        self.status, self.token = status, None


class Conservation(RuleBasedStateMachine):
    """Two processes and a sweep on one queue."""

    made: ClassVar = count()

    @staticmethod
    def make_store() -> Store:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.name = f"queue-{next(self.made)}"
        self.clock = Clock()
        self.producer = self.new_process()
        self.processes = [self.new_process(), self.new_process()]
        self.model: dict[str, Expected] = {}
        self.claims: list[Claim] = []

    def new_process(self) -> Queue:
        return Queue(
            self.make_store(),
            name=self.name,
            clock=self.clock,
            rng=random.Random(1),
            max_attempts=MAX_ATTEMPTS,
            max_age_seconds=MAX_AGE_SECONDS,
        )

    @rule(
        priority=st.sampled_from([0, 0, 0, 4]),
        delay_seconds=st.sampled_from([0, 0, 5, 40, 150]),
        max_age_seconds=st.sampled_from([None, None, 45]),
        number=st.integers(1, 3),
    )
    def put(self, priority: int, delay_seconds: float, max_age_seconds: float | None, number: int) -> None:
        for _ in range(number):
            task_id = f"{self.name}-{len(self.model)}"
            receipt = self.producer.put(
                "work",
                task_id=task_id,
                priority=priority,
                delay_seconds=delay_seconds,
                max_age_seconds=max_age_seconds,
            )
            assert receipt.outcome is PutOutcome.CREATED
            assert self.producer.put("other", task_id=task_id).outcome is PutOutcome.DUPLICATE
            task = self.producer.get(task_id)
            assert task is not None
            self.model[task_id] = Expected(
                TaskStatus.PENDING, task.created, task.stale_at, priority, task.not_before
            )

    @rule(seconds=st.sampled_from([0.5, 4, 10, 31]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(process=st.integers(0, 1), limit=st.integers(1, 4), lease_seconds=st.sampled_from([4, 10, 50]))
    def claim(self, process: int, limit: int, lease_seconds: float) -> None:
        if sum(task.due(self.clock.now) for task in self.model.values()) > SMALL_PORTION:
            assert self.new_process().admin.recover() == self.expect_recovered()
        queue = self.processes[process]
        looks_first = copy(queue._core.upkeep).look_is_due(lease_seconds, queue._core.now())
        claims = queue.claim(limit, lease_seconds=lease_seconds)
        if looks_first:
            self.expect_recovered()
        expected = self.expect_claimed(limit)
        if len(expected) < limit and not looks_first and self.expect_recovered():
            expected += self.expect_claimed(limit - len(expected))
        assert ids(claims) == expected
        for claim in claims:
            self.model[claim.task.task_id].token = claim.token
            self.model[claim.task.task_id].lease_until = claim.lease_until
        self.claims += claims

    def expect_claimed(self, limit: int) -> list[str]:
        now = self.clock.now
        claimable = [task_id for task_id, task in self.model.items() if task.state(now) == "pending"]
        claimable.sort(key=lambda task_id: (self.model[task_id].priority, self.model[task_id].created))
        newest = claimable[::-1][:limit]
        for task_id in newest:
            self.model[task_id].status = TaskStatus.TAKEN
            self.model[task_id].attempts += 1
            self.model[task_id].lease_until = float("inf")
        return newest

    def expect_recovered(self) -> int:
        due = [task for task in self.model.values() if task.due(self.clock.now)]
        for task in due:
            if task.status is TaskStatus.PENDING:
                task.not_before = None
            else:
                task.becomes(TaskStatus.PENDING if task.attempts < MAX_ATTEMPTS else TaskStatus.FAILURE)
        return len(due)

    @rule()
    def sweep(self) -> None:
        assert self.new_process().admin.recover() == self.expect_recovered()

    @precondition(lambda self: self.claims)
    @rule(
        process=st.integers(0, 1),
        index=st.integers(0, 9),
        verb=st.sampled_from(SETTLEMENTS),
        seconds=st.sampled_from([1, 20]),
    )
    def settle(self, process: int, index: int, verb: str, seconds: float) -> None:
        claim = self.claims[-1 - index % len(self.claims)]
        task = self.model[claim.task.task_id]
        with self.refused_unless(task.token == claim.token, LeaseLost):
            self.run_settlement(self.processes[process], claim, verb, seconds)
            self.expect_settled(task, verb, seconds)

    def run_settlement(self, queue: Queue, claim: Claim, verb: str, seconds: float) -> None:
        match verb:
            case "retry":
                queue.retry(claim, error="broken", delay_seconds=seconds)
            case "extend":
                queue.extend(claim, lease_seconds=seconds)
            case _:
                getattr(queue, verb)(claim)

    def expect_settled(self, task: Expected, verb: str, seconds: float) -> None:
        match verb:
            case "complete":
                task.becomes(TaskStatus.SUCCESS)
            case "fail":
                task.becomes(TaskStatus.FAILURE)
            case "release":
                task.becomes(TaskStatus.PENDING)
                task.attempts -= 1
            case "extend":
                task.lease_until = max(task.lease_until, round(self.clock.now + seconds, 6))
            case _ if task.attempts >= MAX_ATTEMPTS:
                task.becomes(TaskStatus.FAILURE)
            case _:
                task.becomes(TaskStatus.PENDING)
                if task.deadline > self.clock.now:
                    task.not_before = round(self.clock.now + seconds, 6)

    @precondition(lambda self: self.model)
    @rule(index=st.integers(0, 50), verb=st.sampled_from(CHANGES))
    def change(self, index: int, verb: str) -> None:
        task_id = self.known_id(index)
        task = self.model[task_id]
        state = task.state(self.clock.now)
        if verb == "redrive":
            allowed = state == "failure" and task.deadline > self.clock.now
        else:
            allowed = state in ("pending", "delayed")
        with self.refused_unless(allowed, IllegalTransition):
            match verb:
                case "cancel":
                    self.producer.cancel(task_id)
                    task.becomes(TaskStatus.CANCELLED)
                    task.not_before = None
                case "reprioritize":
                    self.producer.reprioritize(task_id, priority=9)
                    task.priority = 9
                case _:
                    assert self.producer.redrive([task_id]) == 1
                    task.becomes(TaskStatus.PENDING)
                    task.attempts = 0

    @precondition(lambda self: self.model)
    @rule(index=st.integers(0, 50), verb=st.sampled_from([*REPAIRS]), force=st.booleans())
    def repair(self, index: int, verb: str, force: bool) -> None:
        task_id = self.known_id(index)
        task = self.model[task_id]
        states = {"pending", "delayed"} | ({"taken"} if force else set())
        states |= {"failure"} if verb == "redrive as new" else set()
        state = task.state(self.clock.now)
        with self.refused_unless(state in states, IllegalTransition):
            REPAIRS[verb](self.producer, task_id, force)
            changed = known(self.producer, task_id)
            task.becomes(changed.status)
            if verb == "redrive as new":
                since = max(self.clock.now, task.created if state == "delayed" else 0.0)
                assert changed.created == pytest.approx(since, abs=1e-3)
                task.created, task.deadline = changed.created, changed.stale_at
            if verb != "redrive as new" or state in ("taken", "failure"):
                task.not_before = None
            if verb == "redrive as new" and state in ("taken", "failure"):
                task.attempts = 0

    @rule(process=st.integers(0, 1), orderly=st.booleans())
    def restart(self, process: int, orderly: bool) -> None:
        """Crash a process; its tasks must be recovered."""
        if orderly:
            self.processes[process].close()
        self.processes[process] = self.new_process()

    @invariant()
    def check(self) -> None:
        """Every task is in its expected state, and the counts add up to the tasks that were put."""
        now = self.clock.now
        listed = {task.task_id: task for task in self.producer.list(limit=5000)}
        assert listed.keys() == self.model.keys()
        for task_id, task in listed.items():
            expected = self.model[task_id]
            state = expected.state(now)
            assert task.status == ("PENDING" if state == "delayed" else state.upper())
            assert (task.created, task.deadline, task.priority, task.attempts, task.not_before) == (
                *(expected.created, expected.deadline, expected.priority, expected.attempts),
                expected.not_before,
            )
            assert task.lease_token == expected.token
            assert task.attempts <= MAX_ATTEMPTS
        counted = counts(self.producer.stats())
        assert counted == Counter(task.state(now) for task in self.model.values())
        assert sum(counted.values()) == len(self.model)
        held = [claim for claim in self.claims if listed[claim.task.task_id].lease_token == claim.token]
        assert len(set(ids(held))) == len(held) == counted.get("taken", 0)

    def known_id(self, index: int) -> str:
        return list(self.model)[index % len(self.model)]

    @contextmanager
    def refused_unless(self, allowed: bool, error: type[Exception]) -> Iterator[None]:
        if allowed:
            yield
        else:
            with pytest.raises(error):
                yield

    def teardown(self) -> None:
        """Let every task end; none may be stuck."""
        for _ in range(MAX_ATTEMPTS + 1):
            self.clock.advance(60)
            self.sweep()
            for claim in self.new_process().claim(100, lease_seconds=10):
                assert self.model[claim.task.task_id].state(self.clock.now) == "pending"
                self.producer.complete(claim)
                self.model[claim.task.task_id].becomes(TaskStatus.SUCCESS)
        assert counts(self.producer.stats()).keys() <= {"success", "failure", "cancelled", "shed"}
        assert sum(counts(self.producer.stats()).values()) == len(self.model)


def bound(new_store: Callable[[], Store]) -> type[Conservation]:
    """Return the state machine for a store."""

    class Bound(Conservation):
        make_store = staticmethod(new_store)

    return Bound


def explore(machine: type[Conservation], examples: int, phases: Collection[Phase]) -> None:
    """Run the state machine with Hypothesis."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            phases=phases,
            stateful_step_count=40,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def walk(machine: Conservation, steps: int, seed: int) -> None:
    """Do many steps in the proportions of a busy queue; Hypothesis tries short examples only."""
    dice = random.Random(seed)
    actions: dict[Callable[[], None], int] = {
        lambda: machine.put(
            dice.choice([0, 0, 4]), dice.choice([0, 0, 5, 40]), dice.choice([None, 45]), dice.randint(1, 3)
        ): 20,
        lambda: machine.claim(dice.randrange(2), dice.randint(1, 4), dice.choice([4, 10, 50])): 25,
        lambda: machine.settle(dice.randrange(2), dice.randrange(8), dice.choice(SETTLEMENTS), 5): 30,
        lambda: machine.change(dice.randrange(500), dice.choice(CHANGES)): 6,
        lambda: machine.repair(dice.randrange(500), dice.choice([*REPAIRS]), dice.random() < 0.5): 4,
        lambda: machine.time_passes(dice.choice([0.5, 4, 10, 31])): 15,
        machine.sweep: 5,
        lambda: machine.restart(dice.randrange(2), dice.random() < 0.5): 5,
    }
    for act in dice.choices(list(actions), list(actions.values()), k=steps):
        if machine.model and (machine.claims or act is not list(actions)[2]):
            act()
        else:
            machine.put(0, 0, None, 3)
            machine.claim(0, 1, 10)
        machine.check()
    machine.teardown()


@pytest.fixture
def machine(store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> type[Conservation]:
    """Return the state machine for an empty store."""
    monkeypatch.setattr(line_records, "MAX_STALENESS_SECONDS", -1.0)  # no process caches the levels
    return bound(lambda: store.make_store(2))


@pytest.mark.parametrize(
    ("store", "examples"), [("memory", 150), ("sqlite", 6), ("dynamodb_local", 5)], indirect=["store"]
)
def test_explored(machine: type[Conservation], store: StoreUnderTest, examples: int) -> None:
    # Shrinking an example in a database takes minutes.
    explore(machine, examples, tuple(Phase) if store.kind == "memory" else [Phase.generate])


@pytest.mark.parametrize(
    ("store", "steps", "seed"),
    [*(("memory", 300, seed) for seed in range(5)), ("sqlite", 200, 1), ("dynamodb_local", 100, 1)],
    indirect=["store"],
)
def test_walked(machine: type[Conservation], steps: int, seed: int) -> None:
    walk(machine(), steps, seed)
