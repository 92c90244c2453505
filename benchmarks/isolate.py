"""Processor time of a run in a process of its own, beside the same run in a thread.

Both work off a queue in memory, so that the store costs little. The start of the processes is not part of the
price: the time of one task is subtracted from the time of many. The minimum of the rounds counts.
"""

from __future__ import annotations

import logging
import resource
from functools import partial

from benchmarks import figures
from benchmarks.figures import in_turns
from freshq import Queue, Task, Worker

SLOTS = (1, 4)
PAYLOAD = "x" * 1024
WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def run(task: Task) -> int:
    """Do next to nothing."""
    return len(task.payload)


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(each.ru_utime + each.ru_stime for each in map(resource.getrusage, WHO))


def seconds(tasks: int, slots: int, *, isolate: bool) -> float:
    """Return the processor time of a worker that runs a number of tasks."""
    queue = Queue.memory()
    queue.put_many([{"payload": PAYLOAD}] * tasks)
    before = processor_seconds()
    report = Worker(queue, run, concurrency=slots, isolate=isolate, idle_exit_seconds=0).run()
    assert sum(report.outcomes.values()) >= tasks
    return processor_seconds() - before


def microseconds(rounds: int, tasks: int) -> dict[tuple[int, bool], float]:
    """Return the processor time of one more task, in µs, by slots and whether in processes."""
    contenders = {
        (slots, isolate, number): partial(seconds, number, slots, isolate=isolate)
        for slots in SLOTS
        for isolate in (False, True)
        for number in (tasks, 1)
    }
    least = {name: min(found) for name, found in in_turns(contenders, rounds).items()}
    return {
        (slots, isolate): 1e6 * (many - least[slots, isolate, 1]) / (tasks - 1)
        for (slots, isolate, number), many in least.items()
        if number > 1
    }


def main(rounds: int = 5, tasks: int = 3000) -> None:
    """Measure with one slot and with several."""
    logging.disable(logging.WARNING)
    found = microseconds(rounds, tasks)
    by_slots = {
        str(slots): {
            "thread_us": round(found[slots, False], 1),
            "process_us": round(found[slots, True], 1),
        }
        for slots in SLOTS
    }
    figures.write("isolate", {"rounds": rounds, "tasks": tasks, "slots": by_slots})
