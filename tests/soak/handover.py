"""Processes that do upkeep or fire a schedule: `python -m tests.soak.handover upkeep URL NAME`."""

import sys
import time
from typing import Any, Final

from freshq import Queue
from freshq.feeds.schedules import Every, Schedule, Scheduler
from freshq.queue.core import core_of
from tests.support.patience import PATIENCE_SECONDS

PATIENT: Final[Any] = {
    "connect_timeout_seconds": PATIENCE_SECONDS,
    "answer_timeout_seconds": PATIENCE_SECONDS,
    "lock_timeout_seconds": PATIENCE_SECONDS,
}
WEEK_SECONDS: Final = 7 * 86_400.0


def ticks(seconds: str, catch_up: str) -> Schedule:
    """Return the schedule that the processes fire."""
    return Schedule.of("tick", Every(float(seconds)), "due", catch_up=int(catch_up))


def main(what: str, url: str, name: str, *more: str) -> None:
    """Say who this is, and work until killed."""
    queue = Queue.sql(url, name=name, max_age_seconds=WEEK_SECONDS, **PATIENT)
    print(core_of(queue).upkeep._holder, flush=True)
    if what == "schedule":
        Scheduler(queue, [ticks(*more)]).run()
    while True:
        queue.admin.upkeep()
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
