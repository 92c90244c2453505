"""Setting of `benchmarks.overload`: loads, a burst, and the loop of the JavaScript prototype."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Any, Final

from freshq import Order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.simulate import Load

# The downstream: slots, seconds of each task, and its deadline.
SERVERS: Final = 4
TASK_SECONDS: Final = 1.0
DEADLINE_SECONDS: Final = 5.0
# A burst on top of a load below the capacity.
BURST_LOAD: Final = 0.8
BURST_FACTOR: Final = 10.0
BURST_SECONDS: Final = 20.0
# Load of the tenant alongside a flood.
QUIET_LOAD: Final = 0.2
# Orders that are both simulated and measured, by their name in the figures.
ORDERS: Final = {"LIFO": Order.LIFO, "adaptive": Order.ADAPTIVE, "FIFO": Order.FIFO}
# Tasks and deadlines of the application are longer, so that the emulator's time between two tasks of a slot
# weighs less. Each load lasts a number of seconds: longer up to the capacity, where fewer tasks arrive. The
# first seconds, in which a backlog grows, do not count.
MEASURED_SECONDS: Final = {0.5: 150.0, 1.0: 150.0, 2.0: 75.0, 4.0: 75.0, 10.0: 75.0}
MEASURED_TASK_SECONDS: Final = 3.0
MEASURED_DEADLINE_SECONDS: Final = DEADLINE_SECONDS / TASK_SECONDS * MEASURED_TASK_SECONDS
FIRST_SECONDS: Final = 30.0
BURST_STARTS: Final = 60.0
# The simulation covers the deadline of every task put within this time after the burst.
FOLLOWED_SECONDS: Final = BURST_STARTS - DEADLINE_SECONDS
SEEDS: Final = range(1, 501)
# Student's t for the 95 % interval of the mean of five hundred.
T_OF_SEEDS: Final = 1.965
# Spans on the page, in seconds from the start of the burst.
SPANS: Final = {
    "before": (-30, 0),
    "in the burst": (0, 20),
    "0 to 5 s after": (20, 25),
    "5 to 10 s after": (25, 30),
    "10 to 20 s after": (30, 40),
    "20 to 40 s after": (40, 60),
}
# After recovery, the share of each second stays within this of the share before the burst.
RECOVERED_WITHIN: Final = 0.05
# Arrivals, and tasks done in time, of one seed in a second or span.
Counts = tuple[int, int]


def ratio(counts: Sequence[Counts]) -> dict[str, float]:
    """Return the share of arrivals done in time and the half width of its 95 % interval over seeds.

    Arrivals differ between seeds, so the share is the ratio of the sums, and its variance comes from the
    residuals of the seeds (the ratio estimator of Cochran, Sampling Techniques, section 6.3).

    Args:
        counts: Arrivals, and those done in time, of each seed.
    """
    seeds, arrived = len(counts), sum(each for each, _done in counts)
    share = sum(done for _arrived, done in counts) / arrived
    squares = sum((done - share * each) ** 2 for each, done in counts)
    half = T_OF_SEEDS * math.sqrt(squares / (seeds * (seeds - 1))) * seeds / arrived
    return {"mean": round(share, 4), "half_width": round(half, 4)}


def recovery_seconds(seconds: Sequence[Mapping[str, float]], before: float) -> float | None:
    """Return the seconds from the burst until the share has recovered; None if it does not recover.

    Args:
        seconds: The share of each second.
        before: The share before the burst.
    """
    after = [each for each in seconds if each["second"] >= BURST_SECONDS]
    late = [each["second"] for each in after if each["mean"] < before - RECOVERED_WITHIN]
    if not late:
        return 0.0
    recovered = max(late) + 1
    return recovered - BURST_SECONDS if recovered <= after[-1]["second"] else None


def counts_of(created: Sequence[float], in_time: set[int]) -> dict[int, Counts]:
    """Return the counts of one seed by second from the start of the burst.

    The first tasks, which find an empty queue, do not count, nor do the last, whose deadline is after the
    end.

    Args:
        created: Arrival of each task.
        in_time: Indices of the tasks done in time.
    """
    last = BURST_STARTS + BURST_SECONDS + FOLLOWED_SECONDS
    found: dict[int, Counts] = {}
    for index, moment in enumerate(created):
        if BURST_STARTS / 2 <= moment < last:
            second = int(moment) - round(BURST_STARTS)
            arrived, done = found.get(second, (0, 0))
            found[second] = (arrived + 1, done + (index in in_time))
    return found


def _sum(counts: Mapping[int, Counts], start: int, end: int) -> Counts:
    chosen = [each for second, each in counts.items() if start <= second < end]
    return sum(arrived for arrived, _done in chosen), sum(done for _arrived, done in chosen)


def burst_figures(by_order: Mapping[str, Sequence[Mapping[int, Counts]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of every order by second and by span, and its recovery.

    Args:
        by_order: Counts of each seed by order.
    """
    found: dict[str, list[dict[str, Any]]] = {"by_second_of_burst": [], "after_burst": []}
    for order, by_seed in by_order.items():
        seconds = [
            {"second": second, **ratio([counts.get(second, (0, 0)) for counts in by_seed])}
            for second in sorted(set().union(*by_seed))
        ]
        spans = {name: ratio([_sum(counts, *span) for counts in by_seed]) for name, span in SPANS.items()}
        found["by_second_of_burst"] += [{"order": order, **each} for each in seconds]
        recovered = recovery_seconds(seconds, spans["before"]["mean"])
        found["after_burst"].append({"order": order, "recovery_seconds": recovered, "spans": spans})
    return found


# The JavaScript prototype queries the newest 10 tasks, starts one every 200 ms, and waits for all of them
# before it queries again, 500 ms later. Its downstream takes 3 tasks of 15 s at a time; the loop puts other
# tasks back. Without work it stops, and restarts with the next batch of the stream, at most 10 s after a put.
# It has no deadlines. The figures are scaled to other numbers of slots and service times.
PROTOTYPE_SLOTS: Final = 3
PROTOTYPE_SERVICE_SECONDS: Final = 15.0
PROTOTYPE_BATCH: Final = 10
PROTOTYPE_STAGGER_SECONDS: Final = 0.2
PROTOTYPE_PAUSE_SECONDS: Final = 0.5
PROTOTYPE_WINDOW_SECONDS: Final = 10.0


def ends_in_time(load: Load, slots: int, service_seconds: float) -> dict[int, float]:
    """Return the ends, in seconds, of the tasks that the prototype's loop completes in time, by index.

    Args:
        load: The tasks.
        slots: Tasks that the downstream takes at a time.
        service_seconds: Mean time of a task.
    """
    scale = service_seconds / PROTOTYPE_SERVICE_SECONDS
    batch = round(PROTOTYPE_BATCH * slots / PROTOTYPE_SLOTS)
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
            now = load.created[arrived] + PROTOTYPE_WINDOW_SECONDS * scale
            continue
        running: list[float] = []
        bounced: list[int] = []
        for place in range(min(batch, len(waiting))):
            started = now + (place + 1) * PROTOTYPE_STAGGER_SECONDS * scale
            task = waiting.pop()
            if sum(end > started for end in running) >= slots:
                bounced.append(task)
                continue
            running.append(started + load.service[task])
            if running[-1] <= load.deadline[task]:
                ends[task] = running[-1]
        for task in bounced:
            insort(waiting, task)
        now = max(running) + PROTOTYPE_PAUSE_SECONDS * scale
    return ends
