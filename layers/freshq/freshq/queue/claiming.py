"""Claiming tasks, and recovering those that are due."""

from __future__ import annotations

import logging
import math
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from freshq.errors import LeaseLost, StoreError
from freshq.model.answers import Claim, DeadLetterCounts
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.policy.codel import MAX_TAKES
from freshq.queue.core import Verbs
from freshq.queue.freshness import with_fresh_leases
from freshq.queue.peeking import waiting
from freshq.queue.polling import answer_of, poll_for_claims
from freshq.queue.shedding import ShedWhenHeld, shed_late
from freshq.stores.claim_request import ClaimRequest
from freshq.stores.putter import transactions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from freshq.model.answers import Waiting
    from freshq.policy.order import OrderSwitch
    from freshq.queue.core import Core
    from freshq.queue.upkeep import Portion
    from freshq.stores.transactions import HeldTask

logger = logging.getLogger(__name__)

# Far more than one process can start at once; its lease record must fit into one item.
MAX_CLAIM: Final = 1000


class Claiming(Verbs):
    """Claims and recovers tasks."""

    def claim(self, limit: int = 1, lease_seconds: float | None = None) -> list[Claim]:
        """Claim tasks, in the queue's order.

        Each lease counts from the write that took its task; at least nine tenths of it are left. If fewer
        than `limit` are claimable, a small portion of what is due is brought in, and the rest is claimed from
        that. So a claim makes a bounded number of calls; `recover` and `upkeep` bring in the rest.

        Args:
            limit: Most claims to return: as many as can be started now.
            lease_seconds: Length of the leases; None for the queue's default.

        Returns:
            The claims; empty if nothing is claimable or the queue is paused.

        Raises:
            ValueError: If an argument is wrong.
            StoreError: If the store did not answer. If some tasks were already claimed, they are returned
                instead.
        """
        lease_seconds = self._checked_claim(limit, lease_seconds)
        return self._core.guarded_telemetry.claim(
            self.name, lambda: self._claim_and_bring_in(limit, lease_seconds)
        )

    def _claim_and_bring_in(self, limit: int, lease_seconds: float) -> list[Claim]:
        if self._core.store.paused(self.name):
            return []
        claims = self._claim_unless_codel_sheds(limit, lease_seconds)
        if len(claims) < limit:
            try:
                if self._core.bring_in_due():
                    claims += self._claim_unless_codel_sheds(limit - len(claims), lease_seconds)
            except StoreError:
                if not claims:
                    raise
                logger.warning("claimed only %d of %d tasks", len(claims), limit, exc_info=True)
        return with_fresh_leases(self._core, claims, lease_seconds)

    def peek(self, limit: int = 10) -> list[Waiting]:
        """Return waiting tasks in the order in which claims would take them, and take none.

        First come those that can be claimed, in the order of this process's claims, as far as nobody else
        claims or puts; then delayed ones, the next due first. Each says what it waits for besides a claim.
        It makes a bounded number of calls, so it may show less than `limit` of the delayed ones, and of very
        many groups only some. CoDel may shed a task that it shows.

        Args:
            limit: Most tasks to return.

        Raises:
            ValueError: If the limit is wrong.
            StoreError: If the store did not answer.
        """
        checked_count("limit", limit, at_most=MAX_CLAIM)
        request = replace(self._request(limit, self.lease_seconds), turns=self._core.turns.copy())
        store = self._core.store
        tasks = store.peek(request)
        delayed = store.delayed(self.name, limit - len(tasks)) if len(tasks) < limit else []
        return waiting(tasks, delayed, self._core.time_order, paused=store.paused(self.name))

    def _checked_claim(self, limit: int, lease_seconds: float | None) -> float:
        """Check the arguments of a claim; return the length of its leases."""
        checked_count("limit", limit, at_most=MAX_CLAIM)
        if lease_seconds is None:
            return self.lease_seconds
        return checked_seconds("lease_seconds", lease_seconds, above_zero=True)

    def _claim_unless_codel_sheds(self, limit: int, lease_seconds: float) -> list[Claim]:
        """Claim tasks; shed those that CoDel sheds, with what waits behind them, and claim once more."""
        kept: list[Claim] = []
        longest_wait_seconds = math.inf
        for _ in range(MAX_TAKES):
            try:
                claims = self._take(limit - len(kept), lease_seconds, longest_wait_seconds)
            except StoreError:
                if not kept:
                    raise
                logger.warning("claimed only %d of %d tasks", len(kept), limit, exc_info=True)
                break
            doomed = [claim for claim in claims if self._core.codel.sheds(claim.task, claim.task.updated)]
            kept += [claim for claim in claims if claim not in doomed]
            if not doomed:
                break
            longest_wait_seconds = shed_late(self._core, doomed)
        return kept

    def poll(
        self, limit: int = 1, timeout_seconds: float | None = None, poll_seconds: float = 3.0
    ) -> list[Claim]:
        """Claim tasks; wait until there are some.

        Args:
            limit: Most claims to return.
            timeout_seconds: Stop waiting after this time; None: never.
            poll_seconds: Longest time between two polls for what other processes put; outside SQL databases,
                also for what this one puts and for what becomes due.

        Returns:
            The claims; empty after the timeout.

        Raises:
            ValueError: If an argument is wrong.
            StoreError: If the store did not answer.
        """
        poll = poll_for_claims(lambda: self.claim(limit), self._core, timeout_seconds, poll_seconds)
        return answer_of(poll, self._core.store)

    @contextmanager
    def transaction(self) -> Iterator[HeldTask | None]:
        """Hold the next task in a database transaction, by the lock of its row. SQL only.

        The writes of the block through the connection are committed together with the task's SUCCESS.
        An exception rolls them back and is recorded as a failed attempt; then it is raised again, except
        Retry, Reject and Busy, which say how the attempt ended. If the process dies, the task is
        claimable as before, and the attempt is not counted.

        Yields:
            The task and the connection; None if nothing is claimable or the queue is paused.

        Raises:
            ValueError: If the queue is not in a SQL database.
        """
        transactions = transactions_of(self._core.store, "transaction")
        if self._core.store.paused(self.name):
            yield None
            return
        shedding = ShedWhenHeld(self._core)
        block = transactions.hold(
            lambda: self._request(1, self.lease_seconds, shedding.longest_wait_seconds),
            self._core,
            shedding.shed_version,
        )
        with ExitStack() as stack:
            work = _with_telemetry(self._core, lambda: stack.enter_context(block))
            yield work
        if work is not None and work.settled is not None:
            self._core.served(work.as_claim(), work.settled)

    def held(self, task_id: str, token: str) -> Claim:
        """Return the claim that holds a task, for a holder that kept only the id and the token.

        Args:
            task_id: The task.
            token: `Claim.token`, perhaps from another process.

        Raises:
            TaskNotFound: If the queue has no such task.
            LeaseLost: If the task is not held under this token.
        """
        task = self._core.stored(task_id)
        if task.status is not TaskStatus.TAKEN or task.lease_token != token or task.lease_until is None:
            held = "it is held under another token"
            state = task.status_at(self.now())
            raise LeaseLost(task_id, held if state is TaskStatus.TAKEN else f"it is {state} now")
        return Claim.of(task)

    def take_order_switches(self) -> list[OrderSwitch]:
        """Return the order switches seen by this process since the last call."""
        return self._core.orders.take_switches()

    def recover(self) -> int:
        """Return tasks with expired leases to their lines, and promote delayed tasks that are due.

        A task whose lease expires in its last attempt becomes a dead letter.

        Tasks that are over and past their retention are deleted.

        Returns:
            How many tasks moved.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._core.upkeep.run()

    def upkeep(self) -> Portion:
        """Do a bounded portion of `recover`, unless another process does so: for a background thread.

        One process at a time does the upkeep of a queue, under a lease of a few seconds.

        Returns:
            How many tasks moved, and whether there is more to do; nothing if it is another process's turn.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._core.upkeep.run_alone()

    def take_dead_letter_counts(self) -> DeadLetterCounts:
        """Return how many tasks became dead letters since the last call, without the verdict of a run.

        Only those of this process are counted: what `recover`, `upkeep` or a claim of it found.
        """
        return DeadLetterCounts(self._core.store.take_quarantined(), self._core.upkeep.take_exhausted())

    def _take(self, limit: int, lease_seconds: float, longest_wait_seconds: float) -> list[Claim]:
        request = self._request(limit, lease_seconds, longest_wait_seconds)
        tasks = self._core.store.claim(request)
        self._note_skipped(request, short=len(tasks) < limit)
        return [Claim.of(task) for task in tasks]

    def _request(
        self, limit: int, lease_seconds: float, longest_wait_seconds: float = math.inf
    ) -> ClaimRequest:
        config = self._core.config
        return ClaimRequest(
            queue=self.name,
            orders=self._core.orders,
            turns=self._core.turns,
            limit=limit,
            tokens=[f"{config.worker_name}:{new_token()}" for _ in range(limit)],
            clock=self.now,
            lease_seconds=lease_seconds,
            max_age_seconds=config.max_age_seconds,
            reserve_seconds=self._core.reserve.seconds(self.now()),
            retention_seconds=config.retention_seconds,
            longest_wait_seconds=longest_wait_seconds,
        )

    def _note_skipped(self, request: ClaimRequest, *, short: bool) -> None:
        """Record live tasks that this claim would have taken but for the reserve."""
        reserve, seconds = self._core.reserve, request.reserve_seconds
        if not seconds:
            return
        moment = request.moment()
        if reserve.check_due(moment.now, seconds, short=short):
            created_after = moment.now - request.max_age_seconds
            oldest = self._core.store.oldest_created(self.name, moment.now, created_after)
            reserve.note_skipped(moment.now, seconds, oldest, created_after + seconds, short=short)


def _with_telemetry(core: Core, enter: Callable[[], HeldTask | None]) -> HeldTask | None:
    """Return what a transaction holds, and tell telemetry of it as of a claim."""
    found: list[HeldTask] = []

    def take() -> list[Claim]:
        found.extend(filter(None, [enter()]))
        return [work.as_claim() for work in found]

    core.guarded_telemetry.claim(core.name, take)
    return found[0] if found else None
