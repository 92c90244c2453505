"""The rules of groups: weights, limits, and a hierarchy by name; and which groups the limits leave room."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from freshq.errors import plain, quoted
from freshq.policy.limits import LARGEST_RATE, is_positive
from freshq.policy.value import DEFAULT_COST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

Group: TypeAlias = str | None
# What groups share: the time of the workers, or units of cost.
Share: TypeAlias = Literal["seconds", "units"]
# Precedes a kind among the names of groups, none of which has a NUL.
KIND: Final = "\0"
# Weights outside this range would be mistakes, and lose precision.
SMALLEST_WEIGHT: Final = 1e-3
LARGEST_WEIGHT: Final = 1e3
MAX_RUNNING: Final = 100_000
# Units left of a limit that are only errors of rounding.
NO_UNITS: Final = 1e-9
# A claim that found no units left need not come again before this part of the burst is left.
WAIT_PART: Final = 0.05
# Key of the units left, beside the starts of groups: no group's name is empty.
UNITS: Final = ""
# Starts closer together than this part of a window count as one, at the later moment: a log stays short, and
# a limit is never exceeded.
MOMENTS_PER_WINDOW: Final = 50
# Every process reads the rules every few seconds.
MAX_RULES: Final = 1_000


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_rate(name: str, rate: object) -> None:
    if rate is not None and not is_positive(rate):
        msg = f"{name}: must be greater than 0 and at most {LARGEST_RATE:g}, got {quoted(rate)}"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Weight and limits of a group, of all groups below a parent, or of a kind. Validated on construction.

    Attributes:
        weight: Its share relative to its siblings, while all of them have work.
        max_running: Maximum number of running tasks, over all workers; None: no limit.
        rate_per_second: Maximum number of starts per second, over all workers; None: no limit.
        units_per_second: Maximum units per second that its tasks take, over all workers: the sum of their
            costs; None: no limit. A task starts while any units are left, so that the dearest one runs, too;
            what it takes beyond them is a debt. So in any time T its tasks take at most
            burst_units + units_per_second * T, and the cost of one more task.
        burst_units: How many units can be saved up; None: as many as a second gives.

    Examples:
        >>> rules = GroupRules(of={"acme": GroupRule(weight=3, max_running=5)})
        >>> rules.rule("acme").weight
        3
    """

    weight: float = 1.0
    max_running: int | None = None
    rate_per_second: float | None = None
    units_per_second: float | None = None
    burst_units: float | None = None

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: One line that names the wrong number.
        """
        if not _is_number(self.weight) or not SMALLEST_WEIGHT <= self.weight <= LARGEST_WEIGHT:
            msg = f"weight: must be from {SMALLEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, got {quoted(self.weight)}"
            raise ValueError(msg)
        most = self.max_running
        if most is not None and not (type(most) is int and 1 <= most <= MAX_RUNNING):
            msg = f"max_running: must be a whole number from 1 to {MAX_RUNNING:,}, got {quoted(most)}"
            raise ValueError(msg)
        for name in ("rate_per_second", "units_per_second", "burst_units"):
            _check_rate(name, getattr(self, name))
        if self.burst_units is not None and self.units_per_second is None:
            raise ValueError("burst_units: needs units_per_second, the rate at which units come back")

    @property
    def has_limit(self) -> bool:
        """Whether it limits anything."""
        return self.max_running is not None or self.has_rate

    @property
    def has_rate(self) -> bool:
        """Whether it limits starts, or the units that they take."""
        return self.rate_per_second is not None or self.units_per_second is not None

    @property
    def most_units(self) -> float:
        """How many units can be saved up; 0 without a limit in units."""
        return self.burst_units or self.units_per_second or 0.0

    def seconds_per_task(self, units: float) -> float:
        """Return the time that the rates take to make room for a task with a cost."""
        of_units = units / self.units_per_second if self.units_per_second else 0.0
        return max(of_units, 1 / self.rate_per_second if self.rate_per_second else 0.0)

    def slowed(self, part: float) -> Self:
        """Return the rule with a part of its rates."""
        rate, units = self.rate_per_second, self.units_per_second
        return replace(
            self,
            rate_per_second=None if rate is None else rate * part,
            units_per_second=None if units is None else units * part,
            burst_units=self.most_units or None,
        )

    def values(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as JSON values."""
        names = [each.name for each in fields(self)]
        return {
            name: getattr(self, name) for name in names if getattr(self, name) != getattr(UNLIMITED, name)
        }


UNLIMITED: Final = GroupRule()


@dataclass(frozen=True)
class GroupRules:
    """The rules of a queue's groups. Validated on construction.

    With a separator, groups form a hierarchy by their names: with ``/``, the groups ``acme/user-7`` and
    ``acme/user-8`` share the time of their parent ``acme``. Every group and every parent has a rule.

    Attributes:
        default: The rule of groups and parents that `of` does not name.
        of: Rules by the name of a group or a parent.
        separator: One character between the levels of a name; None: no group has a parent.
        kinds: Rates of kinds of tasks, whatever their groups: `rate_per_second`, `units_per_second` and
            `burst_units` only. Claims look past tasks of kinds without room.
        share: What groups share by their weights: the "seconds" that their runs take, or their "units".

    Examples:
        >>> queue = Queue.memory(groups=GroupRules(default=GroupRule(max_running=5), separator="/"))
    """

    default: GroupRule = UNLIMITED
    of: Mapping[str, GroupRule] = field(default_factory=dict, hash=False)
    separator: str | None = None
    kinds: Mapping[str, GroupRule] = field(default_factory=dict, hash=False)
    share: Share = "seconds"

    def __post_init__(self) -> None:
        """Check the separator and the names.

        Raises:
            ValueError: One line that names the wrong part.
        """
        if self.separator is not None and not (isinstance(self.separator, str) and len(self.separator) == 1):
            msg = f"separator: must be one character or None, got {quoted(self.separator)}"
            raise ValueError(msg)
        if self.share not in get_args(Share):
            msg = f"share: must be 'seconds' or 'units', got {quoted(self.share)}"
            raise ValueError(msg)
        _check_rules("of", self.of)
        _check_rules("kinds", self.kinds)
        for kind, rule in self.kinds.items():
            if not rule.has_rate or rule.max_running is not None or rule.weight != UNLIMITED.weight:
                msg = (
                    f"kinds.{plain(kind)}: must limit rate_per_second or units_per_second, and have neither "
                )
                raise ValueError(msg + "weight nor max_running, which only groups have")

    @classmethod
    def of_values(cls, values: object) -> Self:
        """Return the rules from the JSON values of `values`.

        Raises:
            ValueError: If a value is wrong; names it.
        """
        if not isinstance(values, Mapping):
            msg = f'must be a JSON object such as {{"of": {{"acme": {{"weight": 3}}}}}}, got {quoted(values)}'
            raise ValueError(msg)
        _only(values, *(each.name for each in fields(cls)))
        rules: dict[str, Any] = {"default": _rule("default", values.get("default", {}))}
        for where in ("of", "kinds"):
            of = values.get(where, {})
            if not isinstance(of, Mapping):
                msg = f"{where}: must be a JSON object with a rule for each name, got {quoted(of)}"
                raise ValueError(msg)
            rules[where] = {name: _rule(f"{where}.{name}", rule) for name, rule in of.items()}
        return cls(**{**values, **rules})

    def values(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, as JSON values."""
        values: dict[str, Any] = {}
        if self.default != UNLIMITED:
            values["default"] = self.default.values()
        for where, rules in (("of", self.of), ("kinds", self.kinds)):
            if rules:
                values[where] = {name: rule.values() for name, rule in rules.items()}
        if self.separator is not None:
            values["separator"] = self.separator
        return values if self.share == SHARED_EQUALLY.share else {**values, "share": self.share}

    @cached_property  # every claim asks
    def has_limits(self) -> bool:
        """Whether they limit any group or kind."""
        return bool(self.kinds) or self.default.has_limit or any(rule.has_limit for rule in self.of.values())

    @cached_property
    def has_rates(self) -> bool:
        """Whether they limit the starts of any group or kind, or the units that they take."""
        return any(rule.has_rate for rule in self._all)

    @cached_property
    def has_units(self) -> bool:
        """Whether they limit the units of any group or kind."""
        return any(rule.units_per_second is not None for rule in self._all)

    @cached_property
    def counts_running(self) -> bool:
        """Whether they limit the running tasks of any group."""
        return any(rule.max_running is not None for rule in self._all)

    @property
    def _all(self) -> tuple[GroupRule, ...]:
        return self.default, *self.of.values(), *self.kinds.values()

    def rule(self, name: Group) -> GroupRule:
        """Return the rule of a group or a parent, or of a kind after a `KIND`.

        Tasks without a group have the default rule.
        """
        if name is None:
            return self.default
        if name[:1] == KIND:
            return self.kinds.get(name[1:], UNLIMITED)
        return self.of.get(name, self.default)

    def limiting(self, group: Group, kind: str | None) -> tuple[str, ...]:
        """Return the names whose rules limit a task: of its group and its ancestors, and of its kind."""
        names = tuple(name for name in self.lineage(group) if name is not None)
        return (*names, f"{KIND}{kind}") if kind in self.kinds else names

    def charges(self, group: Group, kind: str | None) -> bool:
        """Return whether they limit the units of a task."""
        return any(self.rule(name).units_per_second is not None for name in self.limiting(group, kind))

    def rated(self, group: Group, kind: str | None = None) -> str | None:
        """Return whose rate slows down if a task meets push-back; None if none of its rates is limited.

        That is its kind, or the nearest of its group and the group's ancestors.
        """
        names = self.limiting(group, kind)[::-1] if self.has_rates else ()
        return next((name for name in names if self.rule(name).has_rate), None)

    def slowed(self, parts: Mapping[str, float]) -> GroupRules:
        """Return these rules with lower rates for some groups and kinds.

        Args:
            parts: By name, of a kind after a `KIND`: the part of its rate, above 0. An empty name is no
                group's.
        """
        of, kinds = dict(self.of), dict(self.kinds)
        for name, part in parts.items():
            rule = self.rule(name)
            if not (name and rule.has_rate):
                continue
            if name[0] == KIND:
                kinds[name[1:]] = rule.slowed(part)
            elif name in of or len(of) < MAX_RULES:
                of[name] = rule.slowed(part)
        return self if (of, kinds) == (self.of, self.kinds) else replace(self, of=of, kinds=kinds)

    def lineage(self, group: Group) -> tuple[Group, ...]:
        """Return the names of a group's ancestors, the oldest first, and its own at the end."""
        separator = self.separator
        if separator is None or group is None or separator not in group:
            return (group,)
        parts = group.split(separator)
        return tuple(separator.join(parts[: count + 1]) for count in range(len(parts)))


def _check_rules(where: str, rules: Mapping[str, GroupRule]) -> None:
    for name, rule in rules.items():
        if not name or not isinstance(name, str) or not isinstance(rule, GroupRule):
            msg = f"{where}: must have a GroupRule for each name, got {quoted(name)}: {rule!r:.80}"
            raise ValueError(msg)
        if any(letter == KIND or "\ud800" <= letter <= "\udfff" for letter in name):
            msg = f"{where}: no group or kind has NUL or a lone surrogate in its name, got {quoted(name)}"
            raise ValueError(msg)
    if len(rules) > MAX_RULES:
        msg = f"{where}: must have at most {MAX_RULES:,} rules, got {len(rules):,}; use default for the rest"
        raise ValueError(msg)


# The rules of a queue that names none.
SHARED_EQUALLY: Final = GroupRules()


def _rule(name: str, values: Any) -> GroupRule:
    if not isinstance(values, Mapping):
        msg = f"{plain(name)}: must be a JSON object, got {quoted(values)}"
        raise ValueError(msg)
    try:
        _only(values, *(each.name for each in fields(GroupRule)))
        return GroupRule(**values)
    except ValueError as error:
        msg = f"{plain(name)}.{error}"
        raise ValueError(msg) from None


def _only(values: Mapping[str, Any], *known: str) -> None:
    for name in values:
        if name not in known:
            msg = f"{plain(str(name))}: unknown; use one of {', '.join(known)}"
            raise ValueError(msg)


def rate_window(rate_per_second: float) -> tuple[int, float]:
    """Return how many starts a rate allows, and the length of the window in seconds to which this applies.

    That is about a second; below one start per second, it is one start per interval.
    """
    starts = max(1, math.floor(rate_per_second))
    return starts, starts / rate_per_second


class StartLog:
    """The recent starts of the groups, parents and kinds with a rate, and the units that they have left.

    All workers share one, as JSON values.
    """

    __slots__ = ("_starts", "_units")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """Start with the values that `values` returned; None: no start.

        Raises:
            TypeError, ValueError: If the values are damaged.
        """
        starts_of = dict(values or {})
        # By name: units, and when so many were left.
        units = starts_of.pop(UNITS, {})
        self._units = {name: (float(left), float(at)) for name, (left, at) in units.items()}
        # By name: times and numbers of starts, the oldest first.
        self._starts = {
            name: [(float(at), int(count)) for at, count in starts] for name, starts in starts_of.items()
        }

    def units(self, name: str, rule: GroupRule, now: float) -> float:
        """Return the units that a group has left at `now` (seconds); below 0 it owes some."""
        left, at = self._units.get(name, (rule.most_units, now))
        return min(rule.most_units, left + max(0.0, now - at) * (rule.units_per_second or 0.0))

    def take_units(self, name: str, rule: GroupRule, units: float, now: float) -> None:
        """Take units from a group at `now` (seconds); a negative number returns some, up to its burst."""
        left = min(rule.most_units, self.units(name, rule, now) - units)
        self._units[name] = left, max(now, self._units.get(name, (0.0, now))[1])

    def correct(
        self, taken: Iterable[tuple[Group, str | None, float]], rules: GroupRules, now: float
    ) -> None:
        """Take units from each group in turn, its parents and a kind, as `take_units` does."""
        for group, kind, units in taken:
            for name in rules.limiting(group, kind):
                rule = rules.rule(name)
                if rule.units_per_second is not None:
                    self.take_units(name, rule, units, now)

    def wait_seconds(self, name: str, rule: GroupRule, now: float) -> float:
        """Return when the rates of a group leave room for a task, in seconds from `now`; 0: they do now.

        A claim that comes then neither comes in vain nor lets units go to waste.
        """
        waits = [0.0]
        if rule.units_per_second is not None and (left := self.units(name, rule, now)) <= NO_UNITS:
            waits.append((WAIT_PART * rule.most_units - left) / rule.units_per_second)
        if (rate := rule.rate_per_second) is not None and self.room(name, rate, now) < 1:
            after = now - rate_window(rate)[1]
            waits.append(min(at for at, _count in self._starts[name] if at > after) - after)
        return max(waits)

    def room(self, name: str, rate_per_second: float, now: float) -> int:
        """Return how many tasks of a group may start at `now` (seconds)."""
        most, window_seconds = rate_window(rate_per_second)
        after = now - window_seconds
        return most - sum(count for at, count in self._starts.get(name, ()) if at > after)

    def add(self, name: str, rate_per_second: float, now: float) -> None:
        """Count a start at `now` (seconds), and forget those that no longer matter."""
        _most, window_seconds = rate_window(rate_per_second)
        starts = [(at, count) for at, count in self._starts.get(name, ()) if at > now - window_seconds]
        if starts and now - starts[-1][0] <= window_seconds / MOMENTS_PER_WINDOW:
            starts[-1] = max(now, starts[-1][0]), starts[-1][1] + 1
        else:
            starts.append((now, 1))
        self._starts[name] = starts

    def delay(self, names: Iterable[str], now: float) -> None:
        """Set the last moments of the given groups, whose tasks were taken, to `now` (seconds)."""
        for name in names:
            at, count = self._starts[name][-1]
            self._starts[name][-1] = max(at, now), count

    def values(self, rules: GroupRules, now: float) -> dict[str, Any]:
        """Return the starts that still count at `now` (seconds), and the units that lack, as JSON values."""
        values: dict[str, Any] = {}
        for name, starts in self._starts.items():
            rate = rules.rule(name).rate_per_second
            after = math.inf if rate is None else now - rate_window(rate)[1]
            if kept := [[at, count] for at, count in starts if at > after]:
                values[name] = kept
        of_units = {
            name: [left, at]
            for name, (left, at) in self._units.items()
            if (rule := rules.rule(name)).units_per_second is not None  # debts without a rule never end
            and self.units(name, rule, now) < rule.most_units
        }
        return values | ({UNITS: of_units} if of_units else {})


class GroupRoom:
    """The room that the limits leave to each group and kind during one claim.

    Attributes:
        full: The groups found without room.
        full_kinds: The kinds found without room.
        log: The recent starts.
        passed_over: Whether a task was passed over because of its kind.
        started: Whether a task with a limit was started.
        rated: The groups, parents and kinds with a limit of starts that had one.
        expected: By group: the units of a task that is not known yet, if they are not `DEFAULT_COST`.
        wait_seconds: When the rates leave room again for one of the full groups or kinds; infinite if none is
            full because of a rate.
    """

    __slots__ = (
        *("_now", "_rules", "_running", "_started", "expected", "full", "full_kinds", "log"),
        *("passed_over", "rated", "started", "wait_seconds"),
    )

    def __init__(self, rules: GroupRules, running: Callable[[str], int], log: StartLog, now: float) -> None:
        """Start a claim.

        Args:
            rules: The limits.
            running: Returns the running tasks of a group, or of a parent with all below it.
            log: The recent starts; the starts of the claim are added.
            now: Time of the claim, in seconds.
        """
        self._rules = rules
        self._running = running
        self.log = log
        self._now = now
        self._started: Counter[str] = Counter()
        self.full: set[Group] = set()
        self.full_kinds: set[str] = set()
        self.started = False
        self.rated: set[str] = set()
        self.expected: Mapping[Group, float] = {}
        self.passed_over = False
        self.wait_seconds = math.inf

    def allows(self, group: Group) -> bool:
        """Return whether a task of a group may start now, unless its kind is limited."""
        if group in self.full:
            return False
        if all(map(self._has_room, self._rules.limiting(group, None))):
            return True
        self.full.add(group)
        return False

    def allows_kind(self, kind: str | None) -> bool:
        """Return whether a task of a kind may start now, unless its group is limited."""
        if kind in self.full_kinds:
            return False
        if kind not in self._rules.kinds or self._has_room(f"{KIND}{kind}"):
            return True
        self.full_kinds.add(str(kind))
        return False

    def _has_room(self, name: str) -> bool:
        rule = self._rules.rule(name)
        if rule.max_running is not None and self._in_work(name) >= rule.max_running:
            return False
        if rule.has_rate and (seconds := self.log.wait_seconds(name, rule, self._now)):
            self.wait_seconds = min(self.wait_seconds, seconds)
            return False
        return True

    def _in_work(self, name: str) -> int:
        if name not in self._started:
            self._started[name] = self._running(name)
        return self._started[name]

    def start(self, group: Group, units: float | None = None, kind: str | None = None) -> None:
        """Count a task that starts, and takes units; None: those that are expected of its group."""
        if units is None:
            units = self.expected.get(group, DEFAULT_COST)
        for name in self._rules.limiting(group, kind):
            self.started = True
            rule = self._rules.rule(name)
            if rule.max_running is not None:
                self._started[name] = self._in_work(name) + 1
            if rule.rate_per_second is not None:
                self.log.add(name, rule.rate_per_second, self._now)
                self.rated.add(name)
            if rule.units_per_second is not None:
                self.log.take_units(name, rule, units, self._now)


class RunningCounts:
    """The running tasks by group, in one process."""

    __slots__ = ("_by_group",)

    def __init__(self) -> None:
        self._by_group: Counter[str] = Counter()

    def add(self, group: Group, number: int) -> None:
        """Add to the number of a group's running tasks; a negative number subtracts."""
        if group is not None:
            self._by_group[group] += number
            if not self._by_group[group]:
                del self._by_group[group]

    def of(self, name: str, separator: str | None) -> int:
        """Return the running tasks of a group, and of those below it if there is a separator."""
        if separator is None:
            return self._by_group[name]
        below = name + separator
        return sum(
            count for group, count in self._by_group.items() if group == name or group.startswith(below)
        )

    def full(self, group: Group, rules: GroupRules) -> str | None:
        """Return the group or parent that is at its limit of running tasks; None if there is none."""
        for name in rules.lineage(group):
            most = None if name is None else rules.rule(name).max_running
            if name is not None and most is not None and self.of(name, rules.separator) >= most:
                return name
        return None

    def by_group(self) -> dict[str, Any]:
        """Return the running tasks by group."""
        return dict(self._by_group)
