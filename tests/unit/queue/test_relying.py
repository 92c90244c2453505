"""A worker relies for a moment on its reading of when the next task is due; its claims save reads then."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from freshq import Queue, Settlement
from freshq.queue.core import claim_request, core_of
from freshq.queue.polling import Fetcher
from freshq.queue.upkeep import RELY_SECONDS
from freshq.stores.base import Conflict, Guard
from freshq.stores.lines import Choice
from tests.conftest import Clock


@pytest.fixture(params=["memory", "sqlite"])
def queue(request: pytest.FixtureRequest, clock: Clock, sqlite_url: str) -> Queue:
    if request.param == "memory":
        return Queue.memory(clock=clock, lease_seconds=3600)
    return Queue.sql(sqlite_url, clock=clock, lease_seconds=3600)


@pytest.fixture
def reads(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the looks for due tasks, and the readings of the next due time."""
    counts: Counter[str] = Counter()
    store: Any = core_of(queue).store

    def counted(name: str, read: Callable[..., Any], *arguments: Any) -> Any:
        counts[name] += 1
        return read(*arguments)

    for name in ("due", "next_due"):
        monkeypatch.setattr(store, name, partial(counted, name, getattr(store, name)))
    return counts


def look(queue: Queue, fetcher: Fetcher) -> int:
    """Claim as the loop of a worker does; return the number of tasks."""
    fetcher.begin()
    claims = queue.claim(5)
    fetcher.found_few(len(claims))
    return len(claims)


@pytest.fixture
def fetcher(queue: Queue) -> Fetcher:
    """Return the fetcher of a worker that has just looked."""
    found = Fetcher(core_of(queue), 5.0)
    look(queue, found)
    return found


def test_claims_of_a_worker_in_a_row_share_one_look(
    queue: Queue, fetcher: Fetcher, reads: Counter[str], clock: Clock
) -> None:
    for _ in range(4):
        queue.put("work")
        assert look(queue, fetcher) == 1
    assert reads["due"] == 0
    clock.advance(RELY_SECONDS)
    assert look(queue, fetcher) == 0
    assert reads["due"] == 1


def test_a_claim_without_a_worker_looks_each_time(queue: Queue, reads: Counter[str]) -> None:
    queue.claim(5)  # the first one of a process looks for expired leases in any case
    before = reads["due"]
    assert [queue.claim(5) for _ in range(3)] == [[], [], []]
    assert reads["due"] == before + 3


@pytest.mark.parametrize("delays", ["put", "put_many", "retry", "release", "update"])
def test_a_task_that_this_process_delays_is_found_when_it_is_due(
    queue: Queue, clock: Clock, delays: str
) -> None:
    fetcher = Fetcher(core_of(queue), 5.0)
    queue.put("work", task_id="t")
    (claim,) = queue.claim(1)
    if delays == "update":
        queue.complete(claim)
        queue.put("work", task_id="u", delay_seconds=60)
    look(queue, fetcher)
    delay_seconds = RELY_SECONDS / 5
    if delays == "put":
        queue.put("later", delay_seconds=delay_seconds)
    elif delays == "put_many":
        queue.put_many([{"payload": 1}, {"payload": "later", "delay_seconds": delay_seconds}])
        assert look(queue, fetcher) == 1
    elif delays == "retry":
        queue.retry(claim, delay_seconds=delay_seconds)
    elif delays == "release":
        queue.settle_many([Settlement.release(claim, delay_seconds)])
    else:
        queue.put("other work", task_id="u", delay_seconds=delay_seconds, on_conflict="update")
    assert look(queue, fetcher) == 0
    clock.advance(delay_seconds)
    assert look(queue, fetcher) == 1


def test_what_was_due_already_is_not_relied_on(queue: Queue, clock: Clock, reads: Counter[str]) -> None:
    queue.put("soon", delay_seconds=RELY_SECONDS / 2)
    fetcher = Fetcher(core_of(queue), 5.0)
    assert look(queue, fetcher) == 0
    clock.advance(RELY_SECONDS / 2)
    assert look(queue, fetcher) == 1
    assert reads["due"] >= 2


def test_another_process_that_delays_is_seen_after_that_moment(
    queue: Queue, fetcher: Fetcher, clock: Clock
) -> None:
    other = Queue(core_of(queue).store, clock=clock)
    other.put("later", delay_seconds=RELY_SECONDS / 5)
    clock.advance(RELY_SECONDS)
    assert look(queue, fetcher) == 1


def test_a_due_time_that_has_passed_is_read_again(queue: Queue, clock: Clock, reads: Counter[str]) -> None:
    fetcher = Fetcher(core_of(queue), 5.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("freshq.queue.polling.RELY_SECONDS", 3600)  # as if no time passed since the reading
        queue.put("later", delay_seconds=RELY_SECONDS / 5)
        look(queue, fetcher)
        clock.advance(RELY_SECONDS / 5)
        assert look(queue, fetcher) == 1
        assert reads["next_due"] == 2
        assert fetcher.left_seconds > 0  # otherwise it would claim in a loop


def test_a_sweep_does_not_end_the_new_lease_of_a_claim_that_took_its_task_twice(
    queue: Queue, clock: Clock
) -> None:
    queue.put("work", task_id="a")
    core = core_of(queue)
    request, choice = claim_request(core, 1, lease_seconds=10), Choice({"0": 1}, newest_first=True, limit=1)
    (lost,) = core.store.take(request, choice)
    clock.advance(11)
    queue.admin.recover()
    (held,) = core.store.take(request, choice)
    with pytest.raises(Conflict):  # of a sweep that read the lost lease
        core.store.replace(core.lifecycle.recovered(lost, clock.now), Guard.unchanged(lost))
    assert core.store.get("a") == held
