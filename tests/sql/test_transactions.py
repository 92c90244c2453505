"""A task held by its row's lock, and a put in the caller's transaction."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import sqlalchemy as sa

from freshq import Busy, PutOutcome, Queue, Reject, Retry, TaskStatus
from freshq.errors import RefusedError, StoreError
from freshq.policy.rules import CodelRule
from freshq.stores.sql.tasks import SqlTasks
from tests.conftest import StoreUnderTest
from tests.sql.conftest import write, written
from tests.support.lost_replies import LostReplies
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, known, payloads, total
from tests.support.refusals import refused

DEFERRED = "CREATE TEMP TABLE once (n INT UNIQUE DEFERRABLE INITIALLY DEFERRED)"
TWICE = ["INSERT INTO once VALUES (1)"] * 2


class TestTransaction:
    def test_the_handlers_writes_and_the_task_are_committed_together(
        self, queue: Queue, effects: sa.Engine
    ) -> None:
        queue.put({"n": 1}, task_id="a")
        with queue.transaction() as work:
            assert work is not None
            assert (work.task.payload, work.task.status, work.task.attempts) == (
                {"n": 1},
                TaskStatus.TAKEN,
                1,
            )
            write(work.connection, "done")
            work.result = "result"
        assert written(effects) == ["done"]
        task = known(queue, "a")
        assert (task.status, task.result, task.attempts) == (TaskStatus.SUCCESS, "result", 1)

    def test_expired_leases_return_though_each_transaction_finds_a_task(self, store: StoreUnderTest) -> None:
        queue = store.queue(order="fifo", lease_seconds=2)
        queue.put_many([{"payload": number} for number in range(3)])
        queue.claim()
        store.clock.advance(2)
        with queue.transaction() as work:
            assert work is not None
            assert work.task.payload == 0

    def test_an_exception_undoes_the_writes_and_counts_the_attempt(
        self, store: StoreUnderTest, effects: sa.Engine
    ) -> None:
        queue = store.queue(max_attempts=2)
        queue.put("work", task_id="a")
        for attempt in (1, 2):
            with pytest.raises(KeyError), queue.transaction() as work:
                assert work is not None
                assert work.task.attempts == attempt
                write(work.connection, "half")
                raise KeyError("broken")
            assert written(effects) == []
            assert known(queue, "a").error == "KeyError: 'broken'"
            store.clock.advance(300)
        assert (known(queue, "a").status, known(queue, "a").attempts) == (TaskStatus.FAILURE, 2)

    @pytest.mark.parametrize(
        ("outcome", "state", "attempts"),
        [(Retry(delay_seconds=5), "delayed", 1), (Reject("never"), "failure", 1), (Busy(), "pending", 0)],
    )
    def test_an_outcome_is_no_error(
        self, queue: Queue, effects: sa.Engine, outcome: Exception, state: str, attempts: int
    ) -> None:
        queue.put("work", task_id="a")
        with queue.transaction() as work:
            assert work is not None
            write(work.connection, "half")
            raise outcome
        # Context managers that may swallow an exception cannot say so by way of contextlib.
        assert counts(queue.stats()) == {state: 1}  # type: ignore[unreachable]
        assert known(queue, "a").attempts == attempts
        assert written(effects) == []

    def test_an_interrupt_passes_through_and_leaves_the_task_as_it_was(
        self, queue: Queue, effects: sa.Engine
    ) -> None:
        queue.put("work", task_id="a")
        before = known(queue, "a")
        with pytest.raises(KeyboardInterrupt), queue.transaction() as work:
            assert work is not None
            write(work.connection, "half")
            raise KeyboardInterrupt
        assert known(queue, "a") == before
        assert written(effects) == []

    def test_a_result_that_is_not_json_is_a_failed_attempt(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        with refused("result"), queue.transaction() as work:
            assert work is not None
            work.result = {1, 2}
        assert known(queue, "a").attempts == 1

    def test_nothing_to_do(self, queue: Queue) -> None:
        with queue.transaction() as work:
            assert work is None
        queue.put("work")
        queue.pause()
        with queue.transaction() as work:
            assert work is None

    def test_what_waited_too_long_is_given_up(self, store: StoreUnderTest) -> None:
        queue = store.queue(order="fifo", codel=CodelRule(target_seconds=5, interval_seconds=10))
        for number in range(30):
            queue.put(number)
            store.clock.advance(1)

        def run_one() -> object:
            with queue.transaction() as work:
                return None if work is None else work.task.payload

        assert run_one() == 0  # 30 s old: begins an interval
        store.clock.advance(11)
        assert run_one() == 1  # begins the next one, of an overloaded queue
        queue.put("fresh")
        assert run_one() == "fresh"
        assert queue.stats().shed_by_reason == {"codel": 28}
        assert counts(queue.stats()) == {"success": 3, "shed": 28}

    def test_what_is_due_is_brought_in(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("later", delay_seconds=5)
        store.clock.advance(5)
        with queue.transaction() as work:
            assert work is not None
        assert counts(queue.stats()) == {"success": 1}

    def test_others_pass_over_a_locked_row(self, queue: Queue, store: StoreUnderTest) -> None:
        if store.kind == "sqlite":
            pytest.skip("on SQLite one writes at a time: the others wait")
        queue.put("second")
        store.clock.advance(1)
        queue.put("first")
        other = store.queue()
        with queue.transaction() as work, other.transaction() as more:
            assert work is not None
            assert more is not None
            assert (work.task.payload, more.task.payload) == ("first", "second")
            assert other.claim() == []
        assert counts(queue.stats()) == {"success": 2}

    def test_no_claim_waits_for_a_row_that_is_held_past_its_deadline(
        self, queue: Queue, store: StoreUnderTest
    ) -> None:
        if store.kind == "sqlite":
            pytest.skip("on SQLite one writes at a time: the others wait")
        queue.put("work", max_age_seconds=10)
        other = store.queue()
        with ThreadPoolExecutor(1) as pool:
            with queue.transaction() as work:
                assert work is not None
                store.clock.advance(11)
                assert pool.submit(other.claim, 2).result(PATIENCE_SECONDS) == []
                assert pool.submit(other.admin.recover).result(PATIENCE_SECONDS) == 0
            assert pool.submit(other.claim, 2).result(PATIENCE_SECONDS) == []
        assert counts(queue.stats()) == {"success": 1}

    def test_a_connection_lost_in_the_block_is_a_failed_attempt(
        self, store: StoreUnderTest, engine: sa.Engine
    ) -> None:
        if store.kind != "postgresql":
            pytest.skip("the server's own function ends the connection")
        queue = store.queue()
        queue.put("work", task_id="a")
        with pytest.raises(sa.exc.OperationalError), queue.transaction() as work:
            assert work is not None
            with engine.connect() as killer:
                pid = work.connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
                killer.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            work.connection.execute(sa.text("SELECT 1"))
        task = known(queue, "a")
        assert (task.attempts, task.status) == (1, TaskStatus.PENDING)
        assert task.error is not None
        store.clock.advance(300)
        assert payloads(queue.claim()) == ["work"]

    @pytest.mark.parametrize("end", ["commit", "rollback", "close"])
    def test_a_block_that_ends_the_transaction_is_a_failed_attempt(
        self, queue: Queue, effects: sa.Engine, end: str
    ) -> None:
        queue.put("work", task_id="a")
        with pytest.raises(RefusedError, match="ended the transaction"), queue.transaction() as work:
            assert work is not None
            write(work.connection, "done")
            getattr(work.connection, end)()
        assert known(queue, "a").attempts == 1
        assert "connection.begin_nested()" in str(known(queue, "a").error)
        assert written(effects) == (["done"] if end == "commit" else [])

    @pytest.mark.parametrize("last", ["COMMIT", "ROLLBACK"])
    def test_a_statement_that_ends_the_transaction_is_told_from_a_failed_commit(
        self, queue: Queue, effects: sa.Engine, last: str
    ) -> None:
        queue.put("work", task_id="a")
        with pytest.raises(StoreError), queue.transaction() as work:
            assert work is not None
            write(work.connection, "done")
            work.connection.exec_driver_sql(last)
        assert known(queue, "a").attempts == 1
        assert str(known(queue, "a").error).startswith("the block ended the transaction")
        assert written(effects) == (["done"] if last == "COMMIT" else [])

    @pytest.mark.parametrize(
        "leave",
        [
            sa.Connection.begin_nested,
            lambda connection: connection.execution_options(schema_translate_map={None: "elsewhere"}),
            lambda connection: connection.execution_options(stream_results=True),
        ],
        ids=["a savepoint", "a map of schemas", "streams"],
    )
    def test_what_a_block_leaves_behind_is_no_failure(
        self, queue: Queue, effects: sa.Engine, leave: Callable[[sa.Connection], object]
    ) -> None:
        queue.put("work", task_id="a")
        with queue.transaction() as work:
            assert work is not None
            write(work.connection, "before")
            leave(work.connection)
            within = sa.text("INSERT INTO effects VALUES ('within')")
            work.connection.execute(within, execution_options={"stream_results": False})
        assert known(queue, "a").status is TaskStatus.SUCCESS
        assert written(effects) == ["before", "within"]

    @pytest.mark.parametrize(
        ("statements", "cause"),
        [
            (["SELECT 1 / 0"], "current transaction is aborted"),
            (
                [DEFERRED, *TWICE],
                "duplicate key",
            ),
        ],
        ids=["aborted", "deferred constraint"],
    )
    def test_a_commit_that_fails_is_a_failed_attempt(
        self, store: StoreUnderTest, effects: sa.Engine, statements: list[str], cause: str
    ) -> None:
        if store.kind != "postgresql":
            pytest.skip("others have neither")
        queue = store.queue()
        queue.put("work", task_id="a")
        with pytest.raises(StoreError, match=cause), queue.transaction() as work:
            assert work is not None
            write(work.connection, "done")
            for each in statements:
                with suppress(sa.exc.DBAPIError):
                    work.connection.execute(sa.text(each))
        assert work is not None
        assert work.settled is None  # or the worker would count a success
        assert (known(queue, "a").status, known(queue, "a").attempts) == (TaskStatus.PENDING, 1)
        assert f"its transaction could not be committed: {cause}" in str(known(queue, "a").error)
        assert written(effects) == []

    def test_only_in_a_sql_database(self) -> None:
        with refused("transaction"):
            Queue.memory().transaction().__enter__()


class TestBatches:
    def test_new_tasks_are_put_without_looking_for_them(
        self, queue: Queue, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if engine.dialect.name not in ("sqlite", "postgresql"):
            pytest.skip("MariaDB does not say which rows were new")
        queue.put("first")
        replies = LostReplies(engine, monkeypatch, loses=False)
        looks: list[object] = []
        monkeypatch.setattr(SqlTasks, "_added", lambda *arguments: looks.append(arguments))
        receipts = queue.put_many([{"payload": number} for number in range(20)])
        assert {receipt.outcome for receipt in receipts} == {PutOutcome.CREATED}
        assert (replies.transactions, looks) == (1, [])


class TestOutbox:
    def test_a_put_is_rolled_back_with_the_callers_transaction(
        self, queue: Queue, effects: sa.Engine
    ) -> None:
        with effects.connect() as connection, connection.begin() as transaction:
            write(connection, "order")
            assert queue.put("mail", task_id="a", connection=connection).outcome is PutOutcome.CREATED
            transaction.rollback()
        assert (total(queue), written(effects)) == (0, [])
        with effects.begin() as connection:
            write(connection, "order")
            queue.put("mail", task_id="a", connection=connection)
        assert written(effects) == ["order"]
        assert payloads(queue.claim()) == ["mail"]

    def test_a_duplicate_does_not_spoil_the_transaction(self, queue: Queue, effects: sa.Engine) -> None:
        queue.put("before", task_id="b")
        with effects.begin() as connection:
            tasks = [{"payload": name, "task_id": name} for name in ("a", "b", "c")]
            receipts = queue.put_many(tasks, connection=connection)
            write(connection, "order")
        assert [str(receipt.outcome) for receipt in receipts] == ["CREATED", "DUPLICATE", "CREATED"]
        assert (total(queue), written(effects)) == (3, ["order"])

    def test_only_in_a_sql_database(self, engine: sa.Engine) -> None:
        queue = Queue.memory()
        with engine.connect() as connection, refused("connection"):
            queue.put("work", connection=connection)
        assert total(queue) == 0

    def test_an_update_is_rolled_back_too(self, queue: Queue, effects: sa.Engine) -> None:
        queue.put("old", task_id="a")
        (claim,) = queue.claim()
        with effects.connect() as connection, connection.begin() as transaction:
            receipt = queue.put("new", task_id="a", connection=connection, on_conflict="update")
            assert receipt.outcome is PutOutcome.UPDATED
            transaction.rollback()
        assert queue.complete(claim).payload == "old"
