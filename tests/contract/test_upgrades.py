"""Items and rows that earlier versions wrote are read, claimed and completed by this one.

`tests/contract/upgrades` has the tables of earlier commits, as their code wrote them.
"""

import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from freshq import Queue, StoreError, TaskStatus
from freshq.stores.sql.store import SqlStore
from tests.conftest import Clock
from tests.support.readings import ids, known

FOLDER: Final = Path(__file__).parent / "upgrades"
# When the old code wrote its tasks, and a little later.
WRITTEN_AT: Final = 1_790_000_020.0


@dataclass(frozen=True)
class Version:
    """A commit, and what its tables need before this version uses them.

    Attributes:
        commit: The commit.
        of: What it was.
        sql: What its SQL tables need.
    """

    commit: str
    of: str
    sql: str = "freshq table create"


VERSIONS: Final = (
    Version("67374605", "first SQL store"),
    Version("08b0bc1e", "before 42cfbc15"),
    Version("42cfbc15", "between the two"),
    Version("5ef997f4", "today's verbs"),
)


def saved(kind: str) -> list[Any]:
    """Return the saved tables of a store, one for each version that has it."""
    files = [(version, FOLDER / f"{version.commit}.{kind}.json") for version in VERSIONS]
    return [pytest.param(file, id=version.commit) for version, file in files if file.exists()]


def check(queue: Queue) -> None:
    """Read every task, serve those that wait, and recover the one that was held."""
    assert {
        name: known(queue, name).status.value for name in ("success", "failure", "cancelled", "held")
    } == {
        "success": "SUCCESS",
        "failure": "FAILURE",
        "cancelled": "CANCELLED",
        "held": "TAKEN",
    }
    assert (known(queue, "success").result, known(queue, "failure").error) == (7, "wrong")
    assert known(queue, "short").status is TaskStatus.SHED
    stats = queue.stats()
    assert (stats.pending, stats.delayed, stats.taken) == (3, 1, 1)
    claims = queue.claim(limit=10)
    assert sorted(ids(claims)) == ["grouped", "high", "waiting"]
    assert claims[0].task.task_id == "high"
    assert [claim.task.payload for claim in claims] == [{"work": name} for name in ids(claims)]
    for claim in claims:
        assert queue.complete(claim).status is TaskStatus.SUCCESS


def check_later(queue: Queue, clock: Clock) -> None:
    clock.advance(4000)
    claims = queue.claim(limit=10)
    assert sorted(ids(claims)) == ["delayed", "held"]
    for claim in claims:
        queue.retry(claim, error="again", delay_seconds=0)
    assert sorted(ids(queue.claim(limit=10))) == ["delayed", "held"]


def as_stored(table: sa.Table, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with bytes where MariaDB has them."""
    kinds = {column.name: column.type.python_type for column in table.columns}
    return {
        name: value.encode() if kinds[name] is bytes and value is not None else value
        for name, value in row.items()
    }


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        pytest.param(kind, *param.values, id=f"{kind}-{param.id}")
        for kind in ("sqlite", "postgres", "mariadb")
        for param in saved(kind)
    ],
)
def test_tables_of_a_sql_database(request: pytest.FixtureRequest, kind: str, file: Path) -> None:
    table = f"old_{uuid.uuid4().hex[:8]}"
    engine: sa.Engine = request.getfixturevalue(f"{kind}_engine")
    old = json.loads(file.read_text(encoding="utf-8").replace("tasks", table))
    tables = sa.MetaData()
    with engine.begin() as connection:
        for statement in old["ddl"]:
            connection.exec_driver_sql(statement)
        tables.reflect(connection, only=lambda name, _: name.startswith(table))
        for name, rows in old["rows"].items():
            saved_rows = [as_stored(tables.tables[name], row) for row in rows]
            connection.execute(tables.tables[name].insert(), saved_rows)
    clock = Clock(WRITTEN_AT)
    store = SqlStore(engine, table)
    store.create_table()
    queue = Queue(store, clock=clock, max_age_seconds=86_400, order="fifo", override=True)
    try:
        check(queue)
        check_later(queue, clock)
    finally:
        tables.drop_all(engine)


def test_tables_of_a_later_version(sqlite_engine: sa.Engine) -> None:
    """An older program starts on newer tables and works; only its migration refuses."""
    with sqlite_engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE tasks ADD COLUMN of_later TEXT"))
        connection.execute(sa.text("INSERT INTO tasks_migrations VALUES (99, 'of later')"))
    queue = Queue(SqlStore(sqlite_engine))
    queue.put("work", task_id="a")
    (claim,) = queue.claim()
    assert queue.complete(claim, result=7).status is TaskStatus.SUCCESS
    assert known(queue, "a").result == 7
    with pytest.raises(StoreError, match="newer"):
        queue.create_table()
