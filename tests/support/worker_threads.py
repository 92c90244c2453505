"""A worker in a thread, its observers, and stores that are slow or fail."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import pytest

from freshq import Claim, Queue, Task, Worker
from freshq.errors import Unreachable
from freshq.policy.order import OrderSwitch
from freshq.stores.base import Guard
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome, RunReport
from freshq.worker.background import LeaseRenewal
from freshq.worker.run import TaskRun, TaskRuns
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)


def work_off(queue: Queue, runner: Callable[[Task], Any], **options: Any) -> RunReport:
    """Run a worker until the queue is empty."""
    options = {"poll_seconds": 0.01, "idle_exit_seconds": 0.05, **options}
    return Worker(queue, runner, **options).run()


def raising(error: BaseException) -> Callable[[Task], Any]:
    """Return a runner that raises an error."""

    def run(_task: Task) -> None:
        raise error

    return run


class Quiet:
    """An observer that keeps its events."""

    def __init__(self) -> None:
        self.ages: list[float] = []
        self.settlements: list[tuple[str, Outcome, str | None]] = []
        self.switches: list[OrderSwitch] = []
        self.overruns: list[tuple[str, float]] = []

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        del claim
        self.ages.append(age_seconds)

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        assert run_seconds >= 0
        self.settlements.append((claim.task.task_id, outcome, error))

    def overran(self, claim: Claim, run_seconds: float) -> None:
        self.overruns.append((claim.task.task_id, run_seconds))

    def switched(self, switch: OrderSwitch) -> None:
        self.switches.append(switch)


class Ageing(Quiet):
    """Lets 11 seconds pass between the claim of a task and its run."""

    def __init__(self, clock: Callable[..., Any]) -> None:
        super().__init__()
        self._clock: Any = clock

    def claimed(self, claim: Claim, age_seconds: float) -> None:
        super().claimed(claim, age_seconds)
        self._clock.advance(11)


def lease_of(queue: Queue, task_id: str = "a") -> float:
    task = known(queue, task_id)
    return task.lease_until or 0.0


def name_in_every_record(patch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Set a field of every log record by the record factory, as an application may."""
    make = logging.getLogRecordFactory()

    def with_own(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        setattr(record, name, value)
        return record

    patch.setattr(logging, "_logRecordFactory", with_own)


def renew(
    queue: Queue,
    runs: TaskRuns,
    max_run_seconds: float | None = None,
    on_overrun: Callable[[TaskRun, float], None] = lambda *_: None,
) -> None:
    """Look at the leases of runs once, as a worker's thread does."""
    renewal = LeaseRenewal(queue, runs, 1.0, max_run_seconds, on_overrun)
    renewal.renew()
    renewal.wait()


class InThread:
    """A worker in a thread; its runner may wait for `release`, which the end of the block sets."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.release = worker, threading.Event()
        self.report: RunReport | None = None
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.ended()

    def ended(self) -> RunReport:
        self.worker.stop()
        self._thread.join(PATIENCE_SECONDS)
        assert self.report is not None
        return self.report

    def _work(self) -> None:
        self.report = self.worker.run()


class Hanging(InThread):
    """Its runner hangs on some tasks until released."""

    def __init__(self, queue: Queue, clock: Clock, **options: Any) -> None:
        self.queue, self.clock, self.observer = queue, clock, Quiet()
        self.started = Counter[str]()
        options = {"concurrency": 1, "poll_seconds": 0.01, "max_run_seconds": 30, **options}
        super().__init__(Worker(queue, self._run, observer=self.observer, **options))

    def _run(self, task: Task) -> str:
        self.started[task.task_id] += 1
        if task.payload == "hangs":
            assert self.release.wait(PATIENCE_SECONDS)
        return "done"

    def overrun(self, *task_ids: str) -> None:
        """Let tasks start, be extended once, and exceed the limit, one after the other."""
        for task_id in task_ids:
            self.extend(task_id)
            self.clock.advance(16)
            wait_until(lambda task_id=task_id: task_id in dict(self.observer.overruns))  # type: ignore[misc]

    def extend(self, task_id: str) -> None:
        """Advance the clock by 15 s, and wait until the lease of a running task is extended."""
        wait_until(lambda: self.started[task_id] == 1)
        self.clock.advance(15)
        wait_until(lambda: lease_of(self.queue, task_id) == self.clock.now + 20)


class SlowClaims(MemoryStore):
    """A store whose empty claims take until `answer` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.answer = threading.Event(), threading.Event()

    def searches_again(self, queue: str) -> bool:  # the last call of an empty claim
        self.waits.set()
        assert self.answer.wait(PATIENCE_SECONDS)
        return super().searches_again(queue)


class FailingStore(MemoryStore):
    """A store that does not answer the first claims, or the first changes of taken tasks."""

    def __init__(self, claims_that_fail: int = 0, changes_that_fail: int = 0) -> None:
        super().__init__()
        self.claims_that_fail = claims_that_fail
        self.changes_that_fail = changes_that_fail

    def paused(self, queue: str) -> bool:  # the first call of a claim
        if self.claims_that_fail:
            self.claims_that_fail -= 1
            raise Unreachable("no answer")
        return super().paused(queue)

    def replace(self, task: Task, guard: Guard) -> Task:
        is_of_sweep = guard.request_token is not None and task.lease_token is None
        if guard.lease_token is not None and not is_of_sweep and self.changes_that_fail:
            self.changes_that_fail -= 1
            raise Unreachable("no answer")
        return super().replace(task, guard)


class Outage(MemoryStore):
    """A store that answers no claim, no change and no read while `down` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.down = threading.Event()
        self.refused = Counter[str]()
        self.unchanged: set[str] = set()

    def _answer(self, call: str) -> None:
        if self.down.is_set():
            self.refused[call] += 1
            raise Unreachable("no answer")

    def paused(self, queue: str) -> bool:  # the first call of a claim
        self._answer("claim")
        return super().paused(queue)

    def replace(self, task: Task, guard: Guard) -> Task:
        if self.down.is_set():
            self.unchanged.add(task.task_id)
        self._answer("replace")
        return super().replace(task, guard)

    def get(self, task_id: str) -> Task | None:
        self._answer("get")
        return super().get(task_id)
