"""Verbs inside `queue.transaction()` that would wait for that transaction raise immediately."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import AsyncQueue, Claim, MatchQueue, Queue, TaskStatus, Worker
from freshq.errors import RefusedError
from freshq.model.lifecycle import Settlement
from tests.support.readings import counts, known
from tests.support.statements import database_of

# A refusal comes much earlier.
WAITS: Any = {"answer_timeout_seconds": 600.0, "lock_timeout_seconds": 600.0}
WRITES: dict[str, Callable[[Queue, Claim], object]] = {
    "put": lambda queue, _: queue.put("new"),
    "put_many": lambda queue, _: queue.put_many([{"payload": 1}, {"payload": 2}]),
    "put over": lambda queue, _: queue.put("new", task_id="other", on_conflict="update"),
    "claim": lambda queue, _: queue.claim(),
    "complete": lambda queue, claim: queue.complete(claim),
    "retry": lambda queue, claim: queue.retry(claim, error="later"),
    "release": lambda queue, claim: queue.release(claim),
    "fail": lambda queue, claim: queue.fail(claim, error="no"),
    "extend": lambda queue, claim: queue.extend(claim),
    "cancel": lambda queue, _: queue.cancel("other"),
    "reprioritize": lambda queue, _: queue.reprioritize("other", priority=3),
    "redrive": lambda queue, _: queue.redrive(["dead"]),
    "purge": lambda queue, _: queue.purge(confirm=queue.name),
    "pause": lambda queue, _: queue.pause(),
    "configure": lambda queue, _: queue.configure(order="fifo"),
    "create_table": lambda queue, _: queue.create_table(),
    "transaction": lambda queue, _: queue.transaction().__enter__(),
}
OF_HELD: dict[str, Callable[[Queue, str], object]] = {
    "cancel": lambda queue, held: queue.cancel(held, force=True),
    "reprioritize": lambda queue, held: queue.reprioritize(held, priority=3),
    "put over": lambda queue, held: queue.put("new", task_id=held, on_conflict="update"),
    "purge": lambda queue, _: queue.purge(confirm=queue.name),
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


@pytest.fixture
def queue_in_use(url: str) -> Iterator[tuple[Queue, Claim]]:
    """Return a queue with a claim, a dead letter and two waiting tasks."""
    with closing(Queue.sql(url, **WAITS)) as queue:
        queue.create_table()
        queue.put("dead", task_id="dead")
        queue.fail(queue.claim()[0], error="no")
        queue.put("claimed", task_id="claimed")
        (claim,) = queue.claim()
        queue.put("other", task_id="other")
        queue.put("held", task_id="held")
        yield queue, claim


@pytest.mark.parametrize("verb", WRITES.values(), ids=WRITES.keys())
def test_a_write_beside_the_own_transaction_on_sqlite(
    queue_in_use: tuple[Queue, Claim], verb: Callable[[Queue, Claim], object]
) -> None:
    queue, claim = queue_in_use
    before = queue.stats()
    with queue.transaction() as held:
        assert held is not None
        with pytest.raises(RefusedError, match=r"connection=held\.connection"):
            verb(queue, claim)
        assert queue.put("in it", connection=held.connection).outcome == "CREATED"
        assert counts(queue.stats()) == counts(before)  # reads do not wait
    assert counts(queue.stats()) == {"success": 1, "failure": 1, "taken": 1, "pending": 2}
    verb(queue, claim)


def test_settlements_beside_the_own_transaction_are_answered(queue_in_use: tuple[Queue, Claim]) -> None:
    queue, claim = queue_in_use
    with queue.transaction():
        (answer,) = queue.settle_many([Settlement.complete(claim)])
    assert isinstance(answer, RefusedError)
    assert "before or after the block" in str(answer)


def test_every_other_queue_of_the_same_file(queue_in_use: tuple[Queue, Claim], url: str) -> None:
    queue, _claim = queue_in_use
    same = url.replace("sqlite:///", "sqlite:////.")
    with (
        closing(Queue.sql(same, name="another", **WAITS)) as another,
        closing(MatchQueue.sql(url)) as matches,
        closing(Queue.sql(url.replace("tasks.db", "apart.db"))) as apart,
    ):
        matches.create_table()
        apart.create_table()
        with queue.transaction():
            for write in (
                lambda: another.put("work"),
                lambda: matches.register("anna", attributes={"skill": "tax"}),
                lambda: another.transaction().__enter__(),
            ):
                with pytest.raises(RefusedError, match=r"connection=held\.connection"):
                    write()
            assert apart.put("work").outcome == "CREATED"
        assert another.put("work").outcome == "CREATED"
        matches.register("anna", attributes={"skill": "tax"})


def test_a_block_without_a_task_holds_nothing(url: str) -> None:
    with closing(Queue.sql(url, **WAITS)) as queue:
        queue.create_table()
        with queue.transaction() as held:
            assert held is None
            queue.put("work")


def test_a_failed_block_holds_nothing(queue_in_use: tuple[Queue, Claim]) -> None:
    queue, _claim = queue_in_use
    with pytest.raises(KeyError), queue.transaction():
        raise KeyError
    queue.put("work")


def test_coroutines(queue_in_use: tuple[Queue, Claim], url: str) -> None:
    async def program() -> None:
        async with AsyncQueue.sql(url, **WAITS) as queue:
            async with queue.transaction() as held:
                assert held is not None
                with pytest.raises(RefusedError, match=r"put in held\.run"):
                    await queue.put("work")
                with pytest.raises(RefusedError):
                    await asyncio.gather(queue.claim())
                await held.run(lambda connection: queue.queue.put("in it", connection=connection))
            await queue.put("after")

    asyncio.run(program())
    assert counts(queue_in_use[0].stats()) == {"success": 1, "failure": 1, "taken": 1, "pending": 3}


def test_a_transactional_worker_on_sqlite(queue_in_use: tuple[Queue, Claim]) -> None:
    queue, _claim = queue_in_use

    def run(task: Any, connection: sa.Connection) -> str:
        if task.task_id == "held":
            queue.put("follow-up")
        return str(queue.put("follow-up", connection=connection, task_id="next").outcome)

    with closing(Queue.sql(str(database_of(queue).engine.url), max_attempts=1, override=True)) as worked:
        Worker(worked, run, transaction=True, idle_exit_seconds=0, concurrency=1).run()
    assert "connection=held.connection" in str(known(queue, "held").error)
    assert known(queue, "other").status is TaskStatus.SUCCESS


@pytest.mark.parametrize("verb", OF_HELD.values(), ids=OF_HELD.keys())
def test_a_verb_for_the_held_task(queue: Queue, verb: Callable[[Queue, str], object]) -> None:
    queue.put("held", task_id="held")
    with queue.transaction() as held:
        assert held is not None
        with pytest.raises(RefusedError, match="would wait for itself"):
            verb(queue, "held")
    assert known(queue, "held").status is TaskStatus.SUCCESS


def test_a_put_that_lacks_a_connection_of_the_pool(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    with closing(Queue.sql(url, max_connections=1, **WAITS)) as queue:
        queue.put("held")
        with queue.transaction() as held:
            assert held is not None
            with pytest.raises(RefusedError, match=r"connection=held\.connection"):
                queue.put("work")
            with pytest.raises(RefusedError, match="max_connections=1"):
                queue.stats()
            queue.put("in it", connection=held.connection)
        assert counts(queue.stats()) == {"success": 1, "pending": 1}


def test_on_a_server_a_put_beside_the_own_transaction_commits_alone(engine: sa.Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("on SQLite it is refused")
    with closing(Queue.sql(engine.url.render_as_string(hide_password=False))) as queue:
        queue.put("held")
        with pytest.raises(KeyError), queue.transaction():
            queue.put("beside")
            raise KeyError
        assert queue.stats().pending + queue.stats().delayed == 2
