"""Claims of a simulated queue: the reserve, and CoDel."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from freshq.policy.codel import MAX_TAKES
from freshq.policy.reserve import LearnedReserve, ReserveSpans, SkippedTasks
from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from freshq.policy.rules import OverloadRules
    from freshq.simulate.admission import Admission
    from freshq.simulate.backlog import Backlog
    from freshq.simulate.load import Load


class SimulatedClaimer:
    """Takes tasks out of the backlog, as the claims of one process do.

    Attributes:
        observe: Records how long a task took, in seconds.
        spans: When claims skipped tasks because of the reserve.
    """

    def __init__(self, load: Load, rules: OverloadRules, backlog: Backlog, admission: Admission) -> None:
        """Start with nothing learnt.

        Args:
            load: The tasks.
            rules: The policy.
            backlog: Where tasks wait.
            admission: Counts what CoDel sheds.
        """
        self._created = load.created
        self._max_age_seconds = rules.deadline_seconds
        self._backlog = backlog
        self._admission = admission
        self._sheds_by_codel = rules.codel is not None
        self._longest_wait_seconds = inf if rules.codel is None else rules.codel.longest_wait_seconds
        self._reserve = LearnedReserve(rules.new_reserve)
        self.observe = self._reserve.observe
        self._skipped = SkippedTasks(rules.order)
        # The shared record of the queue's service times.
        self._counts: dict[int, float] = {}
        self.spans = ReserveSpans()

    def claim(self, now: float) -> int | None:
        """Claim one task at `now` (seconds); return None if there is none, or CoDel shed all it found."""
        reserve, take = self._reserve, self._backlog.take
        longest_wait_seconds = inf
        for _ in range(MAX_TAKES):
            if now >= reserve.next_sync:
                self._sync(now)
            seconds = reserve.seconds
            task = take(now, seconds, longest_wait_seconds)
            if seconds and self._skipped.check_due(now, seconds, short=task is None):
                self._note_skipped(now, seconds, short=task is None)
            if task is None or not self._sheds_by_codel or not self._sheds(task, now):
                return task
            longest_wait_seconds = self._shed_behind(task, now, seconds)
        return None

    def _shed_behind(self, task: int, now: float, reserve_seconds: float) -> float:
        """Shed what waits too long behind a task that was shed; return the longest wait to take next."""
        for late in self._backlog.late_behind(task, now, reserve_seconds):
            self._admission.shed_early(late, ShedReason.CODEL, now)
        return self._longest_wait_seconds

    def _sheds(self, task: int, now: float) -> bool:
        codel = self._backlog.codel_of(task)
        if codel is None or not codel.sheds(now, now - self._created[task]):
            return False
        self._admission.shed_early(task, ShedReason.CODEL, now)
        return True

    def _sync(self, now: float) -> None:
        """Merge the service times with the shared record."""
        seen = self._reserve.begin_sync(now)
        merged = LearnedReserve.merged(self._counts, seen)
        if seen:
            self._counts = LearnedReserve.shared_counts(merged)
        self._reserve.end_sync(merged)

    def _note_skipped(self, now: float, reserve_seconds: float, *, short: bool) -> None:
        """Record whether this claim skipped tasks because of the reserve."""
        if not self._backlog.count():
            return
        self._backlog.expire(now)
        task = self._backlog.oldest()
        oldest = None if task is None else self._created[task]
        created_after = now - self._max_age_seconds + reserve_seconds
        if self._skipped.found(now, reserve_seconds, oldest, created_after, short=short):
            self.spans = ReserveSpans(self.spans.extended(now, reserve_seconds))
