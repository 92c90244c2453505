"""Claims of a simulated queue: the reserve, and CoDel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshq.policy.reserve import LearnedReserve, ReserveSpans, SkippedTasks
from freshq.policy.shedding import MAX_CODEL_ROUNDS, ShedReason

if TYPE_CHECKING:
    from freshq.policy.rules import OverloadRules
    from freshq.simulate.admission import Admission
    from freshq.simulate.backlog import Backlog
    from freshq.simulate.load import Load


class Claims:
    """Takes tasks out of the backlog, as the claims of one process do.

    Attributes:
        spans: When claims skipped tasks because of the reserve.
    """

    __slots__ = ("_admission", "_backlog", "_counts", "_created", "_max_age_seconds", "_reserve", "_skipped",
                 "spans")  # fmt: skip

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
        self._reserve = LearnedReserve(rules.new_reserve)
        self._skipped = SkippedTasks(rules.order)
        # The shared record of the queue's service times.
        self._counts: dict[int, float] = {}
        self.spans = ReserveSpans()

    def served(self, service_seconds: float) -> None:
        """Record how long a task took."""
        self._reserve.observe(service_seconds)

    def claim(self, now: float) -> int | None:
        """Claim one task at `now` (seconds); return None if there is none, or CoDel shed too many."""
        for _ in range(MAX_CODEL_ROUNDS):
            task = self._take(now)
            codel = None if task is None else self._backlog.codel_of(task)
            if task is None or codel is None or not codel.sheds(now, now - self._created[task]):
                return task
            self._admission.shed_early(task, ShedReason.CODEL, now)
        return None

    def _take(self, now: float) -> int | None:
        reserve = self._reserve
        if now >= reserve.next_sync:
            self._sync(now)
        seconds = reserve.seconds
        task = self._backlog.take(now, seconds)
        if seconds and self._skipped.look_due(now, seconds, short=task is None):
            self._note_skipped(now, seconds, short=task is None)
        return task

    def _sync(self, now: float) -> None:
        """Merge the service times with the shared record."""
        seen = self._reserve.begin_sync(now)
        merged = LearnedReserve.merged(self._counts, seen)
        if seen:
            self._counts = LearnedReserve.shared_counts(merged)
        self._reserve.end_sync(merged)

    def _note_skipped(self, now: float, reserve_seconds: float, *, short: bool) -> None:
        """Record whether this claim skipped tasks because of the reserve."""
        self._backlog.expire(now)
        task = self._backlog.oldest()
        oldest = None if task is None else self._created[task]
        created_after = now - self._max_age_seconds + reserve_seconds
        if self._skipped.found(now, reserve_seconds, oldest, created_after, short=short):
            self.spans = ReserveSpans(self.spans.extended(now, reserve_seconds))
