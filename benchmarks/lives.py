"""Records realistic, reproducible task lives: simulated load, written as landed events.

The simulator serves the load newest first, so waits, backlog and shed tasks look like a real queue's under
bursts. Retries, lost leases, dead letters, cancellations, removals by TTL, duplicates and reordered delivery
are added.
"""

from __future__ import annotations

import gzip
import random
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from freshq.policy.rules import OverloadRules
from freshq.simulate import Burst, Source, simulate_load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_MS: Final = 1_767_225_600_000
# Events per life below, with and without a burst, as measured.
EVENTS_PER_TASK: Final = 2.56
EVENTS_PER_TASK_WITHOUT_BURST: Final = 3.05
# Shorter in a short recording, so that tasks go stale there as well.
LONGEST_DEADLINE_SECONDS: Final = 300.0
# The capacity: tasks of one second each.
RATE_PER_SECOND: Final = 100.0
# Minimum number of servers of a recording of a given length, so that its tasks do not take hours.
LEAST_SERVERS: Final = 10
# Half of all tasks belong to one group.
GROUPS: Final = {"big": 0.5} | {f"group-{number:02}": 0.5 / 19 for number in range(19)}
TTL_DELAY_SECONDS: Final = 500.0
DUPLICATES_RATIO: Final = 0.01
# Records are shuffled in blocks of about one delivery.
SHUFFLED: Final = 2000
LEASE_SECONDS: Final = 60.0
# Shares of the served tasks: retried, held by a worker that vanished, failed.
RETRIED, LOST, FAILED = 0.03, 0.01, 0.02
# Shares of the tasks that are never served: cancelled, removed by TTL within the recording.
CANCELLED, REMOVED = 0.02, 0.18


@dataclass(slots=True)
class Event:
    """One change, in seconds from the start of the recording."""

    at: float
    task: int
    change: str
    status: str
    attempts: int
    more: str = ""


def write_events(
    folder: Path, events: int, files: int = 64, seed: int = 1, hours: float | None = None
) -> int:
    """Write events as gzip files of JSON Lines; return how many, without duplicates.

    Args:
        folder: The folder for the files.
        events: Approximate number of events, without duplicates.
        files: Number of files.
        seed: The same seed gives the same lines.
        hours: Length of the recording, with an even load; None: as short as `RATE_PER_SECOND` makes it, with
            a burst.
    """
    rng = random.Random(f"{seed}/lives")
    tape = _Tape(events, rng, seed, hours)
    lines = list(tape.lines())
    count = len(lines)
    delivered = []
    for start in range(0, count, SHUFFLED):
        block = lines[start : start + SHUFFLED]
        block += rng.sample(block, k=int(len(block) * DUPLICATES_RATIO))
        rng.shuffle(block)
        delivered += block
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(delivered) // files)
    for number in range(files):
        part = "".join(delivered[number * size : (number + 1) * size]).encode()
        # A fixed time in the header makes the bytes reproducible.
        data = gzip.compress(part, compresslevel=6, mtime=0)
        (folder / f"part-{number:04}.json.gz").write_bytes(data)
    return count


class _Tape:
    """The lives of one simulated load."""

    def __init__(self, events: int, rng: random.Random, seed: int, hours: float | None) -> None:
        tasks = events / (EVENTS_PER_TASK if hours is None else EVENTS_PER_TASK_WITHOUT_BURST)
        # A third of the time the load exceeds the capacity.
        duration_seconds = tasks / RATE_PER_SECOND / 1.4 if hours is None else hours * 3600
        burst = Burst(2.2, duration_seconds / 3, duration_seconds / 3) if hours is None else None
        rate_per_second = RATE_PER_SECOND if hours is None else tasks / duration_seconds
        servers = max(LEAST_SERVERS, round(rate_per_second))
        deadline_seconds = min(LONGEST_DEADLINE_SECONDS, duration_seconds / 10)
        source = Source(
            rate_per_second, duration_seconds, deadline_seconds,
            service_mean_seconds=servers / rate_per_second, burst=burst, groups=GROUPS, seed=seed,
        )  # fmt: skip
        self._load = source.load()
        self._run = simulate_load(self._load, OverloadRules(deadline_seconds), servers, seed)
        self._rng = rng

    def lines(self) -> Iterator[str]:
        """Yield the events as lines, by time."""
        found = [event for task in range(len(self._load)) for event in self._life(task)]
        found.sort(key=lambda event: (event.at, event.task))
        for number, event in enumerate(found):
            yield self._line(number, event)

    def _life(self, task: int) -> list[Event]:
        created = self._load.created[task]
        events = [Event(created, task, "INSERT", "PENDING", 0)]
        start, served = self._run.starts[task], self._run.fates[task] in (1, 2)
        chance = self._rng.random()
        if served:
            events += self._attempts(task, start, start + self._load.service[task], chance)
        elif chance < CANCELLED:
            events.append(Event(created + 100 * chance, task, "MODIFY", "CANCELLED", 0))
        elif chance < CANCELLED + REMOVED:
            gone = self._load.deadline[task] + TTL_DELAY_SECONDS * chance
            events.append(Event(gone, task, "REMOVE", "PENDING", 0, ',"ttl_removal":true'))
        return events

    def _attempts(self, task: int, start: float, end: float, chance: float) -> list[Event]:
        if chance < RETRIED:  # tried again once
            middle = start + (end - start) / 2
            return [
                self._taken(start, task, 1),
                Event(middle, task, "MODIFY", "PENDING", 1, f',"not_before_ms":{_ms(middle + 0.01)}'),
                Event(middle + 0.01, task, "MODIFY", "PENDING", 1),
                self._taken(middle + 0.02, task, 2),
                Event(end + 0.02, task, "MODIFY", "SUCCESS", 2),
            ]
        if chance < RETRIED + LOST:  # its worker vanished
            back = start + LEASE_SECONDS
            again = [Event(back, task, "MODIFY", "PENDING", 1), self._taken(back + 0.5, task, 2)]
            return [self._taken(start, task, 1), *again, Event(back + 1, task, "MODIFY", "SUCCESS", 2)]
        status = "FAILURE" if chance < RETRIED + LOST + FAILED else "SUCCESS"
        return [self._taken(start, task, 1), Event(end, task, "MODIFY", status, 1)]

    def _taken(self, at: float, task: int, attempts: int) -> Event:
        lease = sha256(f"{task}/{attempts}".encode()).hexdigest()[:16]
        more = f',"lease":"{lease}","worker":"w{task % 50}","lease_until_ms":{_ms(at + LEASE_SECONDS)}'
        return Event(at, task, "MODIFY", "TAKEN", attempts, more)

    def _line(self, number: int, event: Event) -> str:
        task, load = event.task, self._load
        updated = "" if event.change == "REMOVE" else f',"updated_ms":{_ms(event.at)}'
        removal = "" if "ttl_removal" in event.more else ',"ttl_removal":false'
        stream_ms = START_MS + int(event.at) * 1000
        return (
            f'{{"schema_version":1,"event_id":"{number:032x}","sequence":"{10**20 + number * 37}",'
            f'"change":"{event.change}","stream_ms":{stream_ms},"task_id":"task-{task:09}","queue":"default",'
            f'"status":"{event.status}","group":"{load.groups[task]}"{updated},'
            f'"created_ms":{_ms(load.created[task])},'
            f'"deadline_ms":{_ms(load.deadline[task])},"priority":0,"attempts":{event.attempts},'
            f'"expires_s":{START_MS // 1000 + int(load.deadline[task]) + 86_400}{removal}{event.more}}}\n'
        )


def _ms(seconds: float) -> str:
    return f"{START_MS + seconds * 1000:.3f}"
