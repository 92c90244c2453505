"""Handlers whose tasks are held in database transactions."""

from typing import TYPE_CHECKING, Annotated, Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from freshq import Backoff, Handlers, Queue, Task, TaskStatus, Worker
from freshq.errors import RefusedError
from freshq.model.codec import JsonCodec
from freshq.testing import drain
from tests.conftest import StoreUnderTest
from tests.sql.conftest import write, written
from tests.support.readings import known
from tests.support.worker_threads import work_off

if TYPE_CHECKING:
    from sqlalchemy import Connection as ForCheckers

TAKES_CONNECTION = "^handler of 'write': takes the connection of a transaction; run it by a worker with"


def writing(handlers: Handlers, **rules: Any) -> Any:
    """Register a function that writes a name, and fails after bad ones."""

    def run(task: Task, name: str, connection: Connection) -> str:
        write(connection, name)
        if name == "bad":
            raise ValueError(name)
        return f"{task.task_id} wrote {name}"

    return handlers.on("write", **rules)(run)


def test_what_a_handler_writes_commits_with_its_task(store: StoreUnderTest, effects: sa.Engine) -> None:
    queue, handlers = store.queue(max_attempts=9), Handlers()
    rule = writing(handlers, max_attempts=2, backoff=Backoff(base_seconds=0.5, cap_seconds=0.5))
    handlers.on("plain")(lambda task: task.payload)

    @handlers.on("coroutine")
    async def add(task: Task, number: int) -> int:
        del task
        return number + 1

    for name in ("good", "bad"):
        rule.put(queue, name, task_id=name)
    queue.put(["not", "a", "name"], kind="write", task_id="misfit")
    queue.put(3, kind="plain", task_id="plain")
    add.put(queue, 3, task_id="coroutine")
    work_off(queue, handlers, transaction=True, concurrency=1)
    # The kind's own limit and delays count, as under a lease.
    assert store.clock.now < (known(queue, "bad").not_before or 0.0) <= store.clock.now + 0.5
    store.clock.advance(1)
    work_off(queue, handlers, transaction=True, concurrency=1)
    assert written(effects) == ["good"]
    ends = {name: known(queue, name) for name in ("good", "bad", "misfit", "plain", "coroutine")}
    results = {"good": "good wrote good", "bad": None, "misfit": None, "plain": 3, "coroutine": 4}
    assert {name: task.result for name, task in ends.items()} == results
    assert (ends["bad"].status, ends["bad"].attempts) == (TaskStatus.FAILURE, 2)
    assert (ends["misfit"].attempts, str(ends["misfit"].error)[:8]) == (1, "payload:")


def test_the_codec_of_the_handlers_encodes_results(store: StoreUnderTest) -> None:
    class Marked(JsonCodec):
        def encode(self, value: Any) -> Any:
            return {"encoded": value}

    handlers = Handlers(codec=Marked())
    handlers.on("plain")(lambda task: task.payload)
    for queue in (store.queue(), store.queue(name="marked", codec=Marked())):
        queue.put(1, kind="plain", task_id=f"of {queue.name}")
        work_off(queue, handlers, transaction=True, concurrency=1)
        task = known(queue, f"of {queue.name}")
        assert (task.status, task.result) == (TaskStatus.SUCCESS, {"encoded": task.payload})


def test_progress_is_refused_without_a_lease(queue: Queue) -> None:
    handlers, refused = Handlers(), list[str]()

    @handlers.on("plain")
    def run(task: Task) -> None:
        with pytest.raises(RefusedError) as error:
            task.progress(0.5)
        refused.append(str(error.value))

    queue.put("work", kind="plain", task_id="a")
    work_off(queue, handlers, transaction=True, concurrency=1)
    assert len(refused) == 1
    assert "not run under a lease" in refused[0]


class TestRefused:
    def test_a_handler_that_needs_a_transaction_runs_nowhere_else(self, queue: Queue) -> None:
        handlers = Handlers()
        rule = writing(handlers)
        for run in (lambda: Worker(queue, handlers), lambda: drain(queue, handlers), lambda: rule.call("x")):
            with pytest.raises(ValueError, match=TAKES_CONNECTION):
                run()

    def test_handlers_that_are_registered_later_are_checked_too(self, queue: Queue) -> None:
        handlers = Handlers()
        worker = Worker(queue, handlers)
        writing(handlers)
        with pytest.raises(ValueError, match=TAKES_CONNECTION):
            worker.run()

    def test_a_test_gives_the_connection(self, queue: Queue, effects: sa.Engine) -> None:
        del queue
        with effects.begin() as connection:
            assert writing(Handlers()).call("x", connection=connection) == "call wrote x"
        assert written(effects) == ["x"]

    def test_neither_coroutines_nor_batches_take_a_connection(self) -> None:
        async def run(task: Task, name: str, connection: Connection) -> None:
            del task, name, connection

        def run_all(tasks: list[Task], names: list[str], connection: Connection) -> list[None]:
            del names, connection
            return [None for _ in tasks]

        def run_without_payload(task: Task, connection: Connection) -> None:
            del task, connection

        handlers = Handlers()
        with pytest.raises(ValueError, match=r"^handler of 'a': is async, .* for one task in one thread$"):
            handlers.on("a")(run)
        with pytest.raises(
            ValueError, match=r"^handler of 'b': takes a batch, .* for one task in one thread$"
        ):
            handlers.on("b", batch=2)(run_all)
        with pytest.raises(ValueError, match=r"^handler of 'c': must take a task and a payload before its"):
            handlers.on("c")(run_without_payload)

    @pytest.mark.parametrize("annotation", [Annotated[Connection, "own"], Connection | None])
    def test_an_annotation_may_say_more_than_the_type(self, annotation: Any) -> None:
        def run(task: Task, name: str, connection: Any = None) -> None:
            del task, name, connection

        run.__annotations__["connection"] = annotation
        assert Handlers().on("a")(run).connection == "connection"

    def test_an_annotation_that_cannot_be_read_is_named(self) -> None:
        def run(task: Task, name: str, connection: "ForCheckers") -> None:
            del task, name, connection

        with pytest.raises(
            ValueError, match=r"annotation of 'connection' cannot be read \(name 'ForCheckers'"
        ):
            Handlers().on("a")(run)

    def test_a_connection_that_the_application_provides_is_its_own(self, queue: Queue) -> None:
        handlers = Handlers(provide={Connection: lambda: "own"})

        @handlers.on("plain")
        def run(task: Task, payload: int, connection: Connection) -> object:
            del task, payload
            return connection

        queue.put(1, kind="plain", task_id="a")
        work_off(queue, handlers, concurrency=1)
        assert known(queue, "a").result == "own"
