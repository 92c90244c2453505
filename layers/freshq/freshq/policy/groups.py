"""The rules of groups: weights, limits, and a hierarchy by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from freshq.errors import plain, quoted

if TYPE_CHECKING:
    from typing import Self

Group: TypeAlias = str | None
# Weights outside this range would be mistakes, and lose precision.
SMALLEST_WEIGHT: Final = 1e-3
LARGEST_WEIGHT: Final = 1e3
MAX_RUNNING: Final = 100_000
# Every process reads the rules every few seconds.
MAX_RULES: Final = 1_000


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class GroupRule:
    """What one group, or all groups below a parent, may use. Validated on construction.

    Attributes:
        weight: Its share of the time relative to its siblings, while all of them have work.
        max_running: Most tasks in work at a time, over all workers; None: no limit.
        rate_per_second: Most starts per second, over all workers; None: no limit.
    """

    weight: float = 1.0
    max_running: int | None = None
    rate_per_second: float | None = None

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
        rate = self.rate_per_second
        if rate is not None and not (_is_number(rate) and 0 < rate < math.inf):
            msg = f"rate_per_second: must be greater than 0, got {quoted(rate)}"
            raise ValueError(msg)

    @property
    def has_limit(self) -> bool:
        """Whether it limits anything."""
        return self.max_running is not None or self.rate_per_second is not None

    def values(self) -> dict[str, Any]:
        """Return what differs from the defaults, as JSON values."""
        names = [each.name for each in fields(self)]
        return {
            name: getattr(self, name) for name in names if getattr(self, name) != getattr(UNLIMITED, name)
        }


UNLIMITED: Final = GroupRule()


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The rules of a queue's groups. Validated on construction.

    With a separator, groups form a hierarchy by their names: with ``/``, the groups ``acme/user-7`` and
    ``acme/user-8`` share the time of their parent ``acme``. Every group and every parent has a rule.

    Attributes:
        default: The rule of groups and parents without a rule of their own.
        of: Rules by the name of a group or a parent.
        separator: One character between the levels of a name; None: no group has a parent.
    """

    default: GroupRule = UNLIMITED
    of: Mapping[str, GroupRule] = field(default_factory=dict, hash=False)
    separator: str | None = None

    def __post_init__(self) -> None:
        """Check the separator and the names.

        Raises:
            ValueError: One line that names the wrong part.
        """
        if self.separator is not None and not (isinstance(self.separator, str) and len(self.separator) == 1):
            msg = f"separator: must be one character or None, got {quoted(self.separator)}"
            raise ValueError(msg)
        for name, rule in self.of.items():
            if not name or not isinstance(name, str) or not isinstance(rule, GroupRule):
                msg = f"of: must have a GroupRule for each name of a group, got {quoted(name)}: {rule!r:.80}"
                raise ValueError(msg)
        if len(self.of) > MAX_RULES:
            msg = f"of: must have at most {MAX_RULES:,} rules, got {len(self.of):,}; use default for the rest"
            raise ValueError(msg)

    @classmethod
    def of_values(cls, values: object) -> Self:
        """Return the rules from the JSON values of `values`.

        Raises:
            ValueError: If a value is wrong; names it.
        """
        if not isinstance(values, Mapping):
            msg = f'must be a JSON object such as {{"of": {{"acme": {{"weight": 3}}}}}}, got {quoted(values)}'
            raise ValueError(msg)
        _only(values, "default", "of", "separator")
        of = values.get("of", {})
        if not isinstance(of, Mapping):
            msg = f"of: must be a JSON object with a rule for each name, got {quoted(of)}"
            raise ValueError(msg)
        rules = {name: _rule(f"of.{name}", rule) for name, rule in of.items()}
        return cls(_rule("default", values.get("default", {})), rules, values.get("separator"))

    def values(self) -> dict[str, Any]:
        """Return what differs from the defaults, as JSON values."""
        values: dict[str, Any] = {}
        if self.default != UNLIMITED:
            values["default"] = self.default.values()
        if self.of:
            values["of"] = {name: rule.values() for name, rule in self.of.items()}
        return values if self.separator is None else {**values, "separator": self.separator}

    def rule(self, name: Group) -> GroupRule:
        """Return the rule of a group or a parent. Tasks without a group have the default rule."""
        return self.default if name is None else self.of.get(name, self.default)

    def lineage(self, group: Group) -> tuple[Group, ...]:
        """Return the names of a group's ancestors, the oldest first, and its own at the end."""
        separator = self.separator
        if separator is None or group is None or separator not in group:
            return (group,)
        parts = group.split(separator)
        return tuple(separator.join(parts[: count + 1]) for count in range(len(parts)))


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
