"""Generate the tasks of a simulation at random."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from freshq.errors import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Kind = TypeVar("Kind", int, str)
# A simulation keeps 33 bytes per task; this many take a third of a gigabyte.
MAX_TASKS: Final = 10_000_000
# Sigma of a lognormal service time, whose squared coefficient of variation is then e - 1 = 1.72.
LOGNORMAL_SIGMA: Final = 1.0


class ArrivalProcess(StrEnum):
    """How arrivals are spread, unless they are read from a file."""

    POISSON = "poisson"
    DETERMINISTIC = "deterministic"


class ServiceDistribution(StrEnum):
    """Distribution of service times: exponential, constant, or lognormal with sigma 1."""

    EXP = "exp"
    DET = "det"
    LOGNORMAL = "lognormal"


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
    """

    created: array[float]
    service: array[float]
    deadline: array[float]
    duration_seconds: float
    levels: Sequence[int] = b""
    groups: Sequence[str] | Sequence[str | None] = ()

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.created)


@dataclass(frozen=True, slots=True)
class Source:
    """A recipe for a load.

    Attributes:
        rate_per_second: Arrivals per second outside the burst.
        duration_seconds: How long tasks arrive.
        deadline_seconds: Age at which a task is stale.
        arrivals: How arrivals are spread.
        service: Distribution of the service times.
        service_mean_seconds: Mean service time.
        burst: A period of higher load.
        groups: Share of the tasks by group, relative to the sum of shares.
        priorities: Share of the tasks by priority level.
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
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        names = ("rate_per_second", "duration_seconds", "deadline_seconds", "service_mean_seconds")
        for name in names:
            positive(name, getattr(self, name))
        for name in ("groups", "priorities"):
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
        return Load(
            created=times,
            service=services(self.service, self.service_mean_seconds, count, self._stream("services")),
            deadline=array("d", [created + self.deadline_seconds for created in times]),
            duration_seconds=self.duration_seconds,
            levels=bytes(_choices(self.priorities, count, self._stream("priorities"))),
            groups=_choices(self.groups, count, self._stream("groups")),
        )

    def _segments(self) -> list[tuple[float, float, float]]:
        """Return (start, end, rate) of each period of constant rate."""
        rate, end = self.rate_per_second, self.duration_seconds
        if self.burst is None:
            return [(0.0, end, rate)]
        burst = self.burst
        parts = [(0.0, burst.start, rate), (burst.start, burst.end, rate * burst.factor)]
        return [*parts, (burst.end, end, rate)]

    def _stream(self, use: str) -> Random:
        # One stream per use: other service times do not change the arrivals.
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
