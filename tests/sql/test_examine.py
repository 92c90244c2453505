"""What a look at a SQL database finds."""

import pytest
import sqlalchemy as sa

from freshq.errors import StoreError
from freshq.stores.base import Health
from freshq.stores.sql import SqlStore
from freshq.stores.sql import store as store_module
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


def test_a_server_that_may_lose_commits(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqlStore(engine)
    setting = store_module.DURABLE.get(engine.dialect.name)
    if setting is None:
        assert "durability" not in found(store)
        return
    name, query, _safe = setting
    value = store.database.rows(query, {})[0][0]
    for safe, health in (((value,), Health.OK), (("never",), Health.WARNING)):
        monkeypatch.setattr(store_module, "DURABLE", {engine.dialect.name: (name, query, safe)})
        assert found(store)["durability"][0] is health


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
