"""`put(connection=...)` takes connections and sessions of SQLAlchemy, also those for asyncio."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from local.servers import Postgres, Server
from pymysql.constants import CLIENT  # type: ignore[import-untyped]
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine

from freshq import AsyncQueue, Queue, StoreError
from freshq.errors import TableMissing, Unreachable
from freshq.policy.backlog_limit import BacklogLimit
from freshq.stores.sql import SqlStore
from freshq.stores.sql.transactions import migrate_with
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, known, total
from tests.support.refusals import refused
from tests.support.statements import database_of

ACCEPTED = (
    "must be a Connection or Session of SQLAlchemy, Django's connection, one of sqlite3, psycopg, "
    "PyMySQL or mysqlclient, or with AsyncQueue an AsyncConnection or AsyncSession"
)
Opening = Callable[[AsyncEngine], Any]


@asynccontextmanager
async def session(engine: AsyncEngine) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as opened, opened.begin():
        yield opened


@pytest.fixture
def apart(postgres_server: Postgres, postgres_engine: sa.Engine) -> AsyncEngine:
    """Return an engine for asyncio on empty tables."""
    del postgres_engine
    url = sa.make_url(postgres_server.url).set(drivername="postgresql+psycopg_async")
    return create_async_engine(url, poolclass=sa.NullPool)


def run(postgres: Postgres, program: Callable[[AsyncQueue], Any], **options: Any) -> None:
    async def bounded() -> None:
        async with AsyncQueue.sql(postgres.url, **options) as queue, asyncio.timeout(PATIENCE_SECONDS):
            await program(queue)

    asyncio.run(bounded())


def mapped(engine: AsyncEngine) -> Any:
    return engine.execution_options(schema_translate_map={None: "elsewhere"}).begin()


@pytest.mark.parametrize("opening", [AsyncEngine.begin, session, mapped])
@pytest.mark.parametrize("options", [{}, {"backlog": BacklogLimit(9)}])
def test_a_coroutines_transaction_takes_a_task(
    postgres_server: Postgres, apart: AsyncEngine, opening: Opening, options: dict[str, Any]
) -> None:
    async def program(queue: AsyncQueue) -> None:
        async with opening(apart) as connection:
            await connection.execute(sa.text("CREATE TEMPORARY TABLE own (n int) ON COMMIT DROP"))
            assert (await queue.put("one", task_id="a", connection=connection)).outcome == "CREATED"
            await queue.put_many(
                [{"payload": "two"}, {"payload": "a", "task_id": "a"}], connection=connection
            )
            assert await queue.get("a") is None  # not committed
        assert counts(await queue.stats()) == {"pending": 2}
        with pytest.raises(KeyError):
            async with opening(apart) as connection:
                await queue.put("undone", task_id="b", on_conflict="update", connection=connection)
                raise KeyError
        assert await queue.get("b") is None
        async with opening(apart) as connection:
            with refused("priority"):
                await queue.put("wrong", priority=11, connection=connection)
            await queue.put("right", task_id="c", connection=connection)
        assert await queue.get("c") is not None

    run(postgres_server, program, **options)


def test_a_cancelled_put_waits_for_no_lock_and_leaves_nothing(
    postgres_server: Postgres, apart: AsyncEngine
) -> None:
    async def program(queue: AsyncQueue) -> None:
        async with apart.begin() as first, apart.connect() as second:
            await queue.put("first", task_id="a", connection=first)
            putting = asyncio.create_task(queue.put("second", task_id="a", connection=second))
            while not await waiting(first):
                await asyncio.sleep(0.01)
            putting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await putting
        task = await queue.get("a")
        assert task is not None
        assert task.payload == "first"

    async def waiting(connection: AsyncConnection) -> bool:
        locks = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(await connection.scalar(locks))

    run(postgres_server, program)


def test_errors_of_a_coroutines_connection_are_translated(
    postgres_server: Postgres, apart: AsyncEngine
) -> None:
    async def program(queue: AsyncQueue) -> None:
        async with apart.connect() as connection:
            with pytest.raises(TableMissing):
                await queue.put("work", connection=connection)
            await connection.rollback()
            await connection.execute(sa.text("SET statement_timeout = 1"))
            await connection.close()
            with pytest.raises(StoreError):
                await queue.put("work", connection=connection)

    run(postgres_server, program, table="nowhere")


def test_a_driver_for_asyncio_that_cannot_connect(
    postgres_server: Postgres, apart: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session connects when it is first used; asyncpg then raises an OSError."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise ConnectionRefusedError("connect call failed")

    async def program(queue: AsyncQueue) -> None:
        async with AsyncSession(apart) as session:
            with pytest.raises(Unreachable):
                await queue.put("work", connection=session)

    monkeypatch.setattr(apart.dialect, "connect", refuse)
    run(postgres_server, program)


@pytest.mark.parametrize("opened", [orm.Session, lambda engine: orm.scoped_session(orm.sessionmaker(engine))])
def test_sessions(engine: sa.Engine, opened: Callable[[sa.Engine], orm.Session]) -> None:
    queue = Queue(SqlStore(engine))
    for end in ("rollback", "commit"):
        session = opened(engine)
        queue.put("work", task_id="a", connection=session)
        getattr(session, end)()
        session.close()
        assert total(queue) == (end == "commit")


@pytest.mark.parametrize("opened", [sa.Connection, orm.Session])
@pytest.mark.parametrize(
    "options", [{"schema_translate_map": {None: "elsewhere"}}, {"stream_results": True}, {"yield_per": 1}]
)
def test_options_of_the_callers_statements_are_not_the_queues(
    engine: sa.Engine, opened: Callable[[sa.Engine], Any], options: dict[str, Any]
) -> None:
    queue = Queue(SqlStore(engine), backlog=BacklogLimit(9))
    callers = sa.create_engine(engine.url, poolclass=sa.NullPool, execution_options=options)
    with opened(callers) as connection:
        for on_conflict in (None, "update"):
            queue.put("work", task_id="a", on_conflict=on_conflict, connection=connection)
            queue.put_many([{"payload": 1}, {"payload": 2}], connection=connection)
        connection.commit()
        kept = connection if opened is sa.Connection else connection.connection()
        assert {name: kept.get_execution_options()[name] for name in options} == options
    assert total(queue) == 5


class Routed(orm.Session):
    """Reads from one database, and writes to another."""

    def get_bind(self, *_given: Any, clause: Any = None, **_options: Any) -> Any:
        return self.info["writer" if isinstance(clause, sa.Update | sa.Delete) else "reader"]


def test_a_session_that_chooses_its_connection_by_the_statement(engine: sa.Engine, tmp_path: Path) -> None:
    queue = Queue(SqlStore(engine))
    reader = sa.create_engine(f"sqlite:///{tmp_path / 'copy.db'}")
    writer = sa.create_engine(engine.url, poolclass=sa.NullPool)
    with Routed(info={"reader": reader, "writer": writer}) as session:
        queue.put("work", task_id="a", connection=session)
        session.commit()
    assert total(queue) == 1


def goes_with(raw: Any, queue: Queue) -> None:
    """Put in the transaction of a driver's connection, and roll it back or commit it."""
    raw.execute("CREATE TABLE of_application (number integer)")
    raw.commit()
    for end in ("rollback", "commit"):
        raw.execute("INSERT INTO of_application VALUES (1)")
        assert queue.put("work", task_id="a", connection=raw).outcome == "CREATED"
        assert queue.put("other", task_id="a", connection=raw).outcome == "DUPLICATE"
        assert queue.put("newer", task_id="a", on_conflict="update", connection=raw).outcome == "UPDATED"
        queue.put_many([{"payload": n} for n in range(3)], connection=raw)
        getattr(raw, end)()
        assert total(queue) == (4 if end == "commit" else 0)
    assert known(queue, "a").payload == "newer"
    assert len(raw.execute("SELECT * FROM of_application").fetchall()) == 1


def test_a_connection_of_sqlite3(sqlite_url: str) -> None:
    with (
        Queue.sql(sqlite_url) as queue,
        closing(sqlite3.connect(str(sa.make_url(sqlite_url).database))) as raw,
    ):
        goes_with(raw, queue)
        with (
            Queue.sql("postgresql://h/d") as elsewhere,
            refused("connection"),
        ):
            elsewhere.put("work", connection=raw)


def test_a_connection_of_psycopg(postgres_server: Postgres, postgres_engine: sa.Engine) -> None:
    del postgres_engine
    address = postgres_server.url.replace("+psycopg", "")
    with Queue.sql(postgres_server.url) as queue, psycopg.connect(address) as raw:
        try:
            goes_with(raw, queue)
        finally:
            raw.rollback()
            raw.execute("DROP TABLE IF EXISTS of_application")


def test_a_connection_of_psycopg_keeps_its_handlers(
    postgres_server: Postgres, postgres_engine: sa.Engine
) -> None:
    del postgres_engine
    address = postgres_server.url.replace("+psycopg", "")
    with Queue.sql(postgres_server.url) as queue, psycopg.connect(address) as raw:
        for _ in range(2):
            queue.put("work", connection=raw)
        assert raw._notice_handlers == []


def test_a_connection_of_sqlite3_keeps_its_functions(sqlite_url: str) -> None:
    file = str(sa.make_url(sqlite_url).database)
    with Queue.sql(sqlite_url) as queue, closing(sqlite3.connect(file)) as raw:
        raw.create_function("regexp", 2, lambda _pattern, _text: "its own", deterministic=True)
        queue.put("work", connection=raw)
        assert raw.execute("SELECT 'a' REGEXP 'b'").fetchone() == ("its own",)


def test_tables_are_migrated_through_a_connection_of_sqlite3(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as raw, Queue.sql(f"sqlite:///{file}") as queue:
        for end in ("ROLLBACK", "COMMIT"):
            raw.execute("BEGIN")
            assert migrate_with(raw, "tasks", "sqlite")[0] == "create the tables"
            raw.execute(end)
        assert migrate_with(raw, "tasks", "sqlite") == []
        assert queue.put("work").outcome == "CREATED"
        with refused("connection"):
            migrate_with(raw.cursor(), "tasks", "sqlite")


@pytest.mark.parametrize("found_rows", [0, CLIENT.FOUND_ROWS])
def test_a_connection_of_pymysql(mariadb_server: Server, mariadb_engine: sa.Engine, found_rows: int) -> None:
    url = mariadb_engine.url
    with (
        Queue.sql(mariadb_server.url) as queue,
        closing(
            pymysql.connect(
                user=url.username,
                host=url.host,
                port=url.port or 0,
                database=url.database,
                client_flag=found_rows,
            )
        ) as raw,
    ):
        for end in ("rollback", "commit"):
            raw.begin()
            assert queue.put("work", task_id="a", connection=raw).outcome == "CREATED"
            assert queue.put("other", task_id="a", connection=raw).outcome == "DUPLICATE"
            assert queue.put("newer", task_id="a", on_conflict="update", connection=raw).outcome == "UPDATED"
            queue.put_many([{"payload": n} for n in range(3)], connection=raw)
            getattr(raw, end)()
            assert total(queue) == (4 if end == "commit" else 0)
        assert known(queue, "a").payload == "newer"


def test_a_connection_whose_character_set_lacks_letters(mariadb_engine: sa.Engine) -> None:
    """Unless the SQL mode is strict, MariaDB replaces them without an error."""
    queue, payload = Queue(SqlStore(mariadb_engine)), {"日本": '\U0001f600 \\ "'}
    url = mariadb_engine.url.update_query_dict({"charset": "utf8"})
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.exec_driver_sql("SET SESSION sql_mode = ''")
        queue.put(payload, task_id="a", group="\U0001f600", connection=connection)
        queue.put_many([{"payload": payload, "task_id": "b"}, {"payload": 1}], connection=connection)
        queue.put("", task_id="c", connection=connection)
        queue.put(payload, task_id="c", on_conflict="update", connection=connection)
    assert known(queue, "a").group == "\U0001f600"
    assert [known(queue, task_id).payload for task_id in "abc"] == [payload] * 3


def test_a_connection_of_psycopg_for_asyncio(postgres_server: Postgres, apart: AsyncEngine) -> None:
    del apart  # its tables are empty
    address = postgres_server.url.replace("+psycopg", "")

    async def program(queue: AsyncQueue) -> None:
        async with await psycopg.AsyncConnection.connect(address) as raw:
            for end in (raw.rollback, raw.commit):
                await raw.execute("CREATE TEMPORARY TABLE own (n int) ON COMMIT DROP")
                assert (await queue.put("one", task_id="a", connection=raw)).outcome == "CREATED"
                await queue.put_many([{"payload": n} for n in range(3)], connection=raw)
                assert await queue.get("a") is None  # not committed
                assert (await (await raw.execute("SELECT count(*) FROM tasks")).fetchone()) == (4,)
                await end()
            assert counts(await queue.stats()) == {"pending": 4}
            assert raw._notice_handlers == []
            given: Any = raw
            with refused("connection"):
                queue.queue.put("work", connection=given)
        async with AsyncQueue.sql("sqlite:///elsewhere.db") as elsewhere:
            with refused("connection"):
                await elsewhere.put("work", connection=raw)

    run(postgres_server, program)


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (lambda engine: engine, r"sqlalchemy\.engine\.base\.Engine; begin a transaction: with engine\.begin"),
        (lambda _engine: sqlite3.connect(":memory:").cursor(), "got sqlite3.Cursor"),
        (lambda _engine: 5, "got builtins.int"),
        (lambda _engine: AsyncSession(), r"AsyncSession; await AsyncQueue\.put"),
        (
            lambda _engine: AsyncConnection(create_async_engine("postgresql+psycopg_async://h/d")),
            "await Async",
        ),
    ],
)
def test_anything_else_is_refused(engine: sa.Engine, given: Any, advice: str) -> None:
    queue = Queue(SqlStore(engine))
    with pytest.raises(ValueError, match=rf"^connection: {ACCEPTED}, got .*{advice.removeprefix('got ')}"):
        queue.put("work", connection=given(engine))
    assert total(queue) == 0


def test_a_coroutine_needs_one_for_asyncio_or_a_connection(sqlite_url: str) -> None:
    class Other:
        """Looks like a connection for asyncio."""

        run_sync = None

    async def program() -> None:
        async with AsyncQueue.sql(sqlite_url) as queue:
            await queue.create_table()
            for given in (Other(), create_async_engine("postgresql+psycopg_async://h/d")):
                other: Any = given
                with refused("connection"):
                    await queue.put("work", connection=other)
            assert counts(await queue.stats()) == {}

    asyncio.run(program())


def test_a_connection_to_another_kind_of_database(postgres_server: Postgres, sqlite_url: str) -> None:
    queue = Queue.sql(postgres_server.url)
    engine = sa.create_engine(sqlite_url)
    for opened in (engine.connect(), orm.Session(engine)):
        with opened, refused("connection"):
            queue.put("work", connection=opened)
    queue.close()


def test_a_database_without_the_table(sqlite_url: str) -> None:
    queue = Queue.sql(sqlite_url)
    with sa.create_engine(f"{sqlite_url}.other").connect() as connection:
        for _ in range(2):
            with pytest.raises(TableMissing):
                queue.put("work", connection=connection)
    queue.close()


def test_how_a_queue_is_opened() -> None:
    url: Any = "postgresql://user:secret@host/name"
    with refused("store") as error:
        Queue(url)
    assert "secret" not in str(error.value)


def test_the_recipe_for_a_session_of_fastapi(
    postgres_server: Postgres,
    apart: AsyncEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del apart  # its tables are empty
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text("utf-8")
    program = re.search(r"```python\n(# orders\.py\n.*?)```", page, re.DOTALL)
    assert program is not None
    monkeypatch.setenv("DATABASE", postgres_server.url.split("://")[1])
    found: dict[str, Any] = {}
    exec(program[1], found)
    with Queue.sql(postgres_server.url) as queue, database_of(queue).engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE orders (email text PRIMARY KEY)"))
    try:
        with TestClient(found["web"], raise_server_exceptions=False) as client:
            codes = [client.post("/orders", params={"email": "ada@example.com"}).status_code for _ in "ab"]
        with Queue.sql(postgres_server.url) as queue:
            assert (codes, counts(queue.stats())) == ([202, 500], {"pending": 1})
    finally:
        with Queue.sql(postgres_server.url) as queue, database_of(queue).engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE orders"))
