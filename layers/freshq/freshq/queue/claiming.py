"""Claiming tasks, and recovering those that are due."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from freshq.errors import LeaseLost, StoreError
from freshq.model.answers import Claim, held_task
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.lifecycle import new_token
from freshq.model.task import TaskStatus
from freshq.policy.shedding import MAX_CODEL_ROUNDS, ShedReason
from freshq.queue.core import Verbs
from freshq.queue.polling import poll
from freshq.stores.base import ClaimRequest, ConflictError, Guard
from freshq.stores.transactional import transactions_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq.model.task import Task
    from freshq.policy.order import OrderSwitch
    from freshq.stores.base import HeldTask

logger = logging.getLogger(__name__)

# Far more than one process can start at once; its lease record must fit into one item.
MAX_CLAIM: Final = 1000


class Claiming(Verbs):
    """Claims and recovers tasks."""

    def claim(self, limit: int = 1, lease_seconds: float | None = None) -> list[Claim]:
        """Claim tasks, in the queue's order.

        If fewer than `limit` are claimable, `recover` is called and the rest is claimed from what it
        returned to the lines.

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
        if self._core.store.paused(self.name):
            return []
        claims = self._claim(limit, lease_seconds)
        if len(claims) < limit:
            try:
                if self.recover():
                    claims += self._claim(limit - len(claims), lease_seconds)
            except StoreError:
                if not claims:
                    raise
                logger.warning("claimed only %d of %d tasks", len(claims), limit, exc_info=True)
        return claims

    def _checked_claim(self, limit: int, lease_seconds: float | None) -> float:
        """Check the arguments of a claim; return the length of its leases."""
        checked_count("limit", limit, at_most=MAX_CLAIM)
        if lease_seconds is None:
            return self.lease_seconds
        return checked_seconds("lease_seconds", lease_seconds, above_zero=True)

    def _claim(self, limit: int, lease_seconds: float) -> list[Claim]:
        """Claim tasks; shed those that CoDel sheds and claim again, for a bounded number of rounds."""
        kept: list[Claim] = []
        for _ in range(MAX_CODEL_ROUNDS):
            try:
                claims = self._take(limit - len(kept), lease_seconds)
            except StoreError:
                if not kept:
                    raise
                logger.warning("claimed only %d of %d tasks", len(kept), limit, exc_info=True)
                break
            doomed = [claim for claim in claims if self._core.codel.sheds(claim.task, claim.task.updated)]
            kept += [claim for claim in claims if claim not in doomed]
            if not doomed:
                break
            for claim in doomed:
                self._shed(claim, ShedReason.CODEL)
        return kept

    def _shed(self, claim: Claim, reason: ShedReason) -> None:
        """Settle a claim as SHED; if that fails, the task is recovered when its lease expires."""
        now = self.now()
        try:
            self._core.settle(claim, self._core.lifecycle.shed_claimed(held_task(claim), now, reason))
        except (LeaseLost, StoreError):
            logger.warning(
                "task %s could not be shed; it returns when its lease expires",
                claim.task.task_id,
                exc_info=True,
            )
        else:
            self._core.meter.shed_early(now, 1)

    def _shed_version(self, task: Task) -> Task | None:
        """Return the shed version of a task that was just claimed; None if it is to be run."""
        if not self._core.codel.sheds(task, task.updated):
            return None
        self._core.meter.shed_early(task.updated, 1)
        return self._core.lifecycle.shed_claimed(task, task.updated, ShedReason.CODEL)

    def poll(
        self, limit: int = 1, timeout_seconds: float | None = None, poll_seconds: float = 3.0
    ) -> list[Claim]:
        """Claim tasks; wait until there are some.

        Args:
            limit: Most claims to return.
            timeout_seconds: Stop waiting after this time; None: never.
            poll_seconds: Longest time between two looks for what other processes put.

        Returns:
            The claims; empty after the timeout.

        Raises:
            ValueError: If an argument is wrong.
            StoreError: If the store did not answer.
        """
        checked_seconds("poll_seconds", poll_seconds, above_zero=True)
        if timeout_seconds is not None:
            checked_seconds("timeout_seconds", timeout_seconds)
        return poll(lambda: self.claim(limit), self._core, timeout_seconds, poll_seconds)

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
        with transactions.hold(
            lambda: self._request(1, self.lease_seconds), self, self._shed_version
        ) as work:
            yield work
        if work is not None and work.settled is not None:
            self._core.served(Claim(work.task, "", 0.0), work.settled)

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
        return Claim(task, token, task.lease_until)

    def take_order_switches(self) -> list[OrderSwitch]:
        """Return the order switches seen by this process since the last call."""
        return self._core.orders.take_switches()

    def recover(self) -> int:
        """Return tasks with expired leases to their lines, and promote delayed tasks that are due.

        A task whose lease expires in its last attempt becomes a dead letter.

        Returns:
            How many tasks changed.

        Raises:
            StoreError: If the store did not answer.
        """
        moved = 0
        while due := self._core.store.due(self.name, self.now()):
            before = moved
            for task in due:
                moved += self._recover(task)
            if moved == before:
                break  # others recover the same tasks, or the index lags: the next call sees the rest
        return moved

    def _recover(self, task: Task) -> int:
        life = self._core.lifecycle
        changed = (life.recovered if task.status is TaskStatus.TAKEN else life.promoted)(task, self.now())
        try:
            self._core.store.replace(changed, Guard(task.status, request_token=task.request_token))
        except ConflictError:
            return 0
        return 1

    def _take(self, limit: int, lease_seconds: float) -> list[Claim]:
        request = self._request(limit, lease_seconds)
        tasks = self._core.store.claim(request)
        reserve_seconds = request.deadline_after - request.now
        self._note_skipped(request, reserve_seconds, short=len(tasks) < limit)
        return [Claim(task, task.lease_token or "", request.lease_until) for task in tasks]

    def _request(self, limit: int, lease_seconds: float) -> ClaimRequest:
        now = self.now()
        lease_until = round(now + lease_seconds, 6)
        reserve_seconds = self._core.reserve.seconds(now)
        return ClaimRequest(
            queue=self.name,
            orders=self._core.orders,
            turns=self._core.turns,
            limit=limit,
            now=now,
            created_after=now - self._core.config.max_age_seconds + reserve_seconds,
            deadline_after=now + reserve_seconds,
            lease_until=lease_until,
            # Later than the lease and any deadline that a claimed task can have.
            expires=self._core.lifecycle.expires(max(lease_until, now + self._core.config.max_age_seconds)),
            tokens=[f"{self._core.config.worker_name}:{new_token()}" for _ in range(limit)],
        )

    def _note_skipped(self, request: ClaimRequest, reserve_seconds: float, *, short: bool) -> None:
        """Record live tasks that this claim would have taken but for the reserve."""
        reserve = self._core.reserve
        if reserve.look_due(request.now, reserve_seconds, short=short):
            live_after = request.now - self._core.config.max_age_seconds
            oldest = self._core.store.oldest_created(self.name, live_after)
            reserve.note_skipped(request.now, reserve_seconds, oldest, request.created_after, short=short)
