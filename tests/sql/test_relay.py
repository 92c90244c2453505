"""The relay between two queues, and the commands."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
from typer.testing import CliRunner

from freshq import Queue, Receipt, StoreError, TaskStatus
from freshq.cli.commands import relay
from freshq.cli.errors import ExitStatus
from freshq.cli.main import app
from freshq.cli.process import ControlChannel, ControlMessage
from freshq.errors import PutIncomplete, RefusedError, Throttled
from freshq.feeds.relay import Relay
from freshq.policy import BacklogLimit, WhenFull
from freshq.queue import BaseQueue
from freshq.queue.core import core_of
from freshq.queue.stopping import StopRequest
from freshq.stores.memory import MemoryStore
from tests.conftest import START, Clock, StoreUnderTest
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, ids, known, payloads, within_seconds

run = CliRunner().invoke


def target(store: StoreUnderTest, **options: Any) -> Queue:
    return Queue(MemoryStore(), clock=store.clock, **options)


ONCE = ("--idle-exit-seconds", "0")


class Pauses(StopRequest):
    """Notes the length of each wait, and returns immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, seconds: float, ends: Callable[[], bool]) -> bool:
        self.seconds += [seconds] if seconds else []
        return ends()


def emptied(source: BaseQueue, destination: BaseQueue, stop: Pauses | None = None, **options: Any) -> int:
    """Relay until the source is empty; return how many tasks arrived."""
    relay = Relay(source, destination, idle_exit_seconds=0, **options)
    relay._stop = stop or relay._stop
    return relay.run()


class TestRelay:
    def test_tasks_arrive_as_they_were_put_in_the_same_order(self, store: StoreUnderTest) -> None:
        source, destination = store.queue(), target(store)
        source.put({"n": 1}, task_id="a", priority=3, group="g", max_age_seconds=100)
        source.put_many([{"payload": number} for number in range(5)])
        source.put("later", task_id="later", delay_seconds=50)
        store.clock.advance(10)
        assert emptied(source, destination, batch=4) == 6
        assert counts(source.stats()) == {"success": 6, "delayed": 1}
        task = known(destination, "a")
        assert (task.payload, task.priority, task.group) == ({"n": 1}, 3, "g")
        assert task.deadline == known(source, "a").deadline
        store.clock.advance(50)
        Relay(source, destination).move()
        assert "later" in ids(destination.claim(limit=9))

    def test_from_a_database_to_dynamodb(self, store: StoreUnderTest, table_store: StoreUnderTest) -> None:
        """The ids carry over, so that a task relayed twice arrives once."""
        table_store.clock.now = store.clock.now
        source, destination = store.queue(), table_store.queue()
        source.put_many([{"payload": number, "task_id": str(number), "group": "g"} for number in range(12)])
        destination.put("there already", task_id="3")
        assert emptied(source, destination, batch=5) == 12
        assert counts(source.stats()) == {"success": 12}
        assert counts(destination.stats()) == {"pending": 12}
        assert known(destination, "3").payload == "there already"

    def test_newest_first_stays_newest_first(self, store: StoreUnderTest) -> None:
        source, destination = store.queue(), target(store)
        source.put_many([{"payload": number} for number in range(5)])
        Relay(source, destination).move()
        assert payloads(destination.claim(limit=5)) == [4, 3, 2, 1, 0]

    def test_after_a_crash_no_task_is_put_twice(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, destination = store.queue(), target(store)
        source.put_many([{"payload": number, "task_id": str(number)} for number in range(6)])
        with monkeypatch.context() as patch:
            patch.setattr(Relay, "_settle", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                Relay(source, destination, batch=4, lease_seconds=5).move()
        assert counts(destination.stats()) == {"pending": 4}
        for claim in destination.claim(limit=2):
            destination.complete(claim)
        store.clock.advance(5)
        emptied(source, destination)
        assert counts(source.stats()) == {"success": 6}
        assert counts(destination.stats()) == {"pending": 4, "success": 2}

    def test_an_outage_of_the_destination_spends_no_attempt(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It lasts for more batches than a task has attempts."""
        source, destination = store.queue(max_attempts=3), target(store)
        source.put_many([{"payload": number, "task_id": str(number)} for number in range(6)])
        insert, stop = core_of(destination).store.insert, Pauses()

        def down(*arguments: Any, **options: Any) -> Any:
            if len(stop.seconds) < 8:
                raise StoreError("down")
            return insert(*arguments, **options)

        monkeypatch.setattr(core_of(destination).store, "insert", down)
        assert emptied(source, destination, stop, batch=4) == 6
        bounds = (1, 2, 4, 8, 16, 30, 30, 30)
        assert all(most / 2 <= pause <= most for pause, most in zip(stop.seconds, bounds, strict=True))
        assert counts(source.stats()) == {"success": 6}
        assert counts(destination.stats()) == {"pending": 6}
        assert {known(source, name).attempts for name in "012345"} == {1}
        assert caplog.text.count("tasks return to the source") == 8

    def test_an_overloaded_destination_spends_no_attempt(self, store: StoreUnderTest) -> None:
        source = store.queue(max_attempts=1)
        destination = target(store, backlog=BacklogLimit(2, WhenFull.REFUSE_NEWEST))
        source.put_many([{"payload": number, "task_id": str(number)} for number in range(3)])
        Relay(source, destination).move()
        assert counts(source.stats()) == {"success": 2, "pending": 1}
        for claim in destination.claim(limit=2):
            destination.complete(claim)
        Relay(source, destination).move()
        assert counts(source.stats()) == {"success": 3}

    @pytest.mark.parametrize("refusal", [ValueError("too large"), RefusedError("not this one")])
    def test_one_refused_task_does_not_refuse_its_batch(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, refusal: Exception
    ) -> None:
        source, destination = store.queue(max_attempts=2), target(store)
        source.put_many([{"payload": number, "task_id": str(number)} for number in range(9)])
        put_many = destination.put_many

        def refuse_one(tasks: list[dict[str, Any]]) -> list[Receipt]:
            if any(task["task_id"] == "5" for task in tasks):
                raise refusal
            return put_many(tasks)

        monkeypatch.setattr(destination, "put_many", refuse_one)
        relay = Relay(source, destination, idle_exit_seconds=0)
        assert relay.run() == 8
        assert counts(source.stats()) == {"success": 8, "delayed": 1}
        assert payloads(destination.claim(limit=9)) == [8, 7, 6, 4, 3, 2, 1, 0]
        store.clock.advance(300)
        relay.move()
        task = known(source, "5")
        assert (task.status, task.error) == (TaskStatus.FAILURE, str(refusal))

    def test_a_destination_that_fails_between_the_halves_is_not_asked_for_each_task(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, destination = store.queue(), target(store)
        source.put_many([{"payload": number} for number in range(64)])
        calls = list[int]()

        def fail(tasks: list[dict[str, Any]]) -> list[Receipt]:
            calls.append(len(tasks))
            raise ValueError("too large") if len(tasks) == 64 else StoreError("down")

        monkeypatch.setattr(destination, "put_many", fail)
        Relay(source, destination).move()
        assert calls == [64, 32]
        assert counts(source.stats()) == {"pending": 64}

    def test_the_rest_of_a_partial_batch_is_put_again(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, destination = store.queue(), target(store)
        source.put_many([{"payload": number, "task_id": str(number)} for number in range(3)])
        put_many = destination.put_many

        def put_two(tasks: list[dict[str, Any]]) -> list[Receipt]:
            raise PutIncomplete([*put_many(tasks[:2]), StoreError("throttled")])

        with monkeypatch.context() as patch:
            patch.setattr(destination, "put_many", put_two)
            Relay(source, destination).move()
        assert [known(source, name).attempts for name in "012"] == [1, 1, 0]
        Relay(source, destination).move()
        assert counts(destination.stats()) == {"pending": 3}

    def test_a_task_that_another_relay_claimed_meanwhile_is_not_settled(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        source, destination = store.queue(), target(store)
        source.put("work", task_id="a")
        put_many = destination.put_many

        def slow_put(tasks: list[dict[str, Any]]) -> list[Receipt]:
            store.clock.advance(60)
            assert ids(source.claim()) == ["a"]
            return put_many(tasks)

        monkeypatch.setattr(destination, "put_many", slow_put)
        assert Relay(source, destination).move() == 1
        assert "task a was claimed by another relay" in caplog.text
        assert counts(source.stats()) == {"taken": 1}

    @pytest.mark.parametrize("batch", [1, 3, 100])
    @pytest.mark.parametrize("error", [StoreError("ValidationException"), Throttled("hot")], ids=str)
    def test_a_task_for_which_the_destination_always_fails_holds_up_no_other(
        self,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        clock: Clock,
        batch: int,
        error: StoreError,
    ) -> None:
        """The destination fails the whole batch because of this task."""
        source, destination = Queue.memory(clock=clock, max_attempts=3), Queue.memory(clock=clock)
        source.put_many([{"payload": number, "task_id": str(number)} for number in range(9)])
        source.put("bad", task_id="bad")
        put_many, tries = destination.put_many, list[float]()

        def fail(tasks: list[dict[str, Any]]) -> list[Receipt]:
            if any(task["task_id"] == "bad" for task in tasks):
                tries.append(clock.now)
                raise error
            return put_many(tasks)

        monkeypatch.setattr(destination, "put_many", fail)
        relay = Relay(source, destination, batch=batch, idle_exit_seconds=0)
        relay._stop = stop = Pauses()
        assert relay.run() == 9
        assert sum(stop.seconds) < 10
        for second in range(600):
            clock.advance(1)
            source.put_many([{"payload": second}] if second % 10 == 0 else [])
            assert relay.run() == (second % 10 == 0)

        late = [tried for tried in tries if tried > START]
        assert len(late) <= 15
        if isinstance(error, Throttled):
            assert known(source, "bad").status is TaskStatus.PENDING
        else:
            assert known(source, "bad").status is TaskStatus.FAILURE
            assert "task bad is a dead letter of queue default: ValidationException" in caplog.text

    def test_a_source_that_does_not_answer_is_an_error(self, store: StoreUnderTest) -> None:
        missing = Queue.sql("sqlite:////nowhere/tasks.db")
        with pytest.raises(StoreError):
            emptied(missing, target(store))


class TestCommands:
    def test_migrate_and_relay(self, tmp_path: Path) -> None:
        source, destination = (f"sqlite:///{tmp_path}/{name}.db" for name in ("outbox", "queue"))
        for address in (source, f"sql://{destination}#work", source):
            assert "The table is ready" in run(app, ["table", "create", address]).output
        outbox, queue = Queue.sql(source), Queue.sql(destination, "work")
        outbox.put_many([{"payload": number} for number in range(3)])
        answer = run(app, ["relay", "--from", source, "--to", f"{destination}#work", *ONCE])
        assert (answer.exit_code, answer.output) == (0, "3 tasks relayed\n")
        assert payloads(queue.claim(limit=5)) == [2, 1, 0]
        outbox.close()
        queue.close()

    @pytest.mark.parametrize(
        ("signals", "status", "said"),
        [
            (1, 0, "3 tasks relayed\n"),
            (2, ExitStatus.UNFINISHED, "ended immediately; tasks that it held are claimable"),
        ],
    )
    def test_a_signal_lets_the_batch_end_and_a_second_one_does_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: int, status: int, said: str
    ) -> None:
        release = threading.Event()

        class Told(ControlChannel):
            def follow_signals(self) -> None:
                for _ in range(signals):
                    self.send(ControlMessage.SIGNAL)

        def run_batch(relay: Relay) -> int:
            assert within_seconds(PATIENCE_SECONDS, lambda: relay._stop.made)
            assert signals == 1 or release.wait(PATIENCE_SECONDS)
            return 3

        def exit_status(status: int, _control: ControlChannel) -> NoReturn:
            raise typer.Exit(status)  # in a separate process it exits

        monkeypatch.setattr(relay, "ControlChannel", Told)
        monkeypatch.setattr(relay, "end_process", exit_status)
        monkeypatch.setattr(Relay, "run", run_batch)
        source, destination = (f"sqlite:///{tmp_path}/{name}.db" for name in ("outbox", "queue"))
        assert {run(app, ["table", "create", url]).exit_code for url in (source, destination)} == {0}
        answer = run(app, ["relay", "--from", source, "--to", destination])
        release.set()
        assert (answer.exit_code, said in answer.output) == (status, True)

    @pytest.mark.parametrize(
        ("arguments", "status"),
        [
            (["table", "create", "nonsense"], 2),
            (["table", "create", "sqlite:////nowhere/at/all.db"], 3),
            (["relay", "--from", "dynamodb://", "--to", "sqlite:///b.db"], 2),
            (["relay", "--from", "sqlite:////nowhere/a.db", "--to", "sqlite:////nowhere/b.db"], 3),
            (["relay", "--from", "sqlite:////nowhere/a.db", "--to", "oracle://b"], 2),
            (["relay", "--to", "sqlite:///b.db"], 2),
            (["relay", "--from", "sqlite:///a", "--to", "sqlite:///b?max_age_seconds=nan"], 2),
        ],
    )
    def test_wrong_use(self, arguments: list[str], status: int) -> None:
        answer = run(app, arguments)
        assert answer.exit_code == status
        assert len(answer.output) > 20
        assert "Traceback" not in answer.output
