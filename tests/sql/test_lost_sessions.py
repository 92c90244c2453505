"""A session that ends at any call of the driver raises freshq's errors, from every verb."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from freshq import Queue
from freshq.errors import FreshqError
from freshq.stores.sql import SqlStore
from tests.support.dying_driver import DyingDriver


def in_transaction(queue: Queue) -> None:
    with queue.transaction() as held:
        assert held is not None


def failing_in_transaction(queue: Queue) -> None:
    with pytest.raises(LookupError), queue.transaction():
        raise LookupError


def puts(queue: Queue) -> None:
    queue.put("x", on_conflict="update", task_id="same")
    queue.put_many([{"payload": number} for number in range(3)])


def claims(queue: Queue) -> None:
    for claim in queue.claim(2):
        queue.extend(claim, lease_seconds=60)
        queue.retry(claim)


def the_rest(queue: Queue) -> None:
    queue.pause()
    queue.resume()
    queue.stats()
    queue.list("FAILURE")
    queue.admin.recover()


VERBS: dict[str, Callable[[Queue], object]] = {
    "transaction": in_transaction,
    "transaction that fails": failing_in_transaction,
    "create_table": lambda queue: queue.create_table(),
    "puts": puts,
    "claims": claims,
    "others": the_rest,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("dialect", ["postgres", "mariadb"])
def test_the_error_of_a_driver_is_translated_wherever_it_comes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, dialect: str, verb: str
) -> None:
    engine: sa.Engine = request.getfixturevalue(f"{dialect}_engine")
    queue = Queue(SqlStore(engine))
    queue.put_many([{"payload": number, "task_id": f"{number}"} for number in range(40)])
    VERBS[verb](queue)
    monkeypatch.setattr("freshq.stores.sql.database.time.sleep", lambda _seconds: None)
    driver = DyingDriver(engine, monkeypatch)
    lost = 0
    while driver.dies_at is None or driver.calls >= driver.dies_at:
        lost += 1
        driver.calls, driver.dies_at = 0, lost
        try:
            VERBS[verb](queue)
        except FreshqError:
            continue
    assert lost > 2
