"""Fairness among groups: which group has the next turn, and how much of a limited rate each may use."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from freshq.policy.groups import Group, GroupRules

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_Group = TypeVar("_Group", bound=Group)
# A parent, the name below it, and the weight of this name.
_Step: TypeAlias = tuple[Group, Group, float]

# The cost of a turn until a task has ended. Any value will do: until then all turns cost the same.
UNKNOWN_SECONDS: Final = 1.0
# Minimum cost of a turn, also in units: a claim and a settlement take time. Without it a group whose tasks
# take no measurable time would have every turn.
LEAST_SECONDS: Final = 1e-3
# Number of recent tasks of a group, and of the queue, that an average follows.
AVERAGED_OF_GROUP: Final = 10
AVERAGED_OF_QUEUE: Final = 100
# Groups whose averages a process keeps, and turns between two clean-ups of groups without a lead or a debt.
MAX_AVERAGES: Final = 10_000
TURNS_PER_CLEANUP: Final = 4096


def fair_share(demands: Iterable[float], capacity: float) -> float:
    """Return the max-min fair share: the most that each may use so that together they use the capacity.

    A group that asks for less than its share gets all it asks for. The others share the rest equally
    (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2).

    Args:
        demands: Demand of each group, such as tasks per second.
        capacity: Total capacity, in the same unit.

    Returns:
        The share; infinite if there is enough for all.
    """
    ascending = sorted(demands)
    left = capacity
    for index, demand in enumerate(ascending):
        share = left / (len(ascending) - index)
        if demand > share:
            return max(0.0, share)
        left -= demand
    return math.inf


class GroupCosts(dict[Group, float]):
    """By group: the average time or units that its tasks take, which is the cost of a turn.

    An exponentially weighted average, which follows a group whose tasks become longer. `costs[group]` is the
    queue's average if no task of the group was seen.

    Attributes:
        average: The average of all tasks of the queue.
        credited: The average on which credit is based. If costs are known beforehand, it never falls: with
            less credit, what a group took before would be forgotten.
    """

    __slots__ = ("_all_seen", "_are_known", "_seen", "average", "credited")

    def __init__(self, *, are_known: bool = False) -> None:
        """Start with nothing seen.

        Args:
            are_known: Whether the cost of a task is known before it runs.
        """
        super().__init__()
        self._are_known = are_known
        self.average = self.credited = UNKNOWN_SECONDS
        # How many tasks count in the averages, up to `AVERAGED_OF_QUEUE` and `AVERAGED_OF_GROUP`.
        self._all_seen = 0
        self._seen: dict[Group, int] = {}

    def __missing__(self, group: Group) -> float:
        return self.average

    def observe(self, group: Group, seconds: float) -> None:
        """Count the time that a task of a group took."""
        took = max(seconds, LEAST_SECONDS)
        self._all_seen = min(self._all_seen + 1, AVERAGED_OF_QUEUE)
        self.average += (took - self.average) / self._all_seen
        self.credited = max(self.average, self.credited if self._are_known else 0.0)
        seen = self._seen[group] = min(self._seen.get(group, 0) + 1, AVERAGED_OF_GROUP)
        mean = self.pop(group, 0.0)  # so that the group seen last comes last
        self[group] = mean + (took - mean) / seen
        if len(self) > MAX_AVERAGES:
            oldest = next(iter(self))
            del self[oldest], self._seen[oldest]


class _Siblings:
    """The groups below one parent: how much time each has used, divided by its weight."""

    __slots__ = ("finish", "now")

    def __init__(self) -> None:
        # The virtual time: when the latest turn started. It never goes back.
        self.now = 0.0
        # By name: the virtual time at which the last turn finishes.
        self.finish: dict[Group, float] = {}

    def start(self, name: Group, credit: float) -> float:
        """Return when the next turn of a group starts, which may be up to `credit` in the past."""
        return max(self.finish.get(name, -math.inf), self.now - credit)


class _Paths(dict[Group, tuple[_Step, ...]]):
    """By group: for each level the parent, the name below it, and its weight; computed at first use."""

    __slots__ = ("rules",)

    def __init__(self, rules: GroupRules) -> None:
        super().__init__()
        self.rules = rules

    def __missing__(self, group: Group) -> tuple[_Step, ...]:
        if len(self) >= MAX_AVERAGES:
            self.clear()
        path = self[group] = tuple(self._steps(group))
        return path

    def _steps(self, group: Group) -> Iterator[_Step]:
        """Yield the steps from the top to a group; a group's own tasks take turns as one more child."""
        parent: Group = None
        for name in self.rules.lineage(group):
            yield parent, name, self.rules.rule(name).weight
            parent = name
        if self.rules.separator is not None and group is not None:
            yield group, None, 1.0


class FairScheduler:
    """Gives each turn to the group that has used the least time. One object per priority level.

    Newest first alone lets one tenant that floods the queue starve the others, because its tasks are
    nearly always the newest. Equal turns would let a tenant with long tasks starve them as well. So groups
    share time: this is start-time fair queueing (Goyal, Vin and Cheng, "Start-time fair queuing: a scheduling
    algorithm for integrated services packet switching networks", SIGCOMM 1996). Each turn starts where its
    group's last turn finished, in virtual time, and lasts for its cost divided by the group's weight. The
    earliest start has the next turn. The cost is an average until the task has ended; then `correct` replaces
    it by the time that the task took. With a separator each parent has a virtual time for its children, which
    share its turns (hierarchical, section 3 of the paper).

    A group that used less than its share may catch up: its next turn starts up to `credit_turns` average
    turns in the past, as in borrowed-virtual-time scheduling (Duda and Cheriton, SOSP 1999). So a quiet group
    is served immediately, even for several tasks in a row, an old flood is forgotten, and a new one has at
    most about that many turns in a row.
    """

    __slots__ = ("_costs", "_credit_turns", "_paths", "_siblings", "_turns_until_cleanup")

    def __init__(
        self, costs: GroupCosts | None = None, rules: GroupRules | None = None, credit_turns: float = 100.0
    ) -> None:
        """Start with no group served.

        Args:
            costs: The costs of groups' turns; None: all equal.
            rules: Weights and hierarchy; None: equal weights, no hierarchy.
            credit_turns: Number of average turns that a group may catch up, 1 or more.

        Raises:
            ValueError: If it is less than 1.
        """
        if not credit_turns >= 1:
            msg = f"credit_turns: must be 1 or more, got {credit_turns}"
            raise ValueError(msg)
        self._costs = GroupCosts() if costs is None else costs
        self._credit_turns = credit_turns
        self._siblings: defaultdict[Group, _Siblings] = defaultdict(_Siblings)
        self._paths = _Paths(rules or GroupRules())
        self._turns_until_cleanup = TURNS_PER_CLEANUP

    def __len__(self) -> int:
        """Return the number of groups and parents that are remembered."""
        return sum(len(siblings.finish) for siblings in self._siblings.values())

    def copy(self) -> FairScheduler:
        """Return an independent copy; it shares the costs."""
        copied = FairScheduler(self._costs, self._paths.rules, self._credit_turns)
        for parent, siblings in self._siblings.items():
            twin = copied._siblings[parent]
            twin.now, twin.finish = siblings.now, siblings.finish.copy()
        return copied

    def follow(self, rules: GroupRules) -> None:
        """Use other rules from now on."""
        self._paths = _Paths(rules)

    def next_group(self, groups: Collection[_Group]) -> _Group:
        """Return the group whose turn it is; the first of those that start at the same time.

        Args:
            groups: Groups that may have work, at least one.
        """
        if len(groups) == 1:
            return next(iter(groups))
        if self._paths.rules.separator is None:
            return self._next_sibling(groups)
        depth, found = 0, groups
        while True:
            first = min(found, key=lambda group: self._start(self._paths[group][depth]))
            path = self._paths[first]
            if len(path) == depth + 1:
                return first
            found = [group for group in found if self._paths[group][depth][1] == path[depth][1]]
            depth += 1

    def _next_sibling(self, groups: Collection[_Group]) -> _Group:
        """As `next_group`, of groups without parents; claims spend most of their time here."""
        siblings = self._siblings.get(None)
        if siblings is None:
            return next(iter(groups))
        floor, finish = siblings.now - self._credit_turns * self._costs.credited, siblings.finish
        starts = [finish.get(group, floor) for group in groups]
        least = min(starts)
        if least > floor:
            return next(islice(groups, starts.index(least), None))
        return next(group for group, start in zip(groups, starts, strict=True) if start <= floor)

    def plan(self, groups: Sequence[_Group], count: int) -> dict[_Group, int]:
        """Return how many of the next turns each group gets if all of them always have work.

        Args:
            groups: Groups that may have work.
            count: Number of turns.

        Returns:
            The turns by group, in turn order; 0 for groups without a turn.
        """
        turns: dict[_Group, int] = {}
        if len(groups) == 1:
            return {groups[0]: count}
        if self._paths.rules.separator is None:
            return self._plan_siblings(groups, count)
        for group in islice(self._coming(groups, 0), count if groups else 0):
            turns[group] = turns.get(group, 0) + 1
        for group in sorted(groups, key=lambda each: list(map(self._start, self._paths[each]))):
            turns.setdefault(group, 0)
        return turns

    def _plan_siblings(self, groups: Sequence[_Group], count: int) -> dict[_Group, int]:
        """As `plan`, of groups without parents; claims spend much of their time here."""
        siblings, credit = self._siblings.get(None), self._credit_turns * self._costs.credited
        floor = -credit if siblings is None else siblings.now - credit
        finish = {} if siblings is None else siblings.finish
        starts = [max(floor, finish.get(group, floor)) for group in groups]
        in_order = sorted(range(len(groups)), key=starts.__getitem__)
        # Only these groups can have one of the turns; a sorted list is a heap.
        heap = [(starts[place], place) for place in in_order[:count]]
        turns: dict[_Group, int] = {}
        for _ in range(count if groups else 0):
            start, place = heap[0]
            group = groups[place]
            turns[group] = turns.get(group, 0) + 1
            cost = self._costs[group] / self._paths.rules.rule(group).weight
            heapq.heapreplace(heap, (start + cost, place))
        for place in in_order:
            turns.setdefault(groups[place], 0)
        return turns

    def record(self, group: Group) -> float:
        """Count a turn that a group used; return its cost in seconds, for `correct`."""
        cost, credit = self._costs[group], self._credit_turns * self._costs.credited
        for parent, name, weight in self._paths[group]:
            siblings = self._siblings[parent]
            start = siblings.start(name, credit)
            siblings.now = max(siblings.now, start)
            siblings.finish[name] = start + cost / weight
        self._turns_until_cleanup -= 1
        if not self._turns_until_cleanup:
            self._clean_up(credit)
        return cost

    def correct(self, group: Group, charged_seconds: float, took_seconds: float) -> None:
        """Replace the cost of a turn by the time that its task took.

        Args:
            group: The group whose turn it was.
            charged_seconds: What `record` returned.
            took_seconds: The time from the claim to the end.
        """
        more = max(took_seconds, LEAST_SECONDS) - charged_seconds
        credit = self._credit_turns * self._costs.credited
        for parent, name, weight in self._paths[group]:
            if (siblings := self._siblings.get(parent)) is not None:
                siblings.finish[name] = siblings.start(name, credit) + more / weight

    def _start(self, step: _Step) -> float:
        """Return when the next turn of a group, or of a parent, starts among its siblings."""
        siblings, credit = self._siblings.get(step[0]), self._credit_turns * self._costs.credited
        return -credit if siblings is None else siblings.start(step[1], credit)

    def _coming(self, groups: Sequence[_Group], depth: int) -> Iterator[_Group]:
        """Yield the groups that have the coming turns; all are below the same parent at `depth`."""
        below: dict[Group, list[_Group]] = {}
        for group in groups:
            below.setdefault(self._paths[group][depth][1], []).append(group)
        heap = []
        for place, members in enumerate(below.values()):
            path = self._paths[members[0]]
            turns = None if len(path) == depth + 1 else self._coming(members, depth + 1)
            heap.append((self._start(path[depth]), place, path[depth][2], members[0], turns))
        heapq.heapify(heap)
        while True:
            start, place, weight, group, turns = heap[0]
            if turns is not None:
                group = next(turns)
            yield group
            finish = start + self._costs[group] / weight
            heapq.heapreplace(heap, (finish, place, weight, group, turns))

    def _clean_up(self, credit: float) -> None:
        """Forget groups whose state equals an unknown group's, so that memory follows the groups in use."""
        self._turns_until_cleanup = TURNS_PER_CLEANUP
        for parent, siblings in list(self._siblings.items()):
            floor = siblings.now - credit
            siblings.finish = {name: at for name, at in siblings.finish.items() if at > floor}
            if not siblings.finish:
                del self._siblings[parent]
