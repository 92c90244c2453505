"""The backlog of one line of a simulated queue."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import chain
from math import inf
from operator import lt
from typing import TYPE_CHECKING

from freshq.policy.codel import CLOCK_STEP_SECONDS, MAX_SHED_BEHIND

if TYPE_CHECKING:
    from freshq.policy.backlog_limit import Eviction
    from freshq.policy.codel import Codel
    from freshq.policy.rules import OverloadRules
    from freshq.simulate.fates import Fates
    from freshq.simulate.load import Load


class LineBacklog:
    """One line.

    Attributes:
        codel: Its CoDel, if there is one.
        push: Adds a task, the newest of all.
        waiting: The tasks, oldest first, without those that the last claim skipped: these have less than
            the reserve left, and are older.
    """

    __slots__ = ("_created", "_deadline", "_expired", "_fates", "_max_age_seconds", "_order",
                 "_own_deadlines", "_skipped", "_stale", "codel", "push", "waiting")  # fmt: skip

    def __init__(self, load: Load, rules: OverloadRules, fates: Fates, *, own_ages: bool) -> None:
        """Start with no task.

        Args:
            load: The tasks.
            rules: The policy.
            fates: What became of the tasks.
            own_ages: Whether some tasks have a max age shorter than the queue's.
        """
        self._created = load.created
        self._deadline = load.deadline
        self._fates = fates
        self._max_age_seconds = rules.deadline_seconds
        self._order = rules.new_order()
        self.codel = rules.new_codel()
        self._skipped: deque[int] = deque()
        self.waiting: deque[int] = deque()
        self.push = self._push_with_deadline if own_ages else self.waiting.append
        # By deadline, if there are own ages: the tasks that were not stale at the last check. Some have left
        # the line since.
        self._own_deadlines: list[tuple[float, int]] = []
        # Tasks in the line that are past their own deadline.
        self._stale: set[int] = set()
        # Whether the store still holds tasks that are not here any more.
        self._expired = False

    def _push_with_deadline(self, task: int) -> None:
        self.waiting.append(task)
        heappush(self._own_deadlines, (self._deadline[task], task))

    @property
    def in_store(self) -> bool:
        """Whether a store would still list the line: it has tasks, stale ones included."""
        return self._expired or bool(self.waiting) or bool(self._skipped)

    def take(self, now: float, reserve_seconds: float = 0.0, longest_wait_seconds: float = inf) -> int | None:
        """Remove and return the next task to claim, of those that waited no longer; None if there is none."""
        tasks, skipped, order = self.waiting, self._skipped, self._order
        if now >= order.check_at:
            self._check_order(now, reserve_seconds)
        if tasks or skipped:
            created_after = max(
                now - self._max_age_seconds + reserve_seconds,
                now - longest_wait_seconds - CLOCK_STEP_SECONDS,
            )
            if skipped or self._own_deadlines or self._created[tasks[0]] <= created_after:
                self._skip(now, created_after)
        # A claim drops the stale tasks of the line that it looks at.
        self._expired = False
        return self._pop(now, now + reserve_seconds, newest_first=order.newest_first) if tasks else None

    def late_behind(self, task: int, now: float, reserve_seconds: float) -> list[int]:  # noqa: ARG002 - one line
        """Remove and return the tasks that CoDel sheds behind one that was just shed."""
        tasks, created, codel = self.waiting, self._created, self.codel
        late: list[int] = []
        passed: list[int] = []
        while (
            tasks
            and codel is not None
            and len(late) < MAX_SHED_BEHIND
            and codel.sheds_behind(now, now - created[tasks[0]])
        ):
            behind = tasks.popleft()
            (late if self._deadline[behind] > now + reserve_seconds else passed).append(behind)
        tasks.extendleft(reversed(passed))
        return late

    def _pop(self, now: float, deadline_after: float, *, newest_first: bool) -> int | None:
        """Remove and return the best task with a deadline after a time; None if there is none."""
        tasks, deadline = self.waiting, self._deadline
        pop = tasks.pop if newest_first else tasks.popleft
        passed = []
        while tasks:
            task = pop()
            if deadline[task] > deadline_after:
                break
            if deadline[task] > now:
                passed.append(task)
            else:
                self._stale.discard(task)
        else:
            task = None
        put_back = tasks.append if newest_first else tasks.appendleft
        for skipped in reversed(passed):
            put_back(skipped)
        return task

    def _skip(self, now: float, created_after: float) -> None:
        """Skip what was created by a time; return to the line what was not, as the reserve fell."""
        tasks, skipped, created = self.waiting, self._skipped, self._created
        while tasks and created[tasks[0]] <= created_after:
            skipped.append(tasks.popleft())
        while skipped and created[skipped[-1]] > created_after:
            tasks.appendleft(skipped.pop())
        self.expire(now)

    def _check_order(self, now: float, reserve_seconds: float) -> None:
        """Show the order the oldest task that may be claimed, if a store lists the line."""
        if not self.in_store:
            return
        self._skip(now, now - self._max_age_seconds + reserve_seconds)
        claimable = (task for task in self.waiting if self._deadline[task] > now + reserve_seconds)
        oldest = next(claimable, None)
        switch = self._order.observe(now, None if oldest is None else self._created[oldest])
        if switch is not None:
            self._fates.switches.append(switch)

    def codel_of(self, task: int) -> Codel | None:  # noqa: ARG002 - all tasks are of one line
        """Return the CoDel of a task's line."""
        return self.codel

    def group_of(self, task: int) -> str | None:  # noqa: ARG002 - all tasks are of one group
        """Return the group of a task's line."""
        return None

    def count(self) -> int:
        """Return the number of tasks; some may be stale, unless `expire` was just called."""
        return len(self.waiting) + len(self._skipped) - len(self._stale)

    def count_by_group(self) -> dict[str | None, int]:
        """Return the number of tasks by group."""
        return {None: self.count()}

    def expire(self, now: float) -> None:
        """Forget stale tasks."""
        own_deadlines, stale = self._own_deadlines, self._stale
        while own_deadlines and own_deadlines[0][0] <= now:
            _deadline, task = heappop(own_deadlines)
            if self._fates.codes[task] == self._fates.WAITING:
                stale.add(task)
        created_after = now - self._max_age_seconds
        for tasks in (self._skipped, self.waiting):
            while tasks and (self._created[tasks[0]] <= created_after or tasks[0] in stale):
                stale.discard(tasks.popleft())
                self._expired = True

    def oldest(self) -> int | None:
        """Return the oldest task."""
        return next((task for task in chain(self._skipped, self.waiting) if task not in self._stale), None)

    def evict(self, eviction: Eviction) -> int | None:  # noqa: ARG002 - all tasks are of one group
        """Remove and return the task that is to be shed; None if there is none."""
        task = self.oldest()
        if task is not None:
            (self._skipped if task in self._skipped else self.waiting).remove(task)
        return task


def has_own_ages(load: Load, rules: OverloadRules) -> bool:
    """Return whether some tasks have a max age shorter than the queue's."""
    of_queue = map(rules.deadline_seconds.__add__, load.created)
    return any(map(lt, load.deadline, of_queue))
