"""The CoDel of each line that a process serves."""

from functools import partial

import pytest

from freshq.policy.order import Order
from freshq.policy.shedding import Codel
from freshq.queue.shared import admission
from freshq.queue.shared.admission import LineCodel
from freshq.testing import make_task

WAITED_SECONDS = 50.0
INTERVAL_SECONDS = 10.0
BEGAN = 1000.0


def sheds(codel: LineCodel, group: str, now: float) -> bool:
    """Serve a task that waited too long; return whether it is shed."""
    task = make_task("work", task_id=group, group=group, attempts=1, created=now - WAITED_SECONDS)
    return codel.sheds(task, now)


def sheds_behind(codel: LineCodel, group: str, now: float) -> bool:
    """Return whether a task that waits in a line would be shed."""
    task = make_task("work", task_id=group, group=group, attempts=0, created=now - WAITED_SECONDS)
    return codel.sheds_behind(task, now)


def test_of_too_many_lines_those_served_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_CODEL_LINES", 2)
    codel = LineCodel(partial(Codel, 1.0, INTERVAL_SECONDS, Order.FIFO))
    now = BEGAN + INTERVAL_SECONDS
    for group in ("first", "second"):
        assert [sheds(codel, group, moment) for moment in (BEGAN, now)] == [False, False]
        assert sheds(codel, group, now + 1)
    assert sheds(codel, "first", now + 1)
    assert not sheds(codel, "third", now + 1)
    assert sheds_behind(codel, "first", now + 1)
    assert not sheds_behind(codel, "second", now + 1)  # it begins anew
