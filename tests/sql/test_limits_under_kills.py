"""Workers die by SIGKILL while groups have limits: by the history, no claim ever exceeded one."""

import time
from collections import Counter
from typing import Any, Final

import pytest
import sqlalchemy as sa

from freshq import GroupRule, GroupRules, Queue
from freshq.stores.sql.schema import schema
from tests.sql.workers import LIMITS, OPTIONS, Crew, rows, work_within_limits
from tests.support.readings import counts

PROCESSES: Final = 8
KILLS: Final = 24
BEFORE: Final = GroupRules(
    of={"a": GroupRule(max_running=2), "acme": GroupRule(max_running=3)}, separator="/"
)
AFTER: Final = GroupRules(of={"a": GroupRule(max_running=1), "acme": GroupRule(max_running=5)}, separator="/")
GROUPS: Final = ("a", "acme/1", "acme/2", "acme/3", "free")
# Every process follows a change of the rules within this time; a claim may have begun just before.
FOLLOWED_SECONDS: Final = 6.0
PATIENCE_SECONDS: Final = 120.0
LEFT: Final = "SELECT count(*) FROM tasks WHERE status <> 'SUCCESS'"
CLAIMED_GROUPS: Final = "SELECT count(DISTINCT task_group) FROM tasks WHERE attempts > 0"


def most_running(engine: sa.Engine, since: float, until: float) -> Counter[str]:
    """Return the largest number of tasks under a live lease at any claim, by group and parent.

    Args:
        engine: The database.
        since: Claims before this time do not count.
        until: Claims from this time on do not count.
    """
    history = schema("tasks", engine.dialect.name).history
    columns = (history.c[name] for name in ("task_id", "task_group", "status", "at_us", "lease_until_us"))
    with engine.connect() as connection:
        events = connection.execute(sa.select(*columns).order_by(history.c.event_id)).all()
    held: dict[str, tuple[str, int]] = {}
    most: Counter[str] = Counter()
    for task_id, group, status, at_us, lease_until_us in events:
        if status != "TAKEN":
            held.pop(task_id, None)
            continue
        held[task_id] = group, lease_until_us
        if since * 1e6 <= at_us < until * 1e6:
            live = [name for name, until_us in held.values() if until_us > at_us]
            running = Counter(live) + Counter("acme" for name in live if name.startswith("acme/"))
            most |= running
    return most


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_no_claim_exceeds_a_limit_however_many_workers_die(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    options: dict[str, Any] = {**LIMITS, **OPTIONS}
    queue = Queue.sql(url, history=True, **options)
    queue.create_table()
    queue.configure(groups=BEFORE)
    number_of_tasks = 0
    began, changing_at, changed_at = time.time(), 0.0, 0.0

    def put() -> None:
        nonlocal number_of_tasks
        queue.put_many([{"payload": 0, "group": group} for group in GROUPS for _ in range(20)])
        number_of_tasks += 20 * len(GROUPS)

    def done() -> bool:
        nonlocal changing_at, changed_at
        if not changed_at and crew.killed >= KILLS // 2 and rows(engine, CLAIMED_GROUPS)[0][0] == len(GROUPS):
            changing_at = time.time()  # a worker may follow the change before the call returns
            queue.configure(groups=AFTER)
            changed_at = time.time()
        waiting = rows(engine, LEFT)[0][0]
        if changed_at and crew.killed >= KILLS and time.time() > changed_at + FOLLOWED_SECONDS + 3:
            return bool(waiting == 0)
        if waiting < 40:
            put()
        return False

    put()
    crew = Crew([(work_within_limits, (url,))] * PROCESSES, seed=3)
    try:
        assert crew.work_until(done, kills=KILLS, within_seconds=PATIENCE_SECONDS)
    finally:
        crew.end()
    assert counts(queue.stats()) == {"success": number_of_tasks}
    before = most_running(engine, began, changing_at)
    after = most_running(engine, changed_at + FOLLOWED_SECONDS, time.time())
    queue.close()
    # A busy machine may reach fewer.
    assert 1 <= before["a"] <= 2
    assert 1 <= before["acme"] <= 3
    assert after["a"] == 1
    assert 1 <= after["acme"] <= 5
