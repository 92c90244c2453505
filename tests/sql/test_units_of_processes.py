"""Several processes share the units of a group: by the history, no window took more than its bound."""

import random
from typing import Any, Final

import pytest
import sqlalchemy as sa

from freshq import GroupRule, GroupRules, Queue
from freshq.stores.sql.schema import schema
from tests.sql.workers import LIMITS, OPTIONS, Crew, work_within_limits

PROCESSES: Final = 4
RATE: Final = 1000.0
BURST: Final = 500.0
ENOUGH: Final = BURST + 3 * RATE
# Units are charged a moment before the write that claims their task, which a busy machine may delay.
SLACK_SECONDS: Final = 0.5
PATIENCE_SECONDS: Final = 120.0


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_several_processes_stay_within_the_units_of_a_group(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    options: dict[str, Any] = {**LIMITS, **OPTIONS}
    queue = Queue.sql(url, history=True, **options)
    queue.create_table()
    rule = GroupRule(units_per_second=RATE, burst_units=BURST)
    queue.configure(groups=GroupRules(of={"a": rule}))
    dice = random.Random(5)
    costs = {f"{number}": min(900.0, dice.lognormvariate(3, 1)) for number in range(2000)}
    queue.put_many([{"payload": 0, "group": "a", "task_id": name, "cost": costs[name]} for name in costs])
    history = schema("tasks", engine.dialect.name).history
    claimed = sa.select(history.c.task_id, history.c.at_us).where(history.c.status == "TAKEN")

    def claims() -> list[tuple[float, float]]:
        with engine.connect() as connection:
            return sorted((at_us / 1e6, costs[name]) for name, at_us in connection.execute(claimed))

    crew = Crew([(work_within_limits, (url,))] * PROCESSES, seed=3)
    try:
        assert crew.work_until(
            lambda: sum(units for _at, units in claims()) > ENOUGH, kills=0, within_seconds=PATIENCE_SECONDS
        )
    finally:
        crew.end()
    started = claims()
    queue.close()
    largest = max(units for _at, units in started)
    for place, (since, _units) in enumerate(started):
        used = 0.0
        for at, units in started[place:]:
            used += units
            assert used <= BURST + RATE * (at - since + SLACK_SECONDS) + largest
