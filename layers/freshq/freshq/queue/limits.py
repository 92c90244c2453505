"""Keep the limits of a queue's groups and kinds: in its claims, while its tasks run, and when they end."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from freshq.errors import StoreError
from freshq.model.forks import drained, forget_in_child
from freshq.policy.groups import StartLog
from freshq.queue.shared.limits import Admission, SharedBrakes, SharedRunning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.policy.groups import Group, GroupRules
    from freshq.stores.base import Store
    from freshq.stores.lines import ClaimRequest, LimitedLines, Stored

logger = logging.getLogger(__name__)


class GroupLimits:
    """The limits of the groups and kinds of one queue, for the verbs of one process. Thread-safe.

    A store that counts what runs keeps them while it takes tasks. With any other store, the processes count
    in a shared record, and release the tasks that they took beyond a limit.

    Attributes:
        brakes: How far providers have slowed the rates of the queue and its groups.
        units_due: What ended tasks took beyond, or less than, the units that were charged: their groups,
            their kinds, and the units.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        rules: Callable[[], GroupRules],
        now: Callable[[], float],
        request: Callable[[], ClaimRequest],
    ) -> None:
        """Count nothing yet.

        Args:
            store: Home of the tasks.
            queue: Name of the queue.
            rules: Returns the rules of its groups.
            now: Returns its time in seconds.
            request: Returns a request under which the store lets no other claim count.
        """
        self.brakes = SharedBrakes(store, queue)
        self.units_due: deque[tuple[Group, str | None, float]] = deque()
        self._store = store
        self._queue = queue
        self._rules = rules
        self._now = now
        self._request = request
        self._running = None if store.counts_groups else SharedRunning(store, queue)
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Count in a forked child only what runs there: the parent counts its own tasks and units."""
        self.units_due.clear()
        if self._running is not None:
            self._running = SharedRunning(self._store, self._queue)

    def prepare(self, request: ClaimRequest) -> None:
        """Tell a claim the rates that apply now, and the room that is left if its store does not count it.

        Raises:
            StoreError: If the store did not answer.
        """
        request.groups = self.brakes.groups(request.groups, self._now())
        if self._running is not None:
            request.room = self._running.room(request.groups, self._now())

    def admitted(self, claims: list[Claim]) -> Admission:
        """Return the claims that are within the limits, which count as running from now on.

        Raises:
            StoreError: If the store did not answer; nothing was counted.
        """
        now = self._now()
        rules = self.brakes.groups(self._rules(), now)
        if self._running is None or not any(
            rules.limiting(claim.task.group, claim.task.kind) for claim in claims
        ):
            return Admission(claims)
        return self._running.admitted(claims, rules, now)

    def extended(self, tasks: Sequence[Task], now: float) -> None:
        """Count tasks as running until their extended leases end."""
        if self._running is not None:
            self._running.extended(tasks, now)

    def lapsed(self, held: Task) -> bool:
        """Return whether another task of its group may have been started in place of a held one.

        Its lease had ended before other processes could read the extension: it must not run alongside that
        task.
        """
        if self._running is None or held.group is None or not self._rules().has_limits:
            return False
        return self._now() >= (held.lease_until or 0.0)

    def lost(self, task: Task) -> None:
        """Stop counting a task whose claim is lost; what its run has taken stays charged."""
        if self._running is not None:
            self._running.ended([task], self._now())

    def stopped_running(self, tasks: Sequence[Task]) -> None:
        """Stop counting tasks that never ran, and return the units that they were charged."""
        rules = self._rules()
        if rules.has_units:
            charged = tasks if self._running is None else filter(self._running.counts, tasks)
            where = [(task.group, task.kind, -task.units) for task in charged]
            self.units_due += [each for each in where if rules.charges(*each[:2])]
        if self._running is not None:
            self._running.ended(tasks, self._now())
        if self.units_due:
            self.correct_units()

    def ended(self, task: Task, settled: Task) -> float:
        """Stop counting a task as running; return the units that its run took.

        A run whose attempt does not count took nothing, unless it said so. What the units are beyond, or less
        than, the cost of the task is noted.

        Args:
            task: The task as it was claimed.
            settled: Its stored version.
        """
        if self._running is not None:
            self._running.ended([task], settled.updated)
        units = task.units_taken
        if units is None:
            units = 0.0 if settled.attempts < task.attempts else task.units
        self._note_units(task, units)
        return units

    def charge_apart(self, task: Task) -> None:
        """Charge what a run says that it took, if its end settled no task: it was cancelled, for example."""
        units = task.units_taken
        if units is not None:
            self._note_units(task, units)
        if self.units_due:
            self.correct_units()

    def _note_units(self, task: Task, units: float) -> None:
        if units != task.units and self._rules().charges(task.group, task.kind):
            self.units_due.append((task.group, task.kind, units - task.units))

    def correct_units(self) -> None:
        """Charge, or return, the units that are due; if the store does not answer, with the next ones."""
        due = [*drained(self.units_due)]
        rules = self._rules()

        def correct(reader: LimitedLines) -> list[Stored]:
            log, now = StartLog(reader.starts()), self._now()
            log.correct(due, rules, now)
            reader.keep_starts(log.values(rules, now))
            return []

        try:
            rules = self.brakes.groups(rules, self._now())
            if self._running is not None:
                self._running.correct(due, rules, self._now())
            else:
                self._store.take_locked(self._request(), correct)
        except StoreError:
            self.units_due += due
            logger.warning("queue %r: could not correct the units of tasks", self._queue, exc_info=True)
