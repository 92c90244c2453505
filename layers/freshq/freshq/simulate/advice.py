"""Compare settings on a recording: find the best, and tell which differ beyond doubt.

All settings are simulated on the recording and on resamples, which join random blocks of it (the block
bootstrap: Künsch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics
17(3), 1989). A large recording is resampled in part, and the spread scaled by the square root of the part
(Bickel, Götze, van Zwet, "Resampling fewer than n observations", Statistica Sinica 7, 1997). Every comparison
has the same estimator, `Samples.gain`, so the gain of a over b is the loss of b to a.
"""

from __future__ import annotations

import math
import re
import tomllib
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count, takewhile
from pathlib import Path
from random import Random
from statistics import median, stdev
from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict, Field, ValidationError

from freshq.errors import quoted
from freshq.model.storable_options import QueueRules, as_text
from freshq.model.task import MAX_SECONDS
from freshq.model.validation import problem_of
from freshq.policy.backlog_limit import BacklogLimit
from freshq.policy.order import Order
from freshq.policy.pressure import AdmissionLimit
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.policy.value import DEFAULT_VALUE, value_at
from freshq.simulate.backlog import Fates
from freshq.simulate.engine import MAX_SERVERS, Simulation, simulate_load
from freshq.simulate.results import summarize
from freshq.simulate.stress import Clients, Dip, Stress, simulate_stressed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.simulate.load import Recording

# Resamples, and tasks in each at most. Two-sided 95 % quantile of Student's t with one degree less.
RESAMPLES: Final = 20
RESAMPLE_TASKS: Final = 12_000
T_95: Final = 2.093
# A block has this many deadlines, and a recording at least this many blocks.
DEADLINES_PER_BLOCK: Final = 10
LEAST_BLOCKS: Final = 20
DEADLINES_OF_LONG_BLOCK: Final = 4
TASKS_PER_BLOCK: Final = 1000
# For longer recordings, the last tasks.
MOST_TASKS: Final = 200_000
# The same with values: an order by value takes longer to simulate than an order by time.
MOST_VALUED_TASKS: Final = 50_000
# The share done in time that servers are counted for, if the objective names none.
ENOUGH: Final = 0.99
# Tasks in the runs with outages; goodput has recovered at this share of its value without an outage.
OUTAGE_TASKS: Final = 8000
BACK: Final = 0.9


class Settings(QueueRules):
    """The settings of a queue and its workers that a simulation follows.

    Attributes:
        servers: Number of tasks that run at a time.
    """

    model_config = ConfigDict(extra="forbid", defer_build=False)

    servers: int = Field(10, ge=1, le=MAX_SERVERS, description="Number of tasks that run at a time.")

    @classmethod
    def parse(cls, place: str, given: Mapping[str, Any]) -> Settings:
        """Return the settings in a table, such as ``{"order": "fifo", "servers": 10}``.

        Raises:
            ValueError: If one is wrong or unknown; the error names the place.
        """
        try:
            settings = cls.model_validate(given)
            settings.rules(None)
        except ValidationError as error:
            problem = problem_of(error)
            reason = (
                f"unknown; known are {', '.join(cls.model_fields)}"
                if problem.is_unknown_field
                else problem.reason
            )
            msg = f"{place}: {problem.field}: {reason}"
            raise ValueError(msg) from error
        except ValueError as error:
            msg = f"{place}: {error}"
            raise ValueError(msg) from error
        return settings

    @classmethod
    def of_queue(cls, config: QueueRules) -> Settings:
        """Return the settings of a queue, without a number of servers: each worker has its own.

        Args:
            config: The options that the queue follows.
        """
        names = QueueRules.model_fields
        return cls.model_construct(set(names), **{name: getattr(config, name) for name in names})

    def age_seconds(self, recorded_seconds: float | None) -> float | None:
        """Return the max age: the recorded one, unless the settings name another."""
        return self.max_age_seconds if "max_age_seconds" in self.model_fields_set else recorded_seconds

    def rules(self, recorded_seconds: float | None) -> OverloadRules:
        """Return the rules of the queue.

        Args:
            recorded_seconds: Max age in the recording.
        """
        age_seconds = self.age_seconds(recorded_seconds)
        return OverloadRules(
            deadline_seconds=MAX_SECONDS if age_seconds is None else age_seconds,
            order=self.order,
            reserve=self.reserve.for_order(self.order, has_max_age=age_seconds is not None),
            codel=self.codel,
            backlog=self.backlog,
            fair=True,
            admission=self.admission,
        )

    def changed(self, **options: Any) -> Settings:
        """Return the settings with the given options."""
        return self.model_copy(update=options)

    def difference(self, today: Settings) -> dict[str, str]:
        """Return the options that differ from today's, as text."""
        own, its = ("max_age_seconds" in each.model_fields_set for each in (self, today))
        return {
            name: as_text(getattr(self, name))
            for name in type(self).model_fields
            if getattr(self, name) != getattr(today, name) or (name == "max_age_seconds" and own and not its)
        }


def read_settings(given: Path | Mapping[str, Any], name: str = "settings") -> Settings:
    """Return the settings in a TOML file or a mapping.

    Args:
        given: The file or the mapping.
        name: The mapping's name in errors.

    Raises:
        ValueError: If it cannot be read, or a setting is wrong or unknown.
    """
    if isinstance(given, Mapping):
        return Settings.parse(name, given)
    try:
        return Settings.parse(str(given), tomllib.loads(Path(given).read_text("utf-8")))
    except OSError as error:
        msg = f"{given}: cannot be read: {error.strerror}"
        raise ValueError(msg) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        msg = f"{given}: not TOML: {error}"
        raise ValueError(msg) from error


@dataclass(frozen=True, slots=True)
class Objective:
    """The criterion for settings: a share of tasks, or of their value.

    Attributes:
        text: The objective as text.
        share: The share that is enough; None: as much as possible.
        seconds: Age by which a task must be done to count; None: its deadline.
        level: The level whose tasks count; None: all.
    """

    text: str = "in-time"
    share: float | None = None
    seconds: float | None = None
    level: int | None = None

    @classmethod
    def parse(cls, text: str) -> Objective:
        """Return an objective.

        Args:
            text: ``in-time``, the share of tasks done by their deadline; ``value``, the share of their value
                that is delivered; if the recording has no values, each task is worth the same and loses it
                evenly until its deadline; or a share of tasks to be done within some time, such as
                ``0.99@2s`` or ``0.99@2s for level 9``.

        Raises:
            ValueError: If it has another form.
        """
        if text in {"in-time", VALUE}:
            return cls(text)
        found = re.fullmatch(r"(0?\.\d+|1)@(\d+\.?\d*)s(?: for level (\d))?", text.strip())
        if found is None or not float(found[2]) or not float(found[1]):
            msg = f"objective: must be in-time, value, or such as '0.99@2s for level 9', got {quoted(text)}"
            raise ValueError(msg)
        level = None if found[3] is None else int(found[3])
        return cls(text, float(found[1]), float(found[2]), level)

    @classmethod
    def of(cls, recording: Recording) -> Objective:
        """Return the objective for a recording: the value of its tasks, if they have values."""
        return cls(VALUE) if recording.values else cls()

    def worths(self, recording: Recording, done: Simulation) -> list[float]:
        """Return the worth of each task in a simulation of a recording."""
        ends = zip(done.starts, done.load.service, recording.at, strict=True)
        ages = (start + service - at for start, service, at in ends)
        tasks = zip(ages, recording.ages, self.most(recording), self._decays(recording), strict=True)
        return [
            self._worth(*task) if code in SERVED else 0.0
            for task, code in zip(tasks, done.fates, strict=True)
        ]

    def most(self, recording: Recording) -> Sequence[float]:
        """Return the most that each task can be worth."""
        if self.text == VALUE and recording.values:
            return recording.values
        return array("d", [DEFAULT_VALUE]) * len(recording)

    def _decays(self, recording: Recording) -> Sequence[int]:
        """Return 1 for each task whose worth falls until its deadline."""
        if self.text != VALUE:
            return bytes(len(recording))
        return recording.decays or bytes([1]) * len(recording)

    def enough(self, share: float) -> float:
        """Return a share, or the share that is enough if that is less."""
        return share if self.share is None else min(share, self.share)

    def _worth(self, age: float, deadline: float, most: float, decays: int) -> float:
        """Return the worth of a task that was done at an age."""
        if self.seconds is not None and age > self.seconds:
            return 0.0
        return value_at(age, most, 0.0, deadline, decays=bool(decays))


# The objective by value.
VALUE: Final = "value"
SERVED: Final = frozenset({Fates.IN_TIME, Fates.LATE})


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval.

    Attributes:
        estimate: The estimate.
        low: Lower end.
        high: Upper end.
    """

    estimate: float
    low: float
    high: float

    @property
    def is_told(self) -> bool:
        """Whether it differs from zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of settings on a recording.

    Attributes:
        settings: The settings.
        share: Worth of the tasks, as a share of the maximum.
        worths: Their worth in each block.
        in_time: Share of the tasks done in time, beside the value of the tasks; None if it is not judged.
    """

    settings: Settings
    share: float
    worths: list[float]
    in_time: float | None = None


def _block_count(recording: Recording) -> int:
    """Return the number of blocks of a recording that hardly depend on each other."""
    most = max(LEAST_BLOCKS, len(recording) // TASKS_PER_BLOCK)
    ages = [age for age in recording.ages if age < math.inf]
    if not ages:
        return most
    fitting = recording.duration_seconds / (DEADLINES_PER_BLOCK * median(ages))
    return int(min(most, max(LEAST_BLOCKS, fitting)))


def _last_tasks(recording: Recording) -> Recording:
    most = MOST_VALUED_TASKS if recording.values else MOST_TASKS
    if len(recording) <= most:
        return recording
    last = range(len(recording) - most, len(recording))
    return recording.chosen(last, recording.at[last.start :]).in_order()


class Samples:
    """A recording with all service times, and its resamples."""

    def __init__(self, recording: Recording, objective: Objective, seed: int = 1) -> None:
        """Cut the recording into blocks.

        Args:
            recording: The recording.
            objective: The criterion for the settings.
            seed: Seed of the resamples and of drawn service times.

        Raises:
            ValueError: If no service time is known, or the recording is too short to compare anything.
        """
        recording = _last_tasks(recording)
        self.drawn = recording.unknown_services
        self.recording = recording.with_services(seed)
        self.objective = objective
        self.max_age_seconds = recording.max_age_seconds
        self._longest = max(recording.ages)
        self._seed = seed
        # By settings, written as JSON.
        self._shares: dict[str, list[float]] = {}
        if len(recording) < 2 * LEAST_BLOCKS:
            msg = f"recording: needs at least {2 * LEAST_BLOCKS} tasks, got {len(recording)}"
            raise ValueError(msg)
        if objective.level is not None and objective.level not in recording.levels:
            msg = f"objective: no task of the recording has level {objective.level}"
            raise ValueError(msg)
        self._block_seconds = recording.duration_seconds / _block_count(recording)
        # The tasks of each block.
        self._blocks = self._cut()
        self._most = objective.most(self.recording)
        self._counted = [self._count(block) for block in self._blocks]
        wanted = len(self._blocks) * RESAMPLE_TASKS / len(recording)
        self._blocks_drawn = min(len(self._blocks), max(LEAST_BLOCKS // 2, round(wanted)))

    @property
    def has_long_blocks(self) -> bool:
        """Whether blocks are too long for orders to move much work from one block to another.

        Shorter blocks overstate differences: an order that serves a task later serves it in another block.
        """
        return self._longest == math.inf or self._block_seconds >= DEADLINES_OF_LONG_BLOCK * self._longest

    def _cut(self) -> list[range]:
        at, count_blocks = self.recording.at, _block_count(self.recording)
        bounds = [bisect_left(at, number * self._block_seconds) for number in range(count_blocks)]
        return [*map(range, bounds, [*bounds[1:], len(at)])]

    def _count(self, block: range) -> float:
        """Return the most that the tasks of a block can be worth."""
        level = self.objective.level
        if level is not None:
            return self.recording.levels.count(level, block.start, block.stop)
        return math.fsum(self._most[block.start : block.stop])

    @cached_property
    def resamples(self) -> list[Recording]:
        """The resamples."""
        return [self._resample(Random(f"{self._seed}/resample/{number}")) for number in range(RESAMPLES)]

    def _resample(self, rng: Random) -> Recording:
        whole, seconds = self.recording, self._block_seconds
        places: list[int] = []
        at: list[float] = []
        for number in range(self._blocks_drawn):
            drawn = rng.randrange(len(self._blocks))
            places.extend(self._blocks[drawn])
            shift = (number - drawn) * seconds
            at.extend(whole.at[place] + shift for place in self._blocks[drawn])
        return whole.chosen(places, at)

    def outcome(self, settings: Settings) -> Outcome:
        """Simulate settings on the recording."""
        done, in_time = self._simulate(settings, self.recording), None
        if self.objective.text == VALUE and self.recording.values:
            in_time = math.fsum(Objective().worths(self.recording, done)) / len(self.recording)
        if self._counts_fates(settings):
            fates = done.fates
            worths = [float(fates.count(Fates.IN_TIME, part.start, part.stop)) for part in self._blocks]
        else:
            each = self._worths(done, self.recording)
            worths = [math.fsum(each[part.start : part.stop]) for part in self._blocks]
        share = self.objective.enough(math.fsum(worths) / math.fsum(self._counted))
        return Outcome(settings, share, worths, in_time)

    def gain(self, outcome: Outcome, other: Outcome) -> Interval:
        """Return the gain of an outcome over another one; if they are swapped, its sign changes.

        The interval comes from the resamples. If the blocks are long, it is the wider of that interval and
        the interval from the blocks.
        """
        estimate = outcome.share - other.share
        shares = zip(self.shares(outcome.settings), self.shares(other.settings), strict=True)
        half = T_95 * stdev(own - its for own, its in shares)
        half *= math.sqrt(self._blocks_drawn / len(self._blocks))
        if self.has_long_blocks:
            half = max(half, self._half_by_blocks(outcome, other))
        return Interval(estimate, estimate - half, estimate + half)

    def _half_by_blocks(self, outcome: Outcome, other: Outcome) -> float:
        """Return half of the interval of a gain from the blocks alone.

        The gain is a ratio of two sums over blocks, whose variance comes from the residuals of the blocks
        (the ratio estimator of Cochran, Sampling Techniques, section 6.3).
        """
        differences = [own - its for own, its in zip(outcome.worths, other.worths, strict=True)]
        counted, count_blocks = math.fsum(self._counted), len(self._blocks)
        ratio = math.fsum(differences) / counted
        squares = math.fsum(
            (each - ratio * number) ** 2 for each, number in zip(differences, self._counted, strict=True)
        )
        return T_95 * math.sqrt(squares * count_blocks / (count_blocks - 1)) / counted

    def shares(self, settings: Settings) -> list[float]:
        """Simulate settings on the resamples, and return the share of the worth in each."""
        if settings.model_dump_json() not in self._shares:
            found = [self._share(settings, sample) for sample in self.resamples]
            self._shares[settings.model_dump_json()] = found
        return self._shares[settings.model_dump_json()]

    def _share(self, settings: Settings, sample: Recording) -> float:
        done = self._simulate(settings, sample)
        if self._counts_fates(settings):
            return done.fates.count(Fates.IN_TIME) / max(1, len(sample))
        level = self.objective.level
        most = math.fsum(self.objective.most(sample)) if level is None else sample.levels.count(level)
        return self.objective.enough(math.fsum(self._worths(done, sample)) / (most or 1))

    def _simulate(self, settings: Settings, sample: Recording) -> Simulation:
        rules = settings.rules(self.max_age_seconds)
        return simulate_load(sample.load(rules.deadline_seconds), rules, settings.servers, self._seed)

    def _counts_fates(self, settings: Settings) -> bool:
        """Return whether each task counts 1 if the simulation has it in time, else 0."""
        as_recorded = self._longest <= settings.rules(self.max_age_seconds).deadline_seconds
        return self.objective == Objective() and as_recorded

    def _worths(self, done: Simulation, sample: Recording) -> list[float]:
        worths, level = self.objective.worths(sample, done), self.objective.level
        if level is None:
            return worths
        return [each if own == level else 0.0 for each, own in zip(worths, sample.levels, strict=True)]


def candidates(
    today: Settings, age_seconds: float | None, objective: Objective, *, valued: bool = False
) -> list[Settings]:
    """Return the settings to compare with today's, the simpler first.

    Args:
        today: The settings of today.
        age_seconds: Their max age; None: tasks are never stale.
        objective: The criterion for the settings.
        valued: Whether the tasks have values.
    """
    auto, none = ReserveRule(automatic=True), ReserveRule()
    plain = today.changed(reserve=auto, codel=None, backlog=None, admission=None)
    found = [plain.changed(order=order) for order in (Order.LIFO, Order.FIFO, Order.ADAPTIVE)]
    lifo, fifo, adaptive = found
    if valued:
        found += [plain.changed(order=order) for order in (Order.VALUE, Order.DEADLINE)]
    found += [fifo.changed(backlog=BacklogLimit(each * today.servers)) for each in (1, 4)]
    if objective.seconds is not None:
        found += [
            plain.changed(order=order, max_age_seconds=objective.seconds)
            for order in (Order.LIFO, Order.FIFO, Order.ADAPTIVE)
        ]
    if age_seconds is None:
        return found
    codel = CodelRule(age_seconds / 20, age_seconds / 10)
    found += [lifo.changed(reserve=ReserveRule(quantile=0.9)), lifo.changed(admission=AdmissionLimit(2.0))]
    found += [fifo.changed(reserve=ReserveRule(quantile=each)) for each in (0.5, 0.99)]
    return [*found, fifo.changed(reserve=none), adaptive.changed(reserve=none), fifo.changed(codel=codel)]


@dataclass(frozen=True, slots=True)
class Compared:
    """Settings, with their results beside today's settings.

    Attributes:
        change: The options that differ from today's, as text.
        share: Worth of the tasks, as a share of the most that it can be.
        gain: The gain of that share over today's.
        in_time_share: Share of the tasks done in time, beside the value; None if the value is not judged.
    """

    change: dict[str, str]
    share: float
    gain: Interval
    in_time_share: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """What to set.

    Attributes:
        settings: The settings to use; today's unless others are better beyond doubt.
        best: The outcome with these settings.
        today_share: The share with the settings of today.
        compared: All that were compared, the best first.
        alike: The changes among them that cannot be told apart from the best.
        next_server: The gain of one more server with the settings.
        enough_servers: Number of servers with which the settings reach the objective, or 0.99; None if up to
            16 times as many do not.
        tasks: Number of tasks that were simulated.
        drawn: Number of tasks without a service time.
        today_in_time_share: Share of the tasks done in time with the settings of today, if values are judged.
    """

    settings: Settings
    best: Compared
    today_share: float
    compared: list[Compared]
    alike: list[dict[str, str]]
    next_server: Interval
    enough_servers: int | None
    tasks: int
    drawn: int
    today_in_time_share: float | None = None


def advise(recording: Recording, today: Settings, objective: Objective, seed: int = 1) -> Advice:
    """Return which settings serve a recording best.

    Args:
        recording: The load.
        today: The settings to compare with.
        objective: The criterion for the settings.
        seed: Seed of all draws.

    Raises:
        ValueError: If the recording has too few tasks, or no service times.
    """
    samples = Samples(recording, objective, seed)
    age_seconds = today.age_seconds(samples.max_age_seconds)
    now = samples.outcome(today)
    tried = candidates(today, age_seconds, objective, valued=bool(recording.values))
    others = [each for each in tried if each.difference(today)]
    outcomes = sorted((now, *map(samples.outcome, others)), key=lambda each: -each.share)
    shown = {
        id(each): Compared(each.settings.difference(today), each.share, samples.gain(each, now), each.in_time)
        for each in outcomes
    }
    best = next((each for each in outcomes if shown[id(each)].gain.low > 0), now)
    alike = _alike(samples, best, outcomes)
    more = samples.outcome(best.settings.changed(servers=best.settings.servers + 1))
    return Advice(
        settings=best.settings,
        best=shown[id(best)],
        today_share=now.share,
        compared=[*shown.values()],
        alike=[shown[id(each)].change for each in alike],
        next_server=samples.gain(more, best),
        enough_servers=enough_servers(samples, best.settings),
        tasks=len(samples.recording),
        drawn=samples.drawn,
        today_in_time_share=now.in_time,
    )


def _alike(samples: Samples, best: Outcome, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the other outcomes that cannot be told apart from the best."""
    return [each for each in outcomes if each is not best and not samples.gain(each, best).is_told]


def enough_servers(samples: Samples, settings: Settings) -> int | None:
    """Return the least number of servers that reaches the objective; None if no number does.

    Args:
        samples: The recording.
        settings: The settings, apart from the number of servers.
    """
    enough = ENOUGH if samples.objective.share is None else samples.objective.share
    most = min(16 * settings.servers, MAX_SERVERS)

    def reaches(tried: Settings, servers: int) -> bool:
        return samples.outcome(tried.changed(servers=servers)).share >= enough

    # With enough servers all settings do nearly as well, and these are the fastest to simulate.
    plain = settings.changed(
        order=Order.LIFO, reserve=ReserveRule(), codel=None, backlog=None, admission=None
    )
    high = _least(partial(reaches, plain), settings.servers, most)
    if reaches(settings, high):
        while high > 1 and reaches(settings, high - 1):
            high -= 1
        return high
    return next((each for each in range(high + 1, most + 1) if reaches(settings, each)), None)


def _least(reaches: Callable[[int], bool], start: int, most: int) -> int:
    """Return the least number from which on a goal is reached; or the most."""
    low, high = 0, start
    while high < most and not reaches(high):
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


@dataclass(frozen=True, slots=True)
class Outage:
    """How one order stands outages.

    Attributes:
        order: Name of the order.
        tips_over_seconds: Shortest outage after which goodput does not recover; None if it recovers after all
            outages that the recording has room for.
        longest_seconds: The longest outage after which it recovered; None if there is none.
        recovery_seconds: How long that took.
    """

    order: str
    tips_over_seconds: float | None
    longest_seconds: float | None
    recovery_seconds: float | None


def outages(recording: Recording, today: Settings, clients: Clients, seed: int = 1) -> list[Outage]:
    """Return how well each order withstands outages, when clients try again.

    The outage begins after a fifth of the first tasks; goodput has to be back in the last fifth.

    Args:
        recording: The load.
        today: Servers and max age.
        clients: The clients.
        seed: Seed of all draws.
    """
    tasks = range(min(len(recording), OUTAGE_TASKS))
    part = recording.with_services(seed).chosen(tasks, recording.at[: len(tasks)])
    age_seconds = today.age_seconds(part.max_age_seconds)
    never = OverloadRules(MAX_SECONDS, Order.FIFO, fair=True)
    compared = {"fifo without a deadline": never}
    if age_seconds is not None:
        compared["fifo without a reserve"] = OverloadRules(age_seconds, Order.FIFO, fair=True)
    for order in (Order.FIFO, Order.ADAPTIVE, Order.LIFO):
        compared[order.value] = today.changed(order=order, codel=None).rules(part.max_age_seconds)
    return [_outage(name, part, rules, today.servers, clients, seed) for name, rules in compared.items()]


def _outage(
    name: str, part: Recording, rules: OverloadRules, servers: int, clients: Clients, seed: int
) -> Outage:
    load, duration = part.load(rules.deadline_seconds), part.duration_seconds
    recovery: dict[float, float | None] = {}

    def late_goodput(dip: Dip | None) -> float:
        done = simulate_stressed(load, rules, servers, Stress(clients, dip), seed)
        if dip is not None:
            recovery[dip.seconds] = summarize(done, dip).recovery_seconds
        told = zip(done.starts, done.load.service, done.fates, strict=True)
        ends = (start + own for start, own, code in told if code == Fates.IN_TIME)
        return sum(0.8 * duration <= end < duration for end in ends)

    usual = late_goodput(None)

    def comes_back(seconds: float) -> bool:
        return late_goodput(Dip(duration / 5, seconds)) >= BACK * usual

    longest, tipped = None, None
    for seconds in takewhile(lambda each: each <= 0.4 * duration, (2.0**power for power in count())):
        if not comes_back(seconds):
            tipped = seconds
            break
        longest = seconds
    while tipped is not None and tipped > 1.1 * (longest or 0.0) + 0.1:
        middle = (tipped + (longest or 0.0)) / 2
        longest, tipped = (middle, tipped) if comes_back(middle) else (longest, middle)
    return Outage(name, tipped, longest, None if longest is None else recovery[longest])


@dataclass(frozen=True, slots=True)
class Threshold:
    """The tolerated loss, as a share of the load's tasks.

    Attributes:
        metric: The objective: in_time or value.
        below: The change below which the loss is too great, such as -0.01.
    """

    metric: str
    below: float

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Return a threshold such as ``in_time<-1%``, in percentage points.

        Raises:
            ValueError: If it has another form.
        """
        found = re.fullmatch(r"\s*(in_time|value)\s*<\s*-(\d+\.?\d*|\.\d+)\s*%\s*", text)
        if found is None:
            msg = f"fail_if: must look like in_time<-1% or value<-0.5%, got {quoted(text)}"
            raise ValueError(msg)
        return cls(found[1], -float(found[2]) / 100)


def limit_for(recording: Recording) -> str:
    """Return the tolerated loss if none is named: a point of the value, or else of the tasks in time."""
    return "value<-1%" if recording.values else "in_time<-1%"


@dataclass(frozen=True, slots=True)
class Replay:
    """The service of a load under new settings, compared with the present ones.

    Attributes:
        metric: The objective: in_time or value.
        before: Share with the present settings.
        after: Share with the new settings.
        change: The difference.
        fails: Whether it is below the threshold, and either below zero beyond doubt or twice as large.
        tasks: Number of tasks that were simulated.
        drawn: How many of them had no service time.
        in_time_before: Share of the tasks done in time with the present settings, if values are judged.
        in_time_after: The same with the new settings.
    """

    metric: str
    before: float
    after: float
    change: Interval
    fails: bool
    tasks: int
    drawn: int
    in_time_before: float | None = None
    in_time_after: float | None = None

    def __str__(self) -> str:
        """Return it as a sentence."""
        points = f"{100 * self.change.estimate:+.2f} points"
        interval = f"95% interval {100 * self.change.low:+.2f} to {100 * self.change.high:+.2f}"
        said = f"{self.metric}: {self.after:.2%} instead of {self.before:.2%}, {points} ({interval})"
        if self.in_time_after is not None:
            said += f"; in time: {self.in_time_after:.2%} instead of {self.in_time_before:.2%}"
        return f"{said}; service times of {self.drawn:,} of {self.tasks:,} tasks were drawn"


def replay(
    recording: Recording, settings: Settings, against: Settings, threshold: Threshold, seed: int = 1
) -> Replay:
    """Serve a recording under present and new settings, and return the changes.

    Args:
        recording: The load.
        settings: The present settings.
        against: The new settings.
        threshold: The tolerated loss.
        seed: Seed of all draws.

    Raises:
        ValueError: If the recording has too few tasks, or no service times.
    """
    samples = Samples(recording, Objective(threshold.metric.replace("_", "-")), seed)
    before, after = samples.outcome(settings), samples.outcome(against)
    change = samples.gain(after, before)
    # A loss twice as large as allowed on the recorded load itself counts even if the resamples do not agree.
    beyond_doubt = change.high < 0 or change.estimate < 2 * threshold.below
    fails = change.estimate < threshold.below and beyond_doubt
    of_load = len(samples.recording), samples.drawn
    in_time = before.in_time, after.in_time
    return Replay(threshold.metric, before.share, after.share, change, fails, *of_load, *in_time)
