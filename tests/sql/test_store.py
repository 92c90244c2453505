"""Features and failures that only relational databases have."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, Final

import pytest
import sqlalchemy as sa
from local.servers import Server

from freshq import (
    Claim,
    LeaseLost,
    Order,
    PutOutcome,
    Queue,
    Receipt,
    Settlement,
    StoreError,
    Task,
    TaskStatus,
)
from freshq.errors import PutIncomplete, TableMissing, Unreachable
from freshq.queue.claim import Search
from freshq.queue.core import core_of
from freshq.stores.base import Conflict, Guard
from freshq.stores.clocks import DatabaseClock
from freshq.stores.sql import SqlStore, database
from freshq.stores.sql.database import open_engine
from freshq.stores.sql.migrations import MIGRATIONS, STORAGE, Migration, migrate
from freshq.stores.sql.schema import schema
from tests.conftest import StoreUnderTest
from tests.support.lost_replies import LostReplies
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, ids, known, payloads, total
from tests.support.refusals import refused
from tests.support.statements import database_of
from tests.support.verbs import VERBS, prepared

Meanwhile = Callable[[Callable[[], object]], None]

TABLE: Final = "some_tasks"
# Storage parameters that an operator chose.
CHOSEN: Final = {"fillfactor": "80", "toast_tuple_target": "4080"}
# If shorter, it would end during a slow test.
NEVER_SECONDS: Final = 3600.0


def test_stores_on_the_same_tables_share_their_statements() -> None:
    first, second = SqlStore("sqlite:///first.db"), SqlStore("sqlite:///second.db")
    assert first.sql is second.sql
    assert first.sql.ready("lines") is second.sql.ready("lines")
    assert first.sql is not SqlStore("sqlite:///first.db", TABLE).sql
    # The version of a server decides about them, and two addresses may be of two servers.
    engines = [open_engine("mariadb://localhost/tasks") for _ in range(2)]
    here, also_here, there = (SqlStore(engines[number]) for number in (0, 0, 1))
    assert here.sql is also_here.sql
    assert here.sql is not there.sql


def spoil(engine: sa.Engine, task_id: str) -> None:
    """Replace a task's payload by a text that no JSON decoder accepts."""
    tasks = schema("tasks", engine.dialect.name).tasks
    with engine.begin() as connection:
        connection.execute(tasks.update().where(tasks.c.task_id == task_id).values(payload="{oops"))


def state_of(queue: Queue) -> tuple[list[tuple[Any, ...]], bool]:
    """Return what verbs change, without what differs from run to run: ids and exact times."""
    tasks = sorted(queue.list(), key=lambda task: task.created)
    return [
        (
            task.status,
            task.payload,
            task.priority,
            task.attempts,
            task.error,
            task.delayed,
            task.lease_until and round((task.lease_until - (task.last_claim_at or 0)) / 30),
        )
        for task in tasks
    ], queue.paused()


class TestUndecodable:
    def test_it_is_a_dead_letter_after_one_try_and_blocks_nothing(
        self, queue: Queue, engine: sa.Engine
    ) -> None:
        queue.put("behind")
        queue.put("bad", task_id="bad")
        spoil(engine, "bad")
        assert payloads(queue.claim(limit=2)) == ["behind"]
        task = known(queue, "bad")
        assert (task.status, task.attempts, task.payload) == (TaskStatus.FAILURE, 1, "{oops")
        assert "cannot be decoded" in (task.error or "")

    def test_in_a_transaction_too(self, queue: Queue, engine: sa.Engine) -> None:
        queue.put("behind")
        queue.put("bad", task_id="bad")
        spoil(engine, "bad")
        with queue.transaction() as work:
            assert work is not None
            assert work.task.payload == "behind"
        assert counts(queue.stats()) == {"success": 1, "failure": 1}

    def test_one_that_changes_meanwhile_is_left_alone(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def conflict(*_arguments: object) -> None:
            raise Conflict(None)

        queue = Queue.sql(sqlite_url)
        queue.put("bad", task_id="bad")
        spoil(database_of(queue).engine, "bad")
        monkeypatch.setattr(SqlStore, "replace", conflict)
        assert queue.claim() == []
        said = "task bad changed before it could become a dead letter"
        assert said in [record.getMessage() for record in caplog.records]
        queue.close()

    def test_bytes_that_are_no_text(self, sqlite_url: str) -> None:
        queue = Queue.sql(sqlite_url)
        queue.put("bad", task_id="bad")
        engine = open_engine(sqlite_url)
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE tasks SET payload = CAST(x'ff' AS TEXT)"))
        engine.dispose()
        assert queue.claim() == []
        assert counts(queue.stats()) == {"failure": 1}
        queue.close()


class TestKeys:
    def test_they_are_compared_byte_by_byte(self, queue: Queue) -> None:
        names = ["a", "A", "a ", "á", "a\u0301", "ä", "b"]
        receipts = queue.put_many([{"payload": name, "task_id": name, "group": name} for name in names])
        assert {receipt.outcome for receipt in receipts} == {PutOutcome.CREATED}
        for name in names:
            assert known(queue, name).group == name
        assert sorted(ids(queue.claim(limit=10))) == sorted(names)

    def test_each_queue_of_a_table_has_its_own(self, engine: sa.Engine) -> None:
        one, other = (
            Queue(SqlStore(engine, queue=name), name=name, clock=time.time) for name in ("one", "other")
        )
        assert one.put("one's", task_id="a").outcome is PutOutcome.CREATED
        assert other.put("other's", task_id="a").outcome is PutOutcome.CREATED
        assert other.purge(confirm="other") == 1
        assert known(one, "a").payload == "one's"
        assert other.get("a") is None

    def test_what_postgresql_cannot_keep_is_replaced_in_errors(self, queue: Queue) -> None:
        assert queue.get("a\0") is None
        queue.put("work", task_id="a")
        queue.fail(queue.claim()[0], error="bad \0 byte")
        assert known(queue, "a").error == "bad \\0 byte"


class TestWhen:
    def test_a_poll_wakes_when_something_is_due(self, engine: sa.Engine) -> None:
        queue = Queue(SqlStore(engine), clock=time.time)
        assert queue.claim(wait_seconds=0) == []
        started = time.monotonic()
        queue.put("later", delay_seconds=0.3)
        assert payloads(queue.claim(wait_seconds=NEVER_SECONDS)) == ["later"]
        assert 0.2 < time.monotonic() - started < NEVER_SECONDS

    def test_a_poll_wakes_when_something_is_put_here(self, engine: sa.Engine) -> None:
        queue = Queue(SqlStore(engine), clock=time.time)
        with ThreadPoolExecutor(1) as pool:
            polled = pool.submit(queue.claim, wait_seconds=NEVER_SECONDS)
            queue.put("work")
            assert payloads(polled.result(PATIENCE_SECONDS)) == ["work"]

    def test_finished_tasks_go_when_their_retention_is_over(self, store: StoreUnderTest) -> None:
        queue = store.queue(retention_seconds=100)
        queue.put_many([{"payload": number} for number in range(450)])
        for claim in queue.claim(limit=450):
            queue.complete(claim)
        store.clock.advance(99)
        assert (queue.admin.recover(), total(queue)) == (0, 450)
        store.clock.advance(2)
        assert (queue.admin.recover(), total(queue)) == (0, 0)


class TestCompleteMany:
    def test_all_at_once_and_whose_lease_is_lost_says_so(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put_many([{"payload": number, "task_id": str(number)} for number in range(6)])
        lost, *claims = queue.claim(limit=4, lease_seconds=5)
        claims += queue.claim(lease_seconds=50)
        store.clock.advance(5)
        store.queue().put("new", task_id=lost.task.task_id, on_conflict="update")
        answers = queue.settle_many([Settlement.complete(claim) for claim in [lost, *claims]])
        assert isinstance(answers[0], LeaseLost)
        for claim, answer in zip(claims, answers[1:], strict=True):
            assert answer == known(queue, claim.task.task_id)
        assert counts(queue.stats()) == {"success": 4, "pending": 2}
        again = queue.settle_many([Settlement.complete(claim) for claim in claims])
        assert [type(answer) for answer in again] == [LeaseLost] * 4
        assert queue.settle_many([]) == []


class TestGroups:
    @pytest.mark.parametrize("order", [Order.FIFO, Order.LIFO, Order.ADAPTIVE])
    def test_they_take_turns(self, store: StoreUnderTest, order: Order) -> None:
        queue = store.queue(order=order)
        queue.put_many([{"payload": number, "group": "flood"} for number in range(40)])
        queue.put_many([{"payload": number, "group": "quiet"} for number in range(3)])
        queue.put("none")
        served = [claim.task.group for claim in queue.claim(limit=8)]
        assert (served.count("flood"), served.count("quiet"), served.count(None)) == (4, 3, 1)
        rest = queue.claim(limit=100)
        assert payloads(rest) == (list(range(35, -1, -1)) if order is Order.LIFO else list(range(4, 40)))


def create_index(connection: sa.Connection, name: str, *columns: str) -> None:
    """Create an index that the schema of the tables, which all stores share, does not have."""
    connection.execute(sa.text(f"CREATE INDEX {TABLE}_{name} ON {TABLE} ({', '.join(columns)})"))


class TestMigrations:
    @pytest.fixture
    def fresh(self, engine: sa.Engine) -> Iterator[sa.Engine]:
        """Return an engine of a database that has no tables of this name."""
        yield engine
        schema(TABLE, engine.dialect.name).metadata.drop_all(engine)

    def test_twice_and_several_at_once(self, fresh: sa.Engine) -> None:
        barrier = threading.Barrier(4)

        def start() -> list[str]:
            barrier.wait()
            return SqlStore(fresh, TABLE).migrate()

        with ThreadPoolExecutor(4) as pool:
            applied = list(chain(*pool.map(lambda _: start(), range(4))))
        assert applied == [migration.name for migration in MIGRATIONS]
        assert SqlStore(fresh, TABLE).migrate() == []
        queue = Queue(SqlStore(fresh, TABLE), clock=time.time)
        queue.put("work")
        assert payloads(queue.claim()) == ["work"]

    def test_an_interrupted_step_makes_what_is_missing(self, fresh: sa.Engine) -> None:
        """MariaDB commits each table and each index immediately."""
        store = SqlStore(fresh, TABLE)
        store.create_table()
        indexes = sa.inspect(fresh).get_indexes(TABLE)
        with fresh.begin() as connection:
            for index in store.schema.tasks.indexes:
                index.drop(connection)
            store.schema.history.drop(connection)
            connection.execute(store.schema.migrations.delete())
        assert store.migrate() == ["create the tables"]
        found = sa.inspect(fresh)
        assert {each["name"] for each in found.get_indexes(TABLE)} == {each["name"] for each in indexes}
        assert found.has_table(f"{TABLE}_history")

    @pytest.mark.parametrize(
        ("change", "kept"),
        [
            ("", {}),
            ("RESET (fillfactor, autovacuum_vacuum_scale_factor)", {}),
            (
                "SET (fillfactor = 80, autovacuum_enabled = off)",
                {"fillfactor": "80", "autovacuum_enabled": "off"},
            ),
        ],
    )
    def test_postgresql_stores_the_tasks_for_many_updates(
        self, postgres_engine: sa.Engine, change: str, kept: dict[str, str]
    ) -> None:
        """A table of before gets what it lacks, and keeps what somebody chose."""
        if change:
            with postgres_engine.begin() as connection:
                connection.execute(sa.text(f"ALTER TABLE tasks {change}"))
        assert SqlStore(postgres_engine).migrate() == []
        options = sa.text("SELECT reloptions FROM pg_class WHERE oid = to_regclass('tasks')")
        with postgres_engine.connect() as connection:
            found = dict(option.split("=") for option in connection.execute(options).scalar_one())
            connection.execute(sa.text(f"ALTER TABLE tasks RESET ({', '.join(found)})"))
            connection.commit()
        SqlStore(postgres_engine).migrate()
        assert found == STORAGE | kept

    def test_an_update_logs_only_the_difference(self, postgres_engine: sa.Engine) -> None:
        """The new version of a task fits into the page of the old one."""
        queue = Queue(SqlStore(postgres_engine), clock=time.time)
        tasks, payload_bytes = 300, 1_000
        queue.create_table()
        queue.put_many([{"payload": "x" * payload_bytes} for _ in range(tasks)])
        position = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
        with postgres_engine.connect() as connection:
            before = connection.scalar(sa.text(position))
            while claims := queue.claim(10):
                queue.settle_many(list(map(Settlement.complete, claims)))
            written = connection.scalar(sa.text(position)) - before
        # Twice the whole version would be 2,600 bytes and more.
        assert written / tasks < 1.3 * payload_bytes

    def test_a_step_that_failed_is_taken_again(self, fresh: sa.Engine) -> None:
        store = SqlStore(fresh, TABLE)

        def fail(connection: sa.Connection, _schema: object) -> None:
            connection.execute(sa.text("SELECT nonsense"))

        def index(connection: sa.Connection, _schema: object) -> None:
            create_index(connection, "more", "updated_us")

        number = MIGRATIONS[-1].version + 1
        steps = (*MIGRATIONS, Migration(number, "more", fail))
        with pytest.raises(StoreError):
            migrate(store.database, store.schema, steps)
        assert (
            migrate(store.database, store.schema, (*steps[:-1], Migration(number, "more", index)))[-1]
            == "more"
        )
        with pytest.raises(StoreError, match="newer"):
            store.create_table()

    def test_every_verb_names_a_missing_table(self, engine: sa.Engine) -> None:
        claim = prepared(Queue.memory())
        queue = Queue(SqlStore(engine, "nowhere"), clock=time.time)
        for verb in VERBS.values():
            with pytest.raises(TableMissing):
                verb(queue, claim)


@pytest.mark.usefixtures("no_pauses")
class TestConnections:
    @pytest.fixture
    def postgres_engine(self, postgres_engine: sa.Engine) -> Iterator[sa.Engine]:
        """Return the engine, and leave no dead connection in it."""
        yield postgres_engine
        postgres_engine.dispose()

    def test_a_dropped_connection_is_replaced(self, postgres_engine: sa.Engine) -> None:
        queue = Queue(SqlStore(postgres_engine), clock=time.time)
        with postgres_engine.connect() as killer:
            for name, verb in VERBS.items():
                unbroken = Queue.memory()
                answer = verb(unbroken, prepared(unbroken))
                queue.purge(confirm="default")
                queue.resume()
                claim = prepared(queue)
                killer.execute(
                    sa.text(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                    )
                )
                assert type(verb(queue, claim)) is type(answer), name
                assert state_of(queue) == state_of(unbroken), name

    def test_a_server_that_is_down_is_an_error_and_not_an_empty_queue(
        self, postgres_server: Server, postgres_engine: sa.Engine
    ) -> None:
        queue = Queue(SqlStore(postgres_engine), clock=time.time)
        queue.put("work")
        postgres_server.stop()
        try:
            with pytest.raises(Unreachable):
                queue.claim()
        finally:
            postgres_server.start()
        assert payloads(queue.claim()) == ["work"]

    def test_an_interrupt_is_not_retried(self, engine: sa.Engine) -> None:
        store = SqlStore(engine)
        calls: list[sa.Connection] = []

        def work(connection: sa.Connection) -> None:
            calls.append(connection)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.database.transaction(work)
        assert len(calls) == 1


@pytest.mark.usefixtures("no_pauses")
class TestLostReply:
    """The database carried out a statement, its reply was lost, and the statement is sent again."""

    @pytest.fixture(autouse=True)
    def replies(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[LostReplies]:
        """Lose the first reply to each unit of work."""
        lost = LostReplies(database_of(queue).engine, monkeypatch)
        yield lost
        assert lost.lost > 2

    def test_nothing_is_done_twice(self, queue: Queue, store: StoreUnderTest) -> None:
        assert queue.put("work", task_id="a").outcome is PutOutcome.CREATED
        assert queue.put("work", task_id="a").outcome is PutOutcome.DUPLICATE
        receipts = queue.put_many([{"payload": number, "task_id": str(number)} for number in range(3)])
        assert {receipt.outcome for receipt in receipts} == {PutOutcome.CREATED}
        assert queue.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
        assert queue.put("b", task_id="b", on_conflict="update").outcome is PutOutcome.CREATED
        claims = queue.claim(limit=2)
        assert ids(claims) == ["b", "a"]
        assert counts(queue.stats()) == {"taken": 2, "pending": 3}
        assert queue.settle_many([Settlement.complete(claim) for claim in claims[:1]]) == [known(queue, "b")]
        queue.retry(queue.extend(claims[1], lease_seconds=90), delay_seconds=4)
        queue.cancel("0")
        queue.redrive(["1"], as_new=True)
        queue.reprioritize("1", priority=4)
        store.clock.advance(4)
        assert queue.admin.recover() == 1
        assert counts(queue.stats()) == {"pending": 3, "cancelled": 1, "success": 1}
        queue.pause()
        assert queue.paused()

    def test_records(self, queue: Queue) -> None:
        store = core_of(queue).store
        assert store.write_record("q", "r", {"n": 1}, None)
        assert not store.write_record("q", "r", {"n": 2}, None)
        record = store.read_record("q", "r")
        assert record is not None
        assert store.write_record("q", "r", {"n": 3}, record.version)
        assert not store.write_record("q", "r", {"n": 4}, record.version)


class TestLostReplyOfAPut:
    """A put was committed, its reply was lost, and other processes act before it is sent again."""

    @pytest.fixture
    def meanwhile(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Meanwhile]:
        """Return a function that sets what happens between the two tries of the next call."""
        queue.claim()  # the first write of a queue decides about its options
        replies = LostReplies(database_of(queue).engine, monkeypatch, loses=False)

        def set_act(act: Callable[[], object]) -> None:
            replies.loses = replies.loses_once = True
            monkeypatch.setattr("freshq.stores.sql.database.time.sleep", lambda _seconds: act())

        yield set_act
        assert replies.lost == 1

    def test_an_update_that_ran_meanwhile_does_not_run_again(
        self, queue: Queue, meanwhile: Meanwhile
    ) -> None:
        queue.put("old", task_id="a")
        meanwhile(lambda: [queue.complete(claim) for claim in queue.claim()])
        assert queue.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
        assert (counts(queue.stats()), known(queue, "a").payload) == ({"success": 1}, "new")

    def test_nor_one_that_is_held(self, queue: Queue, meanwhile: Meanwhile) -> None:
        queue.put("old", task_id="a")
        claims: list[Claim] = []
        meanwhile(lambda: claims.extend(queue.claim()))
        assert queue.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
        assert queue.complete(claims[0]).payload == "new"

    def test_nor_one_that_another_put_replaced(self, queue: Queue, meanwhile: Meanwhile) -> None:
        queue.put("old", task_id="a")
        meanwhile(lambda: queue.put("newest", task_id="a", on_conflict="update"))
        assert queue.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
        assert known(queue, "a").payload == "newest"

    def test_a_new_task_that_was_updated_meanwhile_was_created(
        self, queue: Queue, meanwhile: Meanwhile
    ) -> None:
        meanwhile(lambda: queue.put("new", task_id="a", on_conflict="update"))
        assert queue.put("old", task_id="a", on_conflict="update").outcome is PutOutcome.CREATED
        assert known(queue, "a").payload == "new"


def test_a_claim_that_takes_a_recovered_task_again_hands_out_the_later_version(
    queue: Queue, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for task_id in ("a", "b"):
        queue.put("work", task_id=task_id)
    queue.claim()  # the next claim takes from the same line, before it looks for others
    store.clock.advance(1)  # it does look: the last look was long ago
    look = Search._look
    earlier: list[Task] = []

    def look_late(search: Search, take: Callable[[], bool]) -> None:
        earlier.extend(search._taken)
        store.clock.advance(61)
        queue.admin.recover()
        look(search, take)

    monkeypatch.setattr(Search, "_look", look_late)
    claims = {claim.task.task_id: claim.task for claim in queue.claim(limit=3)}
    assert claims == {task_id: known(queue, task_id) for task_id in ("a", "b")}
    for task in earlier:
        with pytest.raises(Conflict):
            core_of(queue).store.replace(task, Guard.unchanged(task))


class TestBatchesThatFail:
    @pytest.mark.usefixtures("no_pauses")
    def test_the_error_says_what_is_in_and_a_repetition_doubles_nothing(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.claim()  # the first write of a queue decides about its options
        replies = LostReplies(database_of(queue).engine, monkeypatch)
        replies.lost_from = 3
        tasks = [{"payload": number} for number in range(2_000)]
        with pytest.raises(PutIncomplete) as caught:
            queue.put_many(tasks)
        assert replies.lost == database.CALL_RETRY.max_tries
        replies.loses = False
        entries = list(zip(caught.value.task_ids, caught.value.receipts, strict=True))
        assert all(isinstance(entry, Receipt | StoreError) for _id, entry in entries)
        again = [
            task | {"task_id": task_id}
            for task, (task_id, entry) in zip(tasks, entries, strict=True)
            if isinstance(entry, StoreError)
        ]
        outcomes = [receipt.outcome for receipt in queue.put_many(again)]
        assert outcomes == [PutOutcome.DUPLICATE] * 500 + [PutOutcome.CREATED] * 500
        assert total(queue) == 2_000


class TestClock:
    def test_it_is_the_databases_and_seldom_asked(self) -> None:
        here, there, asked = [100.0], [5000.0], []

        def read() -> float:
            asked.append(here[0])
            return there[0]

        clock = DatabaseClock(read, lambda: here[0], measure_every_seconds=30)
        assert clock() == 5000.0
        first = len(asked)
        here[0] += 29
        assert clock() == 5029.0
        assert len(asked) == first
        here[0], there[0] = here[0] + 1, 5031.5  # the database's runs faster
        assert clock() == 5031.5

    def test_it_goes_on_while_the_database_does_not_answer(self) -> None:
        here, up = [0.0], [True]

        def read() -> float:
            if not up[0]:
                raise Unreachable("gone")
            return 70.0

        clock = DatabaseClock(read, lambda: here[0], measure_every_seconds=30)
        up[0] = False
        with pytest.raises(Unreachable):
            clock()
        up[0] = True
        assert clock() == 70.0
        up[0], here[0] = False, 40.0
        assert clock() == 110.0

    def test_of_each_database(self, engine: sa.Engine) -> None:
        store = SqlStore(engine)
        before, now, after = time.time(), store.clock(), time.time()
        assert before - 0.5 < now < after + 0.5
        assert store.clock() <= store.clock()


class TestUrl:
    @pytest.mark.parametrize(
        "url", ["", "tasks.db", "oracle://h/d", "sqlite://", "sqlite:///:memory:", 5, None, "nonsense://"]
    )
    def test_a_wrong_one(self, url: Any) -> None:
        with refused("url"):
            Queue.sql(url)

    @pytest.mark.parametrize("table", ["", "a b", "1a", "x" * 41, None, 'a"b', "a;b"])
    def test_a_wrong_table(self, table: Any) -> None:
        with refused("table"):
            Queue.sql("sqlite:///never-made.db", table=table)

    def test_the_driver_may_be_left_out(self) -> None:
        for url, driver in [("postgresql://h/d", "psycopg"), ("mysql://h/d", "pymysql")]:
            engine = open_engine(url)
            assert engine.dialect.driver == driver
            engine.dispose()
