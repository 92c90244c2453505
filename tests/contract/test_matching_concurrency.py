"""Callers who compete for the same resources, on DynamoDB Local."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from botocore.exceptions import ClientError
from local.faults import hooked

from freshq import MatchQueue
from freshq.matching import Match
from tests.support.matching import Desk, join

THREADS: Final = 16
REQUESTS: Final = 300
AGENTS: Final = 90
LANGUAGES: Final = ("English", "French", "Spanish")
CANCELLED: Final = "TransactionCanceledException"


@dataclass
class Faults:
    """Random conflicts and throttling, before a call is sent.

    DynamoDB Local carries out one transaction after the other, and never reports a conflict.
    """

    rng: random.Random
    seen: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
        with self.lock:
            chance = self.rng.random()
            if model.name == "TransactWriteItems" and chance < 0.1:
                reason = "TransactionConflict" if chance < 0.05 else "ThrottlingError"
                self.seen[reason] += 1
                raise self._error(model, CANCELLED, [{"Code": reason}])
            if chance < 0.02:
                self.seen["throttled"] += 1
                raise self._error(model, "ThrottlingException", [])
        return params

    @staticmethod
    def _error(model: Any, code: str, reasons: list[dict[str, str]]) -> ClientError:
        error: Any = {"Error": {"Code": code, "Message": "by the test"}, "CancellationReasons": reasons}
        return ClientError(error, model.name)


@dataclass
class Floor:
    """The agents that are in a call, as the callers know them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    busy: set[str] = field(default_factory=set)
    twice: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)

    def begin(self, match: Match) -> None:
        with self.lock:
            if match.resource_id in self.busy:
                self.twice.append(match.resource_id)
            self.busy.add(match.resource_id)
            self.calls[match.resource_id] += 1

    def end(self, match: Match) -> None:
        with self.lock:
            self.busy.discard(match.resource_id)


def attributes(number: int) -> dict[str, Any]:
    spoken = {LANGUAGES[number % 3], LANGUAGES[number % 2]}
    return {"language": spoken, "gender": "FM"[number % 2]}


def expected_depths(numbers: set[int]) -> dict[str, int]:
    depths: Counter[str] = Counter()
    for number in numbers:
        agent = attributes(number)
        depths.update(f"gender={agent['gender']}&language={language}" for language in agent["language"])
    return dict(depths)


def test_300_requests_of_16_threads_with_conflicts_and_throttling(table_desk: Desk) -> None:
    assert table_desk.client is not None
    floor, faults = Floor(), Faults(random.Random(11))
    for number in range(AGENTS):
        join(table_desk.queue(clock=time.time), f"{number:02}", attributes(number))

    def criteria(rng: random.Random) -> dict[str, Any]:
        preferred = rng.sample(LANGUAGES, 2)
        return {"language": preferred} | ({"gender": rng.choice("FM")} if rng.random() < 0.5 else {})

    def call(thread: int) -> int:
        rng = random.Random(thread)
        queue = MatchQueue.dynamodb(table_desk.table, table_desk.client)
        held: list[Match] = []
        served = 0
        for _request in range(thread, REQUESTS, THREADS):
            for match in queue.match(criteria(rng)):
                floor.begin(match)
                held.append(match)
                served += 1
            if len(held) > 1:
                done = held.pop(0)
                floor.end(done)  # before the release, after which another caller may have the agent
                queue.complete(done)
                queue.offer(done.resource_id)
        return served

    with ExitStack() as hooks:
        hooks.enter_context(hooked(table_desk.client, "provide-client-params", faults))
        pool = hooks.enter_context(ThreadPoolExecutor(THREADS))
        served = sum(pool.map(call, range(THREADS)))
    assert floor.twice == []
    assert served == floor.calls.total() > 0.95 * REQUESTS
    assert (
        min(faults.seen["TransactionConflict"], faults.seen["ThrottlingError"], faults.seen["throttled"]) > 10
    )
    idle = set(range(AGENTS)) - {int(name) for name in floor.busy}
    queue = table_desk.queue()
    assert queue.depths() == expected_depths(idle)
    assert queue.waiting() == len(idle)


def test_of_16_callers_for_5_agents_each_agent_serves_one(table_desk: Desk) -> None:
    table_desk.staffed()
    barrier = threading.Barrier(THREADS)

    def call(_thread: int) -> list[Match]:
        queue = table_desk.queue()
        barrier.wait()
        return queue.match({"language": ["French", "Spanish", "English"]})

    with ThreadPoolExecutor(THREADS) as pool:
        found = [match.resource_id for matches in pool.map(call, range(THREADS)) for match in matches]
    assert sorted(found) == ["Billy", "Christine", "Courtney", "Ellen", "Remy"]
    assert table_desk.queue().depths() == {}


def test_concurrent_recoveries_recover_each_resource_once(table_desk: Desk) -> None:
    table_desk.staffed().match({}, limit=4)
    table_desk.clock.advance(3600)
    with ThreadPoolExecutor(8) as pool:
        recovered = list(pool.map(lambda _thread: table_desk.queue().admin.recover(), range(8)))
    assert sum(recovered) == 4
    assert table_desk.queue().waiting() == 5
