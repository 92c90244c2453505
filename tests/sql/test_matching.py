"""Matching in a SQL database: locks that are skipped, and replies that are lost."""

from typing import Any

import pytest
import sqlalchemy as sa

from freshq import MatchQueue
from freshq.matching.stores.sql import SqlMatchStore, tables_of
from freshq.stores.sql.database import Database
from tests.support.lost_replies import LostReplies
from tests.support.matching import emptied_resources, join, names
from tests.support.refusals import refused

SPANISH = {"language": "Spanish"}


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_a_resource_that_another_caller_is_taking_is_skipped(
    request: pytest.FixtureRequest, database: str
) -> None:
    engine = emptied_resources(request.getfixturevalue(f"{database}_engine"))
    queue = MatchQueue(SqlMatchStore(engine))
    for name in ("first", "second"):
        join(queue, name, SPANISH)
    resources = tables_of("resources", engine.dialect.name).resources
    with engine.begin() as taking:
        taking.execute(
            sa.select(resources.c.token).where(resources.c.resource_id == "first").with_for_update()
        )
        assert names(queue.match(SPANISH)) == ["second"]
        assert queue.match(SPANISH) == []
    assert names(queue.match(SPANISH)) == ["first"]


def test_every_change_survives_a_lost_reply(
    sqlite_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = MatchQueue(SqlMatchStore(emptied_resources(sqlite_engine)))
    replies = LostReplies(sqlite_engine, monkeypatch)
    monkeypatch.setattr("freshq.stores.sql.database.time.sleep", lambda _seconds: None)
    join(queue, "Ellen", SPANISH)
    (match,) = queue.match(SPANISH)
    queue.release(queue.extend(match))
    (match,) = queue.match(SPANISH)
    queue.complete(match)
    assert queue.request(SPANISH, caller_id="ann") is None
    assert queue.offer("Ellen").caller_id == "ann"
    served = queue.request(SPANISH, caller_id="ann")
    assert served is not None
    queue.complete(served)
    assert queue.request(SPANISH, caller_id="bob") is None
    assert queue.abandon("bob") is True
    queue.unregister("Ellen")
    assert queue.get("Ellen") is None
    assert replies.lost > 9


def test_resources_are_read_by_pages(sqlite_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = MatchQueue(SqlMatchStore(emptied_resources(sqlite_engine)))
    for number in range(4):
        queue.register(f"{number}", attributes=SPANISH)
    reads: list[object] = []
    rows = Database.rows

    def counted(database: Database, statement: sa.Executable, parameters: Any) -> Any:
        reads.append(statement)
        return rows(database, statement, parameters)

    monkeypatch.setattr(Database, "rows", counted)
    monkeypatch.setattr("freshq.matching.stores.sql.PAGE_ROWS", 2)
    resources = queue.resources()
    assert [next(resources).resource_id for _ in range(2)] == ["0", "1"]
    assert len(reads) == 1
    assert [resource.resource_id for resource in resources] == ["2", "3"]
    assert len(reads) == 3


@pytest.mark.parametrize("table", ["", "a b", "1a", "x" * 41])
def test_wrong_table_names(table: str) -> None:
    with refused("table"):
        MatchQueue.sql("sqlite:///agents.db", table)
