"""A million tasks reach the end of their retention: bounded portions delete them, beside live work."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import sqlalchemy as sa

from freshq import Queue
from freshq.queue.core import core_of
from freshq.queue.upkeep import LARGE_PORTION, Portion
from freshq.stores.sql import SqlStore
from tests.conftest import DATABASES, Clock
from tests.support.readings import counts
from tests.support.statements import multiply
from tests.support.worker_threads import wait_until

SOAK_SECONDS: Final = float(os.environ.get("FRESHQ_SOAK_SECONDS", "4"))
ROWS: Final = min(1_000_000, round(5_000 * SOAK_SECONDS))
RETENTION_SECONDS: Final = 3600


@contextmanager
def deleted(engine: sa.Engine) -> Iterator[list[int]]:
    """Collect how many tasks each statement deletes."""
    found: list[int] = []

    def note(_connection: Any, cursor: Any, statement: str, *_others: Any) -> None:
        text = " ".join(statement.replace("`", "").split())
        if text.startswith(("DELETE FROM tasks ", "DELETE tasks FROM ")):
            found.append(cursor.rowcount)

    sa.event.listen(engine, "after_cursor_execute", note)
    yield found
    sa.event.remove(engine, "after_cursor_execute", note)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("database", DATABASES)
def test_a_million_tasks_past_their_retention(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    engine: sa.Engine = request.getfixturevalue(f"{database}_engine")
    clock = Clock()
    queue = Queue(SqlStore(engine), clock=clock, retention_seconds=RETENTION_SECONDS)
    queue.put("done", task_id="done")
    (claim,) = queue.claim()
    queue.complete(claim)
    multiply(engine, "done", ROWS - 1)
    clock.advance(RETENTION_SECONDS + 1)
    live, is_over, served = Queue(SqlStore(engine), clock=clock), threading.Event(), list[str]()

    def serve() -> None:
        while not is_over.is_set():
            receipt = live.put("live", max_age_seconds=600)
            (claim,) = live.claim()
            live.complete(claim)
            served.append(receipt.task_id)

    upkeep, portions = core_of(queue).upkeep, 0
    portion = upkeep.portion

    def portion_after_a_task(*bounds: Any) -> Portion:
        nonlocal portions
        before, portions = len(served), portions + 1
        wait_until(lambda: len(served) > before)
        return portion(*bounds)

    monkeypatch.setattr(upkeep, "portion", portion_after_a_task)
    thread = threading.Thread(target=serve)
    with deleted(engine) as statements:
        thread.start()
        queue.admin.recover()
        is_over.set()
        thread.join()
    assert sum(statements) == ROWS
    assert max(statements) <= LARGE_PORTION
    # Also of those that claims deleted beside it, each has a bound.
    assert len(statements) < 2 * ROWS / LARGE_PORTION + len(served)
    assert portions
    assert counts(queue.stats()) == {"success": len(served)}
