"""Push-back of a provider that says when it takes requests again: it slows what all workers share."""

from collections import Counter
from collections.abc import Callable
from email.message import Message
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from freshq import Busy, GroupRule, GroupRules, Queue, Task, TaskStatus, Worker
from freshq.policy.limits import SharedBucket
from freshq.queue.core import core_of
from freshq.queue.shared.limits import BRAKES, OF_QUEUE, SharedTokens
from freshq.telemetry import Outcome
from tests.conftest import StoreUnderTest
from tests.support.readings import known
from tests.support.worker_threads import Quiet

RATED = GroupRules(of={"a": GroupRule(rate_per_second=100), "b": GroupRule(rate_per_second=100)})
BUCKET = SharedBucket(100, 100, 100)


class HttpError(Exception):
    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status, headers=headers)


def run_one(queue: Queue, runner: Callable[[Task], Any], **options: Any) -> Counter[Outcome]:
    """Run the only task that waits, once."""
    options = {"concurrency": 1, "idle_exit_seconds": 0, "observer": Quiet(), **options}
    return +Counter(Worker(queue, runner, **options).run().outcomes)


def started(queue: Queue) -> Counter[str | None]:
    return Counter(claim.task.group for claim in queue.claim(300))


IN_30_S = {"Retry-After": "30"}


@pytest.mark.parametrize("error", [Busy("full", retry_after_seconds=30), HttpError(429, **IN_30_S)])
def test_a_push_back_slows_the_group_for_every_process(store: StoreUnderTest, error: Exception) -> None:
    queue, other = store.queue(groups=RATED), store.queue(groups=RATED)
    queue.create_table()
    queue.put("x", task_id="met", group="a")
    other.release(other.claim()[0])  # the other process has read the brakes before

    def push_back(_task: Task) -> None:
        raise error

    assert run_one(queue, push_back) == {Outcome.RELEASED: 1}
    task = known(queue, "met")
    assert task.status is TaskStatus.PENDING
    assert task.not_before == pytest.approx(store.clock.now + 30)
    store.clock.advance(1.01)  # past the window of the start above, and the next read of the brakes
    other.put_many([{"payload": n, "group": group} for n in range(120) for group in ("a", "b")])
    assert started(other) == {"a": 70, "b": 100}
    store.clock.advance(29 + 10)  # 10 s after the time given, a tenth is back
    started(other)
    other.put_many([{"payload": n, "group": "a"} for n in range(120)])
    assert started(other)["a"] <= 80


def test_a_task_outside_rated_groups_slows_the_rate_of_the_queue(store: StoreUnderTest) -> None:
    queue, other = store.queue(groups=RATED), store.queue(groups=RATED)
    queue.create_table()
    queue.put("x", task_id="met")

    def push_back(_task: Task) -> None:
        raise Busy(retry_after_seconds=30)

    assert run_one(queue, push_back, shared_bucket=BUCKET) == {Outcome.RELEASED: 1}
    core = core_of(other)
    now = other.admin.now()
    assert core.limits.brakes.part(now) == 0.7
    assert core.limits.brakes.groups(RATED, now) is RATED
    tokens = SharedTokens(core.store, "default", BUCKET, core.limits.brakes)
    store.clock.advance(1.01)
    assert tokens.available(other.admin.now(), 100) == 70


def test_many_push_backs_within_a_second_lower_a_rate_once_and_never_below_its_floor(
    store: StoreUnderTest,
) -> None:
    queue = store.queue(groups=RATED)
    queue.create_table()
    core = core_of(queue)
    for _ in range(5):
        core.limits.brakes.lower("a", queue.admin.now(), 1)
    assert core.limits.brakes.groups(RATED, queue.admin.now()).rule("a").rate_per_second == 70
    for _ in range(30):
        store.clock.advance(1.01)
        core.limits.brakes.lower("a", queue.admin.now(), 60)
    assert core.limits.brakes.groups(RATED, queue.admin.now()).rule("a").rate_per_second == 5
    store.clock.advance(60 + 95.1)
    assert core.limits.brakes.groups(RATED, queue.admin.now()) is RATED
    core.limits.brakes.lower(OF_QUEUE, queue.admin.now(), 1)
    record = core.store.read_record("default", BRAKES)
    assert record is not None
    assert [*record.values["of"]] == [OF_QUEUE]  # what slows nothing any longer is forgotten


def test_nothing_is_read_or_written_without_a_rate(store: StoreUnderTest) -> None:
    queue = store.queue()
    queue.create_table()
    queue.put("x", group="a")

    def push_back(_task: Task) -> None:
        raise HttpError(503, **IN_30_S)

    assert run_one(queue, push_back) == {Outcome.RELEASED: 1}
    assert core_of(queue).store.read_record("default", BRAKES) is None


def test_an_error_of_http_without_a_time_is_a_failed_attempt(store: StoreUnderTest) -> None:
    queue = store.queue(groups=RATED)
    queue.create_table()
    queue.put("x", task_id="met", group="a")

    def fail(_task: Task) -> None:
        raise HTTPError("http://x", 429, "Too Many Requests", Message(), None)

    assert run_one(queue, fail) == {Outcome.RETRIED: 1}
    assert known(queue, "met").attempts == 1
