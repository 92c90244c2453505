"""Tasks are copied as they are, from every store, and to every store."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from freshq import Queue, TaskStatus
from freshq.cli.main import app
from freshq.errors import Throttled
from freshq.feeds.relay import CopyReport, Relay, TaskCopy
from freshq.queue.core import core_of
from freshq.stores.base import TooLarge
from freshq.stores.memory import MemoryStore
from tests.conftest import StoreUnderTest
from tests.support.readings import ids, known
from tests.support.refusals import refused

STATES = ("waits", "later", "taken", "done", "dead", "cancelled", "stale")


def in_memory(store: StoreUnderTest) -> Queue:
    return Queue(MemoryStore(), clock=store.clock, max_age_seconds=None)


def listed(queue: Queue, status: str | None = None) -> list[str]:
    return [task.task_id for task in queue.list(status)]


def fill(queue: Queue, store: StoreUnderTest) -> None:
    """Put a task of each state, which has its id."""
    queue.put({"n": 1}, task_id="waits", priority=3, group="desk", kind="quote")
    queue.put(2, task_id="later", delay_seconds=50)
    queue.put(3, task_id="stale", max_age_seconds=1)
    store.clock.advance(2)
    for task_id in ("taken", "done", "dead", "cancelled"):
        queue.put(task_id, task_id=task_id, priority=9)
        if task_id != "cancelled":
            (claim,) = queue.claim()
            if task_id == "done":
                queue.complete(claim, result={"price": 7})
            if task_id == "dead":
                queue.fail(claim, error="no such share")
    queue.cancel("cancelled")


@pytest.mark.parametrize("arrives", [True, False])
def test_each_state_is_copied_whole(store: StoreUnderTest, *, arrives: bool) -> None:
    ours, memory = store.queue(max_age_seconds=None), in_memory(store)
    source, destination = (memory, ours) if arrives else (ours, memory)
    fill(source, store)
    report = TaskCopy(source, destination).run()
    assert sum(report.copied.values()) == len(STATES)
    assert report.copied[TaskStatus.SHED] == 1
    for task_id in STATES:
        original, copy = known(source, task_id), known(destination, task_id)
        if task_id == "taken":
            original = replace(original, status=TaskStatus.PENDING, lease_token=None, lease_until=None)
        assert replace(copy, request_token=original.request_token) == original
    assert ids(destination.claim(limit=9, lease_seconds=600)) == ["taken", "waits"]
    assert listed(destination, "FAILURE") == ["dead"]
    store.clock.advance(60)
    destination.admin.recover()
    assert ids(destination.claim(limit=9)) == ["later"]


@pytest.mark.parametrize("damaged", [False, True])
def test_the_successor_of_a_running_task_is_copied_in_its_place(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, *, damaged: bool
) -> None:
    source, destination = in_memory(store), store.queue(max_age_seconds=None)
    source.put("old", task_id="a")
    source.claim()
    if damaged:
        monkeypatch.setattr("freshq.model.task.json_text", lambda _record: "{}")
    source.put("new", task_id="a", on_conflict="after")
    monkeypatch.undo()
    TaskCopy(source, destination).run()
    copy = known(destination, "a")
    assert (copy.status, copy.payload) == (("FAILURE", "{}") if damaged else ("PENDING", "new"))
    assert (len(destination.claim()), listed(destination, "FAILURE")) == ((0, ["a"]) if damaged else (1, []))


def test_it_can_be_repeated(store: StoreUnderTest) -> None:
    source, destination = in_memory(store), store.queue(max_age_seconds=None)
    fill(source, store)
    TaskCopy(source, destination).run()
    again = TaskCopy(source, destination).run()
    assert again == CopyReport(present=len(STATES))


def test_a_task_that_goes_on_in_the_destination_is_not_touched(store: StoreUnderTest) -> None:
    source, destination = in_memory(store), store.queue()
    source.put_many([{"payload": name, "task_id": name} for name in ("a", "b", "c")])
    TaskCopy(source, destination).run()
    destination.complete(destination.claim()[0], result="new")
    destination.cancel("a")
    report = TaskCopy(source, destination, over=[TaskStatus.CANCELLED]).run()
    assert report.skipped == {"is SUCCESS in the destination": 1}
    assert report.skipped_ids == {"is SUCCESS in the destination": ["c"]}
    assert (report.present, report.copied) == (1, {TaskStatus.PENDING: 1})
    assert known(destination, "a").status is TaskStatus.PENDING
    assert known(destination, "c").result == "new"


def test_states_that_are_not_asked_for_are_left(store: StoreUnderTest) -> None:
    source, destination = in_memory(store), store.queue(max_age_seconds=None)
    fill(source, store)
    report = TaskCopy(source, destination, only=[TaskStatus.FAILURE]).run()
    assert report.copied == {TaskStatus.FAILURE: 1}
    assert sum(report.left.values()) == len(STATES) - 1
    assert listed(destination) == ["dead"]


def test_a_store_that_fails_ends_the_copy(store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = store.queue(), in_memory(store)
    source.put(1, task_id="a")
    copies = TaskCopy(source, destination)
    monkeypatch.setattr(core_of(destination).store, "insert", lambda tasks: [Throttled("busy")] * len(tasks))
    with pytest.raises(Throttled):
        copies.run()
    monkeypatch.undo()
    assert copies.run().copied == {TaskStatus.PENDING: 1}


def test_what_does_not_fit_is_skipped_with_its_reason(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = store.queue(), in_memory(store)
    source.put(1, task_id="a")
    too_large = [TooLarge("task 'a': too large for the store")]
    monkeypatch.setattr(core_of(destination).store, "insert", lambda _tasks: too_large)
    assert TaskCopy(source, destination).run().skipped == {"too large for the store": 1}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (lambda queue: (queue, queue), "destination"),
        (lambda queue: (queue, Queue.memory(), [TaskStatus.TAKEN]), "over"),
    ],
)
def test_wrong_arguments(arguments: Callable[[Queue], tuple[object, ...]], names: str) -> None:
    source, destination, *over = arguments(Queue.memory())
    with refused(names):
        TaskCopy(source, destination, over=over[0] if over else ())  # type: ignore[arg-type]  # of the table


def test_a_relay_counts_what_was_there_already() -> None:
    source, destination = Queue.memory(), Queue.memory()
    source.put_many([{"payload": name, "task_id": name} for name in "ab"])
    destination.put(1, task_id="a")
    relay = Relay(source, destination)
    relay.move()
    assert relay.duplicates == 1


class TestCommand:
    @pytest.fixture
    def addresses(self, tmp_path: Path) -> tuple[str, str]:
        made = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db"
        for address in made:
            with Queue.sql(address) as queue:
                queue.create_table()
        return made

    def copy(self, addresses: tuple[str, str], *options: str) -> tuple[int, list[str]]:
        done = CliRunner().invoke(app, ["copy", "--from", addresses[0], "--to", addresses[1], *options])
        return done.exit_code, done.output.splitlines()

    def test_it_says_what_became_of_each(self, addresses: tuple[str, str]) -> None:
        with Queue.sql(addresses[0]) as old, Queue.sql(addresses[1]) as new:
            old.put_many([{"payload": name, "task_id": name} for name in ("a", "b", "c")])
            old.cancel("b")
            new.put("mine", task_id="c")
            assert self.copy(addresses, "--only", "pending") == (
                1,
                [
                    "1 task copied: 1 PENDING",
                    "1 skipped: is PENDING in the destination: c",
                    "1 left in the source, not asked for: 1 CANCELLED",
                ],
            )
            new.cancel("c")
            assert self.copy(addresses, "--over", "cancelled") == (
                0,
                ["2 tasks copied: 1 CANCELLED, 1 PENDING", "1 there already"],
            )
            assert known(new, "c").payload == "c"

    def test_as_json(self, addresses: tuple[str, str]) -> None:
        with Queue.sql(addresses[0]) as old:
            old.put(1)
        assert self.copy(addresses, "--json") == (
            0,
            ['{"copied": {"PENDING": 1}, "present": 0, "skipped": {}, "left": {}}'],
        )

    def test_it_names_what_it_skips(self, addresses: tuple[str, str]) -> None:
        names = [f"t{number:02}" for number in range(12)]
        for address in addresses:
            with Queue.sql(address) as queue:
                queue.put_many([{"payload": address, "task_id": name} for name in names])
        status, lines = self.copy(addresses)
        assert status == 1
        shown = f"{', '.join(names[:10])} and 2 more, all in --json"
        assert lines[1] == f"12 skipped: is PENDING in the destination: {shown}"
        status, (line,) = self.copy(addresses, "--json")
        assert json.loads(line)["skipped_ids"] == {"is PENDING in the destination": names}
        assert json.loads(line)["skipped"] == {"is PENDING in the destination": 12}

    def test_an_unknown_state_is_refused(self, addresses: tuple[str, str]) -> None:
        status, lines = self.copy(addresses, "--only", "waiting")
        assert status == 2
        assert lines[0].startswith("freshq: only: 'waiting' is no state; use some of pending,")
