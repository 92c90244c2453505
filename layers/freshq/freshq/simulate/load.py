"""Loads of a simulation: drawn at random, or recorded by a queue in its events.

A recording has one JSON object per task, on a line or in a row of a Parquet file; `Arrival` is its schema.
It has the properties that a queue cannot choose: when a task arrived, how long it runs, when it is stale.
Waits are left out, because they depend on the settings. It has no ids and no payloads.
"""

from __future__ import annotations

import gzip
import json
import math
from array import array
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, repeat
from operator import add, mul
from random import Random
from sys import intern
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from freshq.errors import needs, quoted
from freshq.model.task import MAX_PRIORITY, TaskStatus
from freshq.model.validation import problem_of
from freshq.policy.value import DEFAULT_VALUE, LARGEST_VALUE, Decay, value_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


Kind = TypeVar("Kind", int, str, float)
# A simulation keeps 33 bytes per task; this many take a third of a gigabyte.
MAX_TASKS: Final = 10_000_000
# Sigma of a lognormal service time, whose squared coefficient of variation is then e - 1 = 1.72.
LOGNORMAL_SIGMA: Final = 1.0
# No exponential draw is more than this many times its mean: random numbers have 53 bits.
LONGEST_DRAW: Final = 37.0


class ArrivalProcess(StrEnum):
    """The distribution of arrivals, unless they are read from a file."""

    POISSON = "poisson"
    DETERMINISTIC = "deterministic"


class ServiceDistribution(StrEnum):
    """Distribution of service times: exponential, constant, or lognormal with sigma 1."""

    EXP = "exp"
    DET = "det"
    LOGNORMAL = "lognormal"


class DeadlineDistribution(StrEnum):
    """Distribution of max ages: constant, or exponential."""

    DET = "det"
    EXP = "exp"


@dataclass(frozen=True, slots=True)
class Burst:
    """A period of higher load.

    Attributes:
        factor: Multiple of the usual rate, greater than 1.
        start: When it begins, in seconds from the start of the simulation.
        seconds: Its length.
    """

    factor: float
    start: float
    seconds: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        sound = 1 < self.factor < math.inf and 0 <= self.start < math.inf and 0 < self.seconds < math.inf
        if not sound:
            msg = "burst: needs a factor above 1, a start of 0 s or later and a length above 0 s, got "
            raise ValueError(msg + f"{self.factor:g}@{self.start:g}+{self.seconds:g}")

    @property
    def end(self) -> float:
        """When it ends, in seconds."""
        return self.start + self.seconds

    @classmethod
    def parse(cls, text: str) -> Burst:
        """Return the burst written as ``FACTOR@START+SECONDS``, such as ``10@300+60``."""
        try:
            factor, _, span = text.partition("@")
            start, _, seconds = span.partition("+")
            numbers = float(factor), float(start), float(seconds)
        except ValueError:
            msg = f"burst: must look like FACTOR@START+SECONDS, such as 10@300+60, got {quoted(text)}"
            raise ValueError(msg) from None
        return cls(*numbers)


@dataclass(frozen=True, slots=True)
class Load:
    """The tasks of one simulation, in order of arrival; times are in seconds from its start.

    Attributes:
        created: Arrival time of each task, ascending.
        service: Service time of each task, in seconds.
        deadline: Deadline of each task.
        duration_seconds: How long tasks arrive.
        levels: Priority level of each task; empty if all are 0.
        groups: Group of each task; empty if none has one.
        values: Value of each task; empty if all have the same.
        decays: 1 for each task whose value falls steadily until its deadline; empty if there is none.
    """

    created: array[float]
    service: array[float]
    deadline: array[float]
    duration_seconds: float
    levels: Sequence[int] = b""
    groups: Sequence[str] | Sequence[str | None] = ()
    values: Sequence[float] = ()
    decays: Sequence[int] = b""

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.created)

    def worth(self, task: int, done: float) -> float:
        """Return what a task is worth if it is done at a time in seconds."""
        value = self.values[task] if self.values else DEFAULT_VALUE
        decays = bool(self.decays and self.decays[task])
        return value_at(done, value, self.created[task], self.deadline[task], decays=decays)


@dataclass(frozen=True, slots=True)
class Source:
    """A recipe for a load.

    Attributes:
        rate_per_second: Arrivals per second outside the burst.
        duration_seconds: How long tasks arrive.
        deadline_seconds: Mean age at which a task is stale.
        arrivals: How arrivals are spread.
        service: Distribution of the service times.
        service_mean_seconds: Mean service time.
        burst: A period of higher load.
        groups: Share of the tasks by group, relative to the sum of shares.
        priorities: Share of the tasks by priority level.
        values: Share of the tasks by value.
        max_ages_seconds: Mean age at which tasks of a value are stale, where it differs.
        deadline: Distribution of these ages.
        seed: The same seed gives the same load.
    """

    rate_per_second: float
    duration_seconds: float
    deadline_seconds: float
    arrivals: ArrivalProcess = ArrivalProcess.POISSON
    service: ServiceDistribution = ServiceDistribution.EXP
    service_mean_seconds: float = 1.0
    burst: Burst | None = None
    groups: Mapping[str, float] = field(default_factory=dict)
    priorities: Mapping[int, float] = field(default_factory=dict)
    values: Mapping[float, float] = field(default_factory=dict)
    max_ages_seconds: Mapping[float, float] = field(default_factory=dict)
    deadline: DeadlineDistribution = DeadlineDistribution.DET
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        names = ("rate_per_second", "duration_seconds", "deadline_seconds", "service_mean_seconds")
        for name in names:
            positive(name, getattr(self, name))
        for name in ("groups", "priorities", "values", "max_ages_seconds"):
            for member, share in getattr(self, name).items():
                positive(f"{name}.{member}", share)
        if self.burst is not None and self.burst.end >= self.duration_seconds:
            msg = f"burst: must end before the run does, at {self.duration_seconds:g} s; it ends at "
            raise ValueError(msg + f"{self.burst.end:g} s")
        expected = sum(rate * (end - start) for start, end, rate in self._segments())
        if expected > MAX_TASKS:
            msg = f"duration_seconds: about {expected:,.0f} tasks would arrive, more than {MAX_TASKS:,}; "
            raise ValueError(msg + "shorten it")

    def load(self) -> Load:
        """Draw the load."""
        times = array("d")
        rng = self._stream("arrivals")
        for start, end, rate in self._segments():
            times.extend(_arrivals(self.arrivals, rate, start, end, rng))
        count = len(times)
        values = array("d", _choices(self.values, count, self._stream("values")))
        return Load(
            created=times,
            service=services(self.service, self.service_mean_seconds, count, self._stream("services")),
            deadline=array("d", map(add, times, self._ages(count, values))),
            duration_seconds=self.duration_seconds,
            levels=bytes(_choices(self.priorities, count, self._stream("priorities"))),
            groups=_choices(self.groups, count, self._stream("groups")),
            values=values,
        )

    def _ages(self, count: int, values: Sequence[float]) -> Iterable[float]:
        """Return the age at which each task is stale."""
        ages: Iterable[float] = repeat(self.deadline_seconds, count)
        if self.max_ages_seconds:
            ages = [self.max_ages_seconds.get(value, self.deadline_seconds) for value in values]
        if self.deadline is DeadlineDistribution.EXP:
            return map(mul, ages, _exponential(1.0, count, self._stream("deadlines")))
        return ages

    def _segments(self) -> list[tuple[float, float, float]]:
        """Return (start, end, rate) of each period of constant rate."""
        rate, end = self.rate_per_second, self.duration_seconds
        if self.burst is None:
            return [(0.0, end, rate)]
        burst = self.burst
        parts = [(0.0, burst.start, rate), (burst.start, burst.end, rate * burst.factor)]
        return [*parts, (burst.end, end, rate)]

    def _stream(self, use: str) -> Random:
        # One random stream per use: other service times do not change the arrivals.
        return Random(f"{self.seed}/{use}")


def positive(name: str, value: float) -> None:
    """Check that a number is finite and greater than 0."""
    if not 0 < value < math.inf:
        msg = f"{name}: must be greater than 0, got {value:g}"
        raise ValueError(msg)


def services(service: ServiceDistribution, mean_seconds: float, count: int, rng: Random) -> array[float]:
    """Draw `count` service times."""
    if service is ServiceDistribution.DET:
        return array("d", [mean_seconds]) * count
    if service is ServiceDistribution.EXP:
        return array("d", _exponential(mean_seconds, count, rng))
    mu = math.log(mean_seconds) - LOGNORMAL_SIGMA**2 / 2
    return array("d", [rng.lognormvariate(mu, LOGNORMAL_SIGMA) for _ in range(count)])


def _exponential(mean: float, count: int, rng: Random) -> list[float]:
    log, random = math.log, rng.random
    return [-mean * log(1.0 - random()) for _ in range(count)]


def _arrivals(process: ArrivalProcess, rate: float, start: float, end: float, rng: Random) -> array[float]:
    """Return the times in [start, end) at which tasks arrive."""
    if process is ArrivalProcess.DETERMINISTIC:
        count = max(0, math.ceil((end - start) * rate - 1e-9))
        return array("d", [start + index / rate for index in range(count)])
    times = array("d")
    now = start
    while now < end:
        expected = (end - now) * rate
        gaps = _exponential(1 / rate, int(expected + 4 * math.sqrt(expected)) + 16, rng)
        times.extend(accumulate(gaps[1:], initial=now + gaps[0]))
        now = times[-1]
    while times and times[-1] >= end:
        times.pop()
    return times


def _choices(shares: Mapping[Kind, float], count: int, rng: Random) -> list[Kind]:
    return rng.choices(list(shares), list(shares.values()), k=count) if shares else []


# The version of the format that this version of freshq writes and reads.
VERSION: Final = 1
# A service shorter than the resolution of a clock counts as this.
SHORTEST_SECONDS: Final = 1e-6
# How long after its deadline, by the clock of the events, a claim of a task may still be read.
LATE_MS: Final = 60_000.0
# After this many events, waiting tasks that are long stale are written and forgotten.
SWEEP_EVENTS: Final = 20_000
# The last tasks that ended, to recognize repeated events.
MOST_ENDED: Final = 200_000
PARQUET: Final = ".parquet"
OVER: Final = frozenset({"SUCCESS", "FAILURE", "CANCELLED", "SHED"})


class Arrival(BaseModel):
    """One task of a recording.

    Attributes:
        at_seconds: When the task arrived, by any clock. The simulation starts with the first arrival.
        service_seconds: Its duration, over all attempts; None: unknown, because it never ran to its end.
        deadline_seconds: Age at which it was stale; None: the deadline of the simulation.
        level: Priority, 0 to 9, higher first.
        group: Tenant or key.
        kind: Kind of its message.
        parent: The task that put it.
        value: Its value; None counts as 1.
        decay: How the value falls until the deadline; None: not at all.
        version: Version of the format.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    at_seconds: float
    service_seconds: Annotated[float, Field(gt=0)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    level: Annotated[int, Field(ge=0, le=MAX_PRIORITY)] = 0
    group: str | None = None
    kind: str | None = None
    parent: str | None = None
    value: Annotated[float, Field(gt=0, le=LARGEST_VALUE)] | None = None
    decay: Annotated[Decay, Field(strict=False)] | None = None
    version: Literal[1] = VERSION


@dataclass(slots=True)
class Recording:
    """The tasks of a recording, in order of arrival; times are in seconds.

    Attributes:
        at: Arrival of each task, from the first one.
        service: Service time of each task; NaN if unknown.
        ages: Age at which each task was stale; infinite without a deadline.
        levels: Priority level of each task.
        groups: Group of each task.
        kinds: Kind of each task.
        values: Value of each task; empty if none was put with a value or a decay.
        decays: 1 for each task whose value falls steadily until its deadline; empty in the same case.
    """

    at: array[float] = field(default_factory=lambda: array("d"))
    service: array[float] = field(default_factory=lambda: array("d"))
    ages: array[float] = field(default_factory=lambda: array("d"))
    levels: bytearray = field(default_factory=bytearray)
    groups: list[str | None] = field(default_factory=list)
    kinds: list[str | None] = field(default_factory=list)
    values: array[float] = field(default_factory=lambda: array("d"))
    decays: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.at)

    @property
    def unknown_services(self) -> int:
        """Number of tasks that never ran to their end, so that their service times are drawn."""
        return sum(map(math.isnan, self.service))

    @property
    def max_age_seconds(self) -> float | None:
        """Largest age at which a task was stale; None if no task has a deadline."""
        return max((age for age in self.ages if age < math.inf), default=None)

    @property
    def duration_seconds(self) -> float:
        """The period of arrivals; includes the last arrival, so that a single one has a duration."""
        return math.nextafter(self.at[-1], math.inf)

    def add(self, arrival: Arrival) -> None:
        """Add a task."""
        self.at.append(arrival.at_seconds)
        seconds, age_seconds = arrival.service_seconds, arrival.deadline_seconds
        self.service.append(math.nan if seconds is None else seconds)
        self.ages.append(math.inf if age_seconds is None else age_seconds)
        self.levels.append(arrival.level)
        self.groups.append(None if arrival.group is None else intern(arrival.group))
        self.kinds.append(None if arrival.kind is None else intern(arrival.kind))
        decays = arrival.decay is Decay.LINEAR
        if self.values or arrival.value is not None or decays:
            before = len(self.at) - 1 - len(self.values)
            value = DEFAULT_VALUE if arrival.value is None else arrival.value
            self.values.extend([DEFAULT_VALUE] * before + [value])
            self.decays.extend(bytes(before) + bytes([decays]))

    def chosen(self, places: Sequence[int], at: Iterable[float]) -> Recording:
        """Return a sample of the tasks, at other arrival times."""
        return Recording(
            at=array("d", at),
            service=array("d", [self.service[place] for place in places]),
            ages=array("d", [self.ages[place] for place in places]),
            levels=bytearray(self.levels[place] for place in places),
            groups=[self.groups[place] for place in places],
            kinds=[self.kinds[place] for place in places],
            values=array("d", [self.values[place] for place in places] if self.values else ()),
            decays=bytearray(self.decays[place] for place in places) if self.decays else bytearray(),
        )

    def in_order(self) -> Recording:
        """Return the tasks by arrival, with the first at 0."""
        places = sorted(range(len(self.at)), key=self.at.__getitem__)
        start = self.at[places[0]]
        return self.chosen(places, (self.at[place] - start for place in places))

    def with_services(self, seed: int, drawn: Sequence[float] | None = None) -> Recording:
        """Return the recording with a service time for each task.

        A task that never ran gets the time of a random task of its kind, or of any kind.

        Args:
            seed: Seed of the draws.
            drawn: Times to use if the recording has none; None to raise then.

        Raises:
            ValueError: If no service time is known.
        """
        by_kind = self._services_by_kind()
        every = [seconds for known in by_kind.values() for seconds in known]
        if not every and drawn is None:
            raise ValueError("recording: no task has service_seconds, so no service time is known")
        choice = Random(f"{seed}/services").choice
        service = array("d", self.service)
        for place, seconds in enumerate(service):
            if math.isnan(seconds):
                known = by_kind.get(self.kinds[place], every)
                service[place] = choice(known) if known else (drawn or ())[place]
        return replace(self, service=service)

    def _services_by_kind(self) -> dict[str | None, list[float]]:
        by_kind: dict[str | None, list[float]] = {}
        for kind, seconds in zip(self.kinds, self.service, strict=True):
            if not math.isnan(seconds):
                by_kind.setdefault(kind, []).append(seconds)
        return by_kind

    def trace(
        self,
        deadline_seconds: float,
        duration_seconds: float | None = None,
        service: ServiceDistribution = ServiceDistribution.EXP,
        service_mean_seconds: float = 1.0,
        seed: int = 1,
    ) -> Load:
        """Return the load, in order of arrival.

        Args:
            deadline_seconds: Age at which a task is stale, unless its own is shorter.
            duration_seconds: Arrivals from then on are ignored; None: all are taken.
            service: Distribution of the service times, if the recording has none.
            service_mean_seconds: Mean of these service times.
            seed: Seed of the draws.

        Raises:
            ValueError: If a number is not greater than 0.
        """
        positive("deadline_seconds", deadline_seconds)
        positive("service_mean_seconds", service_mean_seconds)
        found = self
        if duration_seconds is not None:
            positive("duration_seconds", duration_seconds)
            kept = [place for place, at in enumerate(self.at) if at < duration_seconds]
            found = self.chosen(kept, (self.at[place] for place in kept))
        drawn = services(service, service_mean_seconds, len(found), Random(f"{seed}/services"))
        load = found.with_services(seed, drawn).load(deadline_seconds)
        return load if duration_seconds is None else replace(load, duration_seconds=duration_seconds)

    def load(self, max_age_seconds: float) -> Load:
        """Return the load for a simulation, with a service time for each task.

        Args:
            max_age_seconds: Max age of the queue; a task's own may only be shorter.
        """
        ages = (min(max_age_seconds, age) for age in self.ages)
        return Load(
            created=self.at,
            service=self.service,
            deadline=array("d", [at + age for at, age in zip(self.at, ages, strict=True)]),
            duration_seconds=self.duration_seconds,
            levels=bytes(self.levels) if any(self.levels) else b"",
            groups=self.groups if any(self.groups) else (),
            values=self.values,
            decays=bytes(self.decays),
        )


def read_recording(file: Path) -> Recording:
    """Return the tasks in a file, in order of arrival.

    Args:
        file: JSON Lines, also compressed (`.jsonl.gz`), or Parquet (`.parquet`).

    Raises:
        ValueError: If it cannot be read, or a line is invalid; the message names its number.
        MissingExtra: If PyArrow, which reads Parquet, is not installed.
    """
    found = Recording()
    try:
        for arrival in _rows(file) if file.suffix == PARQUET else _lines(file):
            found.add(arrival)
            if len(found) > MAX_TASKS:
                msg = f"{file}: more than {MAX_TASKS:,} arrivals; split it"
                raise ValueError(msg)
    except UnicodeDecodeError as error:
        msg = f"{file}: not UTF-8 text: {error.reason}"
        raise ValueError(msg) from error
    except (OSError, EOFError) as error:
        msg = f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ValueError(msg) from error
    if not found.at:
        msg = f'{file}: no arrivals; give one JSON object a line, such as {{"at_seconds": 0.5}}'
        raise ValueError(msg)
    return found.in_order()


def _lines(file: Path) -> Iterator[Arrival]:
    with (
        gzip.open(file, "rt", encoding="utf-8")
        if file.suffix == ".gz"
        else file.open(encoding="utf-8") as lines
    ):
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _parsed(f"{file}, line {number}", line)


def _rows(file: Path) -> Iterator[Arrival]:
    with needs("pipeline"):
        import pyarrow as pa  # noqa: PLC0415 - of an extra, and slow to load
        import pyarrow.parquet as pq  # noqa: PLC0415
    try:
        for batch in pq.ParquetFile(file).iter_batches():
            for number, row in enumerate(batch.to_pylist(), 1):
                known = {name: value for name, value in row.items() if value is not None}
                yield _parsed(f"{file}, row {number} of a batch", known)
    except pa.ArrowInvalid as error:
        msg = f"{file}: not a Parquet file: {error}"
        raise ValueError(msg) from error


def _parsed(place: str, given: str | dict[str, Any]) -> Arrival:
    try:
        return Arrival.model_validate_json(given) if isinstance(given, str) else Arrival.model_validate(given)
    except ValidationError as error:
        problem = problem_of(error)
    message = problem.reason
    if problem.is_unknown_field:
        message = f"unknown field; known are {', '.join(Arrival.model_fields)}"
    msg = f"{place}: " + (f"{problem.field}: " if problem.path else "") + message
    raise ValueError(msg)


@dataclass(slots=True)
class _Life:
    """The facts known about a task that has not ended.

    Attributes:
        event: Its last event.
        service_ms: Its duration in the attempts that ended.
        taken_ms: When its present attempt began; None if it waits.
    """

    event: Mapping[str, Any]
    service_ms: float = 0.0
    taken_ms: float | None = None

    def follow(self, event: Mapping[str, Any]) -> None:
        """Let the next event happen."""
        now_ms = _changed_ms(event)
        if event["change"] != "REMOVE" and event["status"] == TaskStatus.TAKEN:
            same = self.taken_ms is not None and event.get("lease") == self.event.get("lease")
            self.taken_ms = self.taken_ms if same else now_ms
        elif self.taken_ms is not None:
            # A released task used no server.
            released = event.get("attempts", 0) < self.event.get("attempts", 0)
            self.service_ms += 0.0 if released else now_ms - self.taken_ms
            self.taken_ms = None
        self.event = event


class Recorder:
    """Turns the landed events of a queue into a recording, while they are read.

    Memory follows the live tasks. Events of a task may be repeated, and a late one is ignored. A task that
    was put before the first event, or was cancelled, deleted or buried while it waited, is left out.

    Attributes:
        queue: The queue; None until the first event, if none was given.
        tasks: Number of tasks in the recording so far.
        unknown: Number of them without a service time.
        left_out: Number of tasks left out.
    """

    def __init__(self, queue: str | None = None) -> None:
        """Record one queue; None for the only one of the events."""
        self.queue: str | None = None
        self._is_named = False
        if queue is not None:
            self.record(queue)
        self.tasks = self.unknown = self.left_out = 0
        self._lives: dict[str, _Life] = {}
        # When the last tasks to end were created, in milliseconds, by id.
        self._ended: dict[str, float] = {}
        self._first_ms = math.inf
        self._now_ms = -math.inf
        self._events = 0

    def record(self, queue: str) -> None:
        """Record this queue, and ignore the events of other queues."""
        self.queue, self._is_named = queue, True

    def add(self, event: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the tasks that are complete with one more event.

        Raises:
            ValueError: If the events are of several queues, and none was named.
        """
        if not self._is_of_queue(event):
            return
        self._first_ms = min(self._first_ms, event["stream_ms"])
        self._now_ms = max(self._now_ms, event["stream_ms"])
        ended = self._follow(str(event["task_id"]), event)
        if ended is not None:
            yield ended
        self._events += 1
        if not self._events % SWEEP_EVENTS:
            yield from self._sweep()

    def rest(self) -> Iterator[dict[str, Any]]:
        """Yield the tasks that have not ended: they arrived, but their durations are unknown."""
        for task_id, life in list(self._lives.items()):
            ended = self._end(task_id, life, None)
            if ended is not None:
                yield ended

    def _is_of_queue(self, event: Mapping[str, Any]) -> bool:
        queue = event.get("queue")
        if self.queue is None:
            self.queue = queue
        if queue == self.queue or self._is_named:
            return queue == self.queue
        msg = f"events: of several queues, such as {self.queue!r} and {queue!r}; give --name"
        raise ValueError(msg)

    def _follow(self, task_id: str, event: Mapping[str, Any]) -> dict[str, Any] | None:
        life = self._lives.get(task_id)
        if life is None:
            if not self._begins(task_id, event):
                return None
            life = self._lives[task_id] = _Life(event)
        elif _changed_ms(event) < _changed_ms(life.event):
            return None
        life.follow(event)
        if event["change"] != "REMOVE" and event["status"] not in OVER:
            return None
        return self._end(task_id, life, event["status"])

    def _begins(self, task_id: str, event: Mapping[str, Any]) -> bool:
        """Return whether an event of an unknown task begins a life."""
        if event["change"] == "REMOVE" or self._ended.get(task_id) == event["created_ms"]:
            return False
        known = event["change"] == "INSERT" or bool(event["created_ms"] >= self._first_ms)
        self.left_out += not known
        return known

    def _end(self, task_id: str, life: _Life, status: str | None) -> dict[str, Any] | None:
        """Forget a task, and return it unless it is left out; the status is None if it has not ended."""
        event = life.event
        del self._lives[task_id]
        self._ended[task_id] = event["created_ms"]
        if len(self._ended) > MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        ran = life.service_ms > 0
        by_hand = status == "CANCELLED" or (status == "FAILURE" and not ran)
        deleted = status == "PENDING" and event["change"] == "REMOVE" and not event.get("ttl_removal")
        if by_hand or deleted:
            self.left_out += 1
            return None
        knows = ran and status in {"SUCCESS", "FAILURE"}
        self.tasks += 1
        self.unknown += not knows
        return _line(event, life.service_ms / 1000 if knows else None)

    def _sweep(self) -> Iterator[dict[str, Any]]:
        """Yield waiting tasks that nobody will claim any more: they are long stale."""
        for task_id, life in list(self._lives.items()):
            deadline_ms = life.event.get("deadline_ms")
            if life.taken_ms is None and deadline_ms is not None and deadline_ms + LATE_MS < self._now_ms:
                ended = self._end(task_id, life, "SHED")
                if ended is not None:
                    yield ended


def _changed_ms(event: Mapping[str, Any]) -> float:
    return float(event.get("updated_ms", event["stream_ms"]))


def _line(event: Mapping[str, Any], service_seconds: float | None) -> dict[str, Any]:
    created_ms, deadline_ms = event["created_ms"], event.get("deadline_ms")
    service = None if service_seconds is None else max(SHORTEST_SECONDS, round(service_seconds, 6))
    age = None if deadline_ms is None else max(SHORTEST_SECONDS, round((deadline_ms - created_ms) / 1000, 6))
    line = {
        "version": VERSION,
        "at_seconds": round(created_ms / 1000, 6),
        "service_seconds": service,
        "deadline_seconds": age,
        "level": event.get("priority") or None,
        **{name: event.get(name) for name in ("group", "kind", "parent", "value", "decay")},
    }
    return {name: value for name, value in line.items() if value is not None}


def parsed_events(lines: Iterable[str]) -> Iterator[dict[str, Any] | None]:
    """Yield the landed events on lines, some of which may hold several; None for a damaged line."""
    decoder = json.JSONDecoder()
    for line in lines:
        text = line.strip()
        while text:
            try:
                event, end = decoder.raw_decode(text)
            except ValueError:
                yield None
                break
            sound = isinstance(event, dict) and all(
                isinstance(event.get(name), kind) for name, kind in _REQUIRED.items()
            )
            yield event if sound else None
            text = text[end:].lstrip()


_REQUIRED: Final = {
    "task_id": str | int | float,
    "change": str,
    "status": str,
    "stream_ms": int | float,
    "created_ms": int | float,
}
