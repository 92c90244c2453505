"""The same condition raises the same error on every verb and store: the table on docs/reference/errors.md."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from freshq import Claim, MatchQueue, Queue, Settlement, Task
from freshq.errors import FreshqError, RefusedError, WaitTimeout
from freshq.matching import Match
from freshq.matching.stores.base import Changed
from freshq.queue.core import core_of
from freshq.stores.base import Conflict, Guard
from tests.conftest import StoreUnderTest
from tests.support.matching import Desk, join, one

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
WRONG: Any = object()


class Tasks(NamedTuple):
    """A queue with the tasks waiting, held, done and dead; a claim of held, and a settled claim of done."""

    queue: Queue
    held: Claim
    lost: Claim


class Resources(NamedTuple):
    """A queue with the resources waiting and held, and a match that does not hold its resource any more.

    The caller ann is in line, and bob is served.
    """

    queue: MatchQueue
    held: Match
    lost: Match


def settled(at: Tasks, claim: Any) -> None:
    """Settle a claim with `settle_many`, and raise its answer if that is an error."""
    (answer,) = at.queue.settle_many([Settlement.complete(claim)])
    if isinstance(answer, FreshqError):
        raise answer


# For each error, the verbs that meet its condition.
TASKS: dict[str, dict[str, Callable[[Tasks], object]]] = {
    "NotFound": {
        "cancel": lambda at: at.queue.cancel("nobody"),
        "reprioritize": lambda at: at.queue.reprioritize("nobody", priority=1),
        "redrive": lambda at: at.queue.redrive(["dead", "nobody"]),
        "purge": lambda at: at.queue.purge(task_ids=["dead", "nobody"], confirm="default"),
        "wait": lambda at: at.queue.wait("nobody"),
        "wait_many": lambda at: list(at.queue.wait_many(["nobody"])),
        "admin.held": lambda at: at.queue.admin.held("nobody", "token"),
    },
    "IllegalTransition": {
        "cancel": lambda at: at.queue.cancel("held"),
        "reprioritize": lambda at: at.queue.reprioritize("held", priority=1),
        "redrive": lambda at: at.queue.redrive(["held"]),
        "purge": lambda at: at.queue.purge(task_ids=["held"], status="FAILURE", confirm="default"),
    },
    "LeaseLost": {
        "complete": lambda at: at.queue.complete(at.lost),
        "fail": lambda at: at.queue.fail(at.lost),
        "retry": lambda at: at.queue.retry(at.lost),
        "release": lambda at: at.queue.release(at.lost),
        "settle_many": lambda at: settled(at, at.lost),
        "extend": lambda at: at.queue.extend(at.lost),
        "admin.held": lambda at: at.queue.admin.held("done", at.lost.token),
    },
    "LostRace": {
        "cancel": lambda at: at.queue.cancel("waiting"),
        "reprioritize": lambda at: at.queue.reprioritize("waiting", priority=1),
        "redrive": lambda at: at.queue.redrive(["dead"]),
        "purge": lambda at: at.queue.purge(task_ids=["dead"], confirm="default"),
        "extend": lambda at: at.queue.extend(at.held),
    },
    "WaitTimeout": {
        "wait": lambda at: at.queue.wait("waiting", timeout_seconds=0),
        "wait_many": lambda at: list(at.queue.wait_many(["waiting"], timeout_seconds=0)),
    },
    "ValueError": {
        "put": lambda at: at.queue.put(WRONG),
        "put_many": lambda at: at.queue.put_many([{"payload": 1, "priority": 10}]),
        "claim": lambda at: at.queue.claim(0),
        "complete": lambda at: at.queue.complete(at.held, result=WRONG),
        "fail": lambda at: at.queue.fail(at.held, error=WRONG),
        "retry": lambda at: at.queue.retry(at.held, delay_seconds=-1),
        "release": lambda at: at.queue.release(at.held, delay_seconds=-1),
        "settle_many": lambda at: at.queue.settle_many(WRONG),
        "extend": lambda at: at.queue.extend(at.held, lease_seconds=0),
        "cancel": lambda at: at.queue.cancel(""),
        "reprioritize": lambda at: at.queue.reprioritize("waiting", priority=10),
        "redrive": lambda at: at.queue.redrive("dead"),
        "purge": lambda at: at.queue.purge(confirm="another"),
        "get": lambda at: at.queue.get(""),
        "list": lambda at: at.queue.list("LATE"),
        "peek": lambda at: at.queue.peek(0),
        "stats": lambda at: at.queue.stats(ids=0),
        "wait": lambda at: at.queue.wait("waiting", poll_seconds=0),
        "wait_many": lambda at: list(at.queue.wait_many(["waiting"], poll_seconds=0)),
        "admin.held": lambda at: at.queue.admin.held("", "token"),
    },
}
RESOURCES: dict[str, dict[str, Callable[[Resources], object]]] = {
    "NotFound": {
        "unregister": lambda at: at.queue.unregister("nobody"),
        "offer": lambda at: at.queue.offer("nobody"),
        "withdraw": lambda at: at.queue.withdraw("nobody"),
        "admin.held": lambda at: at.queue.admin.held("nobody", "token"),
    },
    "IllegalTransition": {
        "register": lambda at: at.queue.register("held", attributes={"language": "Greek"}),
        "unregister": lambda at: at.queue.unregister("held"),
        "offer": lambda at: at.queue.offer("held"),
        "withdraw": lambda at: at.queue.withdraw("held"),
        "request": lambda at: at.queue.request({"language": "Greek"}, caller_id="ann"),
        "abandon": lambda at: at.queue.abandon("bob"),
    },
    "LeaseLost": {
        "complete": lambda at: at.queue.complete(at.lost),
        "release": lambda at: at.queue.release(at.lost),
        "extend": lambda at: at.queue.extend(at.lost),
        "admin.held": lambda at: at.queue.admin.held("waiting", at.lost.token),
    },
    "LostRace": {
        "register": lambda at: at.queue.register("new", attributes={}),
        "unregister": lambda at: at.queue.unregister("free"),
        "offer": lambda at: at.queue.offer("free"),
        "withdraw": lambda at: at.queue.withdraw("waiting"),
        "request": lambda at: at.queue.request({"language": "Greek"}, caller_id="cy"),
        "abandon": lambda at: at.queue.abandon("ann"),
    },
    "ValueError": {
        "register": lambda at: at.queue.register("", attributes={}),
        "unregister": lambda at: at.queue.unregister(""),
        "get": lambda at: at.queue.get(""),
        "resources": lambda at: at.queue.resources("LATE"),
        "offer": lambda at: at.queue.offer(""),
        "withdraw": lambda at: at.queue.withdraw(""),
        "depths": lambda at: at.queue.depths(limit=0),
        "match": lambda at: at.queue.match({}, limit=0),
        "request": lambda at: at.queue.request({}, caller_id=""),
        "abandon": lambda at: at.queue.abandon(""),
        "extend": lambda at: at.queue.extend(at.held, lease_seconds=0),
        "admin.held": lambda at: at.queue.admin.held("", "token"),
    },
}


@pytest.fixture
def tasks(store: StoreUnderTest) -> Tasks:
    queue = store.queue()
    claims: list[Claim] = []
    for task_id in ("dead", "done", "held"):
        queue.put("work", task_id=task_id)
        claims += queue.claim()
    dead, done, held = claims
    queue.fail(dead)
    queue.complete(done)
    queue.put("work", task_id="waiting")
    return Tasks(queue, held, done)


@pytest.fixture
def resources(desk: Desk) -> Resources:
    queue = desk.queue()
    queue.register("free", attributes={})
    assert queue.request({"language": "Welsh"}, caller_id="bob") is None
    for resource_id, language in (("of bob", "Welsh"), ("held", "French"), ("waiting", "French")):
        join(queue, resource_id, {"language": language})
    held, lost = one(queue, {"language": "French"}), one(queue, {"language": "French"})
    queue.release(lost)
    assert queue.request({"language": "Spanish"}, caller_id="ann") is None
    return Resources(queue, held, lost)


def caught(call: Callable[[Any], object], at: Tasks | Resources) -> Exception:
    """Return the error that a call raises."""
    with pytest.raises((FreshqError, ValueError)) as raised:
        call(at)
    return raised.value


@pytest.mark.parametrize("error", TASKS)
def test_a_condition_of_tasks_is_the_same_error_on_every_verb(
    tasks: Tasks, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = core_of(tasks.queue).store

    def outrun(task: Task, _guard: Guard) -> NoReturn:
        raise Conflict(store.get(task.task_id))

    before = {task.task_id: task for task in tasks.queue.list().tasks}
    if error == "LostRace":
        monkeypatch.setattr(store, "replace", outrun)
        monkeypatch.setattr(store, "delete", outrun)
    raised = {verb: caught(call, tasks) for verb, call in TASKS[error].items()}
    assert {verb: type(each).__name__ for verb, each in raised.items()} == dict.fromkeys(raised, error)
    for each in raised.values():
        if isinstance(each, RefusedError | WaitTimeout):
            assert str(each).startswith(f"task {each.task_id!r}: ")
    assert {task.task_id: task for task in tasks.queue.list().tasks} == before


@pytest.mark.parametrize("error", RESOURCES)
def test_a_condition_of_resources_is_the_same_error_on_every_verb(
    resources: Resources, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outrun(_change: object) -> NoReturn:
        raise Changed

    before = {each.resource_id: each for each in resources.queue.resources()}
    if error == "LostRace":
        monkeypatch.setattr(resources.queue._store, "commit", outrun)
    raised = {verb: caught(call, resources) for verb, call in RESOURCES[error].items()}
    assert {verb: type(each).__name__ for verb, each in raised.items()} == dict.fromkeys(raised, error)
    for each in raised.values():
        if isinstance(each, RefusedError):
            assert each.task_id is None
            assert str(each).startswith((f"resource {each.resource_id!r}: ", "caller "))
    assert {each.resource_id: each for each in resources.queue.resources()} == before


def test_the_page_names_the_verbs_of_each_error() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*?\| (.*?) \|(.*?)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    named = {
        error: ({*re.findall(r"`([\w.]+)`", of_tasks)}, {*re.findall(r"`([\w.]+)`", of_resources)})
        for error, of_tasks, of_resources in rows
        if error in TASKS
    }
    assert named == {
        error: ({*verbs}, {*RESOURCES.get(error, ())})
        for error, verbs in TASKS.items()
        if error != "ValueError"
    }
