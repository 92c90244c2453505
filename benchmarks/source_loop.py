"""The loop of the system that freshq descends from, simulated: newest first, in batches behind a barrier.

It queries the newest 10 tasks, starts one every 200 ms, and waits for all of them before it queries again,
500 ms later. Its downstream takes 3 tasks of 15 s at a time; what is started beyond those goes back. Without
work the loop ends, and starts again with the next batch of the stream, at most 10 s after a put. It has no
deadlines. Here these figures are scaled to other numbers of slots and service times.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from freshq.simulate import Load

SLOTS: Final = 3
SERVICE_SECONDS: Final = 15.0
BATCH: Final = 10
STAGGER_SECONDS: Final = 0.2
PAUSE_SECONDS: Final = 0.5
WINDOW_SECONDS: Final = 10.0


def ends_in_time(load: Load, slots: int, service_seconds: float) -> dict[int, float]:
    """Return when tasks ended that ended by their deadline, in seconds, by their index.

    Args:
        load: The tasks.
        slots: Tasks that the downstream takes at a time.
        service_seconds: Time that it takes for one, on average.
    """
    scale = service_seconds / SERVICE_SECONDS
    batch = round(BATCH * slots / SLOTS)
    ends: dict[int, float] = {}
    waiting: list[int] = []
    arrived, now = 0, 0.0
    while now < load.duration_seconds:
        newly = bisect_right(load.created, now)
        waiting.extend(range(arrived, newly))
        arrived = newly
        if not waiting:
            if arrived == len(load):
                break
            now = load.created[arrived] + WINDOW_SECONDS * scale
            continue
        running: list[float] = []
        bounced: list[int] = []
        for place in range(min(batch, len(waiting))):
            started = now + (place + 1) * STAGGER_SECONDS * scale
            task = waiting.pop()
            if sum(end > started for end in running) >= slots:
                bounced.append(task)
                continue
            running.append(started + load.service[task])
            if running[-1] <= load.deadline[task]:
                ends[task] = running[-1]
        for task in bounced:
            insort(waiting, task)
        now = max(running) + PAUSE_SECONDS * scale
    return ends
