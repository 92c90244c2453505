"""Findings of an examination of a SQL database."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from freshq.errors import StoreError
from freshq.stores.base import Health
from freshq.stores.sql import ConnectionLimits, SqlStore, examining
from freshq.stores.sql import store as store_module
from freshq.stores.sql.examining import DURABLE, SafeSetting
from freshq.stores.sql.migrations import MIGRATIONS, reached_version

NEWEST = MIGRATIONS[-1].version


def found(store: SqlStore) -> dict[str, tuple[Health, str, str]]:
    return {each.subject: (each.health, each.text, each.action) for each in store.examine()}


def test_tables_of_another_version(engine: sa.Engine) -> None:
    store = SqlStore(engine)
    migrations = store.schema.migrations
    newer = {"version": NEWEST + 1, "name": "of the future"}
    assert found(store)["table"] == (Health.OK, f"tasks, version {NEWEST}", "")
    with engine.connect() as connection, connection.begin() as transaction:
        assert reached_version(connection, store.schema) == NEWEST
        connection.execute(migrations.insert().values(newer))
        assert reached_version(connection, store.schema) == NEWEST + 1
        transaction.rollback()


@pytest.mark.parametrize(("reached", "health"), [(NEWEST - 1, Health.WARNING), (NEWEST + 1, Health.WRONG)])
def test_the_version_decides(
    sqlite_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, reached: int, health: Health
) -> None:
    monkeypatch.setattr(store_module, "reached_version", lambda *_arguments: reached)
    assert found(SqlStore(sqlite_engine))["table"][0] is health


def test_a_database_without_tables(engine: sa.Engine) -> None:
    store = SqlStore(engine, "absent")
    assert found(store) == {
        "table": (Health.WRONG, "absent does not exist", "freshq table create with the address of the queue")
    }


def test_a_password_without_tls(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqlStore(engine)
    assert "encryption" not in found(store)
    monkeypatch.setattr(store_module, "LOCAL_HOSTS", ())
    monkeypatch.setattr(engine, "url", engine.url.set(password="secret", host="far"))
    health = found(store).get("encryption", (None,))[0]
    assert health is (Health.WARNING if engine.dialect.name in store_module.ENCRYPTED else None)


def test_a_database_that_does_not_answer() -> None:
    with pytest.raises(StoreError):
        list(SqlStore("postgresql://u@127.0.0.1:1/none").examine())


SPOILED = {
    "index": ("DROP INDEX {index}", "lacks the index tasks_lines", "run: CREATE INDEX tasks_lines"),
    "other index": (
        "DROP INDEX {index}; CREATE INDEX tasks_lines ON tasks (queue)",
        "the index tasks_lines of tasks is invalid, or has other columns",
        "drop it, and run: CREATE INDEX tasks_lines",
    ),
    "column": ("ALTER TABLE tasks DROP COLUMN shed_reason", "tasks lacks the column shed_reason", "backup"),
    "table": ("DROP TABLE tasks_counts", "table tasks_counts does not exist", "backup"),
}


@pytest.fixture
def spoilt(engine: sa.Engine) -> Iterator[SqlStore]:
    """Return a store on tables of its own, which the test may change."""
    store = SqlStore(engine, "spoilt", queue="default")
    store.create_table()
    yield store
    store.history.end("default")
    with engine.begin() as connection:
        store.schema.metadata.drop_all(connection)


def run_all(store: SqlStore, text: str) -> None:
    is_mysql = store.database.dialect in ("mysql", "mariadb")
    index = "tasks_lines ON tasks" if is_mysql else "tasks_lines"
    with store.database.engine.begin() as connection:
        for statement in text.format(index=index).replace("tasks", "spoilt").split("; "):
            connection.exec_driver_sql(statement)


@pytest.mark.parametrize(("spoil", "text", "action"), SPOILED.values(), ids=SPOILED)
def test_tables_that_lack_something(spoilt: SqlStore, spoil: str, text: str, action: str) -> None:
    assert found(spoilt)["schema"][0] is Health.OK
    run_all(spoilt, spoil)
    wrong = [each for each in spoilt.examine() if each.health is Health.WRONG]
    assert [each.subject for each in wrong] == ["schema"]
    assert text.replace("tasks", "spoilt") in wrong[0].text
    assert action.replace("tasks", "spoilt") in wrong[0].action


def test_an_index_is_made_again_as_the_advice_says(spoilt: SqlStore) -> None:
    run_all(spoilt, "DROP INDEX {index}")
    with spoilt.database.engine.begin() as connection:
        connection.exec_driver_sql(found(spoilt)["schema"][2].removeprefix("run: "))
    assert found(spoilt)["schema"][0] is Health.OK


def test_a_history_without_its_triggers(spoilt: SqlStore) -> None:
    spoilt.history.begin("default", 60.0)
    assert found(spoilt)["schema"][0] is Health.OK
    on = " ON spoilt" if spoilt.database.dialect == "postgresql" else ""
    with spoilt.database.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TRIGGER spoilt_history_update{on}")
    health, text, action = found(spoilt)["schema"]
    assert (health, "history=on" in action) == (Health.WRONG, True)
    assert "spoilt_history_update" in text


def as_it_is(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> tuple[SafeSetting, ...]:
    """Let the settings of the test's server, which does not wait for the disk, count as safe."""
    settings = DURABLE[store.database.dialect]
    values = examining._values(store.database, settings)
    safe = tuple(each._replace(safe=(values.get(each.name, ""),)) for each in settings)
    monkeypatch.setattr(store_module, "DURABLE", {store.database.dialect: safe})
    return safe


def test_every_unsafe_setting_is_named(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqlStore(engine)
    settings = as_it_is(store, monkeypatch)
    assert found(store)["durability"][0] is Health.OK
    for setting in settings:
        others = [each for each in settings if each is not setting]
        if setting.safe == ("",):  # not of this server
            continue
        unsafe = (setting._replace(safe=("better",)), *others)
        monkeypatch.setattr(store_module, "DURABLE", {engine.dialect.name: unsafe})
        health, text, action = found(store)["durability"]
        assert (health, action) == (Health.WARNING, f"set {setting.name}=better")
        assert text.startswith(f"{setting.name}=")
        assert setting.loss in text


def test_a_server_that_does_not_wait_for_its_disk(postgres_engine: sa.Engine) -> None:
    store = SqlStore(postgres_engine)
    assert store.database.rows(sa.text("SHOW fsync"), {})[0][0] == "off"  # the tests need not survive
    warnings = [each for each in store.examine() if each.subject == "durability"]
    assert warnings[0].text.startswith("fsync=off: ")
    assert (warnings[0].health, warnings[0].action) == (Health.WARNING, "set fsync=on")


def test_a_role_that_does_not_wait_for_its_commits(
    postgres_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlStore(postgres_engine)
    as_it_is(store, monkeypatch)
    apart = sa.create_engine(postgres_engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with apart.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE hasty")
        connection.exec_driver_sql("ALTER ROLE hasty SET synchronous_commit = off")
        try:
            assert "synchronous_commit is off for hasty" in found(store)["durability"][1]
        finally:
            connection.exec_driver_sql("DROP ROLE hasty")
    assert found(store)["durability"][0] is Health.OK


def test_tables_that_a_crash_empties(postgres_engine: sa.Engine) -> None:
    store = SqlStore(postgres_engine, "unlogged")
    store.create_table()
    with postgres_engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE unlogged SET UNLOGGED")
    assert "UNLOGGED" in found(store)["durability"][1]
    with postgres_engine.begin() as connection:
        store.schema.metadata.drop_all(connection)


def test_sqlite_that_does_not_wait_for_the_disk(sqlite_url: str) -> None:
    for durable in (True, False):
        store = SqlStore(sqlite_url, limits=ConnectionLimits(durable=durable))
        health, text, _action = found(store)["durability"]
        assert health is (Health.OK if durable else Health.WARNING)
        assert f"synchronous={2 if durable else 1}" in text
        store.close()


def test_a_role_without_a_right(postgres_engine: sa.Engine) -> None:
    apart = sa.create_engine(postgres_engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    url = postgres_engine.url.set(username="reader")
    with apart.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE reader LOGIN")
        connection.exec_driver_sql("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        connection.exec_driver_sql("GRANT INSERT ON tasks TO reader")
        try:
            store = SqlStore(url)
            health, text, _action = found(store)["rights"]
            store.close()
            assert health is Health.WARNING
            assert "DELETE on tasks" in text
            assert "INSERT on tasks," not in text
        finally:
            connection.exec_driver_sql("DROP OWNED BY reader")
            connection.exec_driver_sql("DROP ROLE reader")
    assert found(SqlStore(postgres_engine))["rights"][0] is Health.OK
